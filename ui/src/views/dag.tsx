import type { ComponentChildren } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";

import { backfill, pause, trigger } from "../actions";
import { enc, query } from "../api";
import { ofDag, useData, useItems } from "../data";
import { lazy } from "../components/lazy";
import { SplitPane } from "../components/split";
import { TabBar } from "../components/tabs";
import { Gantt } from "../gantt";
import { GraphView, graphOf } from "../graph";
import { GridView, usePicked } from "../grid";
import { GridPane } from "../grid_pane";
import { Health } from "../history";
import { Choice, Empty, Fact, Head, HeadActions, Shown, dagHref, runHref, shortVersion } from "../parts";
import { Inline, Markdown, firstParagraph } from "../markdown";
import { isRare, scheduleName } from "../schedule";
import { go, usePlace, withQuery } from "../router";
import { named } from "../states";
import { texts } from "../texts";
import { At, When } from "../time";
import type { DagDetail, GanttRow, Graph, Grid, RunSummary } from "../types";
import { RunList } from "./runs";

const CodePage = lazy(() => import("../code/view"));
const DagHistory = lazy<{ id: string; isRare: boolean }>(() => import("./dag_history"));

export function DagPage({ id, view }: { id: string; view: string }) {
  const dag = useData<DagDetail>(`/dags/${enc(id)}`, { on: ofDag(id), gap: 1000 });
  const at = view === "" ? "grid" : view;
  const place = usePlace();
  const picked = usePicked();
  return (
    <>
      {dag.problem && !dag.data && (
        <Head title={id} name={id}>
          <a href="/dags">{texts.dags.all}</a>
        </Head>
      )}
      <Shown of={dag}>
        {(data) => (
          <>
            <DagHead dag={data} at={at} />
            <SplitPane name="grid" side={at === "grid" && picked ? <GridPane dag={data.dag_id} picked={picked} /> : null} isFull={place.query.has("full")}>
              <Top dag={data}>{(at === "grid" || at === "history") && <Health id={data.dag_id} />}</Top>
              <View dag={data} at={at} />
            </SplitPane>
          </>
        )}
      </Shown>
    </>
  );
}

function DagHead({ dag, at }: { dag: DagDetail; at: string }) {
  const base = dagHref(dag.dag_id);
  return (
    <Head
      isWide
      title={dag.dag_id}
      name={dag.dag_id}
      tabs={
        <TabBar
          label={texts.dags.views}
          at={at}
          tabs={[
            { key: "grid", name: texts.dags.tabs.grid, href: base },
            { key: "graph", name: texts.dags.tabs.graph, href: `${base}/graph` },
            { key: "gantt", name: texts.dags.tabs.gantt, href: `${base}/gantt` },
            { key: "history", name: texts.dags.tabs.history, href: `${base}/history` },
            { key: "code", name: texts.dags.tabs.code, href: `${base}/code` },
            { key: "runs", name: texts.dags.tabs.runs, href: `${base}/runs` },
          ]}
        />
      }
    >
      <HeadActions
        actions={[
          { name: texts.actions.trigger, act: () => void trigger(dag.dag_id), isMain: true, needs: "operator" },
          { name: texts.actions.backfill, act: () => void backfill(dag.dag_id), needs: "operator" },
          { name: dag.paused ? texts.actions.resume : texts.actions.pause, act: () => void pause(dag.dag_id, !dag.paused), isPressed: dag.paused, needs: "operator" },
        ]}
      />
    </Head>
  );
}

/** The description, schedule and health of a DAG in one line. Its other facts are a click away. */
function Top({ dag, children }: { dag: DagDetail; children?: ComponentChildren }) {
  const [isWhole, setWhole] = useState(false);
  const [about, more] = firstParagraph(dag.doc);
  return (
    <>
      {about !== "" && (
        <p class="sentence about">
          <Inline text={about} />
        </p>
      )}
      {more !== "" && <Markdown text={more} />}
      {dag.import_error && (
        <p class="wrong" role="alert">
          {texts.dags.importError} <span class="break">{dag.import_error}</span> <a href="/errors">{texts.places.errors}</a>
        </p>
      )}
      <dl class="facts inline">
        <Fact name={texts.schedules.schedule}>
          <span title={dag.schedule ?? undefined}>{scheduleName(dag) ?? texts.common.none}</span>
        </Fact>
        <Fact name={texts.dags.next}>
          {dag.paused ? (
            texts.states["paused"]
          ) : (
            <>
              <When at={dag.next_run_at} none={texts.common.none} />
              {dag.next_run_at && (
                <span class="soft wide-only">
                  , <At at={dag.next_run_at} />
                </span>
              )}
            </>
          )}
        </Fact>
        {dag.trigger && (
          <Fact name={texts.run.startedBy}>
            <a href={`/triggers?dag=${enc(dag.dag_id)}`} title={dag.trigger.detail}>
              {dag.trigger.kind}
            </a>{" "}
            {named(dag.trigger.state)}, since <When at={dag.trigger.since} />
          </Fact>
        )}
        {children}
        {isWhole && <MoreFacts dag={dag} />}
        <div class="more-facts">
          <dt class="offscreen">{texts.dags.facts}</dt>
          <dd>
            <button type="button" class="plain small" aria-expanded={isWhole} onClick={() => setWhole(!isWhole)}>
              {isWhole ? texts.common.less : texts.common.more}
            </button>
          </dd>
        </div>
      </dl>
    </>
  );
}

