import { Empty, Head, Panel, Shown, runHref } from "../parts";
import { type Data, useData } from "../data";
import type { Decision } from "../decision";
import { useMode } from "../live";
import { RunsChart, SlowMark, type Usual } from "../history";
import { Bar, Glyph, UsageBar, ended, queuedForWorkers, runState, sum } from "../states";
import { sentenceCase, stateName, texts } from "../texts";
import { Took, When } from "../time";
import type { Overview, Pool, RunSummary, TaskError } from "../types";
import { Waiting } from "../waits";

interface InFlight {
  run: RunSummary;
  counts: Record<string, number>;
  slow_after_seconds: number | null;
  usual_seconds?: number | null;
}

interface Attention {
  dag_id: string;
  count: number;
  state: string;
  last: RunSummary;
  /** Of the task that failed first. */
  error: TaskError | null;
  since: string | null;
  is_recovered: boolean;
}

interface HomeData {
  in_flight: InFlight[];
  attention: Attention[];
  pools: Pool[];
  decisions: Decision[];
  import_errors: Broken[];
}

interface Broken {
  file: string;
  message: string;
}

/** Few requests in all: the overview, which the shell shows too, what needs attention with the pools, and the history. */
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
        <Panel title={texts.home.attention} actions={<a href="/runs?state=failed">{texts.common.showAll}</a>}>
          <Shown of={home}>{(data) => <AttentionList home={data} now={now} />}</Shown>
        </Panel>
        <Panel title={texts.home.inFlight} actions={<a href="/runs?state=running">{texts.common.showAll}</a>}>
          <Shown of={home}>{(data) => <InFlightList runs={data.in_flight} />}</Shown>
        </Panel>
        <Panel title={texts.home.waiting} actions={<a href="/triggers">{texts.common.showAll}</a>}>
          <Shown of={overview}>{(shown) => <OtherWaits rows={shown.waiting_longest} />}</Shown>
        </Panel>
      </div>
      <div class="home-history">
        <RunsChart />
        <Shown of={overview}>{(shown) => <Usage now={shown} pools={home.data?.pools ?? []} />}</Shown>
      </div>
    </>
  );
}

/** The waits that *Needs attention* does not list: decisions are there. */
function OtherWaits({ rows }: { rows: Overview["waiting_longest"] }) {
  const others = rows.filter((row) => row.waiting_on?.kind !== "decision");
  if (others.length === 0 && rows.length > 0) return <Empty>{texts.home.onlyDecisions}</Empty>;
  return <Waiting rows={others} isShort />;
}

/** A pool for which more wait than it has slots is a bottleneck. */
const crowded = (pools: readonly Pool[]): Pool[] => pools.filter((pool) => (pool.queued ?? 0) > pool.slots);

/** How many things need a person: as many as are listed below, and those that were left out there. */
const needed = (now: Overview, home: HomeData): number => home.attention.filter((one) => !one.is_recovered).length + now.decisions + now.import_errors + crowded(home.pools).length;

/** What one came for, in a line. */
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

