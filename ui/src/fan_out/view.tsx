// A mapped task as a whole: heat map, durations and errors of its children.

import { useEffect, useMemo, useState } from "preact/hooks";

import "../styles/chart.css";
import "../styles/fan_out.css";

import { enc } from "../api";
import { ofRun, useData } from "../data";
import { Shown, childName, childrenHref, number, taskHref } from "../parts";
import { Glyph } from "../states";
import { stateName, texts } from "../texts";
import { span } from "../time";
import { numbersOf, useCells } from "./cells";
import { type ErrorGroup, ErrorGroups, type Errors } from "./errors";
import { HeatMap, type Mode } from "./heat_map";
import { bucketName, fanOut } from "./texts";

interface Summary {
  width: number;
  is_open: boolean;
  is_loop: boolean;
  counts: Record<string, number>;
  durations: { upto_seconds: number | null; count: number }[];
  slowest: { map_index: number; map_label: string | null; state: string; seconds: number }[];
  ended_last_minute: number;
  seconds_left: number | null;
}

interface Props {
  run: string;
  task: string;
  isGoingOn: boolean;
  failed: number;
}

export default function FanOut({ run, task, isGoingOn, failed }: Props) {
  const base = `/runs/${enc(run)}/tasks/${enc(task)}/children`;
  const summary = useData<Summary>(base, { on: ofRun(run), gap: 5000, every: isGoingOn ? 10_000 : undefined });
  const errors = useData<Errors>(failed > 0 ? `${base}/errors` : null, { on: ofRun(run), gap: 5000 });
  const [marked, setMarked] = useState<ErrorGroup | null>(null);
  const isLoop = summary.data?.is_loop === true;
  const hrefOf = (child: number): string => (isLoop ? `${taskHref(run, task)}&round=${child}` : taskHref(run, task, child));
  return (
    <div class="fan-out">
      {isGoingOn && summary.data && <Pace summary={summary.data} />}
      <Map run={run} task={task} summary={summary.data} groups={errors.data?.items} marked={marked} hrefOf={hrefOf} />
      <div class="fan-out-parts">
        {failed > 0 && <Shown of={errors}>{(data) => <ErrorGroups run={run} task={task} errors={data} canClear={!isLoop} onMark={setMarked} hrefOf={hrefOf} />}</Shown>}
        {summary.data && summary.data.durations.length > 0 && (
          <>
            <Durations summary={summary.data} />
            <Slowest summary={summary.data} task={task} hrefOf={hrefOf} />
          </>
        )}
      </div>
    </div>
  );
}

function Pace({ summary }: { summary: Summary }) {
  return (
    <dl class="facts inline">
      <div title={fanOut.rateMeaning}>
        <dt>{fanOut.rate}</dt>
        <dd>{number(summary.ended_last_minute / 60, 1)}</dd>
      </div>
      {summary.seconds_left !== null && (
        <div title={fanOut.leftMeaning}>
          <dt>{fanOut.left}</dt>
          <dd>{span(summary.seconds_left * 1000)}</dd>
        </div>
      )}
    </dl>
  );
}

interface MapProps {
  run: string;
  task: string;
  summary: Summary | undefined;
  groups: ErrorGroup[] | undefined;
  marked: ErrorGroup | null;
  hrefOf: (child: number) => string;
}

function Map({ run, task, summary, groups, marked, hrefOf }: MapProps) {
  const cells = useCells(run, task);
  const [mode, setMode] = useState<Mode>("state");
  const shownOf = useMemo(() => marked && numbersOf(marked.children), [marked]);
  const known = useMemo(() => groups?.map((group) => ({ text: `${group.type || group.reason}: ${group.shape}`, children: numbersOf(group.children) })), [groups]);
  // Changes during the request are noticed by the counts.
  const failed = cells.data?.size === 1 ? cells.data.states.filter((state) => state === "success").length : null;
  useEffect(() => {
    if (summary && failed !== null && failed !== (summary.counts["success"] ?? 0)) cells.reload();
  }, [summary]);
  return (
    <section>
      <header class="fan-out-head">
        <h3>{fanOut.children}</h3>
        <span class="segmented" role="group" aria-label={fanOut.colour}>
          {(["state", "duration"] as const).map((one) => (
            <button key={one} type="button" aria-pressed={mode === one} onClick={() => setMode(one)}>
              {fanOut.by[one]}
            </button>
          ))}
        </span>
        <a href={childrenHref(run, task)}>{fanOut.asTable}</a>
      </header>
      <Shown of={cells}>
        {(data) =>
          data.width === 0 ? (
            <p class="soft">{fanOut.none}</p>
          ) : (
            <>
              <HeatMap run={run} cells={data} mode={mode} task={task} marked={shownOf} hrefOf={hrefOf} errorOf={(child) => known?.find((one) => one.children.has(child))?.text} />
              {data.size > 1 && <p class="soft small">{fanOut.shared(data.size)}</p>}
              {mode === "duration" && <Scale bounds={data.bounds} buckets={data.buckets} />}
            </>
          )
        }
      </Shown>
    </section>
  );
}

function Scale({ bounds, buckets }: { bounds: number[]; buckets: number[] }) {
  const found = [...new Set(buckets.filter((bucket) => bucket >= 0))].sort((one, other) => one - other);
  if (found.length === 0) return null;
  const nameOf = (bucket: number): string => bucketName(bounds[bucket - 1] ?? null, bounds[bucket] ?? null);
  return (
    <p class="fan-map-scale">
      <span>{nameOf(found[0]!)}</span>
      <i aria-hidden="true" />
      <span>{nameOf(found.at(-1)!)}</span>
    </p>
  );
}

function Durations({ summary }: { summary: Summary }) {
  const most = Math.max(...summary.durations.map((entry) => entry.count));
  const first = summary.durations[0]!.upto_seconds;
  return (
    <section>
      <h3>{fanOut.durations}</h3>
      <table class="histogram">
        <caption class="offscreen">{fanOut.scale}</caption>
        <thead class="offscreen">
          <tr>
            <th scope="col">{texts.task.duration}</th>
            <th scope="col">{fanOut.children}</th>
          </tr>
        </thead>
        <tbody>
          {summary.durations.map((entry, index) => {
            const from = summary.durations[index - 1]?.upto_seconds ?? null;
            const name = index === 0 && first !== null ? fanOut.under(first) : bucketName(from, entry.upto_seconds);
            return (
              <tr key={entry.upto_seconds}>
                <th scope="row">{name}</th>
                <td>
                  <i aria-hidden="true" style={{ width: `${(100 * entry.count) / most}%` }} />
                  <span>{number(entry.count)}</span>
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </section>
  );
}

function Slowest({ summary, task, hrefOf }: { summary: Summary; task: string; hrefOf: (child: number) => string }) {
  return (
    <section>
      <h3>{fanOut.slowest}</h3>
      <ul class="rows slowest">
        {summary.slowest.map((one) => (
          <li key={one.map_index}>
            <a class="row" href={hrefOf(one.map_index)}>
              <Glyph state={one.state} />
              <span class="offscreen">{stateName(one.state)}</span>
              <span class="cut grow">{childName(task, one.map_index, 0, one.map_label)}</span>
              <span class="end">{span(one.seconds * 1000)}</span>
            </a>
          </li>
        ))}
      </ul>
    </section>
  );
}
