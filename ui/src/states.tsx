// State colours and shapes. The shape alone identifies a state.

import type { ComponentChildren } from "preact";

import { count, stateName, texts } from "./texts";
import type { Counts, Pool } from "./types";

const WAITING = "waiting";
/** The states of a waiting task, for which the page has one name. */
const WAITS = ["sensing", "deferred"];

/** The states of tasks as the page names them. */
export const TASK_ORDER = ["success", "skipped", "failed", "upstream_failed", "cancelled", "removed", "running", "retrying", WAITING, "queued", "pending"];

/** Whether tasks in a state wait. */
export const isWait = (state: string): boolean => WAITS.includes(state);

/** Return the page's name of a task's state. */
const shownAs = (state: string): string => (isWait(state) ? WAITING : state);

/** Return the states that have this name on the page. */
export const statesOf = (shown: string): string[] => (shown === WAITING ? WAITS : [shown]);

const LIVE = new Set(["pending", "queued", "running", "sensing", "deferred", "retrying"]);

export const isLive = (state: string): boolean => LIVE.has(state);

/** Return how many tasks are queued for a worker. Tasks that are queued for a pool do not count. */
export const queuedForWorkers = (states: Counts, pools: readonly Pool[]): number => Math.max(0, (states["queued"] ?? 0) - pools.reduce((all, pool) => all + (pool.queued ?? 0), 0));

/** Return the state of a number of tasks as text: "9 succeeded". */
const counted = (state: string, some: number): string => `${count(some)} ${texts.counted[state] ?? named(state)}`;

export const named = (state: string): string => shownAs(state).replaceAll("_", " ");

/** Return the state of a run for every view: "running" only if one of its tasks runs, or is about to. */
export const runState = ({ state, is_waiting: waits }: { state: string; is_waiting?: boolean }): string => (state === "running" && waits ? "waiting" : state);

/** Return the same for a run with the counts of its tasks. */
export function countedState(state: string, counts: Counts): string {
  const waits = !counts["running"] && !counts["queued"] && !!(counts["sensing"] || counts["deferred"] || counts["retrying"]);
  return runState({ state, is_waiting: waits });
}

const fill = (d: string) => <path d={d} fill="currentColor" stroke="none" />;
const cut = (d: string) => <path d={d} stroke="var(--surface)" stroke-width="1.8" />;
const ring = (dash?: string) => <circle cx="8" cy="8" r="5.6" stroke-dasharray={dash} />;
const disc = () => <circle cx="8" cy="8" r="6.6" fill="currentColor" stroke="none" />;

/** Functions, because an element shared by several glyphs would keep every view with it in memory. */
const SHAPES: Record<string, () => ComponentChildren> = {
  success: () => [disc(), cut("M4.8 8.2 7.1 10.6 11.3 5.8")],
  done: () => [disc(), cut("M4.8 8.2 7.1 10.6 11.3 5.8")],
  failed: () => [fill("M5 1h6l4 4v6l-4 4H5l-4-4V5z"), cut("M5.4 5.4l5.2 5.2M10.6 5.4l-5.2 5.2")],
  damaged: () => [ring("2 2"), cut("M5.4 5.4l5.2 5.2M10.6 5.4l-5.2 5.2")],
  partial: () => [ring(), fill("M8 2.4a5.6 5.6 0 0 1 0 11.2z")],
  upstream_failed: () => [fill("M8 1.2 15.4 14.4H.6z"), cut("M8 5.6v4.2M8 11.4v1.2")],
  running: () => [ring(), fill("M6.2 5 11.4 8 6.2 11z")],
  waiting: () => [<path d="M4 1.8h8M4 14.2h8M4.8 2c0 3.4 2.4 4.4 3.2 6 .8-1.6 3.2-2.6 3.2-6M4.8 14c0-3.4 2.4-4.4 3.2-6 .8 1.6 3.2 2.6 3.2 6" />],
  retrying: () => [<path d="M13.2 8a5.2 5.2 0 1 1-1.7-3.9" />, fill("M13.9 1.4v4.4H9.5z")],
  queued: () => [ring(), <path d="M8 5v3.2l2.2 1.4" />],
  pending: () => [ring("1.6 2.2")],
  skipped: () => [<path d="M2.6 3.6 7 8l-4.4 4.4M8.6 3.6 13 8l-4.4 4.4" />],
  cancelled: () => [ring(), <path d="M4.2 11.8 11.8 4.2" />],
  removed: () => [<rect x="2.6" y="2.6" width="10.8" height="10.8" stroke-dasharray="2.4 2" />, <path d="M5 8h6" />],
  paused: () => [ring(), <path d="M6.4 5.6v4.8M9.6 5.6v4.8" />],
  task: () => [<rect x="3.4" y="3.4" width="9.2" height="9.2" rx="2" />],
  sensor: () => [<path d="M1.4 8C3.6 4.2 12.4 4.2 14.6 8 12.4 11.8 3.6 11.8 1.4 8z" />, <circle cx="8" cy="8" r="2.1" />],
  mixed: () => [<path d="M2 4h12M2 8h12M2 12h12" />],
};

