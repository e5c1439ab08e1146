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

// While the daemon is away, the times that are shown do not advance.
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

/** Return the time zone in which the page shows times. */
export const zoneName = (): string => (isUtc() ? "UTC" : ownZone());

/** Return that time zone, and render again when the user chooses another one. */
export function useZoneName(): string {
  const [name, setName] = useState(zoneName);
  useEffect(() => {
    const told = () => setName(zoneName());
    listeners.add(told);
    return () => void listeners.delete(told);
  }, []);
  return name;
}

/** Return the current time, each second. */
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

/** Return a time as the API expects it. */
export const instant = (at: number): string => new Date(at).toISOString().replace(".000Z", "Z");

const UNITS: [number, string][] = [
  [86400, "d"],
  [3600, "h"],
  [60, "m"],
];

/** Return "1m 15s" for 75.4 seconds, rounded to two units at most. With `hasBoth`, the second may be 0: "29m 0s". */
export function span(ms: number, hasBoth = false): string {
  const seconds = Math.abs(ms) / 1000;
  if (seconds < 0.001) return "<1ms";
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)}ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)}s`;
  if (seconds < 59.5) return `${Math.round(seconds)}s`;
  for (const [index, [size, unit]] of UNITS.entries()) {
    const [smaller, name] = UNITS[index + 1] ?? [1, "s"];
    // A duration below a day is rounded to a minute, below an hour to a second.
    const finer = UNITS[index + 2]?.[0] ?? 1;
    if (Math.round(seconds / finer) * finer < size) continue;
    const all = Math.round(seconds / smaller);
    const count = Math.floor((all * smaller) / size);
    const rest = all - (count * size) / smaller;
    return rest > 0 || hasBoth ? `${count}${unit} ${rest}${name}` : `${count}${unit}`;
  }
  return "";
}

/** Return a duration in its largest unit, rounded, for places without room for two. */
export function briefSpan(ms: number): string {
  const seconds = Math.abs(ms) / 1000;
  const [size, unit] = UNITS.find(([one]) => Math.round(seconds / one) >= 1 && seconds >= 0.9917 * one) ?? [0, ""];
  return size === 0 ? span(ms) : `${Math.round(seconds / size)}${unit}`;
}

/** Return a growing duration in whole seconds, so that it does not flicker. */
export function whole(ms: number): string {
  const seconds = Math.floor(Math.max(0, ms) / 1000);
  return seconds < 60 ? `${seconds}s` : span(seconds * 1000, true);
}

const ROUGH_MS = 600_000;

/** Return a duration without seconds from ten minutes on. */
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
    // The locale with sortable dates: 2026-01-31 03:00:00.
    format = new Intl.DateTimeFormat("sv-SE", { timeZone, dateStyle: "short", timeStyle: "medium" });
    formats.set(timeZone, format);
  }
  return format.format(at);
}

/** Format a time in the user's time zone, or in UTC if the user chose that. */
export function local(at: string | null | undefined): string {
  const found = millis(at);
  return found === null ? "" : clock(found, isUtc() ? "UTC" : ownZone());
}

export function utc(at: string | null | undefined): string {
  const found = millis(at);
  return found === null ? "" : `${clock(found, "UTC")} UTC`;
}

const UTC_NAMES = ["UTC", "Etc/UTC", "GMT"];

/** Format a time in both zones, for a tooltip. */
export function instants(at: string | null | undefined): string {
  return UTC_NAMES.includes(ownZone()) || isUtc() ? utc(at) : `${local(at)} ${ownZone()}\n${utc(at)}`;
}

/** Format a time without seconds if they are 0, as in most logical dates. */
export function shortTime(at: string | null | undefined): string {
  return local(at).replace(/:00$/, "") || "–";
}

/** A range of days; with times if it does not begin and end with a day. */
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

/** When something is done next. If it is late by a moment, it is done now. */
export function Next({ at }: { at: string | null | undefined }) {
  const found = millis(at);
  const now = useNow(found !== null);
  return found !== null && found <= now ? <span title={instants(at)}>now</span> : <When at={at} />;
}

/** A time in two zones: UTC, and the DAG's or, if that is UTC, the user's. */
export function Both({ at, zone }: { at: string; zone: string }) {
  const found = millis(at);
  if (found === null) return null;
  const other = UTC_NAMES.includes(zone) ? ownZone() : zone;
  // Without seconds, which are in the tooltip.
  const [first, second] = [clock(found, "UTC").slice(0, 16), clock(found, other).slice(0, 16)];
  const isSameDay = first.slice(0, 10) === second.slice(0, 10);
  return (
    <time dateTime={at} title={instants(at)}>
      {first} UTC{!UTC_NAMES.includes(other) && ` (${isSameDay ? second.slice(11) : second} ${other})`}
    </time>
  );
}

/** A time. With `hasZone`, the name of the zone follows, for places that do not show it otherwise. */
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
  /** Whether "so far" follows the duration of what is not over, for places whose label does not say so. */
  isNamed?: boolean;
}

/** The duration of something, or its duration so far. */
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
