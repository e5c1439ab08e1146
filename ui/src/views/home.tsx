import { Empty, Head, Panel, Shown, runHref } from "../parts";
import { type Data, useData } from "../data";
import { useMode } from "../live";
import { RunsChart, SlowMark, type Usual } from "../history";
import { Bar, Glyph, UsageBar, ended, queuedForWorkers, runState, sum } from "../states";
import { texts } from "../texts";
import { Took } from "../time";
import type { HomeData, InFlight, Overview, Pool } from "../types";
import { WaitTimes } from "../wait_times";
import { Waiting } from "../waits";
import { AttentionList } from "./home_attention";

/** The home view. It needs few requests: the overview, home (attention and pools), and the history. */
export function Home({ overview }: { overview: Data<Overview> }) {
  const home = useData<HomeData>("/home", { gap: 1000, every: 60_000 });
  const now = overview.data;
  return (
    <>
      <Head title={texts.places.home} name={texts.places.home} />
      {now && home.data && <Status now={now} home={home.data} />}
      {(now?.damaged ?? []).length > 0 && (
        <Panel title={texts.home.damaged}>
          <Damaged rows={now?.damaged ?? []} />
        </Panel>
      )}
      <div class="home-lists">
        <div class="home-stack">
          <Panel title={texts.home.attention} actions={<a href="/runs?state=failed">{texts.common.showAll}</a>}>
            <Shown of={home}>{(data) => <AttentionList home={data} now={now} />}</Shown>
          </Panel>
          <RunsChart />
        </div>
        <div class="home-stack">
          <Panel title={texts.home.inFlight} actions={<a href="/runs?state=running">{texts.common.showAll}</a>}>
            <Shown of={home}>{(data) => <InFlightList runs={data.in_flight} waits={now?.waiting_longest ?? []} pool={now && poolOfAll(now, data.pools)} />}</Shown>
          </Panel>
          {home.data && now && <OtherWaits waits={now.waiting_longest} runs={home.data.in_flight} />}
          <Shown of={overview}>{(shown) => <Usage now={shown} pools={home.data?.pools ?? []} />}</Shown>
        </div>
      </div>
    </>
  );
}

type Wait = Overview["waiting_longest"][number];

/** The longest waits of runs that are not listed above. Waits for a person are under attention. */
function OtherWaits({ waits, runs }: { waits: Wait[]; runs: InFlight[] }) {
  const listed = new Set(runs.map(({ run }) => run.run_id));
  const others = waits.filter((row) => !listed.has(row.run_id) && row.waiting_on?.kind !== "decision");
  if (others.length === 0) return null;
  return (
    <Panel title={texts.home.waiting} actions={<a href="/triggers">{texts.common.showAll}</a>}>
      <Waiting rows={others} isShort />
    </Panel>
  );
}

/** Return how many things need a person: those listed below, and those omitted there. */
const needed = (now: Overview, home: HomeData): number => home.attention.filter((one) => !one.is_recovered).length + now.decisions + now.import_errors;

/** The overall status, in a line. */
function Status({ now, home }: { now: Overview; home: HomeData }) {
  const things = needed(now, home);
  const isAway = useMode() === "away";
  const isBad = isAway || things > 0 || now.status !== "ready";
  return (
    <p class={`home-status ${isBad ? "is-bad" : "is-good"}`}>
      {isAway ? `${texts.home.unreachable} ` : now.status !== "ready" && `${texts.home.health(now.status)} `}
      {things > 0 ? `${texts.home.needed(things)} ` : !isBad && `${texts.home.allWell} `}
      <Totals now={now} />
    </p>
  );
}

/** The totals, each with a link to its list. */
function Totals({ now }: { now: Overview }) {
  const [running, queued] = [now.states["running"] ?? 0, now.states["queued"] ?? 0];
  return (
    <span class="home-totals">
      <a href="/runs?state=running">{texts.home.runs(now.live_runs)}</a>, <a href="/executors">{texts.home.running(running)}</a>,{" "}
      {queued > 0 && (
        <>
          <a href="/pools">{texts.home.queued(queued)}</a>,{" "}
        </>
      )}
      <a href="/triggers">{texts.home.waits(waiting(now), now.deferred["person"] ?? 0)}</a>.
    </span>
  );
}

const waiting = (now: Overview): number => sum(now.deferred) + (now.states["sensing"] ?? 0);

interface Share {
  name: string;
  used: number;
  all: number;
  queued: number;
  href: string;
}

/** The maximum number of pools that are shown, by the pressure on them. */
const MOST_POOLS = 4;

