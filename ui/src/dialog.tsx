// Asking before something is done, and telling how it went.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { Problem } from "./api";
import { refreshAll } from "./live";

export interface Ask {
  title: string;
  /** Says what will happen. */
  body: ComponentChildren;
  verb: string;
  isGrave?: boolean;
  /** Does it, and returns what to say of it. */
  act: () => Promise<string>;
}

interface Told {
  text: string;
  isBad: boolean;
  id: number;
}

let show: (ask: Ask | null) => void = () => undefined;
let say: (told: Told) => void = () => undefined;
let count = 0;

export function ask(wanted: Ask): void {
  show(wanted);
}

export function tell(text: string, isBad = false): void {
  count += 1;
  say({ text, isBad, id: count });
}

/** Do something that needs no question, and tell how it went. */
export async function act(work: () => Promise<string>): Promise<void> {
  try {
    tell(await work());
  } catch (error) {
    tell(reason(error), true);
  }
  refreshAll();
}

export function reason(error: unknown): string {
  if (error instanceof Problem) return error.code ? `${error.message} (${error.code})` : error.message;
  return error instanceof Error ? error.message : String(error);
}

/** Where questions and answers appear; once in the page. */
export function Dialogs() {
  const [wanted, setWanted] = useState<Ask | null>(null);
  const [told, setTold] = useState<Told[]>([]);
  useEffect(() => {
    show = setWanted;
    say = (one) => {
      setTold((before) => [...before.slice(-3), one]);
      setTimeout(() => setTold((before) => before.filter((other) => other.id !== one.id)), one.isBad ? 15000 : 6000);
    };
  }, []);
  return (
    <>
      {wanted && <Question key={wanted.title} wanted={wanted} close={() => setWanted(null)} />}
      <div class="toasts" role="status" aria-live="polite">
        {told.map((one) => (
          <p key={one.id} class={one.isBad ? "toast bad" : "toast"}>
            <span>{one.text}</span>
            <button type="button" class="plain" aria-label="Dismiss" onClick={() => setTold((all) => all.filter((other) => other !== one))}>
              ×
            </button>
          </p>
        ))}
      </div>
    </>
  );
}

function Question({ wanted, close }: { wanted: Ask; close: () => void }) {
  const box = useRef<HTMLDialogElement>(null);
  const [isBusy, setBusy] = useState(false);
  const [wrong, setWrong] = useState("");
  useEffect(() => box.current?.showModal(), []);

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    setBusy(true);
    setWrong("");
    try {
      tell(await wanted.act());
      close();
    } catch (error) {
      setWrong(reason(error));
      setBusy(false);
    }
    refreshAll();
  }

  return (
    <dialog ref={box} onClose={close} aria-labelledby="question">
      <form onSubmit={submit}>
        <h2 id="question">{wanted.title}</h2>
        <div class="body">{wanted.body}</div>
        {wrong && (
          <p class="wrong" role="alert">
            {wrong}
          </p>
        )}
        <footer>
          <button type="button" onClick={close}>
            Not now
          </button>
          <button type="submit" class={wanted.isGrave ? "grave" : "main"} disabled={isBusy}>
            {isBusy ? "…" : wanted.verb}
          </button>
        </footer>
      </form>
    </dialog>
  );
}
