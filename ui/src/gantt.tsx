// When tasks were queued, waited and ran, on one scale.

import { VirtualList } from "./list";
import { childName, taskHref } from "./parts";
import { Glyph } from "./states";
import { At, instants, local, millis, span, useNow } from "./time";
import type { GanttRow } from "./types";

export const SPAN_NAMES: Record<string, string> = {
  queued: "queued",
  waiting: "waits, holds no slot",
  running: "runs",
  retrying: "waits for its next try",
};

const TICKS = 6;

interface Props {
  rows: readonly (GanttRow | undefined)[];
  run: string;
  /** Of the run: what is not loaded yet must not change the scale. */
  from?: string | null;
  to?: string | null;
  onRange?: (first: number, end: number) => void;
}

export function Gantt({ rows: all, run, from: begun, to: over, onRange }: Props) {
  const rows = all.filter((row) => row !== undefined);
  const isGoingOn = rows.some((row) => row.spans.some((one) => one.to === null));
  const now = useNow(isGoingOn);
  const starts = rows.flatMap((row) => row.spans.map((one) => millis(one.from) ?? now));
  if (starts.length === 0) return all.length > rows.length ? <p class="loading soft">Loading …</p> : <p class="empty">Nothing has begun yet. Once a task is queued, its time is drawn here.</p>;
  const from = starts.reduce((least, one) => Math.min(least, one), millis(begun) ?? Infinity);
  const ends = rows.flatMap((row) => row.spans.map((one) => millis(one.to) ?? now));
  const to = Math.max(from + 100, ends.reduce((most, one) => Math.max(most, one), millis(over) ?? 0));
  const share = (at: number) => (100 * (at - from)) / (to - from);
  const ticks = Array.from({ length: TICKS + 1 }, (_, index) => (index * (to - from)) / TICKS);
  return (
    <>
      <ul class="legend">
        {Object.entries(SPAN_NAMES).map(([kind, text]) => (
          <li key={kind}>
            <i class={`swatch g-${kind}`} /> {text}
          </li>
        ))}
      </ul>
      <VirtualList
        class="gantt"
        items={all}
        height={26}
        label="Time of tasks"
        keyOf={(_, index) => index}
        onRange={onRange}
        head={
          <div class="gantt-row axis" title={`From ${instants(new Date(from).toISOString())}`}>
            <span class="soft cut">
              from <At at={new Date(from).toISOString()} />
            </span>
            <span class="track">
              {ticks.map((tick, index) => (
                <small key={index} style={{ left: `${(100 * index) / TICKS}%` }} class={index === TICKS ? "last" : ""}>
                  {index === 0 ? "0" : span(tick)}
                </small>
              ))}
            </span>
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
                    class={`g-${one.kind}`}
                    title={`${SPAN_NAMES[one.kind] ?? one.kind} ${span(over - begun)}, from ${local(one.from)}`}
                    style={{ left: `${share(begun)}%`, width: `max(2px, ${share(over) - share(begun)}%)` }}
                  />
                );
              })}
            </span>
          </a>
        )}
      />
    </>
  );
}
