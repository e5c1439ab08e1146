import { Empty, Head, Panel, Shown, number, runHref } from "../parts";
import { type Data, useData } from "../data";
import type { Decision } from "../decision";
import { useMode } from "../live";
import { RunsChart, SlowMark, type Usual } from "../history";
import { Bar, Glyph, UsageBar, ended, queuedForWorkers, runState, sum } from "../states";
import { sentenceCase, stateName, texts } from "../texts";
import { Took, When, whole } from "../time";
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

/** How many decisions and files are listed; the others are only counted. */
const NAMED = 3;

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
      <div class="home-history">
        <RunsChart />
        <Shown of={overview}>{(shown) => <Usage now={shown} pools={home.data?.pools ?? []} />}</Shown>
      </div>
      <div class="home-lists">
        <Panel title={texts.home.attention} actions={<a href="/runs?state=failed">{texts.common.showAll}</a>}>
          <Shown of={home}>{(data) => <AttentionList groups={data.attention} now={now} asked={data.decisions} broken={data.import_errors} />}</Shown>
        </Panel>
        <Panel title={texts.home.inFlight} actions={<a href="/runs?state=running">{texts.common.showAll}</a>}>
          <Shown of={home}>{(data) => <InFlightList runs={data.in_flight} />}</Shown>
        </Panel>
        <Panel title={texts.home.waiting} actions={<a href="/triggers">{texts.common.showAll}</a>}>
          <Shown of={overview}>{(shown) => <Waiting rows={shown.waiting_longest} isShort />}</Shown>
        </Panel>
      </div>
    </>
  );
}

/** What one came for, in a sentence. */
function Status({ now, home }: { now: Overview; home: HomeData }) {
  const open = home.attention.filter((one) => !one.is_recovered);
  const needed = open.reduce((all, one) => all + one.count, 0);
  const named = open.slice(0, NAMED);
  const isAway = useMode() === "away";
  const isBad = isAway || needed > 0 || now.import_errors > 0 || now.status !== "ready";
  return (
    <p class={`home-status ${isBad ? "is-bad" : "is-good"}`}>
      {isAway ? `${texts.home.unreachable} ` : now.status !== "ready" && `${texts.home.health(now.status)} `}
      {needed > 0 && (
        <>
          {texts.home.needed(needed)}{" "}
          {named.map((one, index) => (
            <>
              {index > 0 && ", "}
              <a href={runHref(one.last.run_id)}>{one.dag_id}</a> {one.count > 1 ? texts.home.failedTimes(one.count) : texts.home.failedOnce(one.state)} <When at={one.count > 1 ? one.since : one.last.ended_at} />
            </>
          ))}
          {open.length > named.length && texts.home.others(open.length - named.length)}.{" "}
        </>
      )}
      {!isBad && now.decisions === 0 && `${texts.home.allWell} `}
      {now.decisions > 0 && (
        <>
          <a href="/decisions">{texts.home.asked(now.decisions)}</a>{" "}
        </>
      )}
      {now.import_errors > 0 && (
        <>
          <a href="/errors">{now.import_errors === 1 && home.import_errors[0] ? texts.home.notImported(home.import_errors[0].file) : texts.home.importErrors(now.import_errors)}</a>{" "}
        </>
      )}
      <span class="soft">{texts.home.load(now.live_runs, now.states["running"] ?? 0, now.states["queued"] ?? 0, waiting(now))}</span>
    </p>
  );
}

const waiting = (now: Overview): number => sum(now.deferred) + (now.states["sensing"] ?? 0);

function Usage({ now, pools }: { now: Overview; pools: Pool[] }) {
  const slots = Object.entries(now.slots).map(([name, slot]) => ({ name: texts.home.slotsOf(name), used: slot.used, all: slot.all, queued: name === "def" ? queuedForWorkers(now.states, pools) : 0, href: "/nodes" }));
  const shares = pools.map((pool) => ({ name: pool.name, used: pool.used ?? 0, all: pool.slots, queued: pool.queued ?? 0, href: `/pools?open=${encodeURIComponent(pool.name)}` }));
  const busiest = shares.sort((one, other) => other.queued - one.queued || other.used / other.all - one.used / one.all).slice(0, 4);
  return (
    <Panel title={texts.home.slots} actions={<a href="/pools">{texts.places.pools}</a>}>
      <dl class="usages">
        {[...slots, ...busiest].map((one) => (
          <div key={one.name}>
            <dt>
              <a href={one.href}>{one.name}</a>
            </dt>
            <dd>
              {texts.common.of(one.used, one.all)}
              {one.queued > 0 && `, ${texts.home.queued(one.queued)}`}
            </dd>
            <dd class="usage-bar">
              <UsageBar used={one.used} all={one.all} label={`${one.name}: ${texts.common.of(one.used, one.all)}`} />
            </dd>
          </div>
        ))}
      </dl>
      <p class="soft">
        {texts.home.upFor(whole(now.uptime_seconds * 1000))}
        {now.fires_per_second > 0 && `, ${texts.home.events(number(now.fires_per_second, 1))}`}
      </p>
    </Panel>
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

interface AttentionProps {
  groups: Attention[];
  now: Overview | undefined;
  asked: Decision[];
  broken: Broken[];
}

/** What needs a person: decisions, then broken files, then failures, the newest first. */
function AttentionList({ groups, now, asked, broken }: AttentionProps) {
  const { decisions = 0, import_errors: errors = 0 } = now ?? {};
  if (groups.length + decisions + errors === 0) return <Empty>{texts.home.noAttention}</Empty>;
  return (
    <ul class="rows">
      {asked.map((one) => (
        <li key={one.decision_id}>
          <DecisionRow decision={one} />
        </li>
      ))}
      {asked.length > 0 && decisions > asked.length && <MoreRow href="/decisions" state="deferred" text={texts.home.moreDecisions(decisions - asked.length)} />}
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
      <Glyph state="deferred" />
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

