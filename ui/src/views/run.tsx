import { useMemo } from "preact/hooks";

import { cancel, clear, deleteRun, mark } from "../actions";
import { enc, query } from "../api";
import { ofDag, ofRun, useData, useWindow } from "../data";
import { Drawer } from "../drawer";
import { Gantt } from "../gantt";
import { GraphView, graphOf } from "../graph";
import { VirtualList } from "../list";
import { Log } from "../log";
import { Choice, Empty, Fact, Filter, Head, Heads, Json, Panel, Shown, Tabs, Trouble, Waits, childName, dagHref, number, runHref, shortVersion, taskHref } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { Bar, Glyph, Legend, State, TASK_ORDER, ended, isLive, named, sum, worst } from "../states";
import { At, Took, When } from "../time";
import type { Counts, DagDetail, GanttRow, Graph, Run, RunGraph, RunGraphTask, Task } from "../types";
import { Why } from "../why";

const PAGE = 500;

export function RunPage({ id, view }: { id: string; view: string }) {
  const place = usePlace();
  const run = useData<Run>(query(`/runs/${enc(id)}`, { limit: 1 }), { on: ofRun(id) });
  const graph = useData<RunGraph>(`/runs/${enc(id)}/graph`, { on: ofRun(id) });
  const task = place.query.get("task");
  const map = Number(place.query.get("map") ?? -1);
  const round = Number(place.query.get("round") ?? 0);
  const base = runHref(id);
  return (
    <>
      {run.problem && !run.data && (
        <Head title={id} name={id}>
          <a href="/runs">All runs</a>
        </Head>
      )}
      <Shown of={run}>
        {(data) => (
          <>
            <Top run={data} cause={graph.data?.run.cause} />
            <Tabs
              label="Views of the run"
              at={view}
              tabs={[
                ["", "Overview", base],
                ["graph", "Graph", `${base}/graph`],
                ["gantt", "Gantt", `${base}/gantt`],
                ["tasks", "Tasks", `${base}/tasks`],
                ["logs", "Log", `${base}/logs`],
              ]}
            />
            <View run={data} view={view} tasks={graph.data?.tasks} isOld={graph.problem?.isAbsent === true} picked={task} />
          </>
        )}
      </Shown>
      {task !== null && <Drawer key={`${id} ${task} ${map} ${round}`} run={id} task={task} map={map} round={round} group={graph.data?.tasks.find((one) => one.task_id === task)} />}
    </>
  );
}

function Top({ run, cause }: { run: Run; cause?: string }) {
  const live = isGoingOn(run);
  const all = sum(run.counts);
  const newest = useData<DagDetail>(`/dags/${enc(run.dag_id)}`, { on: ofDag(run.dag_id), gap: 5000 }).data?.version;
  return (
    <>
      <Head
        name={run.run_id}
        title={
          <>
            <State state={run.state} /> <span class="break">{run.run_id}</span>
          </>
        }
      >
        {live && (
          <button type="button" data-needs="operator" class="grave" onClick={() => cancel(run.run_id)}>
            Cancel …
          </button>
        )}
        <button type="button" data-needs="operator" onClick={() => clear({ run: run.run_id })}>
          Clear …
        </button>
        <button type="button" data-needs="operator" onClick={() => mark({ run: run.run_id })}>
          Mark …
        </button>
        {!live && (
          <button type="button" data-needs="admin" onClick={() => deleteRun(run.run_id)}>
            Delete …
          </button>
        )}
      </Head>
      <div class="run-top">
        <dl class="facts inline">
          <Fact name="DAG">
            <a href={dagHref(run.dag_id)}>{run.dag_id}</a>
          </Fact>
          {run.logical_date && (
            <Fact name="For">
              <At at={run.logical_date} />
            </Fact>
          )}
          {cause && <Fact name="Cause">{cause}</Fact>}
          {run.quarantine && <Fact name="In quarantine">{run.quarantine}</Fact>}
          <Fact name="Started">
            <When at={run.started_at} />
          </Fact>
          <Fact name={live ? "Takes" : "Took"}>
            <Took from={run.started_at} to={run.ended_at} />
          </Fact>
          <Fact name="Tasks">
            <span data-progress>
              {number(ended(run.counts))} of {number(all)}
            </span>
          </Fact>
          <Fact name="Version">
            <CodeLink dag={run.dag_id} version={run.version} />
          </Fact>
          {newest !== undefined && newest !== run.version && (
            <Fact name="Newest version">
              <CodeLink dag={run.dag_id} version={newest} />
            </Fact>
          )}
        </dl>
        <Bar counts={run.counts} label="Tasks" />
        <Legend counts={run.counts} hrefOf={(state) => `${runHref(run.run_id)}/tasks?state=${state}`} />
      </div>
      {(live || FAILED.has(run.state)) && <Why run={run.run_id} isGoingOn={live} />}
    </>
  );
}

