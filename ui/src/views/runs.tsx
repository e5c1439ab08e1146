import { Fragment } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";

import { BULK_ACTIONS, type BulkAction, actOnMatching, actOnSelected } from "../bulk";
import { DateRange } from "../components/dates";
import { Menu, type MenuItem } from "../components/menu";
import { type Column, Table } from "../components/table";
import { useIsPhone } from "../components/table_settings";
import { type Concerns, useData, useItems, usePages } from "../data";
import { ask, tell } from "../dialog";
import { NoteMark } from "../note";
import { SlowMark, useUsual } from "../history";
import { Empty, Filter, Head, NoMatches, Shown, StartedBy, dagHref, errorLine, runHref } from "../parts";
import { go, usePlace } from "../router";
import { CAUSES, type Choices, STATES, asAsked, changed, deleteView, filterOf, rangeOf, runsHref, saveView, savedViews, toggled, withFilter } from "../run_filters";
import { State, ended, runState, sum } from "../states";
import "../styles/runs.css";
import { count, stateName, texts } from "../texts";
import { At, Took, When } from "../time";
import type { HomeData, Overview, RunSummary } from "../types";
import { briefReason } from "../waits";

const PAGE = 200;
/** The order in which the daemon lists runs. */
const NEWEST_FIRST = { by: "started", isDescending: true };

interface Facets {
  total: number;
  states: Record<string, number>;
  causes: Record<string, number>;
  dags: Record<string, number>;
  is_complete: boolean;
}

const nameOf = (name: Choices, value: string): string => (name === "state" ? stateName(value) : name === "cause" ? (texts.runs.causes[value] ?? value) : value);

const ofRuns: Concerns = (change) => change.runs.size > 0;

export function Runs() {
  const { href, query } = usePlace();
  const filter = useMemo(() => filterOf(query), [href]);
  const asked = useMemo(() => asAsked(filter), [href]);
  const facets = useData<Facets>(withFilter("/run-facets", asked), { on: ofRuns, gap: 5000 });
  const set = (next: URLSearchParams) => go(runsHref(next), { replace: true });
  return (
    <>
      <Head title={texts.places.runs} name={texts.places.runs} sentence={facets.data && (facets.data.total > 0 || filter.size > 0) && <Totals facets={facets.data} filter={filter} />}>
        <Views filter={filter} />
      </Head>
      <RunList filter={asked} total={facets.data?.total} toolbar={<Filters filter={filter} facets={facets.data} onFilter={set} />} />
    </>
  );
}

/** The states for which totals are shown, in order. */
const TOLD = ["running", "queued", "failed", "partial"];

const isLost = (run: RunSummary): boolean => run.state === "failed" || run.state === "partial";

/** Whether at least half of the rows satisfy a condition. */
export const hasMostly = <T,>(rows: readonly T[], has: (row: T) => boolean): boolean => rows.length > 0 && rows.filter(has).length * 2 >= rows.length;

/** The number of runs in total and by state, each with a link to these runs. */
function Totals({ facets: { total, states, is_complete: isComplete }, filter }: { facets: Facets; filter: URLSearchParams }) {
  const parts = total > 1 ? TOLD.filter((state) => states[state]) : [];
  return (
    <>
      {texts.runs.total(total, filter.size > 0, isComplete)}
      {parts.map((state, index) => (
        <Fragment key={state}>
          {index === 0 ? ": " : ", "}
          {filter.getAll("state").includes(state) ? texts.runs.part(state, states[state]!) : <a href={runsHref(changed(filter, { state }))}>{texts.runs.part(state, states[state]!)}</a>}
        </Fragment>
      ))}
      .
    </>
  );
}

