import { backfill, cancelBackfill } from "../actions";
import { query } from "../api";
import { useItems, usePages } from "../data";
import { VirtualList } from "../list";
import { Choice, Empty, Head, Heads, Panel, Shown, dagHref, number, zoned } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { Bar, State } from "../states";
import { At, Range, When } from "../time";
import type { Backfill } from "../types";

interface Firing {
  dag_id: string;
  at: string;
  schedule: string | null;
  timezone: string;
}

const HOURS: [string, string][] = [
  ["1", "next hour"],
  ["24", "next 24 hours"],
  ["168", "next week"],
];

const COLUMNS: [string, string, string?][] = [
  ["At", "c-date"],
  ["DAG", "grow"],
  ["Schedule", "schedule narrow-hide"],
  ["", "c-when num"],
];

export function Schedules() {
  const place = usePlace();
  const hours = place.query.get("hours") ?? "24";
  const firings = useItems<Firing>(query("/schedules", { hours }), { on: (change) => change.dags.size > 0, gap: 5000 });
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
              head={<Heads of={COLUMNS} />}
              row={(row) => (
                <a class="row" data-row href={dagHref(row.dag_id)}>
                  <span class="c-date">
                    <At at={row.at} />
                  </span>
                  <span class="cut grow strong">{row.dag_id}</span>
                  <span class="schedule cut soft narrow-hide" title={zoned(row) ?? undefined}>
                    {zoned(row)}
                  </span>
                  <span class="c-when num soft">
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

const BACKFILL_COLUMNS: [string, string, string?][] = [
  ["State", "state-cell"],
  ["DAG", "c-who"],
  ["For the time from", "grow", "Both ends included"],
  ["Its runs", "share"],
  ["Made", "c-percent num", "How much of its range has its runs"],
  ["", "c-made wide-only"],
  ["Started", "c-when num"],
  ["", "c-cancel"],
];

export function Backfills() {
  const backfills = usePages<Backfill>((cursor) => query("/backfills", { limit: PAGE, cursor }), (backfill) => backfill.backfill_id, PAGE, { gap: 1000 });
  return (
    <>
      <Head title="Backfills" name="Backfills">
        <button type="button" data-needs="operator" class="main" onClick={() => backfill(null)}>
          Backfill …
        </button>
      </Head>
      <Shown of={backfills}>
        {(rows) =>
          rows.length === 0 ? (
            <Empty>
              No backfills. One makes the runs that a <a href="/dags">DAG</a> with a schedule would have had in a time that is past.
            </Empty>
          ) : (
            <Panel>
              <Heads of={BACKFILL_COLUMNS} />
              <ul class="rows">
                {rows.map((one) => (
                  <li key={one.backfill_id} class="row backfill">
                    <span class="state-cell">
                      <State state={SHOWN_AS[one.state] ?? one.state} />
                    </span>
                    <span class="c-who cut">
                      <a data-row href={dagHref(one.dag_id)}>
                        {one.dag_id}
                      </a>
                    </span>
                    <span class="grow soft">
                      <Range first={one.first} last={one.last} />
                      {one.reverse ? ", newest first" : ""}
                      {one.failure && <span class="bad break"> {one.failure}</span>}
                    </span>
                    <span class="share">
                      <Bar counts={one.runs} label={`Runs of backfill ${one.backfill_id}`} />
                    </span>
                    <span class="c-percent num" title="How much of its range has its runs">
                      {number(one.progress * 100)} %
                    </span>
                    <span class="c-made soft wide-only">
                      {number(one.made)} made, {number(one.skipped)} skipped
                    </span>
                    <span class="c-when num soft">
                      <When at={one.created_at} />
                    </span>
                    <span class="c-cancel">
                      {one.state === "running" && (
                        <button type="button" data-needs="operator" class="small" aria-label={`Cancel backfill ${one.backfill_id}`} onClick={() => cancelBackfill(one.backfill_id)}>
                          Cancel …
                        </button>
                      )}
                    </span>
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