function CodeLink({ dag, version }: { dag: string; version: string }) {
  return (
    <a href={`${dagHref(dag)}/code?version=${enc(version)}`}>
      <code>{shortVersion(version)}</code>
    </a>
  );
}

interface ViewProps {
  run: Run;
  view: string;
  tasks?: RunGraphTask[];
  isOld: boolean;
  picked: string | null;
}

function View({ run, view, tasks, isOld, picked }: ViewProps) {
  switch (view) {
    case "graph":
      return <RunGraphView run={run} tasks={tasks} picked={picked} />;
    case "gantt":
      return <RunGantt run={run} />;
    case "tasks":
      return <Tasks run={run} tasks={tasks} />;
    case "logs":
      return (
        <Panel title="What callbacks and alerts of the run printed" class="fill-column">
          <Log run={run.run_id} task="@run" isGoingOn={run.state === "running"} />
        </Panel>
      );
    default:
      return (
        <>
          <RunGraphView run={run} tasks={tasks} picked={picked} />
          {isOld ? <Tasks run={run} /> : tasks && <ByTask run={run} tasks={tasks} />}
          <Panel title="Conf">{isEmpty(run.conf) ? <Empty>It was started without one.</Empty> : <Json value={run.conf} />}</Panel>
        </>
      );
  }
}

const FAILED = new Set(["failed", "partial"]);

const isGoingOn = (run: Run): boolean => run.state === "running" || run.state === "queued";

const isEmpty = (value: unknown): boolean => value === null || (typeof value === "object" && Object.keys(value).length === 0);

function RunGraphView({ run, tasks, picked }: Omit<ViewProps, "view" | "isOld">) {
  const graph = useData<Graph>(query(`/dags/${enc(run.dag_id)}/graph`, { version: run.version }), { on: () => false });
  const dag = useData<DagDetail>(graph.problem?.isAbsent ? `/dags/${enc(run.dag_id)}` : null, { on: () => false });
  const old = useMemo(() => (dag.data ? graphOf(dag.data) : undefined), [dag.data]);
  const shape = graph.data ?? old;
  const isOld = tasks === undefined;
  const listed = useData<Task[]>(isOld ? query(`/runs/${enc(run.run_id)}/tasks`, { limit: 1000 }) : null, { on: ofRun(run.run_id), gap: 500 });
  const counts = useMemo(() => countsOf(tasks, listed.data, shape), [tasks, listed.data, shape]);
  if (!shape) return dag.problem ? <Trouble problem={dag.problem} again={dag.reload} /> : <Shown of={graph} optional>{() => null}</Shown>;
  return <GraphView graph={shape} counts={counts} picked={picked} hrefOf={(task) => taskHref(run.run_id, task)} />;
}

function countsOf(tasks: RunGraphTask[] | undefined, listed: Task[] | undefined, shape: Graph | undefined): Record<string, Counts> {
  if (tasks) {
    // A fan-out whose width is not known yet has no children to be counted.
    const open = new Set(shape?.nodes.filter((node) => node.is_mapped).map((node) => node.task_id));
    return Object.fromEntries(tasks.map((task) => [task.task_id, task.width === null && open.has(task.task_id) ? {} : task.counts]));
  }
  const found: Record<string, Counts> = {};
  for (const task of listed ?? []) {
    const counts = (found[task.task_id] ??= {});
    counts[task.state] = (counts[task.state] ?? 0) + 1;
  }
  return found;
}

