// The longest waits, one row per cause: waiting children of a fan-out, and runs with the same cause, share a row.

import { Empty, childrenHref, taskHref } from "./parts";
import { Glyph } from "./states";
import "./styles/why.css";
import { texts } from "./texts";
import type { Overview } from "./types";
import { WaitTimes } from "./wait_times";

type Row = Overview["waiting_longest"][number];

/** The kind of a wait in a sentence, which is shown elsewhere. */
export const KIND = /^(its condition|a decision): /;

/** Return "the file" for "load waits for its condition: the file", for a row with the name and the kind. */
export const whatOf = (text: string): string => text.replace(/^.*? waits? for /, "").replace(KIND, "");

interface Cause {
  /** The row of the run that waits longest. */
  first: Row;
  runs: number;
}

function causesOf(rows: Row[]): Cause[] {
  const causes = new Map<string, Cause>();
  for (const row of rows) {
    const key = JSON.stringify([row.task_id, row.state, row.text]);
    const known = causes.get(key);
    if (known) known.runs += 1;
    else causes.set(key, { first: row, runs: 1 });
  }
  return [...causes.values()];
}

/** The longest waits. With `isShort`, only the end of a wait is shown, not the time so far. */
export function Waiting({ rows, isShort }: { rows: Overview["waiting_longest"]; isShort?: boolean }) {
  if (rows.length === 0) return <Empty>{texts.home.nothingWaits}</Empty>;
  return (
    <ul class="rows waits">
      {causesOf(rows).map(({ first: row, runs }) => (
        <li key={`${row.run_id} ${row.task_id} ${row.state}`}>
          <a
            class="home-row"
            data-row
            href={row.count > 1 ? childrenHref(row.run_id, row.task_id, row.state) : taskHref(row.run_id, row.task_id, row.map_index, row.round)}
          >
            <Glyph state={row.state} />
            <span class="why-text">{row.text}</span>
            <span class="end">
              <WaitTimes wait={row.waiting_on} since={row.since} isShort={isShort} usual={row.usual_seconds} />
            </span>
            <span class="second">
              {runs > 1 && <span class="num">{texts.home.inRuns(runs)}</span>}
              <span class="cut mono">{row.run_id}</span>
            </span>
          </a>
        </li>
      ))}
    </ul>
  );
}
