// The history of a DAG: failure rate and durations of its runs and tasks.

import { useState } from "preact/hooks";

import { enc, query } from "../api";
import { Chart, type Mark, type Point, type Series, durationScale, niceScale, periodName, periods } from "../chart";
import { Icon } from "../components/icons";
import { type Column, Table } from "../components/table";
import { ofDag, useData } from "../data";
import { type DagHistory, type DagPeriod, type Durations, type Period, PeriodChoice, RUN_SERIES, endsOf, percent, seconds, shownSeconds as shown, startOf, usePeriod } from "../history";
import { Empty, Panel, Shown, number, runHref } from "../parts";
import { sum } from "../states";
import { stateName, texts } from "../texts";
import { HOUR_MS, instant, millis, useZoneName, zoneName } from "../time";
import { ScheduleCalendar } from "./calendar";
import { DayStrip, isSparse } from "./day_strip";

interface TaskStats {
  task_id: string;
  ends: Record<string, number>;
  failure_rate: number | null;
  duration: Durations;
  queue: Durations;
  wait: Durations;
}

const TIMES = [
  { key: "p50", name: texts.history.p50, tone: "h-p50" },
  { key: "p95", name: texts.history.p95, tone: "h-p95" },
];
/** The line for periods with one run each, in which both percentiles are the same. */
const TIME = [{ key: "p50", name: texts.history.single, tone: "h-p50" }];
const SUCCESS_TIMES = [
  { ...TIMES[0]!, name: texts.history.p50Success },
  { ...TIMES[1]!, name: texts.history.p95Success },
];
const SUCCESS_TIME = [{ ...TIME[0]!, name: texts.history.singleSuccess }];
const isSingle = (items: DagPeriod[], durations: (one: DagPeriod) => Durations): boolean => items.every((one) => durations(one).count <= 1);
const timesOf = (items: DagPeriod[], durations: (one: DagPeriod) => Durations) => (isSingle(items, durations) ? TIME : TIMES);
const RATE = [{ key: "rate", name: texts.history.rateName, tone: "h-rate" }];

/** Return the points of a chart. If a column covers several periods, lines use the last one. */
function points(items: DagPeriod[], from: string, period: Period, values: (one: DagPeriod) => Record<string, number | null>): Point[] {
  return periods(millis(from)!, Date.now(), period.step, items, (one) => millis(one.start)!).map(({ at, found }) => ({ at, values: found.length ? values(found.at(-1)!) : {} }));
}

interface Rates {
  points: Point[];
  moreOf: (at: number) => string;
}

const WEEK = 7;

/** Return the share of failed and partial runs per column, or per seven columns, with the counts behind it. */
export function ratesOf(ends: readonly Point[], isByWeek: boolean): Rates {
  const size = isByWeek ? WEEK : 1;
  const counts = new Map<number, { bad: number; all: number }>();
  // The last week ends with the last day.
  for (let first = ends.length % size; first < ends.length; first += size) {
    const found = { bad: 0, all: 0 };
    for (const { values } of ends.slice(first, first + size)) {
      const bad = (values["failed"] ?? 0) + (values["partial"] ?? 0);
      found.bad += bad;
      found.all += bad + (values["success"] ?? 0);
    }
    counts.set(ends[first]!.at, found);
  }
  return {
    points: [...counts].map(([at, { bad, all }]) => ({ at, values: { rate: all === 0 ? null : bad / all } })),
    moreOf: (at) => texts.history.someOf(counts.get(at)?.bad ?? 0, counts.get(at)?.all ?? 0),
  };
}

export default function DagHistoryView({ id, isRare }: { id: string; isRare: boolean }) {
  const [period, setPeriod] = usePeriod(isRare ? "30d" : "24h");
  const [isTable, setTable] = useState(false);
  const from = startOf(period);
  const path = `/history/dags/${enc(id)}`;
  const step = period.step === 24 ? "day" : "hour";
  const found = useData<DagHistory>(query(path, { from, step, zone: zoneName() }), { on: ofDag(id), gap: 5000 });
  const failures = useData<{ items: RunSpan[] }>(query(`${path}/failures`, { from }), { on: ofDag(id), gap: 5000 });
  const tasks = useData<{ items: TaskStats[] }>(query(`${path}/tasks`, { from }), { on: ofDag(id), gap: 5000 });
  const zone = useZoneName();
  return (
    <>
      <div class="bar-of-filters">
        <PeriodChoice value={period.key} onValue={setPeriod} />
        <button type="button" aria-pressed={isTable} onClick={() => setTable(!isTable)}>
          {texts.history.asTables}
        </button>
        <details class="about-numbers">
          <summary aria-label={texts.history.about} title={texts.history.percentiles}>
            <Icon name="info" />
          </summary>
          <p>{texts.history.percentiles}</p>
        </details>
        <small class="legend-zone">{texts.shell.times(zone)}</small>
      </div>
      <Shown of={found}>
        {(data) => <Charts id={id} data={data} failures={failures.data?.items ?? []} from={from} period={period} isTable={isTable} />}
      </Shown>
      <ScheduleCalendar id={id} />
      <Shown of={tasks}>
        {({ items }) => <Table name="task-history" label={texts.common.many(items.length, "task")} columns={COLUMNS} items={items} keyOf={(one) => one.task_id} isShort empty={<Empty>{texts.history.noTasks}</Empty>} />}
      </Shown>
    </>
  );
}

