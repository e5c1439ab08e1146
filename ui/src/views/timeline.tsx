// The timeline: one row per DAG, with its runs and scheduled times.

import { useState } from "preact/hooks";

import { query } from "../api";
import { type Column, Table } from "../components/table";
import { useData, useItems } from "../data";
import { ticksOf } from "../gantt";
import { Empty, Panel, Shown, dagHref, runHref } from "../parts";
import { State } from "../states";
import { stateName, texts } from "../texts";
import { At, HOUR_MS, instant, instants, local, millis, span, useNow, zoneName } from "../time";

interface RunSpan {
  run_id: string;
  dag_id: string;
  state: string;
  started_at: string | null;
  ended_at: string | null;
}

interface FireTime {
  dag_id: string;
  at: string;
  run_id: string | null;
  state: string | null;
  started_at: string | null;
  late_seconds: number | null;
  is_missed: boolean;
}

interface Due {
  dag_id: string;
  at: string;
}

const MINUTE_MS = 60_000;
/** Name, hours before now, and hours after now. */
const RANGES: [string, number, number][] = [
  ["6 h", 5, 1],
  ["24 h", 20, 4],
  ["7 d", 144, 24],
];
const LANES = 60;

export default function Timeline() {
  const [range, setRange] = useState(1);
  const [, before, after] = RANGES[range]!;
  const minute = Math.floor(useNow() / MINUTE_MS) * MINUTE_MS;
  // The address changes every five minutes. Newer runs come with the commits.
  const base = Math.floor(minute / (5 * MINUTE_MS)) * 5 * MINUTE_MS;
  const from = base - before * HOUR_MS;
  const to = base + after * HOUR_MS;
  const runs = useData<{ items: RunSpan[]; more: boolean }>(query("/history/timeline", { from: instant(from), to: instant(to) }), { gap: 2000 });
  const past = useData<{ items: FireTime[]; more: boolean }>(query("/history/schedules", { from: instant(from), to: instant(to) }), { gap: 5000 });
  const due = useItems<Due>(query("/schedules", { hours: String(after) }), { on: (change) => change.dags.size > 0, gap: 5000 });
  return (
    <>
      <div class="bar-of-filters">
        <span class="segmented" role="group" aria-label={texts.history.range}>
          {RANGES.map(([name], index) => (
            <button key={name} type="button" aria-pressed={index === range} onClick={() => setRange(index)}>
              {name}
            </button>
          ))}
        </span>
        <Legend />
      </div>
      <Shown of={runs}>
        {(data) => (
          <>
            {data.more && <p class="soft">{texts.history.older}</p>}
            <Lanes runs={data.items} past={past.data?.items ?? []} due={due.data ?? []} from={from} to={to} now={minute} />
          </>
        )}
      </Shown>
      <Shown of={past} optional>
        {({ items }) => {
          const odd = items.filter((one) => one.is_missed || one.late_seconds !== null).reverse();
          return (
            <Panel title={texts.history.lateAndMissed(odd.length)}>
              <Table name="fire-times" label={texts.common.many(odd.length, "fire time")} columns={COLUMNS} items={odd} keyOf={(one) => `${one.dag_id} ${one.at}`} hrefOf={(one) => (one.run_id ? runHref(one.run_id) : dagHref(one.dag_id))} isShort isPlain empty={<Empty>{texts.history.allOnTime}</Empty>} />
            </Panel>
          );
        }}
      </Shown>
    </>
  );
}

function Legend() {
  return (
    <ul class="legend">
      {["success", "failed", "running"].map((state) => (
        <li key={state}>
          <i class={`swatch h-${state}`} /> {stateName(state)}
        </li>
      ))}
      <li>
        <i class="swatch l-fire" /> {texts.history.fire}
      </li>
      <li>
        <i class="swatch l-late" /> {texts.history.late}
      </li>
      <li>
        <i class="swatch l-missed" /> {texts.history.missed}
      </li>
    </ul>
  );
}

interface LanesProps {
  runs: RunSpan[];
  past: FireTime[];
  due: Due[];
  from: number;
  to: number;
  now: number;
}

