// Delayed actions: they are executed after ten seconds unless undone.

import { UNDO_MS, type Toast } from "./components/toast";
import { act } from "./dialog";
import { texts } from "./texts";

/**
 * Do something in ten seconds. Until then it can be undone, because nothing has happened yet.
 * If the page is closed first, it is done at once with `isLeaving`, and its result is not shown.
 */
export function later(text: string, work: (isLeaving: boolean) => Promise<string>): Toast {
  let isSettled = false;
  function settle(): boolean {
    if (isSettled) return false;
    isSettled = true;
    clearTimeout(timer);
    removeEventListener("pagehide", leave);
    return true;
  }
  const start = () => void (settle() && act(() => work(false)));
  const leave = () => void (settle() && work(true).catch(() => undefined));
  const timer = setTimeout(start, UNDO_MS);
  addEventListener("pagehide", leave);
  return {
    text,
    now: start,
    undo: () => (settle() ? Promise.resolve(texts.common.undone) : Promise.reject(new Error(texts.common.tooLate))),
  };
}
