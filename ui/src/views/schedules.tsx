import { cancelBackfill } from "../actions";
import { query } from "../api";
import { useData, usePages } from "../data";
import { VirtualList } from "../list";
import { Choice, Empty, Head, Panel, Shown, dagHref, number } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { Bar, State } from "../states";
import { When, slot } from "../time";
import type { Backfill } from "../types";

interface Firing {
  dag_id: string;
  at: string;
  schedule: string | null;
}

const HOURS: [string, string][] = [
  ["1", "next hour"],
  ["24", "next 24 hours"],
  ["168", "next week"],
];

export function Schedules() {
  const place = usePlace();
  const hours = place.query.get("hours") ?? "24";
  const firings = useData<Firing[]>(query("/schedules", { hours }), { on: (change) => change.dags.size > 0, gap: 5000 });
  return (
    <>
      <Head title="Schedules" name="Schedules">
        <Choice label="How far" value={hours} options={HOURS} onValue={(value) => go(withQuery({ hours: value }), { replace: true })} />
      </Head>
      <Shown of={firings}>
        {(rows) =>
          rows.length === 0 ? (
            <Empty>Nothing is due in that time. A DAG gets a schedule by @dag(schedule=…).</Empty>
          ) : (
            <VirtualList
              class="panel fill"
              items={rows}
              height={32}
              label={`${rows.length} firings`}
              keyOf={(row, index) => `${row.dag_id} ${row.at} ${index}`}
              row={(row) => (
                <a class="row" data-row href={dagHref(row.dag_id)}>
                  <span class="num">{slot(row.at)}</span>
                  <span class="cut grow strong">{row.dag_id}</span>
                  <span class="cut soft narrow-hide">{row.schedule}</span>
                  <span class="num soft">
                    <When at={row.at} />
                  </span>
                </a>
              )}
            />
          )
        }
      </Shown>
    </>
  );
}

const PAGE = 100;
const SHOWN_AS: Record<string, string> = { running: "running", done: "success", cancelled: "cancelled", failed: "failed" };

export function Backfills() {
  const backfills = usePages<Backfill>((last) => query("/backfills", { limit: PAGE, before: last?.backfill_id ?? null }), PAGE, { gap: 1000 });
  return (
    <>
      <Head title="Backfills" name="Backfills" />
      <Shown of={backfills}>
        {(rows) =>
          rows.length === 0 ? (
            <Empty>
              No backfills. Start one with “Backfill” on the page of a <a href="/dags">DAG</a> that has a schedule.
            </Empty>
          ) : (
            <Panel>
              <ul class="rows">
                {rows.map((one) => (
                  <li key={one.backfill_id} class="row tall">
                    <span class="state-cell">
                      <State state={SHOWN_AS[one.state] ?? one.state} />
                    </span>
                    <span class="grow">
                      <a data-row href={dagHref(one.dag_id)}>
                        {one.dag_id}
                      </a>{" "}
                      <span class="soft">
                        {slot(one.first)} to {slot(one.last)}
                        {one.reverse ? ", newest first" : ""}
                      </span>
                      {one.failure && <span class="bad break"> {one.failure}</span>}
                    </span>
                    <span class="share">
                      <Bar counts={one.runs} label={`Runs of backfill ${one.backfill_id}`} />
                    </span>
                    <span class="num" title="of its range">
                      {number(one.progress * 100)} %
                    </span>
                    <span class="soft narrow-hide">
                      {number(one.made)} made, {number(one.skipped)} left
                    </span>
                    <span class="num soft narrow-hide">
                      <When at={one.created_at} />
                    </span>
                    {one.state === "running" && (
                      <button type="button" data-needs="operator" class="small" aria-label={`Cancel backfill ${one.backfill_id}`} onClick={() => cancelBackfill(one.backfill_id)}>
                        Cancel …
                      </button>
                    )}
                  </li>
                ))}
              </ul>
              {!backfills.isWhole && (
                <button type="button" onClick={backfills.more}>
                  Older backfills
                </button>
              )}
            </Panel>
          )
        }
      </Shown>
    </>
  );
}