/** How much there is of each, with a link to the list of it. */
function Totals({ now }: { now: Overview }) {
  const [running, queued] = [now.states["running"] ?? 0, now.states["queued"] ?? 0];
  return (
    <span class="home-totals">
      <a href="/runs?state=running">{texts.home.runs(now.live_runs)}</a>, {texts.home.running(running)},{" "}
      {queued > 0 && (
        <>
          <a href="/pools">{texts.home.queued(queued)}</a>,{" "}
        </>
      )}
      <a href="/triggers">{texts.home.waits(waiting(now))}</a>.
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

/** Of more pools, only those under the most pressure are shown. */
const MOST_POOLS = 4;

/** The pools, those under the most pressure first, and the capacity of this node. */
function Usage({ now, pools }: { now: Overview; pools: Pool[] }) {
  const shares = pools.slice(0, MOST_POOLS).map((pool): Share => ({ name: pool.name, used: pool.used ?? 0, all: pool.slots, queued: pool.queued ?? 0, href: `/pools?open=${encodeURIComponent(pool.name)}` }));
  const capacity = Object.entries(now.slots).map(([name, slot]): Share => ({ name: texts.home.slotsOf(name), used: slot.used, all: slot.all, queued: name === "def" ? queuedForWorkers(now.states, pools) : 0, href: "/nodes" }));
  return (
    <div class="home-usage">
      {shares.length > 0 && (
        <Panel title={texts.places.pools} actions={<a href="/pools">{texts.common.showAll}</a>}>
          <Shares shares={shares} />
        </Panel>
      )}
      <Panel title={texts.home.capacity} actions={<a href="/nodes">{texts.places.nodes}</a>}>
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

/** What needs a person: decisions, then broken files, then failures, the newest first, then bottlenecks. */
function AttentionList({ home: { attention: groups, decisions: asked, import_errors: broken, pools }, now }: { home: HomeData; now: Overview | undefined }) {
  const { decisions = 0, import_errors: errors = 0 } = now ?? {};
  const full = crowded(pools);
  if (groups.length + decisions + errors + full.length === 0) return <Empty>{texts.home.noAttention}</Empty>;
  return (
    <ul class="rows">
      {asked.map((one) => (
        <li key={one.decision_id}>
          <DecisionRow decision={one} />
        </li>
      ))}
      {asked.length > 0 && decisions > asked.length && <MoreRow href="/decisions" state="waiting" text={texts.home.moreDecisions(decisions - asked.length)} />}
      {broken.map((one) => (
        <li key={one.file}>
          <a class="home-row" data-row href="/errors">
            <Glyph state="failed" />
            <span class="cut">{one.file}</span>
            <span class="end">{texts.dags.broken}</span>
            <ErrorLine text={one.message} />
          </a>
        </li>
      ))}
      {broken.length > 0 && errors > broken.length && <MoreRow href="/errors" state="failed" text={texts.home.moreErrors(errors - broken.length)} />}
      {groups.map((group) => (
        <li key={group.dag_id}>
          <AttentionRow group={group} />
        </li>
      ))}
      {full.map((pool) => (
        <li key={pool.name}>
          <a class="home-row" data-row href={`/pools?open=${encodeURIComponent(pool.name)}`}>
            <Glyph state="queued" />
            <span class="cut">{texts.home.crowded(pool.name)}</span>
            <span class="end pressed">{texts.home.queued(pool.queued ?? 0)}</span>
            <span class="second">{texts.home.crowdedBy(pool.used ?? 0, pool.slots)}</span>
          </a>
        </li>
      ))}
    </ul>
  );
}

function MoreRow({ href, state, text }: { href: string; state: string; text: string }) {
  return (
    <li>
      <a class="home-row" data-row href={href}>
        <Glyph state={state} />
        <span class="cut">{text}</span>
        <span />
      </a>
    </li>
  );
}

function DecisionRow({ decision }: { decision: Decision }) {
  const href = `/decisions?open=${decision.decision_id}`;
  return (
    <div class="home-row">
      <Glyph state="waiting" />
      <a class="row-link cut" data-row href={href} title={decision.question}>
        {decision.question}
      </a>
      <span class="end">
        {decision.may_answer ? (
          <a class="button small" href={href}>
            {texts.actions.answer}
          </a>
        ) : (
          <When at={decision.asked_at} />
        )}
      </span>
      <span class="second">
        <span class="cut">{sentenceCase(decision.waits_for)}</span>
        <span class="cut mono">{decision.run_id}</span>
      </span>
    </div>
  );
}

/** The first line of an error, or the last one of a traceback, which has the exception. */
function ErrorLine({ text }: { text: string }) {
  const lines = text.trim().split("\n");
  return (
    <span class="second">
      <span class="cut" title={text}>
        {lines[0]!.startsWith("Traceback") ? lines[lines.length - 1] : lines[0]}
      </span>
    </span>
  );
}

/** The row links to all these runs, the id in it to the last one. */
function AttentionRow({ group }: { group: Attention }) {
  const last = runHref(group.last.run_id);
  const isOne = group.count === 1;
  return (
    <div class="home-row">
      <Glyph state={group.is_recovered ? "success" : group.state} />
      <a class="row-link" data-row href={isOne ? last : `/runs?dag=${encodeURIComponent(group.dag_id)}&state=${group.state}&from=-24h`}>
        {group.dag_id}
      </a>
      <span class="end">
        <When at={group.last.ended_at} />
      </span>
      <span class="second">
        {isOne ? stateName(group.state) : texts.home.runsFailed(group.count)}
        {group.is_recovered && `, ${texts.home.recovered}`}
        <a class="cut mono home-last" href={last}>
          {group.last.run_id}
        </a>
      </span>
      {group.error && <ErrorLine text={`${group.error.type}: ${group.error.message}`} />}
    </div>
  );
}

const usualOf = (after: number | null, median: number | null | undefined): Usual | null => (after === null ? null : { slow_after_seconds: after, median_seconds: median ?? undefined });

function InFlightList({ runs }: { runs: InFlight[] }) {
  if (runs.length === 0)
    return (
      <Empty>
        {texts.home.nothingRuns} <a href="/dags">{texts.home.start}</a>
      </Empty>
    );
  return (
    <ul class="rows">
      {runs.map(({ run, counts, slow_after_seconds, usual_seconds }) => (
        <li key={run.run_id}>
          <a class="home-row" data-row href={runHref(run.run_id)}>
            <Glyph state={runState(run)} />
            <span class="cut mono" title={run.run_id}>
              {run.run_id}
            </span>
            <span class="end">
              <Took from={run.started_at ?? run.created_at} to={null} />
            </span>
            <span class="second">
              <span class="share">
                <Bar counts={counts} label={run.run_id} />
              </span>
              <span class="num">{sum(counts) > 0 ? texts.common.of(ended(counts), sum(counts)) : ""}</span>
              <SlowMark run={run} usual={usualOf(slow_after_seconds, usual_seconds)} />
            </span>
          </a>
        </li>
      ))}
    </ul>
  );
}

