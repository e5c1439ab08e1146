import { unquarantine } from "../actions";
import { query } from "../api";
import { TabBar } from "../components/tabs";
import { type Concerns, type Data, useData, usePages } from "../data";
import { fire } from "../fire";
import { VirtualList } from "../list";
import { Choice, DagFilter, Empty, Head, Heads, Panel, Shown, bytes, childName, dagHref, number, taskHref } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { Glyph, named } from "../states";
import { Next, When, span } from "../time";
import type { Overview, Slow, Trigger, TriggerSummary } from "../types";
import { Waiting } from "../waits";

const PAGE = 200;
const ofTriggers: Concerns = (change) => change.triggers || change.runs.size > 0;
const STATES: [string, string][] = ["", "waiting", "trigger_capacity", "stopped", "fired", "ending"].map((state) => [
  state,
  state ? named(state) : "all states",
]);

export function Triggers() {
  const place = usePlace();
  const isHealth = place.query.get("tab") === "health";
  const summary = useData<TriggerSummary>("/triggers/summary", { on: ofTriggers, gap: 1000, every: 5000 });
  const troubles = summary.data?.quarantined.length ?? 0;
  const tabs = [
    { key: "waits", name: "Waiting", href: withQuery({ tab: null }) },
    { key: "health", name: "Loop health", href: withQuery({ tab: "health" }), badge: troubles > 0 ? troubles : undefined },
  ];
  return (
    <>
      <Head title="Waiting" name="Waiting" />
      <TabBar label="Views of what waits" at={isHealth ? "health" : "waits"} tabs={tabs} replace />
      {isHealth ? <Health summary={summary} /> : <Waits summary={summary} />}
    </>
  );
}

function Waits({ summary }: { summary: Data<TriggerSummary> }) {
  const place = usePlace();
  const kind = place.query.get("kind") ?? "";
  const state = place.query.get("state") ?? "";
  const dag = place.query.get("dag") ?? "";
  const overview = useData<Overview>("/overview", { gap: 1000, every: 10_000 });
  const kinds: [string, string][] = (summary.data?.kinds ?? []).map((one) => [one.kind, one.kind]);
  return (
    <>
      {overview.data && overview.data.waiting_longest.length > 0 && (
        <Panel title="By cause, the longest first">
          <Waiting rows={overview.data.waiting_longest} />
        </Panel>
      )}
      <Shown of={summary} optional>
        {(data) => <Summary data={data} />}
      </Shown>
      <Panel
        title="Triggers"
        class="fill-column least"
        actions={
          <>
            <DagFilter onValue={(text) => go(withQuery({ dag: text }), { replace: true })} />
            {kinds.length > 0 && (
              <Choice label="Kind" value={kind} options={[["", "all kinds"], ...kinds]} onValue={(value) => go(withQuery({ kind: value }), { replace: true })} />
            )}
            <Choice label="State" value={state} options={STATES} onValue={(value) => go(withQuery({ state: value }), { replace: true })} />
          </>
        }
      >
        <List kind={kind} state={state} dag={dag} />
      </Panel>
    </>
  );
}

/** What held up the event loop, what is in quarantine for that, and the processes that run triggers. */
function Health({ summary }: { summary: Data<TriggerSummary> }) {
  return (
    <>
      <Stalls />
      <Shown of={summary} optional>
        {(data) => (
          <>
            {data.quarantined.length > 0 && <Quarantined paths={data.quarantined} />}
            <Panel title="Trigger hosts">
              <Hosts hosts={data.hosts} />
            </Panel>
          </>
        )}
      </Shown>
    </>
  );
}

function List({ kind, state, dag }: { kind: string; state: string; dag: string }) {
  const rows = usePages<Trigger>((last) => query("/triggers", { kind, state, dag, limit: PAGE, after: last?.trigger_id ?? null }), PAGE, {
    on: ofTriggers,
    gap: 1000,
  });
  return (
    <Shown of={rows}>
      {(data) =>
        data.length === 0 ? (
          <Empty>{kind || state || dag ? "None fits." : "Nothing is deferred. What defers, sleeps or waits for an event is listed here."}</Empty>
        ) : (
          <VirtualList
            class="fill"
            items={data}
            height={34}
            label={`${data.length}${rows.isWhole ? "" : " or more"} deferred waits`}
            keyOf={(row) => `${row.trigger_id} ${row.dag_id}`}
            onEnd={rows.more}
            head={<Heads of={COLUMNS} />}
            row={(row) => <Row row={row} />}
          />
        )
      }
    </Shown>
  );
}

const COLUMNS: [string, string, string?][] = [
  ["", "c-glyph"],
  ["Kind", "kind"],
  ["Task", "c-who"],
  ["Waiting for", "grow narrow-hide"],
  ["Deadline", "c-when num wide-only"],
  ["Since", "c-when num"],
  ["", "c-fire narrow-hide"],
];

