// The longest waits, one row per cause: waiting children of a fan-out, and runs with the same cause, share a row.

import { Empty, childrenHref, taskHref } from "./parts";
import { Glyph } from "./states";
import "./styles/why.css";
import { sentenceCase, texts } from "./texts";
import type { Overview, Wait } from "./types";
import { WaitTimes, clockOf } from "./wait_times";

type Row = Overview["waiting_longest"][number];

/** What a sentence says that stands elsewhere: the kind of a wait. */
const KIND = /^(?:a condition|a decision): "?(.*?)"?$/;

/** What is waited for, without the kind of it. */
export const withoutKind = (text: string): string => text.replace(KIND, "$1");

/** `load is waiting for a condition: "the file"` without the name and the kind, for a row that has both. */
export const whatOf = (text: string): string => withoutKind(text.replace(/^.*? (?:is|are) waiting (?:for )?/, ""));

/** What a decision is about: the text in quotes behind those who decide. */
const questionOf = (wait: Wait): string => /: "(.*)"$/.exec(wait.detail)?.[1] ?? wait.detail;

/** Why a run is waiting, in few words that need no name: "Until 10:18: the market's close". */
export function briefReason({ text, waiting_on: wait }: Pick<Row, "text" | "waiting_on">): string {
  if (wait?.fires_at) return texts.why.untilWhat(clockOf(wait.fires_at), wait.label ?? "");
  if (wait?.kind === "decision") return `${texts.why.decision}: ${questionOf(wait)}`;
  if (wait?.kind === "interval") return `${texts.why.condition}: ${whatOf(text)}`;
  return sentenceCase(whatOf(text));
}

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
