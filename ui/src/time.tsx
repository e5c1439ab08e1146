// Times: relative, or in the user's time zone, with UTC in the tooltip.

import { useEffect, useState } from "preact/hooks";

import { currentMode } from "./live";
import { texts } from "./texts";

export type Zone = "local" | "utc";

export const HOUR_MS = 3_600_000;
export const DAY_MS = 24 * HOUR_MS;

const KEY = "aioflow.zone";
const listeners = new Set<() => void>();

function tick(): void {
  for (const told of listeners) told();
}

// What is shown while the daemon is away is older, and does not grow.
setInterval(() => {
  if (!document.hidden && currentMode() !== "away") tick();
}, 1000);
document.addEventListener("visibilitychange", () => document.hidden || tick());

export const ownZone = (): string => Intl.DateTimeFormat().resolvedOptions().timeZone;

export const zone = (): Zone => (localStorage.getItem(KEY) === "utc" ? "utc" : "local");

export const isUtc = (): boolean => zone() === "utc";

export function setZone(wanted: Zone): void {
  if (wanted === "local") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, wanted);
  tick();
}

/** The zone in which the page shows times. */
export const zoneName = (): string => (isUtc() ? "UTC" : ownZone());

/** The zone in which the page shows times, also after the reader chose another one. */
export function useZoneName(): string {
  const [name, setName] = useState(zoneName);
  useEffect(() => {
    const told = () => setName(zoneName());
    listeners.add(told);
    return () => void listeners.delete(told);
  }, []);
  return name;
}

/** Now, each second. */
export function useNow(isTicking = true): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!isTicking) return undefined;
    const told = () => setNow(Date.now());
    listeners.add(told);
    return () => void listeners.delete(told);
  }, [isTicking]);
  return isTicking ? now : Date.now();
}

export function millis(at: string | null | undefined): number | null {
  if (!at) return null;
  const found = Date.parse(at.replace(/(\.\d{3})\d*/, "$1"));
  return Number.isNaN(found) ? null : found;
}

/** A time as the API expects it. */
export const instant = (at: number): string => new Date(at).toISOString().replace(".000Z", "Z");

const UNITS: [number, string][] = [
  [86400, "d"],
  [3600, "h"],
  [60, "m"],
];

