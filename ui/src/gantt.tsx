// The Gantt chart: when each task was queued, waited and ran.

import { Skeleton } from "./components/skeleton";
import { useIsPhone } from "./components/table_settings";
import { VirtualList } from "./list";
import { childName, taskHref } from "./parts";
import { Glyph } from "./states";
import { stateName, texts } from "./texts";
import { At, DAY_MS, instants, local, millis, span, useNow } from "./time";
import type { GanttRow } from "./types";

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
const MOST_TICKS_ON_PHONE = 3;
const STEPS_MS = [10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5];

/** Round numbers on the scale, as many as are legible. */
export function ticksOf(length: number, most = MOST_TICKS): number[] {
  const least = length / most;
  const step = STEPS_MS.find((one) => one >= least) ?? Math.ceil(least / DAY_MS) * DAY_MS;
  return Array.from({ length: Math.floor(length / step) + 1 }, (_, index) => index * step);
}

interface Props {
  rows: readonly (GanttRow | undefined)[];
  run: string;
  /** Of the run: what is not loaded yet must not change the scale. */
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
  const ticks = ticksOf(to - from, isPhone ? MOST_TICKS_ON_PHONE : MOST_TICKS);
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
            <span class="soft cut">{isPhone ? `${texts.gantt.from} ${local(new Date(from).toISOString()).slice(11, 16)}` : <FullStart at={new Date(from).toISOString()} />}</span>
            <span class="track">
              {ticks.map((tick, index) => (
                <small key={tick} style={{ left: `${share(from + tick)}%` }} class={share(from + tick) > 88 ? "last" : ""}>
                  {index === 0 ? "+0" : `+${span(tick)}`}
                </small>
              ))}
            </span>
            <span class="soft num">{texts.gantt.took}</span>
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
            <span class="num">{tookOf(row, now)}</span>
          </a>
        )}
      />
    </>
  );
}

const FullStart = ({ at }: { at: string }) => (
  <>
    {texts.gantt.from} <At at={at} hasZone />
  </>
);

/** From its first start to its end, or so far: without the time in the queue before. */
function tookOf(row: GanttRow, now: number): string {
  const own = row.spans.slice(row.spans.findIndex((one) => one.kind !== "queued"));
  const [first, last] = [own[0], own.at(-1)];
  if (!first || !last || first.kind === "queued") return "";
  return span((millis(last.to) ?? now) - (millis(first.from) ?? now), true);
}

/** In the order in which the tasks began; those that have not begun come last, in the order of the DAG. */
export const byStart = (rows: readonly GanttRow[]): GanttRow[] => {
  const start = (row: GanttRow): number => millis(row.spans[0]?.from) ?? Infinity;
  return [...rows].sort((one, other) => (start(one) === start(other) ? 0 : start(one) - start(other)));
};

/** The classes of a span. */
const lookOf = (row: GanttRow, index: number): string => {
  const { kind } = row.spans[index]!;
  return `g-${kind} ${kind === "running" ? outcomeOf(row, index) : ""}`.trim();
};

/** How a span of running ended: as its task did, and in an error if a retry follows; "" while the task is under way. */
function outcomeOf(row: GanttRow, index: number): string {
  const next = row.spans[index + 1];
  if (next?.kind === "retrying") return "g-failed";
  if (row.state === "success") return "g-done";
  const isLast = !row.spans.slice(index + 1).some((one) => one.kind === "running");
  return row.state !== "failed" ? "" : isLast ? "g-failed" : "g-done";
}