export function Glyph({ state, size = 14 }: { state: string; size?: number }) {
  return (
    <svg
      class={`glyph s-${state}`}
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      stroke-width="1.6"
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      {(SHAPES[shownAs(state)] ?? ring)()}
    </svg>
  );
}

export function State({ state, name, meaning }: { state: string; name?: string; meaning?: string }) {
  return (
    <span class={`state s-${state}`} title={meaning ?? texts.meanings[state]}>
      <Glyph state={state} />
      <span>{name ?? stateName(state)}</span>
    </span>
  );
}

/** Return the counts by the page's names of the states. */
export function byName(counts: Counts): Counts {
  const found: Counts = {};
  for (const [state, some] of Object.entries(counts)) found[shownAs(state)] = (found[shownAs(state)] ?? 0) + some;
  return found;
}

/** Return the states that occur, by name, in the order of the bar. */
export function ordered(all: Counts): [string, number][] {
  const counts = byName(all);
  const known = TASK_ORDER.filter((state) => counts[state]).map((state): [string, number] => [state, counts[state] ?? 0]);
  const others = Object.entries(counts).filter(([state, count]) => count && !TASK_ORDER.includes(state));
  return [...known, ...others];
}

/** Return one state for many: failures first, then active states, then ended ones. */
export function worst(counts: Counts): string {
  const order = ["failed", "upstream_failed", "running", "retrying", "sensing", "deferred", "queued"];
  const found = order.find((state) => counts[state]);
  if (found) return found;
  const rest = ordered(counts);
  if (rest.length === 1) return rest[0]![0];
  // Some have ended and others have yet to start, so the whole is running.
  return counts["pending"] ? "running" : counts["success"] ? "success" : (rest[0]?.[0] ?? "pending");
}

export const sum = (counts: Counts): number => Object.values(counts).reduce((all, count) => all + count, 0);

export const ended = (counts: Counts): number =>
  Object.entries(counts).reduce((all, [state, count]) => (isLive(state) ? all : all + count), 0);

/** Return how many have ended, and how many of these have failed, as text. */
export const endedOf = (counts: Counts): string => texts.common.ended(ended(counts), sum(counts), counts.failed ?? 0);

/** Return the counts of ended states, so that a bar shows how much is done. */
export const endedParts = (counts: Counts): [string, number][] => ordered(counts).filter(([state]) => !isLive(state) && state !== WAITING);

/** A bar that shows how many have ended, and in which states. */
export function Bar({ counts, label }: { counts: Counts; label?: string }) {
  const all = sum(counts);
  const text = ordered(counts)
    .map(([state, some]) => counted(state, some))
    .join(", ");
  return (
    <span class="bar" role="img" aria-label={`${label ? `${label}: ` : ""}${text || "no tasks"}`} title={text}>
      {endedParts(counts).map(([state, count]) => (
        <i key={state} class={`b-${state}`} style={{ width: `${(100 * count) / all}%` }} />
      ))}
    </span>
  );
}

interface UsageProps {
  used: number;
  all: number;
  /** How many tasks are queued for it. If it is full, it is a bottleneck. */
  queued?: number;
  label: string;
}

/** A bar that shows how much of a limit is used. */
export function UsageBar({ used, all, queued = 0, label }: UsageProps) {
  return (
    <span class="bar" role="img" aria-label={label}>
      {used > 0 && all > 0 && <i class={queued > 0 && used >= all ? "b-full" : "b-running"} style={{ width: `${Math.min(100, (100 * used) / all)}%` }} />}
    </span>
  );
}

interface LegendProps {
  counts: Counts;
  isBare?: boolean;
  hrefOf?: (state: string) => string;
  children?: ComponentChildren;
}

/** The meaning of the shapes and, unless `isBare`, how many there are of each. */
export function Legend({ counts, isBare, hrefOf, children }: LegendProps) {
  return (
    <ul class="legend">
      {ordered(counts).map(([state, some]) => (
        <li key={state} title={texts.meanings[state]}>
          <Glyph state={state} size={12} />{" "}
          {hrefOf ? (
            <a href={hrefOf(state)}>
              {counted(state, some)}
            </a>
          ) : (
            isBare ? stateName(state) : counted(state, some)
          )}
        </li>
      ))}
      {children}
    </ul>
  );
}