/** 75.4 seconds as "1m 15s": rounded to two units at most; `hasBoth`: to two also where the second one is 0, as in "29m 0s". */
export function span(ms: number, hasBoth = false): string {
  const seconds = Math.abs(ms) / 1000;
  if (seconds < 0.001) return "<1ms";
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)}ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)}s`;
  if (seconds < 59.5) return `${Math.round(seconds)}s`;
  for (const [index, [size, unit]] of UNITS.entries()) {
    const [smaller, name] = UNITS[index + 1] ?? [1, "s"];
    // Below a day it is rounded to a minute, below an hour to a second.
    const finer = UNITS[index + 2]?.[0] ?? 1;
    if (Math.round(seconds / finer) * finer < size) continue;
    const all = Math.round(seconds / smaller);
    const count = Math.floor((all * smaller) / size);
    const rest = all - (count * size) / smaller;
    return rest > 0 || hasBoth ? `${count}${unit} ${rest}${name}` : `${count}${unit}`;
  }
  return "";
}

/** In its largest unit, rounded, where there is no room for two. */
export function briefSpan(ms: number): string {
  const seconds = Math.abs(ms) / 1000;
  const [size, unit] = UNITS.find(([one]) => Math.round(seconds / one) >= 1 && seconds >= 0.9917 * one) ?? [0, ""];
  return size === 0 ? span(ms) : `${Math.round(seconds / size)}${unit}`;
}

/** What is counted as it grows: in whole seconds, so that it does not flicker. */
export function whole(ms: number): string {
  const seconds = Math.floor(Math.max(0, ms) / 1000);
  return seconds < 60 ? `${seconds}s` : span(seconds * 1000, true);
}

const ROUGH_MS = 600_000;

/** As far as it matters: from ten minutes on, seconds do not. */
const rough = (ms: number): string => (ms >= ROUGH_MS && ms < HOUR_MS ? `${Math.floor(ms / 60_000)}m` : whole(ms));

export function ago(at: number, now: number): string {
  const gone = now - at;
  if (Math.abs(gone) < 1000) return gone < 0 ? "now" : "just now";
  return gone > 0 ? `${rough(gone)} ago` : `in ${rough(-gone)}`;
}

const formats = new Map<string, Intl.DateTimeFormat>();

function clock(at: number, timeZone: string): string {
  let format = formats.get(timeZone);
  if (!format) {
    // The one locale whose dates sort: 2026-01-31 03:00:00.
    format = new Intl.DateTimeFormat("sv-SE", { timeZone, dateStyle: "short", timeStyle: "medium" });
    formats.set(timeZone, format);
  }
  return format.format(at);
}

/** By the clock of who reads, or by UTC for who chose that. */
export function local(at: string | null | undefined): string {
  const found = millis(at);
  return found === null ? "" : clock(found, isUtc() ? "UTC" : ownZone());
}

export function utc(at: string | null | undefined): string {
  const found = millis(at);
  return found === null ? "" : `${clock(found, "UTC")} UTC`;
}

const UTC_NAMES = ["UTC", "Etc/UTC", "GMT"];

/** By both clocks, for a tooltip. */
export function instants(at: string | null | undefined): string {
  return UTC_NAMES.includes(ownZone()) || isUtc() ? utc(at) : `${local(at)} ${ownZone()}\n${utc(at)}`;
}

/** By the minute where it has no seconds: a logical date mostly has none. */
export function shortTime(at: string | null | undefined): string {
  return local(at).replace(/:00$/, "") || "–";
}

/** From a day to a day; with the time where it does not begin or end with one. */
export function Range({ first, last }: { first: string; last: string }) {
  const text = `${local(first).replace(/ 00:00:00$/, "")} to ${local(last).replace(/ (23:59:59|00:00:00)$/, "")}`;
  return <span title={`${instants(first)}\nto ${instants(last)}`}>{text}</span>;
}

export function When({ at, none = "–" }: { at: string | null | undefined; none?: string }) {
  const found = millis(at);
  const now = useNow(found !== null);
  if (found === null) return <span class="soft">{none}</span>;
  return (
    <time dateTime={at ?? ""} title={instants(at)}>
      {ago(found, now)}
    </time>
  );
}

/** When something is done again; what is late by a moment is done now. */
export function Next({ at }: { at: string | null | undefined }) {
  const found = millis(at);
  const now = useNow(found !== null);
  return found !== null && found <= now ? <span title={instants(at)}>now</span> : <When at={at} />;
}

/** An instant by two clocks: by UTC, and by that of the DAG or, if that is UTC, of who reads. */
export function Both({ at, zone }: { at: string; zone: string }) {
  const found = millis(at);
  if (found === null) return null;
  const other = UTC_NAMES.includes(zone) ? ownZone() : zone;
  // By the minute: the tooltip has the seconds.
  const [first, second] = [clock(found, "UTC").slice(0, 16), clock(found, other).slice(0, 16)];
  const isSameDay = first.slice(0, 10) === second.slice(0, 10);
  return (
    <time dateTime={at} title={instants(at)}>
      {first} UTC{!UTC_NAMES.includes(other) && ` (${isSameDay ? second.slice(11) : second} ${other})`}
    </time>
  );
}

/** An instant by the clock, with the name of the zone where it is read on its own. */
export function At({ at, none = "–", hasZone }: { at: string | null | undefined; none?: string; hasZone?: boolean }) {
  if (millis(at) === null) return <span class="soft">{none}</span>;
  return (
    <time dateTime={at ?? ""} title={instants(at)}>
      {shortTime(at)}
      {hasZone && ` ${zoneName()}`}
    </time>
  );
}

interface TookProps {
  from: string | null | undefined;
  to: string | null | undefined;
  /** Where no name says so: "so far" behind the time of what continues. */
  isNamed?: boolean;
}

/** How long something took, or has taken so far. */
export function Took({ from, to, isNamed }: TookProps) {
  const begun = millis(from);
  const ended = millis(to);
  const now = useNow(begun !== null && ended === null);
  if (begun === null) return <span class="soft">–</span>;
  const title = `from ${instants(from)}${ended === null ? "" : `\nto ${instants(to)}`}`;
  return (
    <span class="took" title={title}>
      {ended === null ? whole(now - begun) : span(Math.max(0, ended - begun), true)}
      {isNamed && ended === null && <span class="soft"> {texts.common.soFar}</span>}
    </span>
  );
}
