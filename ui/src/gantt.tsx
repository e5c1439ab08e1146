// The Gantt chart: when each task was queued, waited and ran.

import { Skeleton } from "./components/skeleton";
import { useIsPhone } from "./components/table_settings";
import { VirtualList } from "./list";
import { childName, taskHref } from "./parts";
import { Glyph } from "./states";
import { stateName, texts } from "./texts";
import { At, DAY_MS, instants, local, millis, span, useNow } from "./time";
import type { GanttRow } from "./types";
import { clockOf } from "./wait_times";

export const SPAN_NAMES: Record<string, string> = {
  queued: stateName("queued"),
  waiting: texts.gantt.waiting,
  running: stateName("running"),
  retrying: texts.gantt.retrying,
};

const LEGEND: [string, string][] = [
  ...Object.entries(SPAN_NAMES).map(([kind, text]): [string, string] => [`g-${kind}`, text]),
  ["g-running g-done", stateName("success")],
  ["g-running g-failed", stateName("failed")],
];

const MOST_TICKS = 7;
/** Where a label takes a larger part of the scale. */
const PHONE_TICKS = 4;
/** From this share of the scale on, a label stands before its tick. */
const LAST = { wide: 92, phone: 80 };
const STEPS_MS = [10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5];

/** The least round number on a scale that is not less than a length. */
export function roundUp(length: number): number {
  const step = STEPS_MS.find((one) => one >= length / 10) ?? DAY_MS;
  return Math.ceil(length / step) * step;
}

/** Round numbers on the scale, as many as are legible. */
export function ticksOf(length: number, most = MOST_TICKS): number[] {
  const least = length / most;
  const step = STEPS_MS.find((one) => one >= least) ?? Math.ceil(least / DAY_MS) * DAY_MS;
  return Array.from({ length: Math.floor(length / step) + 1 }, (_, index) => index * step);
}

interface Props {
  rows: readonly (GanttRow | undefined)[];
  run: string;
  /** Start of the run, so that rows that are not loaded yet do not change the scale. */
  from?: string | null;
  to?: string | null;
  onRange?: (first: number, end: number) => void;
}

const ROW = 26;
/** The borders and paddings of the panel. */
const AROUND = 16;

export function Gantt({ rows: all, run, from: begun, to: over, onRange }: Props) {
  const rows = all.filter((row) => row !== undefined);
  const shown = rows.length === all.length ? byStart(rows) : all;
  const isGoingOn = rows.some((row) => row.spans.some((one) => one.to === null));
  const now = useNow(isGoingOn);
  const isPhone = useIsPhone();
  const starts = rows.flatMap((row) => row.spans.map((one) => millis(one.from) ?? now));
  if (starts.length === 0) return all.length > rows.length ? <Skeleton /> : <p class="empty">{texts.gantt.none}</p>;
  const from = starts.reduce((least, one) => Math.min(least, one), millis(begun) ?? Infinity);
  const ends = rows.flatMap((row) => row.spans.map((one) => millis(one.to) ?? now));
  const to = Math.max(from + 100, ends.reduce((most, one) => Math.max(most, one), millis(over) ?? 0));
  const share = (at: number) => (100 * (at - from)) / (to - from);
  const ticks = ticksOf(to - from, isPhone ? PHONE_TICKS : MOST_TICKS);
  const last = isPhone ? LAST.phone : LAST.wide;
  const looks = new Set(rows.flatMap((row) => row.spans.map((_, index) => lookOf(row, index))));
  return (
    <>
      <ul class="legend">
        {LEGEND.filter(([look]) => looks.has(look)).map(([look, text]) => (
          <li key={look}>
            <i class={`swatch ${look}`} /> {text}
          </li>
        ))}
      </ul>
      <VirtualList
        class="gantt"
        items={shown}
        height={ROW}
        tall={(shown.length + 1) * ROW + AROUND}
        label={texts.gantt.label}
        keyOf={(_, index) => index}
        onRange={onRange}
        head={
          <div class="gantt-row axis" title={`${texts.gantt.from} ${instants(new Date(from).toISOString())}`}>
            <span class="soft cut">
              {isPhone ? clockOf(new Date(from).toISOString()) : <>{texts.gantt.from} <At at={new Date(from).toISOString()} hasZone /></>}
            </span>
            <span class="track">
              {ticks.map((tick, index) => (
                <small key={tick} style={{ left: `${share(from + tick)}%` }} class={share(from + tick) > last ? "last" : ""}>
                  {index === 0 ? "0" : span(tick)}
                </small>
              ))}
            </span>
            <span />
          </div>
        }
        row={(row) => row && (
          <a class="gantt-row" data-row href={taskHref(run, row.task_id, row.map_index, row.round)}>
            <span class="cut">
              <Glyph state={row.state} size={12} /> {childName(row.task_id, row.map_index, row.round, row.map_label)}
            </span>
            <span class="track">
              {row.spans.map((one, index) => {
                const begun = millis(one.from) ?? now;
                const over = millis(one.to) ?? now;
                return (
                  <i
                    key={index}
                    class={lookOf(row, index)}
                    title={`${SPAN_NAMES[one.kind] ?? one.kind} ${span(over - begun, true)}, from ${local(one.from)}`}
                    style={{ left: `${share(begun)}%`, width: `max(2px, ${share(over) - share(begun)}%)` }}
                  />
                );
              })}
            </span>
            <span class="gantt-took">{tookOf(row, now)}</span>
          </a>
        )}
      />
    </>
  );
}

/** Sort rows by the start of the task. Tasks that have not begun come last, in the order of the DAG. */
export const byStart = (rows: readonly GanttRow[]): GanttRow[] => {
  const start = (row: GanttRow): number => millis(row.spans[0]?.from) ?? Infinity;
  return [...rows].sort((one, other) => (start(one) === start(other) ? 0 : start(one) - start(other)));
};

/** How long a task took from its first start, with its waits and tries; "" of one that has not started. */
function tookOf(row: GanttRow, now: number): string {
  const spans = row.spans.filter((one) => one.kind !== "queued");
  const [begun, over] = [millis(spans[0]?.from), spans.length === 0 ? null : (millis(spans.at(-1)!.to) ?? now)];
  return begun === null || over === null ? "" : span(over - begun, true);
}

/** The classes of a span. */
const lookOf = (row: GanttRow, index: number): string => {
  const { kind } = row.spans[index]!;
  return `g-${kind} ${kind === "running" ? outcomeOf(row, index) : ""}`.trim();
};

/** Return the class for how a span of running ended: like its task, or failed if a retry follows; "" while it runs. */
function outcomeOf(row: GanttRow, index: number): string {
  const next = row.spans[index + 1];
  if (next?.kind === "retrying") return "g-failed";
  if (row.state === "success") return "g-done";
  const isLast = !row.spans.slice(index + 1).some((one) => one.kind === "running");
  return row.state !== "failed" ? "" : isLast ? "g-failed" : "g-done";
}
