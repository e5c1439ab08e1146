// A strip with one mark per run, which says more than columns if there are few runs per period.

import type { Point } from "../chart";
import { Glyph, Legend, named } from "../states";
import { texts } from "../texts";
import type { Counts } from "../types";

/** Runs are shown one by one if each period has fewer than this. */
const MANY = 3;
/** Up to this share of empty periods, they are gaps. More of them are due to the schedule. */
const MOST_GAPS = 0.25;
const NAMED = 3;

const totalOf = ({ values }: Point): number => Object.values(values).reduce<number>((all, some) => all + (some ?? 0), 0);

/** Whether no period has more than a few runs. */
export const isSparse = (points: readonly Point[]): boolean => points.some((point) => totalOf(point) > 0) && points.every((point) => totalOf(point) < MANY);

/** Return the empty periods from the first run up to the newest, unfinished period, unless they are usual. */
export function gapsOf(points: readonly Point[]): Point[] {
  const since = points.findIndex((point) => totalOf(point) > 0);
  const own = since === -1 ? [] : points.slice(since, -1);
  const gaps = own.filter((point) => totalOf(point) === 0);
  return gaps.length > own.length * MOST_GAPS ? [] : gaps;
}

interface Props {
  label: string;
  points: Point[];
  /** The states of each period, in the order of its marks. */
  states: readonly string[];
  nameOf: (at: number) => string;
  hrefOf: (at: number) => string;
}

/** A mark for the state of each run, above the day or hour in which the run ended. */
export function DayStrip({ label, points, states, nameOf, hrefOf }: Props) {
  const counts: Counts = {};
  for (const { values } of points) for (const state of states) if (values[state]) counts[state] = (counts[state] ?? 0) + values[state];
  const gaps = gapsOf(points);
  let before = "";
  return (
    <>
      <ol class="day-strip" aria-label={label}>
        {points.map((point) => {
          const name = nameOf(point.at);
          const month = name.split(" ", 1)[0]!;
          const isNew = month !== before;
          before = month;
          const shown = isNew ? name : name.slice(name.indexOf(" ") + 1);
          const some = states.flatMap((state) => Array.from({ length: point.values[state] ?? 0 }, () => state));
          return (
            <li key={point.at}>
              {some.length === 0 ? (
                <span class="soft" title={`${name}: ${texts.history.noRun}`}>
                  <i>–</i>
                  <small>{shown}</small>
                </span>
              ) : (
                <a href={hrefOf(point.at)} title={`${name}: ${some.map(named).join(", ")}`} aria-label={`${name}: ${some.map(named).join(", ")}`}>
                  <i>
                    {some.map((state, index) => (
                      <Glyph key={index} state={state} size={some.length > 1 ? 13 : 18} />
                    ))}
                  </i>
                  <small>{shown}</small>
                </a>
              )}
            </li>
          );
        })}
      </ol>
      <div class="day-strip-foot">
        <Legend counts={counts} isBare />
        {gaps.length > 0 && <span class="soft">{texts.history.gaps(gaps.slice(0, NAMED).map((point) => nameOf(point.at)), gaps.length)}</span>}
      </div>
    </>
  );
}
