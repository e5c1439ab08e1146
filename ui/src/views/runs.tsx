import { query } from "../api";
import { type Concerns, usePages } from "../data";
import { VirtualList } from "../list";
import { Choice, DagFilter, Empty, Head, Heads, Shown, dagHref, runHref } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { State } from "../states";
import { At, Took, When } from "../time";
import type { RunSummary } from "../types";

const PAGE = 200;
const STATES: [string, string][] = ["", "queued", "running", "success", "partial", "failed", "cancelled"].map((state) => [
  state,
  state || "all states",
]);

const COLUMNS: [string, string, string?][] = [
  ["State", "state-cell"],
  ["Run", "grow"],
  ["DAG", "c-dag narrow-hide"],
  ["For", "c-date wide-only", "Its logical date"],
  ["Cause", "c-cause wide-only", "What has started it"],
  ["Started", "c-when num"],
  ["Took", "c-took num narrow-hide"],
];

const ofRuns: Concerns = (change) => change.runs.size > 0;

export function Runs() {
  const place = usePlace();
  const state = place.query.get("state") ?? "";
  const dag = place.query.get("dag") ?? "";
  return (
    <>
      <Head title="Runs" name="Runs">
        <DagFilter onValue={(text) => go(withQuery({ dag: text }), { replace: true })} />
        <Choice label="State" value={state} options={STATES} onValue={(value) => go(withQuery({ state: value }), { replace: true })} />
      </Head>
      <RunList dag={dag} state={state} />
    </>
  );
}

export function RunList({ dag, state, isOfOne = false }: { dag: string; state: string; isOfOne?: boolean }) {
  const runs = usePages<RunSummary>((cursor) => query("/runs", { dag, state, limit: PAGE, cursor }), (run) => run.run_id, PAGE, {
    on: ofRuns,
    gap: 700,
  });
  return (
    <Shown of={runs}>
      {(rows) =>
        rows.length === 0 ? (
          <Empty>
            {dag || state ? "No such runs." : "No runs yet."} {!isOfOne && <a href="/dags">Start one</a>}
          </Empty>
        ) : (
          <VirtualList
            class="panel fill"
            items={rows}
            height={34}
            label={`${rows.length}${runs.isWhole ? "" : " or more"} runs`}
            keyOf={(run) => run.run_id}
            onEnd={runs.more}
            head={<Heads of={isOfOne ? COLUMNS.filter(([, column]) => !column.startsWith("c-dag")) : COLUMNS} />}
            row={(run) => (
              <div class="row">
                <span class="state-cell">
                  <State state={run.state} />
                </span>
                <a class="cut grow" data-row href={runHref(run.run_id)} title={run.run_id}>
                  {run.run_id}
                </a>
                {!isOfOne && (
                  <a class="c-dag cut soft narrow-hide" href={dagHref(run.dag_id)}>
                    {run.dag_id}
                  </a>
                )}
                <span class="c-date soft wide-only">
                  <At at={run.logical_date} none="" />
                </span>
                <span class="c-cause cut soft wide-only">{run.cause}</span>
                <span class="c-when num">
                  <When at={run.started_at ?? run.created_at} />
                </span>
                <span class="c-took num soft narrow-hide">
                  <Took from={run.started_at} to={run.ended_at} />
                </span>
              </div>
            )}
          />
        )
      }
    </Shown>
  );
}
