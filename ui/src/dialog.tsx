// Confirmation dialogs, and the messages after an action.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { type Toast, Toasts, attempt, toast } from "./components/toast";
import { refreshAll } from "./live";
import { codeOf, reason } from "./messages";
import { Code } from "./parts";
import { texts } from "./texts";

export { attempt, tell } from "./components/toast";
export { reason } from "./messages";

export interface Ask {
  title: string;
  /** Says what will happen. */
  body: ComponentChildren;
  verb: string;
  isGrave?: boolean;
  /** The label of the button that closes the dialog, if "Cancel" could mean the action itself. */
  dismiss?: string;
  /** Executes the action. Returns the message to show, with an undo if there is one. */
  act: () => Promise<string | Toast>;
}

let show: (ask: Ask | null) => void = () => undefined;

export function ask(wanted: Ask): void {
  show(wanted);
}

/** Execute an action that needs no confirmation, and show its outcome. */
export async function act(work: () => Promise<string | Toast>): Promise<void> {
  await attempt(async () => report(await work()));
  refreshAll();
}

function report(done: string | Toast): void {
  toast(typeof done === "string" ? { text: done } : done);
}

/** The place for dialogs and their outcomes, once in the page. */
export function Dialogs() {
  const [wanted, setWanted] = useState<Ask | null>(null);
  useEffect(() => {
    show = setWanted;
  }, []);
  return (
    <>
      {wanted && <Question key={wanted.title} wanted={wanted} close={() => setWanted(null)} />}
      <Toasts />
    </>
  );
}

function Question({ wanted, close }: { wanted: Ask; close: () => void }) {
  const box = useRef<HTMLDialogElement>(null);
  const [isBusy, setBusy] = useState(false);
  const [wrong, setWrong] = useState<{ text: string; code: string } | null>(null);
  useEffect(() => box.current?.showModal(), []);

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    setBusy(true);
    setWrong(null);
    try {
      report(await wanted.act());
      close();
    } catch (error) {
      setWrong({ text: reason(error), code: codeOf(error) });
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
          <div class="wrong" role="alert">
            {wrong.text}
            {wrong.code && <Code code={wrong.code} />}
          </div>
        )}
        <footer>
          <button type="button" onClick={close}>
            {wanted.dismiss ?? texts.common.cancel}
          </button>
          <button type="submit" class={wanted.isGrave ? "grave" : "main"} disabled={isBusy}>
            {wanted.verb}
          </button>
        </footer>
      </form>
    </dialog>
  );
}
