import { backfill, cancelBackfill } from "../actions";
import { query } from "../api";
import { lazy } from "../components/lazy";
import { type Column, Table } from "../components/table";
import { TabBar } from "../components/tabs";
import { useItems, usePages } from "../data";
import { Choice, Empty, Head, Shown, dagHref, number } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { scheduleName } from "../schedule";
import { Bar, State } from "../states";
import { texts } from "../texts";
import { At, Range, When } from "../time";
import type { Backfill } from "../types";

const Timeline = lazy<object>(() => import("./timeline"));

interface Firing {
  dag_id: string;
  at: string;
  schedule: string | null;
  timezone: string;
}

const HOURS: [string, string][] = [
  ["1", texts.schedules.hour],
  ["24", texts.schedules.day],
  ["168", texts.schedules.week],
];

export function Schedules() {
  const place = usePlace();
  const hours = place.query.get("hours") ?? "24";
  const isTimeline = place.query.get("view") === "timeline";
  const firings = useItems<Firing>(isTimeline ? null : query("/schedules", { hours }), { on: (change) => change.dags.size > 0, gap: 5000 });
  return (
    <>
      <Head
        title={texts.places.schedules}
        name={texts.places.schedules}
        sentence={isTimeline ? texts.history.timelineSentence : texts.schedules.sentence}
        tabs={
          <TabBar
            label={texts.places.schedules}
            at={isTimeline ? "timeline" : "upcoming"}
            tabs={[
              { key: "upcoming", name: texts.history.upcoming, href: "/schedules" },
              { key: "timeline", name: texts.history.timeline, href: "/schedules?view=timeline" },
            ]}
          />
        }
      />
      {isTimeline && <Timeline />}
      {!isTimeline && (
        <Shown of={firings}>
        {(rows) => (
          <Table
            name="schedules"
            label={texts.common.many(rows.length, "scheduled run")}
            columns={COLUMNS}
            items={rows}
            keyOf={(row, index) => `${row.dag_id} ${row.at} ${index}`}
            hrefOf={(row) => dagHref(row.dag_id)}
            toolbar={<Choice label={texts.schedules.range} value={hours} options={HOURS} onValue={(value) => go(withQuery({ hours: value }), { replace: true })} />}
            empty={<Empty>{texts.schedules.none}</Empty>}
          />
        )}
      </Shown>
      )}
    </>
  );
}

const COLUMNS: Column<Firing>[] = [
  { id: "at", title: texts.schedules.at, width: "150px", isFixed: true, phone: "second", cell: (row) => <At at={row.at} /> },
  { id: "dag", title: texts.run.dag, width: "minmax(140px, 2fr)", isFixed: true, phone: "title", cell: (row) => row.dag_id, sort: (one, other) => one.dag_id.localeCompare(other.dag_id) },
  { id: "schedule", title: texts.schedules.schedule, width: "minmax(120px, 1fr)", phone: "second-end", cell: (row) => <span class="soft" title={row.schedule ?? undefined}>{scheduleName(row)}</span> },
  { id: "in", title: texts.schedules.due, width: "110px", isNumber: true, phone: "end", cell: (row) => <When at={row.at} /> },
];

const PAGE = 100;
const SHOWN_AS: Record<string, string> = { running: "running", done: "success", cancelled: "cancelled", failed: "failed" };

export function Backfills() {
  const backfills = usePages<Backfill>((cursor) => query("/backfills", { limit: PAGE, cursor }), (row) => row.backfill_id, PAGE, { gap: 1000 });
  return (
    <>
      <Head title={texts.places.backfills} name={texts.places.backfills} sentence={texts.backfills.sentence}>
        <button type="button" data-needs="operator" class="main" onClick={() => backfill(null)}>
          {texts.backfills.add}
        </button>
      </Head>
      <Shown of={backfills} none={<Empty>{texts.backfills.none}</Empty>}>
        {(rows) => (
          <Table
            name="backfills"
            label={texts.table.listed(rows.length, backfills.isWhole, "backfills")}
            columns={BACKFILLS}
            items={rows}
            keyOf={(one) => one.backfill_id}
            hrefOf={(one) => dagHref(one.dag_id)}
            onEnd={backfills.more}
          />
        )}
      </Shown>
    </>
  );
}

const BACKFILLS: Column<Backfill>[] = [
  { id: "state", title: texts.task.state, width: "112px", isFixed: true, phone: "lead", cell: (one) => <State state={SHOWN_AS[one.state] ?? one.state} /> },
  { id: "dag", title: texts.run.dag, width: "minmax(120px, 1.2fr)", isFixed: true, phone: "title", cell: (one) => one.dag_id },
  {
    id: "range",
    title: texts.backfills.range,
    meaning: texts.backfills.rangeMeaning,
    width: "minmax(170px, 1.6fr)",
    phone: "second",
    cell: (one) => (
      <>
        <Range first={one.first} last={one.last} />
        {one.reverse ? texts.backfills.newestFirst : ""}
        {one.failure && <span class="bad"> {one.failure}</span>}
      </>
    ),
  },
  { id: "runs", title: texts.backfills.runs, width: "minmax(80px, 1fr)", cell: (one) => <Bar counts={one.runs} label={`Runs of backfill ${one.backfill_id}`} /> },
  { id: "progress", title: texts.backfills.progress, meaning: texts.backfills.progressMeaning, width: "76px", isNumber: true, phone: "second-end", cell: (one) => `${number(one.progress * 100)} %` },
  { id: "made", title: texts.backfills.made, width: "150px", isWideOnly: true, cell: (one) => <span class="soft">{texts.backfills.madeOf(one.made, one.skipped)}</span> },
  { id: "started", title: texts.run.started, width: "92px", isNumber: true, phone: "end", cell: (one) => <When at={one.created_at} /> },
  {
    id: "cancel",
    title: "",
    width: "84px",
    isFixed: true,
    isInteractive: true,
    cell: (one) =>
      one.state === "running" && (
        <button type="button" data-needs="operator" class="small" aria-label={`Cancel backfill ${one.backfill_id}`} onClick={() => cancelBackfill(one.backfill_id)}>
          {texts.common.cancel}
        </button>
      ),
  },
];
