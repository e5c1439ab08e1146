import "../styles/dags.css";

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { pause, trigger } from "../actions";
import { enc, get, query } from "../api";
import { Icon, type IconName } from "../components/icons";
import { Menu } from "../components/menu";
import { type Column, type Sort, Table } from "../components/table";
import { useData, useItems, usePages } from "../data";
import { heights } from "../grid";
import { percent, statsFrom } from "../history";
import { onChange } from "../live";
import { Choice, Empty, Filter, Head, NoMatches, Shown, dagHref } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { scheduleName } from "../schedule";
import { Glyph, named, runState, sum } from "../states";
import { count, stateName, texts } from "../texts";
import { When, span } from "../time";
import type { Counts, Dag, RecentRun } from "../types";

const PAGE = 500;
const ASKED = 100;
const BAR_HEIGHT = 22;
const STATES: [string, string][] = [
  ["", texts.dags.all],
  ["paused", texts.states["paused"]!],
  ["broken", texts.dags.broken],
];

interface Stats {
  dag_id: string;
  ends: Counts;
  failure_rate: number | null;
  p50_seconds: number | null;
}

/** Return the recent statistics of each DAG's runs. */
function useStats(): Map<string, Stats> {
  const since = useMemo(statsFrom, []);
  const found = useData<{ items: Stats[] }>(query("/history/dags", { from: since }), { on: (change) => change.runs.size > 0, gap: 30_000 });
  return useMemo(() => new Map((found.data?.items ?? []).map((one) => [one.dag_id, one])), [found.data]);
}

interface Tag {
  tag: string;
  dags: number;
}

function tagsHref(tags: string[]): string {
  const fields = new URLSearchParams(location.search);
  fields.delete("tag");
  for (const tag of tags) fields.append("tag", tag);
  return fields.size ? `/dags?${fields}` : "/dags";
}

const toggled = (tags: string[], tag: string): string[] => (tags.includes(tag) ? tags.filter((one) => one !== tag) : [...tags, tag]);

/** The tags to choose from, with their numbers of DAGs, and the chosen tags. A click removes a chosen one. */
function Tags({ chosen }: { chosen: string[] }) {
  const tags = useItems<Tag>("/dag-tags", { on: (change) => change.dags.size > 0, gap: 5000 });
  if (!tags.data?.length && chosen.length === 0) return null;
  return (
    <>
      <Menu label={texts.runs.facets.tag} items={(tags.data ?? []).map(({ tag, dags }) => ({ name: tag, hint: count(dags), isOn: chosen.includes(tag), act: () => go(tagsHref(toggled(chosen, tag)), { replace: true }) }))} />
      {chosen.map((tag) => (
        <a key={tag} class="tag chip" data-replace="" href={tagsHref(toggled(chosen, tag))} aria-label={texts.dags.withoutTag(tag)} title={texts.dags.withoutTag(tag)}>
          {tag} ×
        </a>
      ))}
    </>
  );
}