interface ChartsProps {
  id: string;
  data: DagHistory;
  failures: RunSpan[];
  from: string;
  period: Period;
  isTable: boolean;
}

interface RunSpan {
  run_id: string;
  state: string;
  started_at: string | null;
  ended_at: string | null;
}

const FAILED: Series[] = RUN_SERIES.filter(({ key }) => key === "failed" || key === "partial");

/** Each failed and partial run, at the time it took. */
const marksOf = (runs: readonly RunSpan[]): Mark[] =>
  runs.flatMap(({ run_id, state, started_at, ended_at }) => {
    const [begun, over] = [millis(started_at), millis(ended_at)];
    if (begun === null || over === null) return [];
    return [{ at: over, value: Math.max(0, over - begun) / 1000, kind: state, name: `${run_id}, ${stateName(state)}`, href: runHref(run_id) }];
  });

/** The charts. If there are few runs, each is shown, and durations get most room; else the counts do. */
function Charts({ id, data, failures, from, period, isTable }: ChartsProps) {
  const nameOf = periodName(period.step);
  const during = (at: number, steps: number, state?: string) => query("/runs", { dag: id, state, from: instant(at), to: instant(at + steps * period.step * HOUR_MS) });
  const hrefOf = (at: number, state?: string) => during(at, 1, state);
  const ends = endsOf(data.items, from, period);
  const isFew = isSparse(ends);
  const isByWeek = isFew && period.step === 24;
  const drawn = { nameOf, hrefOf, isTable, isOpen: true, isBare: true };
  return (
    <div class={`charts ${isFew ? "is-few" : ""}`}>
      <Panel title={texts.history.runs}>
        {isFew && !isTable ? (
          <DayStrip label={`${texts.history.runs}: ${id}`} points={ends} states={RUN_SERIES.map(({ key }) => key)} nameOf={nameOf} hrefOf={hrefOf} />
        ) : (
          <Chart label={`${texts.history.runs}: ${id}`} kind="columns" series={RUN_SERIES} points={ends} {...drawn} format={(value) => number(value)} empty={texts.history.noRuns} />
        )}
      </Panel>
      <Panel title={texts.history.duration}>
        <Chart label={`${texts.history.duration}: ${id}`} kind="lines" series={isSingle(data.items, (one) => one.duration) ? SUCCESS_TIME : SUCCESS_TIMES} points={points(data.items, from, period, (one) => ({ p50: one.duration.p50, p95: one.duration.p95 }))} {...drawn} isBroken={isFew} marks={marksOf(failures)} markKinds={FAILED} format={seconds} scale={durationScale} />
      </Panel>
      <Panel title={isByWeek ? texts.history.rateByWeek : texts.history.rate}>
        <Chart
          label={`${texts.history.rate}: ${id}`}
          kind="columns"
          series={RATE}
          {...ratesOf(ends, isByWeek)}
          {...drawn}
          height={isFew ? LOW : undefined}
          nameOf={isByWeek ? (at) => texts.history.weekOf(nameOf(at)) : nameOf}
          hrefOf={(at) => during(at, isByWeek ? WEEK : 1, "failed")}
          format={percent}
          scale={(most) => niceScale(Math.max(0.1, most), false)}
          empty={data.total.failure_rate === null ? undefined : texts.history.noFailures}
        />
      </Panel>
      <Panel title={texts.history.queue}>
        <Chart label={`${texts.history.queue}: ${id}`} kind="lines" series={timesOf(data.items, (one) => one.queue)} points={points(data.items, from, period, (one) => ({ p50: one.queue.p50, p95: one.queue.p95 }))} {...drawn} height={isFew ? LOW : undefined} format={seconds} scale={durationScale} />
      </Panel>
    </div>
  );
}

/** The height of the less important charts. */
const LOW = 130;

const all = (one: TaskStats): number => sum(one.ends);
const by = (value: (one: TaskStats) => number | null) => (one: TaskStats, other: TaskStats): number => (value(one) ?? -1) - (value(other) ?? -1);

const COLUMNS: Column<TaskStats>[] = [
  { id: "task", title: texts.history.task, width: "minmax(140px, 2fr)", isFixed: true, isMono: true, phone: "title", cell: (one) => one.task_id, sort: (one, other) => one.task_id.localeCompare(other.task_id) },
  { id: "ended", title: texts.history.runsOf, width: "90px", isNumber: true, phone: "second", cell: (one) => number(all(one)), sort: by(all) },
  { id: "failed", title: texts.history.failed, width: "100px", isNumber: true, phone: "second-end", cell: (one) => (one.failure_rate === null ? "–" : percent(one.failure_rate)), sort: by((one) => one.failure_rate) },
  { id: "p50", title: texts.history.p50, width: "100px", isNumber: true, phone: "end", cell: (one) => shown(one.duration.p50), sort: by((one) => one.duration.p50) },
  { id: "p95", title: texts.history.p95, width: "116px", isNumber: true, cell: (one) => shown(one.duration.p95), sort: by((one) => one.duration.p95) },
  { id: "queue", title: texts.history.queueP50, width: "116px", isNumber: true, isWideOnly: true, cell: (one) => shown(one.queue.p50), sort: by((one) => one.queue.p50) },
  { id: "wait", title: texts.history.waitP50, width: "110px", isNumber: true, isWideOnly: true, cell: (one) => shown(one.wait.p50), sort: by((one) => one.wait.p50) },
];
