// A time range: a preset, or a start and an end.

import { useEffect, useState } from "preact/hooks";

import { texts } from "../texts";
import { HOUR_MS, instant, isUtc, local } from "../time";

/** Bounds as the API expects them. An empty bound is open. */
export interface TimeRange {
  from: string;
  to: string;
}

const USUAL: [string, number][] = [
  ["1h", 1],
  ["24h", 24],
  ["7d", 24 * 7],
  ["30d", 24 * 30],
];

/** Return the value of a datetime-local input, in the user's time zone. */
const shown = (at: string): string => (at === "" ? "" : local(at).replace(" ", "T").slice(0, 16));

/** Return the bound that the text of such an input stands for. */
function boundOf(text: string): string {
  if (text === "") return "";
  const at = Date.parse(isUtc() ? `${text}Z` : text);
  return Number.isNaN(at) ? "" : instant(at);
}

export function DateRange({ value, onValue, label = texts.dates.label }: { value: TimeRange; onValue: (range: TimeRange) => void; label?: string }) {
  const usual = value.from === "" && value.to === "" ? "all" : (USUAL.find(([key]) => value.from === `-${key}` && value.to === "")?.[0] ?? "own");
  const [isOwn, setOwn] = useState(usual === "own");
  useEffect(() => setOwn(usual === "own"), [usual]);
  function choose(key: string): void {
    setOwn(key === "own");
    if (key === "all") onValue({ from: "", to: "" });
    else if (key !== "own") onValue({ from: `-${key}`, to: "" });
    else onValue(resolved(value));
  }
  const { from, to } = resolved(value);
  return (
    <span class="date-range" role="group" aria-label={label}>
      <select aria-label={label} value={isOwn ? "own" : usual} onChange={(event) => choose(event.currentTarget.value)}>
        <option value="all">{texts.dates.all}</option>
        {USUAL.map(([key]) => (
          <option key={key} value={key}>
            {texts.dates.usual[key as keyof typeof texts.dates.usual]}
          </option>
        ))}
        <option value="own">{texts.dates.own}</option>
      </select>
      {isOwn && (
        <>
          <input type="datetime-local" aria-label={texts.dates.from} value={shown(from)} max={shown(to) || undefined} onChange={(event) => onValue({ from: boundOf(event.currentTarget.value), to })} />
          <span class="soft">{texts.dates.until}</span>
          <input type="datetime-local" aria-label={texts.dates.to} value={shown(to)} min={shown(from) || undefined} onChange={(event) => onValue({ from, to: boundOf(event.currentTarget.value) })} />
        </>
      )}
    </span>
  );
}

/** Resolve a relative start ("-24h" is the last day) to absolute times. */
export function resolved({ from, to }: TimeRange, now = Date.now()): TimeRange {
  const hours = USUAL.find(([key]) => from === `-${key}`)?.[1];
  if (hours === undefined) return { from, to };
  return { from: new Date(now - hours * HOUR_MS).toISOString().replace(/\.\d{3}Z$/, "Z"), to };
}
