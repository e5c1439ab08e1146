// Toasts: short messages about finished actions, with undo where that is possible.

import { useEffect, useState } from "preact/hooks";

import { reason } from "../messages";
import { texts } from "../texts";
import { Icon } from "./icons";

export interface Toast {
  text: string;
  isBad?: boolean;
  /** Undoes the action, and returns a message about that. Offered for ten seconds. */
  undo?: () => Promise<string>;
  /** Executes an action at once that could still be undone. */
  now?: () => void;
}

const SHOWN_MS = 6_000;
const SHOWN_BAD_MS = 15_000;
export const UNDO_MS = 10_000;
const MOST = 4;

interface Shown extends Toast {
  id: number;
}

let say: (toast: Shown) => void = () => undefined;
let count = 0;

export function toast(wanted: Toast): void {
  count += 1;
  say({ ...wanted, id: count });
}

/** Show a message about the outcome of an action. */
export function tell(text: string, isBad = false): void {
  toast({ text, isBad });
}

/** Run an action; show its error if it fails. */
export async function attempt(work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    tell(reason(error), true);
  }
}

/** The place for toasts, once in the page. */
export function Toasts() {
  const [shown, setShown] = useState<Shown[]>([]);
  const drop = (id: number) => setShown((before) => before.filter((one) => one.id !== id));
  useEffect(() => {
    say = (one) => {
      setShown((before) => [...before.slice(1 - MOST), one]);
      setTimeout(() => drop(one.id), one.isBad ? SHOWN_BAD_MS : one.undo ? UNDO_MS : SHOWN_MS);
    };
  }, []);
  function takeBack(one: Shown): void {
    drop(one.id);
    void attempt(async () => tell(await one.undo!()));
  }
  return (
    <div class="toasts" role="status" aria-live="polite">
      {shown.map((one) => (
        <p key={one.id} class={one.isBad ? "toast bad" : "toast"}>
          <span>{one.text}</span>
          {one.now && (
            <button
              type="button"
              class="plain"
              onClick={() => {
                drop(one.id);
                one.now!();
              }}
            >
              {texts.common.now}
            </button>
          )}
          {one.undo && (
            <button type="button" class="plain" onClick={() => takeBack(one)}>
              {texts.common.undo}
            </button>
          )}
          <button type="button" class="plain icon-only" aria-label={texts.common.dismiss} onClick={() => drop(one.id)}>
            <Icon name="x" size={14} />
          </button>
        </p>
      ))}
    </div>
  );
}
