// Debouncing of typed text.

import { useEffect, useState } from "preact/hooks";

/** Return a text once typing has paused for `ms` milliseconds, and a function that sets it at once. */
export function useTyped(text: string, ms: number): [string, (text: string) => void] {
  const [typed, setTyped] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setTyped(text), ms);
    return () => clearTimeout(timer);
  }, [text]);
  return [typed, setTyped];
}