function Row({ row }: { row: Trigger }) {
  const name = row.task_id === null ? `starts runs of ${row.dag_id}` : childName(row.task_id, row.map_index, row.round, row.map_label);
  const href = row.run_id !== null && row.task_id !== null ? taskHref(row.run_id, row.task_id, row.map_index, row.round) : dagHref(row.dag_id);
  return (
    <div class="row">
      <Glyph state="deferred" />
      <span class="kind cut" title={row.kind}>
        {row.kind}
      </span>
      <span class="c-who cut" title={row.run_id ?? undefined}>
        <a data-row href={href}>
          {name}
        </a>{" "}
        {row.task_id !== null && <span class="soft">{row.dag_id}</span>}
      </span>
      <span class="cut grow soft narrow-hide" title={row.detail}>
        {row.label && <b>{row.label}: </b>}
        {(row.text ?? row.detail).replace(/^for /, "")}
      </span>
      {row.state !== "waiting" && <span class="soft">{named(row.state)}</span>}
      {row.shared_with !== null && row.shared_with > 0 && <span class="soft wide-only">shared check ({number(row.shared_with + 1)})</span>}
      <span class="c-when num soft wide-only">
        <When at={row.deadline} none="" />
      </span>
      <span class="c-when num">
        <When at={row.since} />
      </span>
      <span class="c-fire narrow-hide">
        {row.run_id !== null && (
          <button type="button" data-needs="operator" class="small" aria-label={`Send event to ${name}`} onClick={() => void fire(row.trigger_id, name)}>
            Send event
          </button>
        )}
      </span>
    </div>
  );
}

function Summary({ data }: { data: TriggerSummary }) {
  const deferred = data.kinds.reduce((all, kind) => all + kind.count, 0);
  // A logarithmic axis: one old wait is to be seen beside thousands of young ones.
  const most = Math.log(1 + Math.max(1, ...data.ages.map((age) => age.count)));
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
                <th class="num" title="Number of things that are checked for them: waits for the same thing share one check">
                  Checked
                </th>
                <th class="num" title="When the first of them is checked next; triggers that are notified are not polled">
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
                  <td class="num">{number(kind.shared_watches)}</td>
                  <td class="num">
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
      <Panel title="Waiting time">
        <table class="ages">
          <tbody>
            {data.ages.map((age, index) => (
              <tr key={index}>
                <th scope="row">{age.upto_seconds === null ? "longer" : `up to ${span(age.upto_seconds * 1000)}`}</th>
                <td>
                  <i class="b-deferred" style={{ width: `${(100 * Math.log(1 + age.count)) / most}%` }} />
                </td>
                <td class="num">{number(age.count)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Panel>
    </div>
  );
}

function Quarantined({ paths }: { paths: string[] }) {
  return (
    <Panel title="In quarantine">
      <p class="soft">Triggers of these classes blocked the shared event loop. They run in a process of their own.</p>
      <ul class="rows">
        {paths.map((path) => (
          <li key={path} class="row">
            <code class="grow break">{path}</code>
            <button type="button" data-needs="operator" class="small" onClick={() => unquarantine(path)}>
              End quarantine
            </button>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function Hosts({ hosts }: { hosts: TriggerSummary["hosts"] }) {
  const shown = hosts.filter((host) => host.name !== "quarantine" || host.triggers > 0);
  if (shown.length === 0) return <Empty>No process runs triggers.</Empty>;
  return (
    <ul class="rows">
      {shown.map((host) => (
        <li key={host.name} class="row">
          <span class="grow">
            <b>{host.name}</b> <span class="soft">{named(host.state)}</span>
          </span>
          <span class="num">{number(host.triggers)} triggers</span>
          <span class="num soft">{host.loop_lag_seconds === null ? "" : `loop at most ${span(host.loop_lag_seconds * 1000)} late`}</span>
          <span class="num soft">{host.rss_bytes === null ? "" : bytes(host.rss_bytes)}</span>
        </li>
      ))}
    </ul>
  );
}

function Stalls() {
  const slow = useData<Slow[]>("/triggers/slow", { gap: 5000, every: 15_000 });
  if (!slow.data) return null;
  if (slow.data.length === 0) {
    return (
      <Panel title="Event-loop stalls">
        <Empty>No code has blocked the event loop since the daemon started.</Empty>
      </Panel>
    );
  }
  return (
    <Panel title="Event-loop stalls">
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Event-loop stalls">
        <table>
          <thead>
            <tr>
              <th>What</th>
              <th class="num">Stalls</th>
              <th class="num">Longest</th>
              <th>Where</th>
              <th>Last</th>
              <th>Action</th>
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