function ByTask({ run, tasks }: { run: Run; tasks: RunGraphTask[] }) {
  return (
    <Panel title="Tasks">
      <ul class="rows by-task">
        {tasks.slice(0, 300).map((task) => (
          <li key={task.task_id}>
            <a class="row" data-row href={taskHref(run.run_id, task.task_id)}>
              <Glyph state={worst(task.counts)} />
              <span class="cut grow">{task.task_id}</span>
              <span class="share">
                <Bar counts={task.counts} label={task.task_id} />
              </span>
              <span class="c-count num wide-only">
                {number(ended(task.counts))} of {number(sum(task.counts))}
              </span>
              <span class="c-took num soft">
                <Took from={task.started_at} to={Object.keys(task.counts).some(isLive) ? null : task.ended_at} />
              </span>
            </a>
          </li>
        ))}
      </ul>
      {tasks.length > 300 && <a href={`${runHref(run.run_id)}/tasks`}>All {tasks.length}</a>}
    </Panel>
  );
}

function RunGantt({ run }: { run: Run }) {
  const rows = useWindow<GanttRow>(sum(run.counts), (offset) => query(`/runs/${enc(run.run_id)}/gantt`, { offset, limit: PAGE }), PAGE, {
    on: ofRun(run.run_id),
    gap: 1000,
  });
  if (rows.problem) return <Trouble problem={rows.problem} />;
  return <Gantt rows={rows.items} run={run.run_id} from={run.started_at} to={run.ended_at} onRange={rows.onRange} />;
}

function Tasks({ run, tasks }: { run: Run; tasks?: RunGraphTask[] }) {
  const place = usePlace();
  const state = place.query.get("state") ?? "";
  const of = place.query.get("of") ?? "";
  const counts = (of ? tasks?.find((task) => task.task_id === of)?.counts : undefined) ?? (of ? {} : run.counts);
  const rows = useWindow<Task>(
    state ? (counts[state] ?? 0) : sum(counts),
    (offset) => query(`/runs/${enc(run.run_id)}/tasks`, { task: of, state, offset, limit: PAGE }),
    PAGE,
    { on: ofRun(run.run_id) },
  );
  return (
    <div class="fill-column">
      <div class="bar-of-filters">
        <Filter name="of" label="Of task (its whole id)" options={tasks?.slice(0, 500).map((task) => task.task_id)} onValue={(text) => go(withQuery({ of: text }), { replace: true })} />
        <Choice
          label="State"
          value={state}
          options={[["", "all states"], ...TASK_ORDER.map((one): [string, string] => [one, named(one)])]}
          onValue={(value) => go(withQuery({ state: value }), { replace: true })}
        />
      </div>
      {rows.problem ? (
        <Trouble problem={rows.problem} />
      ) : (
        <VirtualList
          class="panel fill"
          items={rows.items}
          height={32}
          label={`${rows.items.length} tasks`}
          keyOf={(_, index) => index}
          onRange={rows.onRange}
          head={<Heads of={COLUMNS} />}
          row={(task) => task && <TaskRow run={run.run_id} task={task} />}
        />
      )}
      {rows.items.length === 0 && <Empty>No such tasks.</Empty>}
    </div>
  );
}

const COLUMNS: [string, string, string?][] = [
  ["State", "state-cell"],
  ["Task", "grow"],
  ["Waits for", "c-waits wide-only"],
  ["Try", "c-try narrow-hide"],
  ["Took", "c-took num"],
];

function TaskRow({ run, task }: { run: string; task: Task }) {
  return (
    <a class="row" data-row href={taskHref(run, task.task_id, task.map_index, task.round)}>
      <span class="state-cell">
        <State state={task.state} />
      </span>
      <span class="cut grow">
        {childName(task.task_id, task.map_index, task.round, task.map_label)}
        {task.error && <span class="bad"> {task.error.message}</span>}
      </span>
      <span class="c-waits cut wide-only">
        <Waits wait={task.waiting_on} />
      </span>
      <span class="c-try soft narrow-hide">{task.try_number > 1 ? `${task.try_number} of ${task.max_tries}` : ""}</span>
      <span class="c-took num soft">
        <Took from={task.started_at} to={task.ended_at} />
      </span>
    </a>
  );
}