export function Dags() {
  const place = usePlace();
  const search = place.query.get("search") ?? "";
  const state = place.query.get("state") ?? "";
  const tags = place.query.getAll("tag");
  const stats = useStats();
  const failing = useFailing();
  const [sort, setSort] = useState<Sort | undefined>(undefined);
  const dags = usePages<Dag>(
    (cursor) => query("/dags", { search, state: state || "all", limit: PAGE, cursor }) + tags.map((tag) => `&tag=${enc(tag)}`).join(""),
    (dag) => dag.dag_id ?? `file ${dag.file}`,
    PAGE,
    { on: (change) => change.dags.size > 0, gap: 2000 },
  );
  const [seen, setSeen] = useState<[number, number]>([0, 40]);
  const shown = useMemo(() => sorted(filtered(dags.data ?? [], search, state, failing), sort, stats), [dags.data, search, state, sort, stats, failing]);
  const ids = shown.slice(seen[0], seen[1]).flatMap((dag) => (dag.dag_id === null ? [] : [dag.dag_id]));
  const recent = useRecent(ids);
  const all = dags.data ?? [];
  const isFiltered = search !== "" || state !== "" || tags.length > 0;
  return (
    <>
      <Head title={texts.places.dags} name={texts.places.dags} sentence={dags.isWhole && !isFiltered && all.length > 0 ? <Totals dags={all} /> : texts.dags.sentence} />
      <Shown of={dags}>
        {() => (
          <Table
            name="dags"
            label={texts.table.listed(shown.length, dags.isWhole, "DAGs")}
            columns={columns(recent, stats, tags, dags.isWhole)}
            sort={sort}
            onSort={setSort}
            items={shown}
            keyOf={(dag) => dag.dag_id ?? dag.file}
            hrefOf={(dag) => (dag.dag_id === null ? "/errors" : dagHref(dag.dag_id))}
            nameOf={(dag) => dag.dag_id ?? dag.file}
            onEnd={dags.more}
            onRange={(first, end) => setSeen([first, end])}
            toolbar={
              <>
                <Filter name="search" label={texts.dags.find} onValue={(text) => go(withQuery({ search: text }), { replace: true })} />
                <Tags chosen={tags} />
                <Choice label={texts.dags.which} value={state} options={STATES} onValue={(value) => go(withQuery({ state: value }), { replace: true })} />
              </>
            }
            empty={
              <Empty>
                {isFiltered ? (
                  <NoMatches href="/dags" />
                ) : (
                  texts.dags.none
                )}
              </Empty>
            }
          />
        )}
      </Shown>
    </>
  );
}

/** The number of DAGs, with links to the paused ones, and to the files that cannot be imported. */
function Totals({ dags }: { dags: Dag[] }) {
  const paused = dags.filter((dag) => dag.paused).length;
  const broken = dags.filter((dag) => dag.import_error).length;
  return (
    <>
      {texts.common.many(dags.filter((dag) => dag.dag_id !== null).length, "DAG")}
      {paused > 0 && (
        <>
          , <a href="/dags?state=paused">{texts.dags.countPaused(paused)}</a>
        </>
      )}
      {broken > 0 && (
        <>
          {" "}
          {texts.dags.and} <a href="/errors">{texts.dags.countBroken(broken)}</a>
        </>
      )}
      .
    </>
  );
}

