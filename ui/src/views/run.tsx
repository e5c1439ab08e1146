import { useMemo } from "preact/hooks";

import { cancel, clear, deleteRun, mark, retry, runAgain } from "../actions";
import { enc, query } from "../api";
import { never, ofDag, ofRun, useData, useItems, useWindow } from "../data";
import { Menu } from "../components/menu";
import { type Decision, outcomeOf } from "../decision";
import { TabBar } from "../components/tabs";
import { type Column, Table } from "../components/table";
import { SplitPane } from "../components/split";
import { Gantt } from "../gantt";
import { GraphView, graphOf } from "../graph";
import { RunLog } from "../log";
import { NoteBox, NoteMark, writeNote } from "../note";
import { Empty, Fact, Filter, Head, HeadActions, NoMatches, Panel, Shown, StartedBy, Trouble, childName, dagHref, number, runHref, shortVersion, taskHref, tasksHref } from "../parts";
import { RunParameters } from "../run_parameters";
import { go, usePlace, withQuery } from "../router";
import { Bar, Glyph, Legend, State, TASK_ORDER, byName, countedState, ended, endedOf, isLive, isWait, named, statesOf, sum, worst } from "../states";
import { TaskPane } from "../task";
import { stateName, texts } from "../texts";
import { SlowMark, Usually, useUsual } from "../history";
import { At, Took, When, millis, span } from "../time";
import type { Cause, Chain, Counts, DagDetail, GanttRow, Graph, Note, Run, RunGraph, RunGraphTask, RunSummary, Task } from "../types";
import { Waits, briefWait } from "../wait_times";
import { CauseLine, Why } from "../why";

const PAGE = 500;

export function RunPage({ id, view }: { id: string; view: string }) {
  const place = usePlace();
  const run = useData<Run>(query(`/runs/${enc(id)}`, { limit: 1 }), { on: ofRun(id) });
  const graph = useData<RunGraph>(`/runs/${enc(id)}/graph`, { on: ofRun(id) });
  const notes = useItems<Note>(`/runs/${enc(id)}/notes`, { on: ofRun(id), gap: 3000 });
  const note = notes.data && (notes.data.find((one) => one.task_id === null) ?? null);
  const task = place.query.get("task");
  const map = Number(place.query.get("map") ?? -1);
  const round = Number(place.query.get("round") ?? 0);
  const pane = task === null || !run.data ? null : (
    <TaskPane key={`${id} ${task} ${map} ${round}`} run={id} dag={run.data.dag_id} version={run.data.version} task={task} map={map} round={round} tasks={graph.data?.tasks} />
  );
  return (
    <>
      {run.problem && !run.data && (
        <Head title={id} name={id}>
          <a href="/runs">{texts.run.all}</a>
        </Head>
      )}
      <Shown of={run}>
        {(data) => (
          <>
            <RunHead run={data} view={view} hasNoNote={note === null} />
            <SplitPane name="task" side={pane} isFull={place.query.has("full")}>
              <Top run={data} summary={graph.data?.run} note={note} isBrief={view !== ""} />
              <View run={data} view={view} tasks={graph.data?.tasks} notes={notes.data ?? []} isOld={graph.problem?.isAbsent === true} picked={task} />
            </SplitPane>
          </>
        )}
      </Shown>
    </>
  );
}

function RunHead({ run, view, hasNoNote }: { run: Run; view: string; hasNoNote: boolean }) {
  const base = runHref(run.run_id);
  const live = isGoingOn(run);
  const hasFailed = FAILED.has(run.state);
  // While a task is open beside the run, the main action is that of the task.
  const isAlone = !usePlace().query.has("task");
  const retrying = {
    name: texts.actions.retryFailed,
    short: texts.actions.retry,
    meaning: texts.actions.retryFailedMeaning(clearable(run.counts)),
    act: () => void retry({ run: run.run_id }, true),
    needs: "operator" as const,
    isMain: isAlone,
  };
  return (
    <Head
      isWide
      up={{ name: run.dag_id, href: dagHref(run.dag_id) }}
      name={run.run_id}
      title={
        <>
          <span class="cut">{run.run_id}</span> <State state={countedState(run.state, run.counts)} />
        </>
      }
      tabs={
        <TabBar
          label={texts.run.views}
          at={view}
          tabs={[
            { key: "", name: texts.run.tabs.overview, href: base },
            { key: "graph", name: texts.run.tabs.graph, href: `${base}/graph` },
            { key: "gantt", name: texts.run.tabs.gantt, href: `${base}/gantt` },
            { key: "tasks", name: texts.run.tabs.tasks, href: `${base}/tasks` },
            { key: "logs", name: texts.run.tabs.log, href: `${base}/logs` },
          ]}
        />
      }
    >
      <HeadActions
        actions={[
          ...(hasFailed ? [retrying] : []),
          ...(live ? [{ name: texts.actions.cancel, act: () => cancel(run.run_id), isGrave: true, needs: "operator" as const }] : []),
          ...(live ? [] : [{ name: texts.actions.again, meaning: texts.actions.againMeaning, act: () => void runAgain(run), needs: "operator" as const }]),
        ]}
        more={[
          { name: texts.actions.clearMore, meaning: texts.actions.clearMeaning, act: () => void clear({ run: run.run_id }), needs: "operator" },
          { name: texts.actions.markRun, act: () => mark({ run: run.run_id }), needs: "operator" },
          ...(hasNoNote ? [{ name: texts.notes.add, act: () => writeNote({ run: run.run_id }), needs: "operator" as const }] : []),
          ...(live ? [] : (["line", { name: texts.actions.remove, meaning: texts.actions.removeMeaning, act: () => deleteRun(run.run_id), isGrave: true, needs: "admin" }] as const)),
        ]}
      />
    </Head>
  );
}