/** The pools, those under the most pressure first, and the capacity of this node. */
function Usage({ now, pools }: { now: Overview; pools: Pool[] }) {
  const shares = pools.slice(0, MOST_POOLS).map((pool): Share => ({ name: pool.name, used: pool.used ?? 0, all: pool.slots, queued: pool.queued ?? 0, href: `/pools?open=${encodeURIComponent(pool.name)}` }));
  // Coroutines run in separate processes. Used slots come first, because they explain which tasks run.
  const slots = Object.entries(now.slots).sort(([, one], [, other]) => other.used - one.used);
  const capacity = slots.map(([name, slot]): Share => ({ name: texts.home.slotsOf(name), used: slot.used, all: slot.all, queued: name === "def" ? queuedForWorkers(now.states, pools) : 0, href: "/executors" }));
  return (
    <div class="home-usage">
      {shares.length > 0 && (
        <Panel title={texts.places.pools} actions={<a href="/pools">{texts.common.showAll}</a>}>
          <Shares shares={shares} />
        </Panel>
      )}
      <Panel title={texts.home.capacity} actions={<a href="/executors">{texts.places.executors}</a>}>
        <Shares shares={capacity} />
      </Panel>
    </div>
  );
}

function Shares({ shares }: { shares: Share[] }) {
  return (
    <dl class="usages">
      {shares.map((one) => (
        <div key={one.name}>
          <dt>
            <a href={one.href}>{one.name}</a>
          </dt>
          <dd>
            {texts.common.of(one.used, one.all)}
            {one.queued > 0 && (
              <>
                , <b class={one.used >= one.all ? "pressed" : undefined}>{texts.home.queued(one.queued)}</b>
              </>
            )}
          </dd>
          <dd class="usage-bar">
            <UsageBar used={one.used} all={one.all} queued={one.queued} label={`${one.name}: ${texts.common.of(one.used, one.all)}`} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

function Damaged({ rows }: { rows: Overview["damaged"] }) {
  return (
    <ul class="rows">
      {rows.map((row) => (
        <li key={`${row.table} ${row.row}`} class="row">
          <span>
            {row.table}, {row.row}
          </span>
          <span class="cut grow" title={row.reason}>
            {row.column}: {row.reason}
          </span>
          {row.run_id && <a href={runHref(row.run_id)}>{row.run_id}</a>}
        </li>
      ))}
    </ul>
  );
}

const usualOf = (after: number | null, median: number | null | undefined): Usual | null => (after === null ? null : { slow_after_seconds: after, median_seconds: median ?? undefined });

/** Return the pool for which all queued tasks wait; undefined if there is no single one. */
function poolOfAll(now: Overview, pools: Pool[]): string | undefined {
  const asked = pools.filter((pool) => (pool.queued ?? 0) > 0);
  return asked.length === 1 && queuedForWorkers(now.states, pools) === 0 ? asked[0]!.name : undefined;
}

function InFlightList({ runs, waits, pool }: { runs: InFlight[]; waits: Wait[]; pool: string | undefined }) {
  if (runs.length === 0)
    return (
      <Empty>
        {texts.home.nothingRuns} <a href="/dags">{texts.home.start}</a>
      </Empty>
    );
  return (
    <ul class="rows">
      {runs.map(({ run, counts, slow_after_seconds, usual_seconds }) => {
        const state = runState(run);
        // A waiting run shows its reason; a running one, how many tasks run and wait for a slot.
        const wait = state === "running" ? undefined : waits.find((row) => row.run_id === run.run_id);
        const progress = texts.home.progress(counts["running"] ?? 0, counts["queued"] ?? 0, pool);
        return (
          <li key={run.run_id}>
            <a class="home-row" data-row href={runHref(run.run_id)}>
              <Glyph state={state} />
              <span class="cut mono" title={run.run_id}>
                {run.run_id}
              </span>
              <span class="end in-flight">
                <span class="share">
                  <Bar counts={counts} label={run.run_id} />
                </span>
                <span>{sum(counts) > 0 ? texts.common.of(ended(counts), sum(counts)) : ""}</span>
                <Took from={run.started_at ?? run.created_at} to={null} />
              </span>
              {wait && (
                <span class="second home-reason">
                  <span>{wait.text}</span> {wait.waiting_on && <WaitTimes wait={wait.waiting_on} isShort />}
                </span>
              )}
              {!wait && progress !== "" && <span class="second home-reason">{progress}</span>}
              <SlowMark run={run} usual={usualOf(slow_after_seconds, usual_seconds)} />
            </a>
          </li>
        );
      })}
    </ul>
  );
}