function Filters({ filter, facets, onFilter }: { filter: URLSearchParams; facets: Facets | undefined; onFilter: (filter: URLSearchParams) => void }) {
  const counted = (name: Choices, values: string[], counts: Record<string, number> | undefined): MenuItem[] =>
    values.map((value) => ({
      name: nameOf(name, value),
      hint: counts && count(counts[value] ?? 0),
      isOn: filter.getAll(name).includes(value),
      act: () => onFilter(toggled(filter, name, value)),
    }));
  const tags = useItems<{ tag: string; dags: number }>("/dag-tags", { on: (change) => change.dags.size > 0, gap: 5000 }).data ?? [];
  const tagNames = [...new Set([...filter.getAll("tag"), ...tags.map((one) => one.tag)])];
  const dags = [...new Set([...filter.getAll("dag"), ...Object.keys(facets?.dags ?? {})])];
  const label = (name: Choices): string => {
    const chosen = filter.getAll(name);
    return chosen.length === 0 ? texts.runs.facets[name] : chosen.length === 1 ? nameOf(name, chosen[0]!) : `${texts.runs.facets[name]} (${chosen.length})`;
  };
  return (
    <span class="run-filters">
      <Filter name="search" label={texts.runs.search} onValue={(text) => onFilter(changed(filterOf(new URLSearchParams(location.search)), { search: text }))} />
      <Menu label={label("state")} items={counted("state", STATES, facets?.states)} />
      <Menu label={label("cause")} items={counted("cause", CAUSES, facets?.causes)} />
      {dags.length > 0 && <Menu label={label("dag")} items={counted("dag", dags, facets?.dags)} />}
      {tagNames.length > 0 && <Menu label={label("tag")} items={counted("tag", tagNames, undefined)} />}
      <DateRange value={rangeOf(filter)} onValue={(range) => onFilter(changed(filter, { ...range }))} />
      <Filter name="params" label={texts.runs.params} onValue={(text) => onFilter(changed(filterOf(new URLSearchParams(location.search)), { params: text }))} />
      {filter.size > 0 && (
        <a class="clear-filters" href="/runs">
          {texts.common.clearFilters}
        </a>
      )}
    </span>
  );
}

/** The filters that are saved in this browser. */
function Views({ filter }: { filter: URLSearchParams }) {
  const [views, setViews] = useState(savedViews);
  const current = views.find((view) => view.filter === String(filter));
  function save(): void {
    const wanted = { name: "" };
    ask({
      title: texts.runs.saveView,
      verb: texts.runs.save,
      body: (
        <label class="field">
          <span>{texts.runs.viewName}</span>
          <input required maxLength={60} onInput={(event) => (wanted.name = event.currentTarget.value.trim())} />
          <small>{texts.runs.viewHint}</small>
        </label>
      ),
      act: async () => {
        saveView(wanted.name || texts.runs.unnamed, filter);
        setViews(savedViews());
        return texts.runs.viewSaved;
      },
    });
  }
  function remove(name: string): void {
    deleteView(name);
    setViews(savedViews());
    tell(texts.runs.viewDeleted(name));
  }
  const items: (MenuItem | "line")[] = [
    ...views.map((view) => ({ name: view.name, href: `/runs?${view.filter}` })),
    ...(views.length > 0 ? ["line" as const] : []),
    ...(filter.size > 0 && !current ? [{ name: texts.runs.saveView, act: save }] : []),
    ...(current ? [{ name: texts.runs.deleteView(current.name), act: () => remove(current.name), isGrave: true }] : []),
    ...(views.length === 0 && filter.size === 0 ? [{ name: texts.runs.noViews, href: "/runs" }] : []),
  ];
  return <Menu label={current?.name ?? texts.runs.views} items={items} />;
}

const RunName = ({ run }: { run: RunSummary }) => (
  <>
    <span title={run.run_id}>{run.run_id}</span>
    <NoteMark text={run.note} />
  </>
);

interface Known {
  waits: Overview["waiting_longest"] | undefined;
  home: HomeData | undefined;
}

/** Return what a run waits for or why it failed, for those runs that the overview and home contain. */
export function reasonsOf({ waits, home }: Known): ReadonlyMap<string, string> {
  const reasons = new Map<string, string>();
  for (const row of waits ?? []) if (!reasons.has(row.run_id)) reasons.set(row.run_id, briefReason(row));
  for (const { run, counts } of home?.in_flight ?? []) {
    const progress = texts.home.progress(counts["running"] ?? 0, counts["queued"] ?? 0, undefined);
    if (progress !== "" && !run.is_waiting) reasons.set(run.run_id, `${texts.common.of(ended(counts), sum(counts))}, ${progress}`);
  }
  for (const { last, error } of home?.attention ?? []) if (error) reasons.set(last.run_id, error.message.split("\n", 1)[0] || errorLine(error));
  return reasons;
}

