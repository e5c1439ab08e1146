// Instants as people read them: relative, with UTC on hover.

import { useEffect, useState } from "preact/hooks";

const listeners = new Set<() => void>();
setInterval(() => {
  if (!document.hidden) for (const told of listeners) told();
}, 1000);

/** Now, each second. */
export function useNow(isTicking = true): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!isTicking) return undefined;
    const tick = () => setNow(Date.now());
    listeners.add(tick);
    return () => void listeners.delete(tick);
  }, [isTicking]);
  return isTicking ? Math.max(now, 0) : Date.now();
}

export function millis(at: string | null | undefined): number | null {
  if (!at) return null;
  const found = Date.parse(at.replace(/(\.\d{3})\d*/, "$1"));
  return Number.isNaN(found) ? null : found;
}

const UNITS: [number, string][] = [
  [86400, "d"],
  [3600, "h"],
  [60, "m"],
];

/** 75 s as "1m 15s": two units at most. */
export function span(ms: number): string {
  const seconds = Math.abs(ms) / 1000;
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  for (const [index, [size, unit]] of UNITS.entries()) {
    if (seconds < size) continue;
    const count = Math.floor(seconds / size);
    const [smaller, name] = UNITS[index + 1] ?? [1, "s"];
    const rest = Math.floor((seconds - count * size) / smaller);
    return rest > 0 ? `${count}${unit} ${rest}${name}` : `${count}${unit}`;
  }
  return "";
}

export function ago(at: number, now: number): string {
  const gone = now - at;
  if (Math.abs(gone) < 1000) return "now";
  return gone > 0 ? `${span(Math.floor(gone / 1000) * 1000)} ago` : `in ${span(Math.floor(-gone / 1000) * 1000)}`;
}

export function utc(at: string | null | undefined): string {
  const found = millis(at);
  return found === null ? "" : `${new Date(found).toISOString().replace("T", " ").slice(0, 19)} UTC`;
}

export function When({ at, none = "–" }: { at: string | null | undefined; none?: string }) {
  const found = millis(at);
  const now = useNow(found !== null);
  if (found === null) return <span class="soft">{none}</span>;
  return (
    <time dateTime={at ?? ""} title={utc(at)}>
      {ago(found, now)}
    </time>
  );
}

/** How long something took, or has taken so far. */
export function Took({ from, to }: { from: string | null | undefined; to: string | null | undefined }) {
  const begun = millis(from);
  const ended = millis(to);
  const now = useNow(begun !== null && ended === null);
  if (begun === null) return <span class="soft">–</span>;
  const title = `${utc(from)} – ${ended === null ? "now" : utc(to)}`;
  const long = Math.max(0, (ended ?? now) - begun);
  return <span title={title}>{span(ended === null ? Math.floor(long / 1000) * 1000 : long)}</span>;
}

/** A logical date: by the minute where it has no seconds. */
export function slot(at: string | null): string {
  return at === null ? "–" : at.replace("T", " ").replace(/:00(\.0+)?Z$/, "").replace(/Z$/, "");
}
