// The runs of a DAG side by side, task by task.

import { VirtualList } from "./list";
import { runHref } from "./parts";
import { Glyph, Legend, named, ordered, sum, worst } from "./states";
import { texts } from "./texts";
import { local, millis, shortTime, span } from "./time";
import type { Counts, Grid } from "./types";

const TALL = 44;
/** Of the head, and of the padding with a scroll bar. */
const HEAD = 74;
const SPARE = 30;

/** How long a run took, as the height of a bar between 3 and ``most``. */
export function heights(runs: { started_at: string | null; ended_at: string | null }[], most: number): number[] {
  const now = Date.now();
  const long = runs.map((run) => {
    const begun = millis(run.started_at);
    return begun === null ? 0 : Math.max(0, (millis(run.ended_at) ?? now) - begun);
  });
  const longest = Math.max(1, ...long);
  return long.map((one) => Math.max(3, Math.round((most * one) / longest)));
}

export function GridView({ grid }: { grid: Grid }) {
  const runs = [...grid.runs].reverse();
  const cells = runs.map((run) => new Map((run.cells ?? []).map(([index, counts, from, to]) => [index, { counts, from, to }])));
  if (runs.length === 0) return <p class="empty">No runs yet. Trigger one, or wait for the schedule.</p>;
  const tall = heights(runs, TALL);
  const hasMany = grid.runs.some((run) => run.cells?.some(([, counts]) => sum(counts) > 1));
  const columns = { gridTemplateColumns: `minmax(130px, 260px) repeat(${runs.length}, 26px)` };
  return (
    <>
      <VirtualList
        class="grid"
        items={grid.tasks}
        height={26}
        tall={HEAD + grid.tasks.length * 26 + SPARE}
        label="Tasks by run"
        hasBoxes
        keyOf={(task) => task}
        head={
          <div class="grid-row grid-head" style={columns}>
            <span class="soft">{texts.task.name}</span>
            {runs.map((run, index) => (
              <a key={run.run_id} data-box="" tabIndex={index === runs.length - 1 ? 0 : -1} href={runHref(run.run_id)} title={runTitle(run)} aria-label={runTitle(run)}>
                <i class={`column b-${run.state}`} style={{ height: `${tall[index]}px` }} />
                <Glyph state={run.state} size={12} />
              </a>
            ))}
          </div>
        }
        row={(task, index) => (
          <div class="grid-row" style={columns}>
            <span class="cut" title={task}>
              {task}
            </span>
            {runs.map((run, column) => {
              const cell = cells[column]!.get(index);
              if (!cell || sum(cell.counts) === 0) return <span key={run.run_id} />;
              const text = cellTitle(task, cell.counts, cell.from, cell.to, run.run_id);
              return (
                <a
                  key={run.run_id}
                  class="cell"
                  data-box=""
                  tabIndex={column === runs.length - 1 ? 0 : -1}
                  data-row={column === runs.length - 1 ? "" : undefined}
                  href={`${runHref(run.run_id)}?task=${encodeURIComponent(task)}`}
                  title={text}
                  aria-label={text}
                >
                  <Glyph state={worst(cell.counts)} size={14} />
                  {sum(cell.counts) > 1 && <sup aria-hidden="true">×</sup>}
                </a>
              );
            })}
          </div>
        )}
      />
      <Legend counts={allOf(grid)} isBare>
        {hasMany && (
          <li>
            <b aria-hidden="true">×</b> several children: the worst state is shown
          </li>
        )}
      </Legend>
    </>
  );
}

/** Which states there are at all. */
function allOf(grid: Grid): Counts {
  const found: Counts = {};
  for (const run of grid.runs) {
    found[run.state] = 1;
    for (const [, counts] of run.cells ?? []) found[worst(counts)] = 1;
  }
  return found;
}

function runTitle(run: Grid["runs"][number]): string {
  return `${run.run_id}: ${named(run.state)}${run.logical_date ? `, for ${shortTime(run.logical_date)}` : ""}`;
}

function cellTitle(task: string, counts: Counts, from: string | null, to: string | null, run: string): string {
  const begun = millis(from);
  const over = millis(to);
  const took = begun !== null && over !== null ? `, ${span(over - begun)}` : begun !== null ? `, since ${local(from)}` : "";
  const all = sum(counts);
  const states = ordered(counts).map(([state, count]) => (all > 1 ? `${count} ${named(state)}` : named(state)));
  return `${task} in ${run}: ${states.join(", ")}${took}`;
}
