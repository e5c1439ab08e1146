import { Empty, Head, Panel, Shown, dagHref, number, runHref, taskHref } from "../parts";
import { enc, query } from "../api";
import { ofRun, useData } from "../data";
import { Bar, Glyph, State, ended, named, sum } from "../states";
import "../styles/why.css";
import { Took, When, whole } from "../time";
import type { Overview, Run, RunSummary, Trigger } from "../types";
import { Waiting } from "../waits";

const SHOWN = 12;

export function Home() {
  const overview = useData<Overview>("/overview", { gap: 1000, every: 10_000 });
  const live = useData<RunSummary[]>(query("/runs", { state: "running", limit: SHOWN }));
  const isOld = overview.problem?.isAbsent === true;
  return (
    <>
      <Head title="Home" name="Home" />
      <Shown of={overview} optional>
        {(now) => <Figures now={now} />}
      </Shown>
      <div class="columns">
        {(overview.data?.damaged ?? []).length > 0 && (
          <Panel title="Damaged rows of the database" class="wide">
            <Damaged rows={overview.data?.damaged ?? []} />
          </Panel>
        )}
        <Panel title="In flight" actions={<a href="/runs?state=running">all</a>}>
          <Shown of={live}>
            {(runs) =>
              runs.length === 0 ? (
                <Empty>
                  Nothing runs. <a href="/dags">Start a run</a> of a DAG, or wait for its schedule.
                </Empty>
              ) : (
                <ul class="rows">
                  {runs.map((run) => (
                    <InFlight key={run.run_id} run={run} />
                  ))}
                </ul>
              )
            }
          </Shown>
        </Panel>
        <Panel title="Failed" actions={<a href="/runs?state=failed">all</a>}>
          {isOld ? <FailedRuns /> : <Shown of={overview}>{(now) => <Failed groups={now.failures} />}</Shown>}
        </Panel>
        <Panel title="Waiting longest" actions={<a href="/triggers">all</a>} class="wide">
          {isOld ? <LongestWaits /> : <Shown of={overview}>{(now) => <Waiting rows={now.waiting_longest} />}</Shown>}
        </Panel>
      </div>
    </>
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

function Figures({ now }: { now: Overview }) {
  const sensors = now.states["sensing"] ?? 0;
  const waits = [...Object.entries(now.deferred), ...(sensors ? [["sensor", sensors] as const] : [])];
  const waiting = waits.reduce((all, [, count]) => all + count, 0);
  const slots = Object.entries(now.slots);
  const kinds = waits.map(([kind, count]) => `${count} ${kind}`).join(", ");
  return (
    <>
      <dl class="figures">
        <Figure name="Health" isBad={now.status !== "ready"} href="/nodes" text={now.status} below={`up ${whole(now.uptime_seconds * 1000)}`} />
        <Figure name="Live runs" href="/runs?state=running" text={number(now.live_runs)} below={`${number(now.states["running"] ?? 0)} tasks run`} />
        <Figure name="Waiting" href="/triggers" text={number(waiting)} below={kinds || "no slot held"} />
        <Figure name="Queued" href="/pools" text={number(now.states["queued"] ?? 0)} below="for a slot" />
        <Figure name="Slots in use" href="/nodes" text={slots.slice(0, 1).map(([, slot]) => `${slot.used} of ${slot.all}`).join()} below={slots.slice(1).map(([executor, slot]) => `${executor}: ${slot.used} of ${slot.all}`).join(", ")} />
        <Figure name="Failed, 24 h" href="/runs?state=failed" isBad={now.failed_24h > 0} text={number(now.failed_24h)} below="runs" />
        <Figure name="Import errors" href="/errors" isBad={now.import_errors > 0} text={number(now.import_errors)} below="files" />
        <Figure name="Fires" href="/triggers" text={number(now.fires_per_second, 1)} below="per second" />
      </dl>
    </>
  );
}

function Figure({ name, text, below, isBad, href }: { name: string; text: string; below: string; isBad?: boolean; href: string }) {
  return (
    <div class={isBad ? "figure bad" : "figure"}>
      <dt>{name}</dt>
      <dd>
        <a href={href}>{text}</a>
        <small title={below}>{below}</small>
      </dd>
    </div>
  );
}

function InFlight({ run }: { run: RunSummary }) {
  const shown = useData<Run>(query(`/runs/${enc(run.run_id)}`, { limit: 1 }), { on: ofRun(run.run_id), gap: 500 });
  const counts = shown.data?.counts ?? {};
  return (
    <li>
      <a class="row" data-row href={runHref(run.run_id)}>
        <span class="cut grow" title={run.run_id}>
          {run.run_id}
        </span>
        <span class="share">
          <Bar counts={counts} label={run.run_id} />
        </span>
        <span class="num">{sum(counts) > 0 ? `${ended(counts)} of ${sum(counts)}` : ""}</span>
        <span class="num soft">
          <Took from={run.started_at ?? run.created_at} to={null} />
        </span>
      </a>
    </li>
  );
}

function FailedRuns() {
  const failed = useData<RunSummary[]>(query("/runs", { state: "failed", limit: 10 }));
  return <Shown of={failed}>{(runs) => <FailedList runs={runs} />}</Shown>;
}

function FailedList({ runs }: { runs: RunSummary[] }) {
  return (
    <ul class="rows">
      {runs.map((run) => (
        <li key={run.run_id}>
          <a class="row" data-row href={runHref(run.run_id)}>
            <Glyph state={run.state} />
            <span class="cut grow" title={`${run.run_id}, ${named(run.state)}`}>
              {run.run_id}
            </span>
            <span class="num soft">
              <When at={run.ended_at} />
            </span>
          </a>
        </li>
      ))}
    </ul>
  );
}

/** By DAG: the one that failed last comes first, with its newest runs. */
function Failed({ groups }: { groups: Overview["failures"] }) {
  if (groups.length === 0) return <Empty>No run has failed.</Empty>;
  return (
    <ul class="by-dag">
      {groups.map((group) => (
        <li key={group.dag_id}>
          <h3>
            <a href={dagHref(group.dag_id)}>{group.dag_id}</a>{" "}
            {group.count > 1 && <span class="soft">{number(group.count)} runs</span>}
          </h3>
          <FailedList runs={group.runs} />
        </li>
      ))}
    </ul>
  );
}

function LongestWaits() {
  const waits = useData<Trigger[]>(query("/triggers", { limit: 10 }), { gap: 1000 });
  return (
    <Shown of={waits}>
      {(rows) =>
        rows.length === 0 ? (
          <Empty>Nothing waits.</Empty>
        ) : (
          <ul class="rows">
            {rows.map((row) => (
              <li key={row.trigger_id}>
                <a class="row" data-row href={row.run_id && row.task_id ? taskHref(row.run_id, row.task_id, row.map_index, row.round) : dagHref(row.dag_id)}>
                  <State state="deferred" />
                  <span class="cut">{row.task_id ?? row.dag_id}</span>
                  <span class="cut grow soft">{row.detail}</span>
                  <span class="num soft">
                    <When at={row.since} />
                  </span>
                </a>
              </li>
            ))}
          </ul>
        )
      }
    </Shown>
  );
}
