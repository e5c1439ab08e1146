// The run history for home and for one DAG, and the "slower than usual" mark.

import { useMemo, useState } from "preact/hooks";

import { enc, query } from "./api";
import { Chart, type Point, type Series, type Step, periodName, periods } from "./chart";
import { never, ofDag, useData, useItems } from "./data";
import { Fact, Panel, Shown, number } from "./parts";
import { stateName, texts } from "./texts";
import { DAY_MS, HOUR_MS, instant, millis, span, useNow, zoneName } from "./time";
import type { RunSummary } from "./types";

export interface Ends {
  start: string;
  ends: Record<string, number>;
  failure_rate: number | null;
}

interface RunEnds {
  from: string;
  to: string;
  items: Ends[];
}

export interface Period {
  key: string;
  hours: number;
  /** Length of one column, in hours. */
  step: Step;
}

export const PERIODS: Period[] = [
  { key: "24h", hours: 24, step: 1 },
  { key: "7d", hours: 168, step: 6 },
  { key: "30d", hours: 720, step: 24 },
];

export const RUN_SERIES: Series[] = ["success", "partial", "failed", "cancelled"].map((key) => ({ key, name: stateName(key), tone: `h-${key}` }));

/** Return the start of a period, rounded to an hour so that the address does not change every second. */
export function startOf(period: Period): string {
  const at = Math.floor(Date.now() / 60_000) * 60_000 - (period.hours - period.step) * HOUR_MS;
  return instant(Math.floor(at / HOUR_MS) * HOUR_MS);
}

export function PeriodChoice({ value, onValue }: { value: string; onValue: (key: string) => void }) {
  return (
    <span class="segmented" role="group" aria-label={texts.history.range}>
      {PERIODS.map((one) => (
        <button key={one.key} type="button" aria-pressed={one.key === value} title={texts.history.lastOf[one.key as keyof typeof texts.history.lastOf]} onClick={() => onValue(one.key)}>
          {texts.history.short[one.key as keyof typeof texts.history.short]}
        </button>
      ))}
    </span>
  );
}

const KEY = "aioflow.period";

/** Return the period that the user chose last, or else a default. */
export function usePeriod(usual = "24h"): [Period, (key: string) => void] {
  const [key, setKey] = useState(() => sessionStorage.getItem(KEY) ?? usual);
  const chosen = PERIODS.find((one) => one.key === key) ?? PERIODS[0]!;
  return [
    chosen,
    (wanted) => {
      sessionStorage.setItem(KEY, wanted);
      setKey(wanted);
    },
  ];
}

export function endsOf(items: readonly Ends[], from: string, period: Period): Point[] {
  return periods(millis(from)!, Date.now(), period.step, items, (one) => millis(one.start)!).map(({ at, found }) => ({
    at,
    values: Object.fromEntries(RUN_SERIES.map(({ key }) => [key, found.reduce((all, one) => all + (one.ends[key] ?? 0), 0)])),
  }));
}

/** Runs that ended, by state and by hour or day. */
export function RunsChart() {
  const [period, setPeriod] = usePeriod();
  const from = startOf(period);
  const step = period.step === 24 ? "day" : "hour";
  const found = useData<RunEnds>(query("/history/runs", { from, step, zone: zoneName() }), { gap: 5000, every: 60_000 });
  return (
    <Panel title={texts.history.runs} actions={<PeriodChoice value={period.key} onValue={setPeriod} />}>
      <Shown of={found}>
        {(data) => (
          <Chart
            label={texts.history.runsLabel(texts.history.lastOf[period.key as keyof typeof texts.history.lastOf], zoneName())}
            kind="columns"
            series={RUN_SERIES}
            points={endsOf(data.items, from, period)}
            nameOf={periodName(period.step)}
            format={(value) => number(value)}
            hrefOf={(at, state) => query("/runs", { state, from: instant(at), to: instant(at + period.step * HOUR_MS) })}
            isOpen
            empty={texts.history.noRuns}
          />
        )}
      </Shown>
    </Panel>
  );
}

/** The usual duration of a DAG's runs, and the duration from which a run is slow, in seconds. */
export interface Usual {
  slow_after_seconds: number;
  median_seconds?: number;
}

/** A mark on a run that takes or took longer than usual, with the factor. */
export function SlowMark({ run, usual }: { run: Pick<RunSummary, "started_at" | "ended_at">; usual: Usual | null | undefined }) {
  const begun = millis(run.started_at);
  const over = millis(run.ended_at);
  const now = useNow(begun !== null && over === null && !!usual);
  if (!usual || begun === null) return null;
  const took = ((over ?? now) - begun) / 1000;
  if (took <= usual.slow_after_seconds) return null;
  const { median_seconds: median } = usual;
  return (
    <span class="slow-mark" title={median ? texts.history.usualOf(span(median * 1000, true)) : texts.history.slowMeaning(span(usual.slow_after_seconds * 1000))}>
      {median ? texts.history.times(took / median) : texts.history.slow}
    </span>
  );
}

/** The usual duration, shown after a duration. */
export function Usually({ seconds: usual, isBare }: { seconds: number | null | undefined; isBare?: boolean }) {
  if (typeof usual !== "number") return null;
  const text = texts.history.usually(span(usual * 1000, true));
  return (
    <span class="usually" title={texts.history.usualMeaning}>
      {isBare ? text : `(${text})`}
    </span>
  );
}

/** Return the usual duration of each DAG's runs. */
export function useUsual(): ReadonlyMap<string, Usual> {
  const found = useItems<Usual & { dag_id: string }>("/history/usual", { on: never, every: 60_000 });
  return useMemo(() => new Map(found.data?.map((one) => [one.dag_id, one])), [found.data]);
}

const STATS_DAYS = 30;

/** Return the start of the period of success rates and medians. It is a full day, so that addresses stay the same. */
export const statsFrom = (): string => new Date(Math.floor(Date.now() / DAY_MS - STATS_DAYS) * DAY_MS).toISOString();

export interface Durations {
  count: number;
  mean: number | null;
  p50: number | null;
  p95: number | null;
}

export interface DagPeriod extends Ends {
  duration: Durations;
  queue: Durations;
}

export interface DagHistory {
  dag_id: string;
  total: DagPeriod;
  slow_after_seconds: number | null;
  items: DagPeriod[];
}

export const seconds = (value: number): string => (value === 0 ? "0" : span(value * 1000));
export const shownSeconds = (value: number | null): string => (value === null ? "–" : value === 0 ? "0" : span(value * 1000, true));
/** Format a percentage, rounded down, so that "100 %" means all. */
export const percent = (value: number): string => `${number(Math.floor(1000 * value + 1e-6) / 10, 1)} %`;

/** The success rate and the durations of a DAG's runs, as facts. */
export function Health({ id }: { id: string }) {
  const found = useData<DagHistory>(query(`/history/dags/${enc(id)}`, { from: useMemo(statsFrom, []) }), { on: ofDag(id), gap: 5000 });
  if (!found.data) return null;
  const { failure_rate: rate, duration } = found.data.total;
  if (rate === null && duration.count === 0) return null;
  return (
    <>
      <Fact name={`${texts.history.success}, ${texts.history.ofDays}`}>
        <b class={rate !== null && rate > 0.1 ? "bad" : ""}>{rate === null ? "–" : percent(1 - rate)}</b>
      </Fact>
      <Fact name={texts.history.medianDuration}>
        <b>{shownSeconds(duration.p50)}</b>
      </Fact>
      <Fact name={texts.history.slowest}>
        <b>{shownSeconds(duration.p95)}</b>
      </Fact>
    </>
  );
}