/** Return the reasons of runs. Two requests suffice for all runs of a list. */
function useReasons(): ReadonlyMap<string, string> {
  const waits = useData<Overview>("/overview", { gap: 1000, every: 10_000 }).data?.waiting_longest;
  const home = useData<HomeData>("/home", { on: ofRuns, gap: 5000 }).data;
  return useMemo(() => reasonsOf({ waits, home }), [waits, home]);
}

const COLUMNS: Column<RunSummary>[] = [
  { id: "state", title: texts.runs.state, width: "92px", phone: "lead", isFixed: true, cell: (run) => <State state={runState(run)} /> },
  { id: "run", title: texts.runs.run, width: "minmax(190px, 1.5fr)", phone: "title", isFixed: true, isMono: true, cell: (run) => <RunName run={run} /> },
  { id: "dag", title: texts.runs.dag, width: "minmax(88px, 0.6fr)", phone: "second", isMono: true, cell: (run) => <DagOf run={run} /> },
  { id: "why", title: texts.runs.reason, meaning: texts.runs.reasonMeaning, width: "minmax(160px, 3fr)", isWideOnly: true, cell: () => null },
  { id: "date", title: texts.runs.logicalDate, width: "124px", isWideOnly: true, cell: (run) => <At at={run.logical_date} none="" /> },
  { id: "cause", title: texts.runs.startedBy, width: "80px", isWideOnly: true, cell: (run) => <StartedBy run={run} /> },
  { id: "started", title: texts.runs.started, width: "92px", isNumber: true, phone: "end", cell: (run) => <When at={run.started_at ?? run.created_at} /> },
  { id: "took", title: texts.runs.duration, width: "104px", isNumber: true, phone: "second-end", cell: (run) => <TookSoFar run={run} /> },
];

/** The duration of a run, or its duration so far. */
const TookSoFar = ({ run }: { run: RunSummary }) => <Took from={run.started_at} to={run.ended_at} isNamed />;

/** The name of the state, on a phone, before the DAG. The column of the state has room only for its icon. */
const StateWord = ({ run }: { run: RunSummary }) => <span class="phone-only word">{stateName(runState(run))}</span>;

const DagOf = ({ run, reason = "" }: { run: RunSummary; reason?: string }) => (
  <>
    <StateWord run={run} />{" "}
    <a class={reason === "" ? undefined : "narrow-hide"} href={dagHref(run.dag_id)}>
      {run.dag_id}
    </a>
    {reason !== "" && <span class="phone-only run-reason">{reason}</span>}
  </>
);

interface Shows {
  usual: ReturnType<typeof useUsual>;
  reasons: ReadonlyMap<string, string>;
  isOfOne: boolean;
  hasDates: boolean;
  hasReasons: boolean;
  /** Whether the ids of runs contain the DAG, so that the reason gets the room of its column. */
  isNamedByDag: boolean;
}

/** Return the columns. If they were made in the component, their cells would hold its elements, and these the columns before. */
function columnsOf({ usual, reasons, isOfOne, hasDates, hasReasons, isNamedByDag }: Shows): Column<RunSummary>[] {
  const reasonOf = (run: RunSummary) => reasons.get(run.run_id) ?? "";
  const took = (run: RunSummary) => (
    <>
      <SlowMark run={run} usual={usual.get(run.dag_id)} /> <TookSoFar run={run} />
    </>
  );
  const cells: Record<string, Partial<Column<RunSummary>>> = {
    state: { cell: (run) => <State state={runState(run)} meaning={reasons.get(run.run_id)} /> },
    why: { isOptional: !hasReasons, cell: (run) => <span class={isLost(run) ? "bad" : "soft"} title={reasons.get(run.run_id)}>{reasonOf(run)}</span> },
    dag: { isOptional: isNamedByDag, cell: (run) => <DagOf run={run} reason={reasonOf(run)} /> },
    // A column that is mostly empty is optional.
    date: { isOptional: !hasDates },
    ...(usual.size > 0 && { took: { width: "160px", cell: took } }),
  };
  if (isOfOne) cells["cause"] = { phone: "second", cell: (run) => <><StateWord run={run} /> <StartedBy run={run} /></> };
  return COLUMNS.filter((column) => !isOfOne || column.id !== "dag").map((column) => ({ ...column, ...cells[column.id] }));
}