/** Return the columns. Only a list that is loaded as a whole can be sorted here. */
const columns = (recent: Record<string, RecentRun[]>, stats: Map<string, Stats>, tags: string[], isSortable: boolean): Column<Dag>[] => [
  { id: "glyph", title: "", width: "20px", phone: "lead", isFixed: true, cell: (dag) => <Glyph state={glyphOf(dag, recent)} /> },
  {
    id: "dag",
    title: texts.run.dag,
    isSortable,
    width: "minmax(134px, 1.3fr)",
    phone: "title",
    isFixed: true,
    isMono: true,
    cell: (dag) => (
      <>
        {dag.dag_id ?? dag.file}
        {dag.paused && <span class="tag">{texts.states["paused"]}</span>}
      </>
    ),
  },
  {
    id: "problem",
    title: texts.dags.problem,
    width: "minmax(188px, 2fr)",
    phone: "second",
    cell: (dag) =>
      dag.import_error ? (
        <a class={dag.dag_id === null ? "bad across" : "bad"} href="/errors" title={dag.import_error}>
          {dag.dag_id === null ? dag.import_error.replace(/^import_error: /, "").split("\n", 1)[0] : texts.dags.broken}
        </a>
      ) : (
        <span class="soft" title={dag.schedule === null ? undefined : `${dag.schedule} ${dag.timezone ?? ""}`.trim()}>
          <span class="phone-only word">{stateName(glyphOf(dag, recent))}</span>
          {scheduleName(dag) ?? texts.dags.noSchedule}
          {!dag.paused && dag.next_run_at && (
            <span class="phone-only">
              , <When at={dag.next_run_at} />
            </span>
          )}
        </span>
      ),
  },
  {
    id: "tags",
    title: texts.dags.tags,
    width: "minmax(100px, 0.6fr)",
    isInteractive: true,
    isWideOnly: true,
    cell: (dag) => (
      <span class="dag-tags">
        {dag.tags.map((tag) => (
          <a key={tag} class="tag chip" href={tagsHref(toggled(tags, tag))} aria-label={tags.includes(tag) ? texts.dags.withoutTag(tag) : texts.dags.withTag(tag)}>
            {tag}
          </a>
        ))}
      </span>
    ),
  },
  {
    id: "success",
    title: texts.dags.success,
    meaning: texts.dags.lately,
    width: "114px",
    isNumber: true,
    isWideOnly: true,
    isSortable,
    cell: (dag) => dag.dag_id !== null && success(stats.get(dag.dag_id)),
  },
  {
    id: "median",
    title: texts.dags.median,
    meaning: texts.dags.medianMeaning,
    width: "80px",
    isNumber: true,
    isWideOnly: true,
    isSortable,
    cell: (dag) => dag.dag_id !== null && seconds(stats.get(dag.dag_id)),
  },
  { id: "recent", title: texts.dags.recent, meaning: texts.dags.recentMeaning, width: "94px", isNumber: true, phone: "end", isInteractive: true, cell: (dag) => dag.dag_id !== null && <Recent dag={dag.dag_id} runs={recent[dag.dag_id] ?? []} /> },
  { id: "next", title: texts.dags.next, isSortable, width: "74px", isNumber: true, isWideOnly: true, cell: (dag) => (dag.paused ? <span class="soft">–</span> : <When at={dag.next_run_at} none="" />) },
  { id: "buttons", title: "", width: "64px", isFixed: true, isInteractive: true, cell: (dag) => dag.dag_id !== null && <Buttons id={dag.dag_id} paused={dag.paused} /> },
];

/** Below this number of runs, a share says little without the number. */
const FEW = 10;

function success(one: Stats | undefined) {
  if (one?.failure_rate == null) return <span class="soft">–</span>;
  const all = sum(one.ends) - (one.ends["cancelled"] ?? 0);
  return <>{all < FEW ? texts.common.of(one.ends["success"] ?? 0, all) : percent(1 - one.failure_rate)}</>;
}

const seconds = (one: Stats | undefined) => (one?.p50_seconds == null ? <span class="soft">–</span> : span(one.p50_seconds * 1000, true));

/** Sort DAGs. Unknown values come last in both directions. */
function sorted(dags: Dag[], sort: Sort | undefined, stats: Map<string, Stats>): Dag[] {
  if (!sort) return dags;
  const value = (dag: Dag): string | number | null => {
    const own = stats.get(dag.dag_id ?? "");
    if (sort.by === "next") return dag.paused ? null : dag.next_run_at;
    if (sort.by === "success") return own?.failure_rate == null ? null : 1 - own.failure_rate;
    if (sort.by === "median") return own?.p50_seconds ?? null;
    return dag.dag_id ?? dag.file;
  };
  const way = sort.isDescending ? -1 : 1;
  return dags
    .map((dag) => ({ dag, at: value(dag) }))
    .sort((one, other) => {
      if (one.at === null || other.at === null) return Number(one.at === null) - Number(other.at === null);
      return (one.at < other.at ? -1 : one.at > other.at ? 1 : 0) * way;
    })
    .map(({ dag }) => dag);
}

const glyphOf = (dag: Dag, recent: Record<string, RecentRun[]>): string =>
  dag.import_error ? "failed" : dag.paused ? "paused" : newestOf(recent[dag.dag_id ?? ""]);

const newestOf = (runs: RecentRun[] | undefined): string => (runs?.[0] ? runState(runs[0]) : "pending");

