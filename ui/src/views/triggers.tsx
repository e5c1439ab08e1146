import type { ComponentChildren } from "preact";

import { fire, unquarantine } from "../actions";
import { query } from "../api";
import { type Column, Table } from "../components/table";
import { type Concerns, useData, useItems, usePages } from "../data";
import { Choice, DagFilter, Empty, Head, Panel, Shown, bytes, childName, dagHref, number, taskHref } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { Glyph, named } from "../states";
import { sentenceCase, texts } from "../texts";
import { Next, When, span } from "../time";
import type { Slow, Trigger, TriggerSummary } from "../types";

const PAGE = 200;
const ofTriggers: Concerns = (change) => change.triggers || change.runs.size > 0;
const STATES: [string, string][] = ["", "waiting", "trigger_capacity", "stopped", "fired", "ending"].map((state) => [
  state,
  state ? sentenceCase(named(state)) : texts.run.allStates,
]);

export function Triggers() {
  const place = usePlace();
  const kind = place.query.get("kind") ?? "";
  const state = place.query.get("state") ?? "";
  const dag = place.query.get("dag") ?? "";
  const summary = useData<TriggerSummary>("/triggers/summary", { on: ofTriggers, gap: 1000, every: 5000 });
  const kinds: [string, string][] = (summary.data?.kinds ?? []).map((one) => [one.kind, one.kind]);
  return (
    <>
      <Head title={texts.places.triggers} name={texts.places.triggers} sentence={texts.triggers.sentence} />
      <Shown of={summary} optional>
        {(data) => <Summary data={data} />}
      </Shown>
      <Stalls />
      <List
        kind={kind}
        state={state}
        dag={dag}
        toolbar={
          <>
            <DagFilter onValue={(text) => go(withQuery({ dag: text }), { replace: true })} />
            {kinds.length > 0 && (
              <Choice label={texts.triggers.kind} value={kind} options={[["", texts.triggers.allKinds], ...kinds]} onValue={(value) => go(withQuery({ kind: value }), { replace: true })} />
            )}
            <Choice label={texts.task.state} value={state} options={STATES} onValue={(value) => go(withQuery({ state: value }), { replace: true })} />
          </>
        }
      />
    </>
  );
}

function List({ kind, state, dag, toolbar }: { kind: string; state: string; dag: string; toolbar: ComponentChildren }) {
  const rows = usePages<Trigger>((cursor) => query("/triggers", { kind, state, dag, limit: PAGE, cursor }), (row) => row.trigger_id, PAGE, {
    on: ofTriggers,
    gap: 1000,
  });
  return (
    <Shown of={rows}>
      {(data) => (
        <Table
          name="waiting"
          class="tall"
          label={`${data.length}${rows.isWhole ? "" : " or more"} deferred waits`}
          columns={COLUMNS}
          items={data}
          keyOf={(row) => `${row.trigger_id} ${row.dag_id}`}
          hrefOf={hrefOf}
          nameOf={nameOf}
          onEnd={rows.more}
          toolbar={toolbar}
          empty={
            <Empty>
              {kind || state || dag ? (
                <>
                  {texts.common.noMatches} <a href="/triggers">{texts.common.clearFilters}</a>
                </>
              ) : (
                texts.triggers.none
              )}
            </Empty>
          }
        />
      )}
    </Shown>
  );
}

const nameOf = (row: Trigger): string => (row.task_id === null ? `starts runs of ${row.dag_id}` : childName(row.task_id, row.map_index, row.round));

const hrefOf = (row: Trigger): string => (row.run_id !== null && row.task_id !== null ? taskHref(row.run_id, row.task_id, row.map_index, row.round) : dagHref(row.dag_id));

const COLUMNS: Column<Trigger>[] = [
  { id: "glyph", title: "", width: "20px", phone: "lead", isFixed: true, cell: () => <Glyph state="deferred" /> },
  { id: "task", title: texts.task.name, width: "minmax(140px, 1.2fr)", phone: "title", isFixed: true, isMono: true, cell: nameOf },
  {
    id: "waiting",
    title: texts.task.waitingFor,
    width: "minmax(160px, 2fr)",
    phone: "second",
    cell: (row) => (
      <>
        {row.detail} {row.state !== "waiting" && <span class="soft">{named(row.state)}</span>}
        {row.shared_with !== null && row.shared_with > 0 && <span class="tag">{texts.triggers.shared(row.shared_with + 1)}</span>}
      </>
    ),
  },
  { id: "kind", title: texts.triggers.kind, width: "96px", isWideOnly: true, cell: (row) => <span class="soft">{row.kind}</span> },
  { id: "run", title: texts.triggers.run, width: "minmax(110px, 1fr)", isMono: true, isWideOnly: true, cell: (row) => <span class="soft">{row.run_id ?? row.dag_id}</span> },
  { id: "deadline", title: texts.task.deadline, width: "96px", isNumber: true, isWideOnly: true, cell: (row) => <When at={row.deadline} none="" /> },
  { id: "since", title: texts.task.since, width: "92px", isNumber: true, phone: "end", cell: (row) => <When at={row.since} /> },
  {
    id: "fire",
    title: "",
    width: "100px",
    isFixed: true,
    isInteractive: true,
    cell: (row) =>
      row.run_id !== null && (
        <button type="button" data-needs="operator" class="small" aria-label={`${texts.actions.fire} ${nameOf(row)}`} onClick={() => fire(row.trigger_id, nameOf(row))}>
          {texts.actions.fire}
        </button>
      ),
  },
];