const countOf = (counts: Counts, ...states: string[]): number => states.reduce((all, state) => all + (counts[state] ?? 0), 0);

/** The states that the progress of a run names, in addition to what has ended. */
const TOLD = ["running", "waiting", "retrying", "queued", "pending", "failed", "upstream_failed"];

/** The result of a run, or its progress; `isBrief` where a legend has the states of its tasks. */
function sentenceOf(run: Run, isBrief: boolean): string {
  const { counts } = run;
  const count = (...states: string[]) => countOf(counts, ...states);
  const [begun, over] = [millis(run.started_at), millis(run.ended_at)];
  const took = begun !== null && over !== null ? span(over - begun, true) : null;
  const all = sum(counts);
  if (isGoingOn(run)) {
    if (run.state === "queued") return texts.run.queued;
    const shown = byName(counts);
    return texts.run.underWay(ended(counts), all, isBrief ? [] : TOLD.flatMap((state): [string, number][] => (shown[state] ? [[named(state), shown[state]]] : [])));
  }
  if (FAILED.has(run.state)) return texts.run.failed(count("failed"), count("upstream_failed"), took);
  if (run.state === "success") return texts.run.success(all, took);
  return texts.run.ended(stateName(run.state), ended(counts), all, took);
}

/** In the overview every fact of the run; in the other views, which need the room, its cause and progress only. */
function Top({ run, summary, note, isBrief }: { run: Run; summary?: RunSummary; note: Note | null | undefined; isBrief: boolean }) {
  const live = isGoingOn(run);
  const usual = useUsual();
  const hasCause = live || FAILED.has(run.state);
  // Leave out the sentence if the cause above, or the facts and the bar below, say the same.
  const isTold = !isBrief && (FAILED.has(run.state) || countedState(run.state, run.counts) === "waiting");
  const newest = useData<DagDetail>(isBrief ? null : `/dags/${enc(run.dag_id)}`, { on: ofDag(run.dag_id), gap: 5000 }).data?.version;
  return (
    <>
      {!isBrief && hasCause && <Why run={run.run_id} isGoingOn={live} />}
      {!isTold && (
        <p class={isBrief ? "sentence" : "sentence about"}>
          {isBrief && hasCause ? (
            <CauseLine run={run.run_id} isGoingOn={live}>
              {sentenceOf(run, true)}
            </CauseLine>
          ) : (
            sentenceOf(run, isBrief)
          )}
        </p>
      )}
      {note && <NoteBox of={{ run: run.run_id }} note={note} />}
      <div class="run-top">
        {!isBrief && <dl class="facts inline">
          <Fact name={texts.run.dag}>
            <a href={dagHref(run.dag_id)}>{run.dag_id}</a>
          </Fact>
          {run.logical_date && (
            <Fact name={texts.run.logicalDate}>
              <At at={run.logical_date} />
            </Fact>
          )}
          {summary && (
            <Fact name={texts.run.startedBy}>
              <StartedBy run={summary} />
            </Fact>
          )}
          {run.quarantine && <Fact name={texts.run.quarantine}>{run.quarantine}</Fact>}
          <Fact name={texts.run.started}>
            <When at={run.started_at} />
          </Fact>
          <Fact name={live ? texts.common.elapsed : texts.run.duration}>
            <Took from={run.started_at} to={run.ended_at} /> <SlowMark run={run} usual={usual.get(run.dag_id)} /> <Usually seconds={usual.get(run.dag_id)?.median_seconds} />
          </Fact>
          <Fact name={texts.run.version}>
            <CodeLink dag={run.dag_id} version={run.version} />
          </Fact>
          {newest !== undefined && newest !== run.version && (
            <Fact name={texts.run.newestVersion}>
              <CodeLink dag={run.dag_id} version={newest} />
            </Fact>
          )}
        </dl>}
        <div class="run-progress">
          <Bar counts={run.counts} label={texts.run.tasks} />
          <Legend counts={run.counts} hrefOf={(state) => tasksHref(run.run_id, state)} />
        </div>
      </div>
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
  notes: Note[];
  isOld: boolean;
  picked: string | null;
}

function View({ run, view, tasks, notes, isOld, picked }: ViewProps) {
  switch (view) {
    case "graph":
      return <RunGraphView run={run} tasks={tasks} isOld={isOld} picked={picked} />;
    case "gantt":
      return <RunGantt run={run} />;
    case "tasks":
      return <Tasks run={run} tasks={tasks} notes={notes} />;
    case "logs":
      return (
        <Panel class="fill-column log-panel">
          <RunLog run={run.run_id} tasks={(tasks ?? []).map((task) => task.task_id)} isGoingOn={isGoingOn(run)} />
        </Panel>
      );
    default:
      return (
        <>
          {(tasks?.length ?? 0) <= MOST_BOXES && <RunGraphView run={run} tasks={tasks} isOld={isOld} picked={picked} />}
          {isOld ? <Tasks run={run} notes={notes} /> : tasks && <ByTask run={run} tasks={tasks} notes={notes} />}
          <RunDecisions run={run} />
          <RunParameters run={run} />
        </>
      );
  }
}

const DECISIONS = 20;

/** What people have decided in a run. An open decision is among what it waits for. */
function RunDecisions({ run }: { run: Run }) {
  const found = useItems<Decision>(query("/decisions", { run: run.run_id, state: "ended", limit: DECISIONS }), { on: ofRun(run.run_id), gap: 2000 });
  if (!found.data?.length) return null;
  return (
    <Panel title={texts.decisions.ofRun}>
      <ul class="run-decisions">
        {found.data.map((one) => (
          <li key={one.decision_id}>
            <a href={`/decisions?open=${one.decision_id}`} class="break">
              {one.question}
            </a>{" "}
            <span class="break">{outcomeOf(one)}</span> <When at={one.ended_at} />
          </li>
        ))}
      </ul>
    </Panel>
  );
}

const FAILED = new Set(["failed", "partial"]);

/** Return how many tasks run again after a clear of the failed ones. */
const clearable = (counts: Counts): number => countOf(counts, "failed", "upstream_failed", "cancelled");

const isGoingOn = (run: Run): boolean => run.state === "running" || run.state === "queued";

/** Above this number of boxes, the list says more than the graph. */
const MOST_BOXES = 60;

function RunGraphView({ run, tasks, isOld, picked }: Omit<ViewProps, "view" | "notes">) {
  const graph = useData<Graph>(query(`/dags/${enc(run.dag_id)}/graph`, { version: run.version }), { on: never });
  const dag = useData<DagDetail>(graph.problem?.isAbsent ? `/dags/${enc(run.dag_id)}` : null, { on: never });
  const old = useMemo(() => (dag.data ? graphOf(dag.data) : undefined), [dag.data]);
  const shape = graph.data ?? old;
  const listed = useItems<Task>(isOld ? query(`/runs/${enc(run.run_id)}/tasks`, { limit: 1000 }) : null, { on: ofRun(run.run_id), gap: 500 });
  const counts = useMemo(() => countsOf(tasks, listed.data, shape), [tasks, listed.data, shape]);
  const times = useMemo(() => tasks && Object.fromEntries(tasks.map((task) => [task.task_id, { from: millis(task.started_at), to: Object.keys(task.counts).some(isLive) ? null : millis(task.ended_at) }])), [tasks]);
  const waits = isGoingOn(run) && (run.counts["deferred"] || run.counts["sensing"]);
  const chain = useData<Chain>(waits ? `/runs/${enc(run.run_id)}/why` : null, { on: ofRun(run.run_id), gap: 5000, every: 15_000 });
  const details = useMemo(() => tasks && detailsOf(tasks, chain.data?.causes ?? [], run.run_id), [tasks, chain.data]);
  if (!shape) return dag.problem ? <Trouble problem={dag.problem} again={dag.reload} /> : <Shown of={graph} optional>{() => null}</Shown>;
  return <GraphView graph={shape} counts={counts} times={times} details={details} picked={picked} hrefOf={(task) => taskHref(run.run_id, task)} />;
}

/** Return the durations of ended tasks, and what tasks wait for that make the run wait. */
export function detailsOf(tasks: RunGraphTask[], causes: Cause[], run: string): Record<string, string> {
  const found: Record<string, string> = {};
  for (const { task_id: task, counts, started_at: from, ended_at: to } of tasks) {
    const [begun, over] = [millis(from), millis(to)];
    if (begun !== null && over !== null && !Object.keys(counts).some(isLive)) found[task] = span(over - begun, true);
  }
  for (const { run_id: of, task_id: task, waiting_on: wait, state } of causes) if (wait && of === run && isWait(state)) found[task] = briefWait(wait);
  return found;
}

function countsOf(tasks: RunGraphTask[] | undefined, listed: Task[] | undefined, shape: Graph | undefined): Record<string, Counts> {
  if (tasks) {
    // A fan-out whose width is not known yet has no children to count.
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

/** Return the note on a task, or the notes on its children. */
const noteOf = (notes: Note[], task: string): string => notes.filter((note) => note.task_id === task).map((note) => note.text).slice(0, 5).join("\n");

const byTask = (notes: Note[]): Column<RunGraphTask>[] => [
  { id: "state", title: "", width: "20px", phone: "lead", isFixed: true, cell: (task) => <Glyph state={worst(task.counts)} /> },
  { id: "task", title: texts.task.name, width: "minmax(110px, 1.4fr)", phone: "title", isFixed: true, isMono: true, cell: (task) => <Noted name={task.task_id} note={noteOf(notes, task.task_id)} />, sort: (one, other) => one.task_id.localeCompare(other.task_id) },
  { id: "progress", title: texts.run.progress, width: "minmax(64px, 1fr)", phone: "second", cell: Progress },
  { id: "done", title: texts.run.done, width: "minmax(96px, 160px)", isNumber: true, phone: "second-end", cell: (task) => (sum(task.counts) > 1 ? endedOf(task.counts) : ""), sort: (one, other) => sum(one.counts) - sum(other.counts) },
  { id: "started", title: texts.run.started, width: "92px", isNumber: true, isWideOnly: true, cell: (task) => <When at={task.started_at} /> },
  {
    id: "duration",
    title: texts.run.duration,
    width: "108px",
    isNumber: true,
    phone: "end",
    cell: (task) => <Took from={task.started_at} to={Object.keys(task.counts).some(isLive) ? null : task.ended_at} isNamed />,
    sort: (one, other) => lasted(one) - lasted(other),
  },
  { id: "usual", title: texts.history.usual, meaning: texts.history.usualMeaning, width: "84px", isNumber: true, isWideOnly: true, cell: (task) => <span class="soft">{task.usual_seconds ? span(task.usual_seconds * 1000, true) : "–"}</span> },
];

/** The state that needs attention most; for many with a bar. */
function Progress(task: RunGraphTask) {
  const state = worst(task.counts);
  return (
    <span class="progress-cell">
      <span class={state === "failed" ? "bad" : "soft"}>{stateName(state)}</span>
      {sum(task.counts) > 1 && <Bar counts={task.counts} label={task.task_id} />}
    </span>
  );
}

const lasted = (task: RunGraphTask): number => (millis(task.ended_at) ?? Date.now()) - (millis(task.started_at) ?? Date.now());

function Noted({ name, note }: { name: string; note: string | undefined }) {
  return (
    <>
      <span class="cut">{name}</span>
      <NoteMark text={note} />
    </>
  );
}

function ByTask({ run, tasks, notes }: { run: Run; tasks: RunGraphTask[]; notes: Note[] }) {
  const hasMapped = tasks.some((task) => sum(task.counts) > 1);
  const hasUsual = tasks.some((task) => task.usual_seconds);
  const columns = useMemo(() => byTask(notes).filter((column) => (column.id !== "done" || hasMapped) && (column.id !== "usual" || hasUsual)), [notes, hasMapped, hasUsual]);
  const picked = usePlace().query.get("task");
  const isFew = tasks.length <= MOST_BOXES;
  return (
    <Table
      name="run-by-task"
      label={texts.common.many(tasks.length, "task")}
      columns={columns}
      items={tasks}
      keyOf={(task) => task.task_id}
      hrefOf={(task) => taskHref(run.run_id, task.task_id)}
      current={(task) => task.task_id === picked}
      isShort={isFew}
      isPlain
    />
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

function stateLabel(states: string[]): string {
  const names = [...new Set(states.map(stateName))];
  return names.length === 0 ? texts.task.state : names.length === 1 ? names[0]! : `${texts.task.state} (${names.length})`;
}

/** Return the address with a state added to the filter or removed. The state has the page's name. */
function withState(states: string[], shown: string): string {
  const own = statesOf(shown);
  const others = states.filter((one) => !own.includes(one));
  const next = others.length < states.length ? others : [...states, ...own];
  const href = withQuery({ state: null });
  return next.length === 0 ? href : `${href}${href.includes("?") ? "&" : "?"}${next.map((one) => `state=${one}`).join("&")}`;
}

function Tasks({ run, tasks, notes }: { run: Run; tasks?: RunGraphTask[]; notes: Note[] }) {
  const columns = useMemo(() => columnsOf(notes), [notes]);
  const place = usePlace();
  const known = TASK_ORDER.flatMap(statesOf);
  const states = place.query.getAll("state").filter((state) => known.includes(state));
  const of = place.query.get("of") ?? "";
  const counts = (of ? tasks?.find((task) => task.task_id === of)?.counts : undefined) ?? (of ? {} : run.counts);
  const shown = byName(counts);
  const rows = useWindow<Task>(
    states.length > 0 ? countOf(counts, ...states) : sum(counts),
    (offset) => query(`/runs/${enc(run.run_id)}/tasks`, { task: of, offset, limit: PAGE }) + states.map((state) => `&state=${state}`).join(""),
    PAGE,
    { on: ofRun(run.run_id) },
  );
  if (rows.problem) return <Trouble problem={rows.problem} />;
  return (
    <Table
      name="run-tasks"
      label={texts.common.many(rows.items.length, "task")}
      columns={columns}
      items={rows.items}
      keyOf={(task) => `${task.task_id} ${task.map_index} ${task.round}`}
      hrefOf={(task) => taskHref(run.run_id, task.task_id, task.map_index, task.round)}
      current={(task) => task.task_id === place.query.get("task") && String(task.map_index) === (place.query.get("map") ?? "-1")}
      onRange={rows.onRange}
      toolbar={
        <>
          <Filter name="of" label={texts.run.filterTask} options={tasks?.slice(0, 500).map((task) => task.task_id)} onValue={(text) => go(withQuery({ of: text }), { replace: true })} />
          <Menu label={stateLabel(states)} items={TASK_ORDER.map((one) => ({ name: stateName(one), hint: shown[one] ? number(shown[one]) : "", isOn: statesOf(one).some((own) => states.includes(own)), act: () => go(withState(states, one), { replace: true }) }))} />
        </>
      }
      empty={
        <Empty>
          <NoMatches href={`${runHref(run.run_id)}/tasks`} />
        </Empty>
      }
    />
  );
}

const keyOf = (one: Task | Note): string => `${one.task_id} ${one.map_index} ${one.round}`;

const columnsOf = (notes: Note[]): Column<Task>[] => {
  const known = new Map(notes.map((note) => [keyOf(note), note.text]));
  return [...COLUMNS.slice(0, 1), { ...COLUMNS[1]!, cell: (task) => <Noted name={nameOf(task)} note={known.get(keyOf(task))} /> }, ...COLUMNS.slice(2)];
};

const nameOf = (task: Task): string => childName(task.task_id, task.map_index, task.round, task.map_label);

const COLUMNS: Column<Task>[] = [
  { id: "state", title: texts.task.state, width: "132px", phone: "lead", isFixed: true, cell: (task) => <State state={task.state} /> },
  {
    id: "task",
    title: texts.task.name,
    width: "minmax(160px, 1.2fr)",
    phone: "title",
    isFixed: true,
    isMono: true,
    cell: nameOf,
  },
  {
    id: "reason",
    title: texts.run.reason,
    width: "minmax(140px, 2fr)",
    phone: "second",
    cell: (task) => (task.error ? <span class="bad">{task.error.message}</span> : <Waits wait={task.waiting_on} />),
  },
  { id: "try", title: texts.task.try, width: "64px", isNumber: true, isWideOnly: true, cell: (task) => (task.try_number > 1 ? `${task.try_number} of ${task.max_tries}` : "") },
  { id: "started", title: texts.task.started, width: "96px", isNumber: true, isWideOnly: true, isOptional: true, cell: (task) => <When at={task.started_at} /> },
  { id: "duration", title: texts.run.duration, width: "108px", isNumber: true, phone: "end", cell: (task) => <Took from={task.started_at} to={task.ended_at} isNamed /> },
];