interface RunListProps {
  filter: URLSearchParams;
  /** The number of runs that match; unknown while they are counted. */
  total?: number;
  toolbar?: preact.ComponentChildren;
  isOfOne?: boolean;
}

export function RunList({ filter, total, toolbar, isOfOne = false }: RunListProps) {
  const runs = usePages<RunSummary>((cursor) => withFilter("/runs", filter, { limit: PAGE, cursor }), (run) => run.run_id, PAGE, { on: ofRuns, gap: 700 });
  const [keys, setKeys] = useState<Set<string>>(new Set());
  const [isAll, setAll] = useState(false);
  const text = String(filter);
  const clear = () => {
    setKeys(new Set());
    setAll(false);
  };
  useEffect(clear, [text]);
  const usual = useUsual();
  const reasons = useReasons();
  const hasDates = hasMostly(runs.data ?? [], (run) => run.logical_date !== null);
  const hasReasons = runs.data?.some((run) => reasons.has(run.run_id)) ?? false;
  // On a phone, the reason replaces the DAG.
  const isNamedByDag = !useIsPhone() && hasMostly(runs.data ?? [], (run) => run.run_id.startsWith(run.dag_id));
  const columns = useMemo(() => columnsOf({ usual, reasons, isOfOne, hasDates, hasReasons, isNamedByDag }), [usual, reasons, isOfOne, hasDates, hasReasons, isNamedByDag]);
  const perform = (action: BulkAction) => (isAll || keys.size === total ? void actOnMatching(action, filter, clear) : actOnSelected(action, [...keys], clear));
  const bar = keys.size > 0 && (
    <span class="bulk-bar" role="group" aria-label={texts.bulk.label}>
      <b>{isAll && total !== undefined ? texts.bulk.allSelected(total) : texts.table.selected(keys.size)}</b>
      {!isAll && total !== undefined && total > keys.size && (
        <button type="button" class="plain" onClick={() => {
            setAll(true);
            setKeys(new Set(runs.data?.map((run) => run.run_id)));
          }}>
          {texts.bulk.selectAll(total)}
        </button>
      )}
      {BULK_ACTIONS.filter((action) => action !== "delete").map((action) => (
        <button key={action} type="button" data-needs="operator" onClick={() => perform(action)}>
          {texts.bulk.verbs[action]}
        </button>
      ))}
      <Menu label={texts.common.moreActions} icon="ellipsis" isBare needs="admin" items={[{ name: texts.bulk.verbs.delete, act: () => perform("delete"), isGrave: true, needs: "admin" }]} />
      <button type="button" class="plain" onClick={clear}>
        {texts.bulk.none}
      </button>
    </span>
  );
  return (
    <Shown of={runs}>
      {(rows) => (
        <Table
          name="runs"
          label={texts.table.listed(rows.length, runs.isWhole, "runs")}
          columns={columns}
          items={rows}
          keyOf={(run) => run.run_id}
          hrefOf={(run) => runHref(run.run_id)}
          sort={NEWEST_FIRST}
          onEnd={runs.more}
          selection={{
            keys,
            onChange: (next) => {
              setKeys(next);
              setAll(false);
            },
          }}
          toolbar={
            <>
              {toolbar}
              {bar}
            </>
          }
          empty={
            <Empty>
              {filter.size > 0 && !isOfOne ? (
                <NoMatches href="/runs" />
              ) : (
                <>
                  {texts.runs.none} {!isOfOne && <a href="/dags">{texts.runs.startOne}</a>}
                </>
              )}
            </Empty>
          }
        />
      )}
    </Shown>
  );
}
