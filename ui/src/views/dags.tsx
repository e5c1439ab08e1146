import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { pause, trigger } from "../actions";
import { enc, get, query } from "../api";
import { usePages } from "../data";
import { heights } from "../grid";
import { VirtualList } from "../list";
import { onChange } from "../live";
import { Choice, Empty, Filter, Head, Heads, Shown, dagHref, zoned } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { Glyph, named } from "../states";
import { When } from "../time";
import type { Dag, RecentRun } from "../types";

const PAGE = 500;
const ASKED = 100;
const BAR_HEIGHT = 22;
const STATES: [string, string][] = [
  ["", "all"],
  ["paused", "paused"],
  ["broken", "broken"],
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
      <Head title="DAGs" name="DAGs">
        <Filter name="search" label="Find a DAG" onValue={(text) => go(withQuery({ search: text }), { replace: true })} />
        <Choice label="Which" value={state} options={STATES} onValue={(value) => go(withQuery({ state: value }), { replace: true })} />
      </Head>
      <Shown of={dags}>
        {() =>
          shown.length === 0 ? (
            <Empty>
              {search || state ? (
                <>
                  None fits. <a href="/dags">Show all</a>
                </>
              ) : (
                "No DAGs yet: put a Python file with an @dag function into the DAG folder, and it appears here by itself."
              )}
            </Empty>
          ) : (
            <VirtualList
              class="panel fill"
              items={shown}
              height={38}
              label={`${shown.length}${dags.isWhole ? "" : " or more"} DAGs`}
              keyOf={(dag) => dag.dag_id ?? dag.file}
              onEnd={dags.more}
              onRange={(first, end) => setSeen([first, end])}
              head={<Heads of={COLUMNS} />}
              row={(dag) => <Row dag={dag} recent={dag.dag_id === null ? undefined : recent[dag.dag_id]} />}
            />
          )
        }
      </Shown>
    </>
  );
}

const COLUMNS: [string, string, string?][] = [
  ["", "c-glyph"],
  ["DAG", "grow"],
  ["Last runs", "recent", "The newest at the right; the taller, the longer it took"],
  ["Schedule", "schedule wide-only"],
  ["Next run", "c-when num wide-only"],
  ["", "c-buttons"],
];

function filtered(dags: Dag[], search: string, state: string): Dag[] {
  const wanted = search.toLowerCase();
  return dags.filter(
    (dag) =>
      (wanted === "" || (dag.dag_id ?? dag.file).toLowerCase().includes(wanted) || dag.file.toLowerCase().includes(wanted)) &&
      (state !== "paused" || dag.paused) &&
      (state !== "broken" || dag.import_error !== null),
  );
}

function Row({ dag, recent }: { dag: Dag; recent?: RecentRun[] }) {
  if (dag.dag_id === null) {
    return (
      <div class="row">
        <Glyph state="failed" />
        <a class="cut grow" data-row href="/errors">
          {dag.file}
        </a>
        <span class="cut bad">{dag.import_error}</span>
      </div>
    );
  }
  const id = dag.dag_id;
  return (
    <div class="row">
      <Glyph state={dag.import_error ? "failed" : dag.paused ? "paused" : (recent?.[0]?.state ?? "pending")} />
      <a class="cut grow strong" data-row href={dagHref(id)}>
        {id}
      </a>
      {dag.import_error && (
        <a class="bad narrow-hide" href="/errors" title={dag.import_error}>
          broken file
        </a>
      )}
      <Recent runs={recent ?? []} />
      <span class="cut soft wide-only schedule" title={zoned(dag) ?? undefined}>
        {zoned(dag) ?? "no schedule"}
      </span>
      <span class="c-when num soft wide-only">{dag.paused ? "paused" : <When at={dag.next_run_at} none="" />}</span>
      <span class="c-buttons">
        <button type="button" data-needs="operator" class="small narrow-hide" aria-pressed={dag.paused} aria-label={`${dag.paused ? "Resume" : "Pause"} ${id}`} onClick={() => void pause(id, !dag.paused)}>
          {dag.paused ? "Resume" : "Pause"}
        </button>
        <button type="button" data-needs="operator" class="small" aria-label={`Trigger ${id}`} onClick={() => void trigger(id)}>
          Trigger …
        </button>
      </span>
    </div>
  );
}

function Recent({ runs }: { runs: RecentRun[] }) {
  const oldest = [...runs].reverse();
  const tall = heights(oldest, BAR_HEIGHT);
  return (
    <span class="recent">
      {oldest.map((run, index) => {
        const text = `${run.run_id}: ${named(run.state)}`;
        return (
          <a key={run.run_id} href={`/runs/${encodeURIComponent(run.run_id)}`} title={text} aria-label={text}>
            <i class={`column b-${run.state}`} style={{ height: `${tall[index]}px` }} />
          </a>
        );
      })}
    </span>
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