function Buttons({ id, paused }: { id: string; paused: boolean }) {
  return (
    <>
      <IconButton name={`${paused ? texts.actions.resume : texts.actions.pause} ${id}`} icon="pause" isPressed={paused} act={() => void pause(id, !paused)} />
      <IconButton name={`${texts.actions.trigger} ${id}`} icon="play" act={() => void trigger(id)} />
    </>
  );
}

function IconButton({ name, icon, isPressed, act }: { name: string; icon: IconName; isPressed?: boolean; act: () => void }) {
  return (
    <button type="button" data-needs="operator" class="plain icon-only" aria-pressed={isPressed} aria-label={name} title={name} onClick={act}>
      <Icon name={icon} size={14} />
    </button>
  );
}

/** Return the DAGs with a run that failed in the last 24 hours, and none that succeeded since. */
function useFailing(): ReadonlySet<string> {
  const home = useData<{ attention: { dag_id: string; is_recovered: boolean }[] }>("/home", { on: (change) => change.runs.size > 0, gap: 10_000 });
  return useMemo(() => new Set((home.data?.attention ?? []).flatMap((one) => (one.is_recovered ? [] : [one.dag_id]))), [home.data]);
}

/** Return the DAGs that match. Files that cannot be imported come first, then failing DAGs. */
function filtered(dags: Dag[], search: string, state: string, failing: ReadonlySet<string>): Dag[] {
  const wanted = search.toLowerCase();
  const found = dags.filter(
    (dag) =>
      (wanted === "" || (dag.dag_id ?? dag.file).toLowerCase().includes(wanted) || dag.file.toLowerCase().includes(wanted)) &&
      (state !== "paused" || dag.paused) &&
      (state !== "broken" || dag.import_error !== null),
  );
  const rank = (dag: Dag): number => (dag.import_error !== null ? 0 : failing.has(dag.dag_id ?? "") ? 1 : 2);
  return found.sort((one, other) => rank(one) - rank(other));
}

/** The last runs as bars, which are too narrow to be links. */
function Recent({ dag, runs }: { dag: string; runs: RecentRun[] }) {
  if (runs.length === 0) return null;
  const oldest = [...runs].reverse();
  const tall = heights(oldest, BAR_HEIGHT);
  const failed = runs.filter((run) => run.state === "failed" || run.state === "partial").length;
  const text = texts.dags.recentOf(runs.length, failed, named(newestOf(runs)));
  return (
    <a class="recent" href={`${dagHref(dag)}/runs`} title={text} aria-label={text}>
      {oldest.map((run, index) => (
        <i key={run.run_id} class={`column b-${runState(run)} ${tall[index]!.isCut ? "is-cut" : ""}`} style={{ height: `${tall[index]!.height}px` }} />
      ))}
    </a>
  );
}

/** Return the last runs of the DAGs in view, cached while scrolling. */
function useRecent(ids: string[]): Record<string, RecentRun[]> {
  const [known, setKnown] = useState<Record<string, RecentRun[]>>({});
  const stale = useRef(new Set<string>());
  const wanted = ids.join("\n");
  const [round, setRound] = useState(0);
  useEffect(
    () =>
      onChange((change) => {
        const gone = change.all ? ids : ids.filter((id) => change.dags.has(id));
        for (const id of gone) stale.current.add(id);
        if (gone.length > 0) setRound((before) => before + 1);
      }),
    [wanted],
  );
  useEffect(() => {
    const control = new AbortController();
    const asked = ids.filter((id) => !(id in known) || stale.current.has(id)).slice(0, ASKED).sort();
    if (asked.length === 0) return undefined;
    const timer = setTimeout(() => {
      const path = `/dags/recent?${asked.map((id) => `dag=${enc(id)}`).join("&")}`;
      get<Record<string, RecentRun[]>>(path, control.signal).then(
        (found) => {
          for (const id of asked) stale.current.delete(id);
          setKnown((before) => ({ ...before, ...Object.fromEntries(asked.map((id) => [id, found[id] ?? []])) }));
        },
        () => undefined, // the list is worth showing without it
      );
    }, 120);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [wanted, round]);
  return known;
}
