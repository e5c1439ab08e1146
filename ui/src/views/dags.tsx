import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { pause, trigger } from "../actions";
import { enc, get, query } from "../api";
import { type Column, Table } from "../components/table";
import { usePages } from "../data";
import { heights } from "../grid";
import { onChange } from "../live";
import { Choice, Empty, Filter, Head, Shown, dagHref, zoned } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { Glyph, named } from "../states";
import { texts } from "../texts";
import { When } from "../time";
import type { Dag, RecentRun } from "../types";

const PAGE = 500;
const ASKED = 100;
const BAR_HEIGHT = 22;
const STATES: [string, string][] = [
  ["", texts.dags.all],
  ["paused", texts.states["paused"]!],
  ["broken", texts.dags.broken],
];

export function Dags() {
  const place = usePlace();
  const search = place.query.get("search") ?? "";
  const state = place.query.get("state") ?? "";
  const dags = usePages<Dag>(
    (cursor) => query("/dags", { search, state: state || "all", limit: PAGE, cursor }),
    (dag) => dag.dag_id ?? `file ${dag.file}`,
    PAGE,
    { on: (change) => change.dags.size > 0, gap: 2000 },
  );
  const [seen, setSeen] = useState<[number, number]>([0, 40]);
  const shown = useMemo(() => filtered(dags.data ?? [], search, state), [dags.data, search, state]);
  const ids = shown.slice(seen[0], seen[1]).flatMap((dag) => (dag.dag_id === null ? [] : [dag.dag_id]));
  const recent = useRecent(ids);
  return (
    <>
      <Head title={texts.places.dags} name={texts.places.dags} sentence={texts.dags.sentence} />
      <Shown of={dags}>
        {() => (
          <Table
            name="dags"
            label={`${shown.length}${dags.isWhole ? "" : " or more"} DAGs`}
            columns={columns(recent)}
            items={shown}
            keyOf={(dag) => dag.dag_id ?? dag.file}
            hrefOf={(dag) => (dag.dag_id === null ? "/errors" : dagHref(dag.dag_id))}
            nameOf={(dag) => dag.dag_id ?? dag.file}
            onEnd={dags.more}
            onRange={(first, end) => setSeen([first, end])}
            toolbar={
              <>
                <Filter name="search" label={texts.dags.find} onValue={(text) => go(withQuery({ search: text }), { replace: true })} />
                <Choice label={texts.dags.which} value={state} options={STATES} onValue={(value) => go(withQuery({ state: value }), { replace: true })} />
              </>
            }
            empty={
              <Empty>
                {search || state ? (
                  <>
                    {texts.common.noMatches} <a href="/dags">{texts.common.clearFilters}</a>
                  </>
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

const columns = (recent: Record<string, RecentRun[]>): Column<Dag>[] => [
  { id: "glyph", title: "", width: "20px", phone: "lead", isFixed: true, cell: (dag) => <Glyph state={glyphOf(dag, recent)} /> },
  {
    id: "dag",
    title: texts.run.dag,
    width: "minmax(150px, 2fr)",
    phone: "title",
    isFixed: true,
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
    width: "minmax(0, 1fr)",
    phone: "second",
    cell: (dag) =>
      dag.import_error ? (
        <a class="bad" href="/errors" title={dag.import_error}>
          {dag.dag_id === null ? dag.import_error.replace(/^import_error: /, "") : texts.dags.broken}
        </a>
      ) : (
        <span class="soft">{zoned(dag) ?? texts.dags.noSchedule}</span>
      ),
  },
  { id: "recent", title: texts.dags.recent, meaning: texts.dags.recentMeaning, width: "150px", isNumber: true, phone: "end", isInteractive: true, cell: (dag) => dag.dag_id !== null && <Recent dag={dag.dag_id} runs={recent[dag.dag_id] ?? []} /> },
  { id: "next", title: texts.dags.next, width: "104px", isNumber: true, isWideOnly: true, cell: (dag) => (dag.paused ? <span class="soft">–</span> : <When at={dag.next_run_at} none="" />) },
  { id: "buttons", title: "", width: "164px", isFixed: true, isInteractive: true, cell: (dag) => dag.dag_id !== null && <Buttons id={dag.dag_id} paused={dag.paused} /> },
];

const glyphOf = (dag: Dag, recent: Record<string, RecentRun[]>): string =>
  dag.import_error ? "failed" : dag.paused ? "paused" : ((dag.dag_id !== null && recent[dag.dag_id]?.[0]?.state) || "pending");

function Buttons({ id, paused }: { id: string; paused: boolean }) {
  return (
    <>
      <button type="button" data-needs="operator" class="small" aria-pressed={paused} aria-label={`${paused ? texts.actions.resume : texts.actions.pause} ${id}`} onClick={() => void pause(id, !paused)}>
        {paused ? texts.actions.resume : texts.actions.pause}
      </button>
      <button type="button" data-needs="operator" class="small" aria-label={`${texts.actions.trigger} ${id}`} onClick={() => void trigger(id)}>
        {texts.actions.trigger}
      </button>
    </>
  );
}

/** Those that match; files that cannot be imported come first. */
function filtered(dags: Dag[], search: string, state: string): Dag[] {
  const wanted = search.toLowerCase();
  const found = dags.filter(
    (dag) =>
      (wanted === "" || (dag.dag_id ?? dag.file).toLowerCase().includes(wanted) || dag.file.toLowerCase().includes(wanted)) &&
      (state !== "paused" || dag.paused) &&
      (state !== "broken" || dag.import_error !== null),
  );
  return [...found.filter((dag) => dag.import_error !== null), ...found.filter((dag) => dag.import_error === null)];
}

/** As many bars as runs: they are too narrow to be targets of their own. */
function Recent({ dag, runs }: { dag: string; runs: RecentRun[] }) {
  if (runs.length === 0) return null;
  const oldest = [...runs].reverse();
  const tall = heights(oldest, BAR_HEIGHT);
  const failed = runs.filter((run) => run.state === "failed" || run.state === "partial").length;
  const text = texts.dags.recentOf(runs.length, failed, named(runs[0]!.state));
  return (
    <a class="recent" href={`${dagHref(dag)}/runs`} title={text} aria-label={text}>
      {oldest.map((run, index) => (
        <i key={run.run_id} class={`column b-${run.state}`} style={{ height: `${tall[index]}px` }} />
      ))}
    </a>
  );
}

/** The last runs of the DAGs in view, cached while scrolling. */
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
    const asked = ids.filter((id) => !(id in known) || stale.current.has(id)).slice(0, ASKED);
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