function MoreFacts({ dag }: { dag: DagDetail }) {
  return (
    <>
      {dag.tags.length > 0 && <Fact name={texts.dags.tags}>{dag.tags.join(", ")}</Fact>}
      <Fact name={texts.dags.maxActive}>{dag.max_active_runs || texts.dags.noLimit}</Fact>
      <Fact name={texts.dags.file}>
        <span class="break">{dag.file}</span>
      </Fact>
      <Fact name={texts.run.version}>
        <a href={`${dagHref(dag.dag_id)}/code`}>
          <code>{shortVersion(dag.version)}</code>
        </a>
      </Fact>
    </>
  );
}

function View({ dag, at }: { dag: DagDetail; at: string }) {
  switch (at) {
    case "graph":
      return <DagGraph dag={dag} />;
    case "gantt":
      return <LastGantt dag={dag} />;
    case "history":
      return <DagHistory id={dag.dag_id} isRare={isRare(dag)} />;
    case "code":
      return <Code dag={dag} />;
    case "runs":
      return <RunList filter={new URLSearchParams({ dag: dag.dag_id })} isOfOne />;
    default:
      return <DagGrid dag={dag} />;
  }
}

function DagGrid({ dag }: { dag: DagDetail }) {
  const place = usePlace();
  const cursor = place.query.get("cursor");
  const runs = useRef<string[]>([]);
  const grid = useData<Grid>(query(`/dags/${enc(dag.dag_id)}/grid`, { limit: 25, cursor }), {
    on: (change) => change.dags.has(dag.dag_id) || runs.current.some((run) => change.runs.has(run)),
    gap: 700,
  });
  runs.current = grid.data?.runs.map((run) => run.run_id) ?? [];
  if (grid.problem?.isAbsent && !cursor) return <RunList filter={new URLSearchParams({ dag: dag.dag_id })} isOfOne />;
  return (
    <Shown of={grid}>
      {(data) => (
        <>
          <GridView grid={data} />
          <p class="actions pager">
            {data.next && (
              <button type="button" onClick={() => go(withQuery({ cursor: data.next }))}>
                Older runs
              </button>
            )}
            {cursor && (
              <button type="button" onClick={() => go(withQuery({ cursor: null }))}>
                Newest runs
              </button>
            )}
          </p>
        </>
      )}
    </Shown>
  );
}

function DagGraph({ dag }: { dag: DagDetail }) {
  const graph = useData<Graph>(`/dags/${enc(dag.dag_id)}/graph`, { on: ofDag(dag.dag_id), gap: 2000 });
  const old = useMemo(() => graphOf(dag), [dag]);
  if (graph.problem?.isAbsent) return <GraphView graph={old} />;
  return <Shown of={graph}>{(data) => <GraphView graph={data} />}</Shown>;
}

function LastGantt({ dag }: { dag: DagDetail }) {
  const runs = useItems<RunSummary>(query("/runs", { dag: dag.dag_id, limit: 20 }), { on: ofDag(dag.dag_id), gap: 1000 });
  const place = usePlace();
  const wanted = place.query.get("run") ?? (runs.data?.find((run) => run.started_at !== null) ?? runs.data?.[0])?.run_id ?? null;
  const shown = runs.data?.find((run) => run.run_id === wanted);
  const rows = useItems<GanttRow>(wanted && query(`/runs/${enc(wanted)}/gantt`, { limit: 1000 }), { gap: 1000 });
  return (
    <Shown of={runs}>
      {(found) =>
        wanted === null ? (
          <Empty>{texts.runs.none}</Empty>
        ) : (
          <div class="fill-column">
            <div class="bar-of-filters">
              <Choice label={texts.runs.run} value={wanted} options={found.map((run) => [run.run_id, run.run_id])} onValue={(run) => go(withQuery({ run }), { replace: true })} />
              <a href={runHref(wanted)}>{texts.dags.openRun}</a>
            </div>
            <Shown of={rows}>{(data) => <Gantt rows={data} run={wanted} from={shown?.started_at} to={shown?.ended_at} />}</Shown>
          </div>
        )
      }
    </Shown>
  );
}

function Code({ dag }: { dag: DagDetail }) {
  const versions = useItems<{ version: string; made_at: string | null; runs: number }>(`/dags/${enc(dag.dag_id)}/versions`, { on: ofDag(dag.dag_id), gap: 2000 });
  return <CodePage dag={dag} versions={versions.data ?? []} />;
}
