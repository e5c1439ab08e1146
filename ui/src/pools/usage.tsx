// The usage of a pool in the last 24 hours: its slots in use, its limit, and the tasks queued for it.

import { enc } from "../api";
import { Chart, type Point, type Series, periodName } from "../chart";
import { never, useData } from "../data";
import { Shown, number } from "../parts";
import { DAY_MS, HOUR_MS, millis, whole } from "../time";
import { poolTexts as own } from "./texts";

interface Usage {
  since: string;
  until: string;
  step_seconds: number;
  full_seconds: number;
  items: { start: string; slots: number; used: number; queued: number }[];
}

const USED: Series[] = [{ key: "used", name: own.used, tone: "h-running" }];
const QUEUED: Series[] = [{ key: "queued", name: own.queued, tone: "h-queue" }];
const LIMIT: Series = { key: "slots", name: own.size, tone: "h-limit" };

export default function PoolUsage({ name, slots }: { name: string; slots: number }) {
  const usage = useData<Usage>(`/pools/${enc(name)}/usage`, { on: never, every: 60_000 });
  return (
    <>
      <h3>{own.title}</h3>
      <Shown of={usage} optional>
        {(data) => <Charts name={name} slots={slots} data={data} />}
      </Shown>
    </>
  );
}

function Charts({ name, slots, data }: { name: string; slots: number; data: Usage }) {
  if (data.items.length === 0) return <p class="soft">{own.none}</p>;
  const points = pointsOf(data, slots);
  const longest = Math.max(...data.items.map((one) => one.queued));
  const shared = { points, nameOf: periodName(1), format: (value: number) => number(value), labelEvery: Math.max(1, Math.round(HOUR_MS / 1000 / data.step_seconds)), height: 120 };
  return (
    <div class="pool-usage">
      <p class="soft">{own.summary(data.full_seconds > 0 ? whole(data.full_seconds * 1000) : null, longest)}</p>
      <Chart {...shared} kind="columns" label={own.usedOf(name)} series={USED} line={LIMIT} />
      {longest > 0 && <Chart {...shared} kind="columns" label={own.queuedOf(name)} series={QUEUED} />}
    </div>
  );
}

/** Return a point for each step of the last 24 hours, from a full hour on. Without a sample there was no usage. */
function pointsOf(data: Usage, slots: number): Point[] {
  const step = data.step_seconds * 1000;
  const found = new Map(data.items.map((one) => [millis(one.start), one]));
  const until = millis(data.until)!;
  const first = Math.ceil((until - DAY_MS) / HOUR_MS) * HOUR_MS;
  let size = data.items[0]?.slots ?? slots;
  const points: Point[] = [];
  for (let at = first; at < until; at += step) {
    const one = found.get(at);
    size = one?.slots ?? size;
    points.push({ at, values: { used: one?.used ?? null, queued: one?.queued ?? null, slots: size } });
  }
  return points;
}