/** Minimum width of a run that is a link, in percent. */
const LINK_SHARE = 3;

function Lanes({ runs, past, due, from, to, now }: LanesProps) {
  const share = (at: number): number => Math.min(100, Math.max(0, (100 * (at - from)) / (to - from)));
  const dags = [...new Set([...runs, ...past, ...due].map((one) => one.dag_id))].sort().slice(0, LANES);
  if (dags.length === 0) return <Empty>{texts.history.noTimeline}</Empty>;
  const step = ticksOf(to - from)[1] ?? HOUR_MS;
  const first = Math.ceil(from / step) * step;
  const ticks = Array.from({ length: Math.max(0, Math.ceil((to - first) / step)) }, (_, index) => first + index * step);
  return (
    <div class="timeline" role="group" aria-label={texts.history.timeline}>
      <div class="timeline-row" aria-hidden="true">
        <small class="soft cut">{texts.shell.times(zoneName())}</small>
        <span class="track">
          {ticks.map((tick) => (
            <small key={tick} style={{ left: `${share(tick)}%` }}>
              {share(tick) < 95 ? axisName(tick, to - from) : ""}
            </small>
          ))}
        </span>
      </div>
      {dags.map((dag) => (
        <div key={dag} class="timeline-row">
          <a class="cut" href={dagHref(dag)}>
            {dag}
          </a>
          <span class="track">
            <i class="now" style={{ left: `${share(now)}%` }} title={texts.history.now} />
            {runs
              .filter((run) => run.dag_id === dag && run.started_at !== null)
              .map((run) => {
                const begun = millis(run.started_at)!;
                const over = millis(run.ended_at) ?? now;
                const width = Math.max(0, share(over) - share(begun));
                // A short run is too small a target for a link: the DAG's link leads to its runs.
                const bar = {
                  class: `l-run h-${run.state}`,
                  title: `${run.run_id}\n${stateName(run.state)}, ${span(Math.max(0, over - begun))}\nfrom ${instants(run.started_at)}`,
                  "aria-label": `${run.run_id}: ${stateName(run.state)}, ${span(Math.max(0, over - begun))}`,
                  style: { left: `${share(begun)}%`, width: `${width}%` },
                };
                return width >= LINK_SHARE ? <a key={run.run_id} href={runHref(run.run_id)} {...bar} /> : <span key={run.run_id} role="img" {...bar} />;
              })}
            {past
              .filter((one) => one.dag_id === dag && (one.is_missed || one.late_seconds !== null))
              .map((one) => (
                <i key={one.at} class={`fire ${one.is_missed ? "is-missed" : "is-late"}`} style={{ left: `${share(millis(one.at)!)}%` }} title={`${one.is_missed ? texts.history.missed : `${texts.history.late}, ${span(1000 * one.late_seconds!)}`}\n${instants(one.at)}`} />
              ))}
            {due
              .filter((one) => one.dag_id === dag)
              .map((one) => (
                <i key={one.at} class="fire" style={{ left: `${share(millis(one.at)!)}%` }} title={instants(one.at)} />
              ))}
          </span>
        </div>
      ))}
    </div>
  );
}

const axisName = (at: number, length: number): string => {
  const text = local(instant(at));
  return length > 48 * HOUR_MS ? text.slice(5, 16) : text.slice(11, 16);
};

const COLUMNS: Column<FireTime>[] = [
  { id: "at", title: texts.history.fire, width: "160px", isFixed: true, phone: "second", cell: (one) => <At at={one.at} /> },
  { id: "dag", title: texts.run.dag, width: "minmax(140px, 2fr)", isFixed: true, phone: "title", cell: (one) => one.dag_id },
  { id: "what", title: texts.history.what, width: "150px", phone: "end", cell: (one) => (one.is_missed ? texts.history.missed : texts.history.lateBy(span(1000 * (one.late_seconds ?? 0)))) },
  { id: "run", title: texts.task.state, width: "130px", phone: "second-end", cell: (one) => (one.state ? <State state={one.state} /> : "–") },
];