function Summary({ data }: { data: TriggerSummary }) {
  const deferred = data.kinds.reduce((all, kind) => all + kind.count, 0);
  const most = Math.max(1, ...data.ages.map((age) => age.count));
  return (
    <div class="columns">
      <Panel title={`${number(deferred)} deferred${data.capacity ? ` of at most ${number(data.capacity)}` : ""}`}>
        {data.waiting_for_capacity > 0 && (
          <p class="wrong">
            {number(data.waiting_for_capacity)} wait for capacity: raise <code>triggers.capacity</code>.
          </p>
        )}
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Deferred by kind">
          <table>
            <thead>
              <tr>
                <th>Kind</th>
                <th class="num">Deferred</th>
                <th class="num">Oldest</th>
                <th class="num narrow-hide" title="Number of things that are checked for them: waits for the same thing share one check">
                  Checked
                </th>
                <th class="num narrow-hide" title="When the first of them is checked next; triggers that are notified are not polled">
                  Next check
                </th>
                <th class="num" title="Events since the daemon started">
                  Fired
                </th>
                <th class="num" title="Events per second, over the last minute">
                  Per s
                </th>
              </tr>
            </thead>
            <tbody>
              {data.kinds.map((kind) => (
                <tr key={kind.kind}>
                  <td>{kind.kind}</td>
                  <td class="num">{number(kind.count)}</td>
                  <td class="num">
                    <When at={kind.oldest_since} />
                  </td>
                  <td class="num narrow-hide">{number(kind.shared_watches)}</td>
                  <td class="num narrow-hide">
                    <Next at={kind.next_check_at} />
                  </td>
                  <td class="num">{number(kind.fires)}</td>
                  <td class="num">{number(kind.fires_per_second, 1)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        {data.kinds.length === 0 && <Empty>No kinds of triggers are deferred.</Empty>}
      </Panel>
      <Panel title={texts.triggers.ages}>
        <table class="ages">
          <tbody>
            {data.ages.map((age, index) => (
              <tr key={index}>
                <th scope="row">{age.upto_seconds === null ? "Longer" : `Up to ${span(age.upto_seconds * 1000)}`}</th>
                <td>
                  <i class="b-deferred" style={{ width: `${(100 * age.count) / most}%` }} />
                </td>
                <td class="num">{number(age.count)}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {data.hosts
          .filter((host) => host.name !== "quarantine" || host.triggers > 0)
          .map((host) => (
            <p key={host.name} class="soft">
              Host <b>{host.name}</b> is {named(host.state)}: {number(host.triggers)} triggers
              {host.loop_lag_seconds !== null && `, loop ${span(host.loop_lag_seconds * 1000)} late at most`}
              {host.rss_bytes !== null && `, ${bytes(host.rss_bytes)}`}
            </p>
          ))}
      </Panel>
      {data.quarantined.length > 0 && (
        <Panel title="In quarantine" class="wide">
          <p class="soft">They blocked the event loop they shared, and now run in a process of their own.</p>
          <ul class="rows">
            {data.quarantined.map((path) => (
              <li key={path} class="row">
                <code class="grow break">{path}</code>
                <button type="button" data-needs="operator" class="small" onClick={() => unquarantine(path)}>
                  {texts.triggers.endQuarantine}
                </button>
              </li>
            ))}
          </ul>
        </Panel>
      )}
    </div>
  );
}

function Stalls() {
  const slow = useItems<Slow>("/triggers/slow", { gap: 5000, every: 15_000 });
  if (!slow.data || slow.data.length === 0) return null;
  return (
    <Panel title={texts.triggers.stalls}>
      <div class="scroll-x" tabIndex={0} role="region" aria-label={texts.triggers.stalls}>
        <table>
          <thead>
            <tr>
              <th>What</th>
              <th class="num">Stalls</th>
              <th class="num">Longest</th>
              <th>Where</th>
              <th>Last</th>
              <th><span class="offscreen">{texts.table.actions}</span></th>
            </tr>
          </thead>
          <tbody>
            {slow.data.map((row) => (
              <tr key={`${row.kind} ${row.name}`}>
                <td class="break">
                  {row.kind} <code>{row.name}</code>
                </td>
                <td class="num">{row.stalls}</td>
                <td class="num">{span(row.longest_ms)}</td>
                <td class="break">
                  <code>{row.source_location}</code>
                </td>
                <td>
                  <When at={row.last_at} />
                </td>
                <td>
                  {row.quarantined && row.kind === "trigger" && (
                    <button type="button" data-needs="operator" class="small" onClick={() => unquarantine(row.name)}>
                      End quarantine
                    </button>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}
