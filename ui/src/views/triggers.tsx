import { Fragment } from "preact";

import { unquarantine } from "../actions";
import { TabBar } from "../components/tabs";
import { type Concerns, type Data, useData, useItems } from "../data";
import { Choice, DagFilter, Empty, Head, Panel, Shown, bytes, number } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { named, queuedForWorkers } from "../states";
import { sentenceCase, texts } from "../texts";
import { Next, When, span } from "../time";
import type { Overview, Pool, Slow, TriggerSummary } from "../types";
import { WaitingList } from "./waiting_list";

const ofTriggers: Concerns = (change) => change.triggers || change.runs.size > 0;
const STATES: [string, string][] = ["", "waiting", "trigger_capacity", "stopped", "fired", "ending"].map((state) => [
  state,
  state ? sentenceCase(named(state)) : texts.run.allStates,
]);

export function Triggers() {
  const place = usePlace();
  const isHealth = place.query.get("tab") === "health";
  const summary = useData<TriggerSummary>("/triggers/summary", { on: ofTriggers, gap: 1000, every: 5000 });
  const troubles = summary.data?.quarantined.length ?? 0;
  const tabs = [
    { key: "waits", name: texts.triggers.waits, href: withQuery({ tab: null }) },
    { key: "health", name: texts.triggers.health, href: withQuery({ tab: "health" }), badge: troubles > 0 ? troubles : undefined },
  ];
  return (
    <>
      <Head title={texts.places.triggers} name={texts.places.triggers} sentence={isHealth && texts.triggers.sentence} tabs={<TabBar label={texts.triggers.views} at={isHealth ? "health" : "waits"} tabs={tabs} replace />} />
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
  const isSensing = (overview.data?.states["sensing"] ?? 0) > 0;
  const names = new Set([...(summary.data?.kinds ?? []).map((one) => one.kind), ...(isSensing ? ["condition"] : [])]);
  const kinds = [...names].map((name): [string, string] => [name, texts.triggers.kindName(name)]);
  const queued = overview.data?.states["queued"] ?? 0;
  const pools = useItems<Pool>(queued > 0 ? "/pools" : null, { gap: 1000, every: 10_000 });
  return (
    <>
      {overview.data && (queued === 0 || pools.data || pools.problem) && <Sentence now={overview.data} pools={pools.data ?? []} />}
      <WaitingList
        kind={kind}
        state={state}
        dag={dag}
        now={overview.data}
        isForPools={queued > 0 && pools.data !== undefined && overview.data !== undefined && queuedForWorkers(overview.data.states, pools.data) === 0}
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

/** How many tasks wait, and for what. Those that hold no slot come first. */
function Sentence({ now, pools }: { now: Overview; pools: Pool[] }) {
  const sensing = now.states["sensing"] ?? 0;
  const kinds = Object.entries(now.deferred).filter(([, some]) => some > 0);
  if (sensing > 0) kinds.push(["condition", sensing]);
  // In the order of the groups below: people first.
  kinds.sort((one, other) => Number(other[0] === "person") - Number(one[0] === "person") || other[1] - one[1] || one[0].localeCompare(other[0]));
  const all = kinds.reduce((some, [, one]) => some + one, 0);
  const queued = pools.flatMap((pool): Part[] => (pool.queued ? [{ some: pool.queued, text: texts.triggers.queuedFor(pool.name), href: `/pools?open=${encodeURIComponent(pool.name)}` }] : []));
  const forWorkers = queuedForWorkers(now.states, pools);
  if (forWorkers > 0) queued.push({ some: forWorkers, text: texts.triggers.queuedForWorker, href: "/executors" });
  if (all + queued.length === 0) return null;
  return (
    <p class="sentence">
      {all > 0 && (
        <>
          {texts.triggers.areWaiting(all)}
          {kinds.length > 1 && ": "}
          <Parts parts={kinds.map(([kind, some]) => ({ some: kinds.length > 1 ? some : null, text: texts.triggers.for(kind), href: withQuery({ kind }) }))} />
          {". "}
        </>
      )}
      {queued.length > 0 && (
        <>
          <Parts parts={queued} />.
        </>
      )}
    </p>
  );
}

interface Part {
  /** None if it is the number of all, which stands in front. */
  some: number | null;
  text: string;
  href: string;
}

/** Numbers with what they are of, each a link to the list of these. */
function Parts({ parts }: { parts: Part[] }) {
  return (
    <>
      {parts.map(({ some, text, href }, index) => (
        <Fragment key={href}>
          {index > 0 && ", "}
          {some === null ? " " : ""}
          <a href={href}>{some === null ? text : `${number(some)} ${text}`}</a>
        </Fragment>
      ))}
    </>
  );
}

/** What blocked the event loop, what is in quarantine for it, and the processes that run triggers. */
function Health({ summary }: { summary: Data<TriggerSummary> }) {
  return (
    <>
      <Stalls />
      <Shown of={summary} optional>
        {(data) => (
          <>
            {(data.kinds.length > 0 || data.waiting_for_capacity > 0) && <Summary data={data} />}
            {data.quarantined.length > 0 && <Quarantined paths={data.quarantined} />}
            <Panel title={texts.triggers.hosts}>
              <Hosts hosts={data.hosts} />
            </Panel>
          </>
        )}
      </Shown>
    </>
  );
}

function Quarantined({ paths }: { paths: string[] }) {
  return (
    <Panel title={texts.triggers.quarantine}>
      <p class="soft">{texts.triggers.whyQuarantine}</p>
      <ul class="rows">
        {paths.map((path) => (
          <li key={path} class="row">
            <code class="grow break">{path}</code>
            <button type="button" data-needs="operator" class="small" onClick={() => unquarantine(path)}>
              {texts.triggers.endQuarantine}
            </button>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function Hosts({ hosts }: { hosts: TriggerSummary["hosts"] }) {
  const shown = hosts.filter((host) => host.name !== "quarantine" || host.triggers > 0);
  if (shown.length === 0) return <Empty>{texts.triggers.noHosts}</Empty>;
  return (
    <ul class="rows">
      {shown.map((host) => (
        <li key={host.name} class="row">
          <span class="grow">
            <b>{host.name}</b> <span class="soft">{named(host.state)}</span>
          </span>
          <span class="num">{texts.common.many(host.triggers, "trigger")}</span>
          <span class="num soft">{host.loop_lag_seconds === null ? "" : texts.triggers.loopLag(span(host.loop_lag_seconds * 1000))}</span>
          <span class="num soft">{host.rss_bytes === null ? "" : bytes(host.rss_bytes)}</span>
        </li>
      ))}
    </ul>
  );
}

/** Up to this number, the list itself shows how long each has waited. */
const FEW = 20;

function Summary({ data }: { data: TriggerSummary }) {
  const deferred = data.kinds.reduce((all, kind) => all + kind.count, 0);
  const hasAges = deferred > FEW;
  return (
    <div class={hasAges ? "columns" : undefined}>
      <Panel title={texts.triggers.deferredOf(deferred, data.capacity)}>
        {data.waiting_for_capacity > 0 && (
          <p class="wrong">
            {texts.triggers.lackCapacity(data.waiting_for_capacity)} <code>triggers.capacity</code>.
          </p>
        )}
        <div class="scroll-x" tabIndex={0} role="region" aria-label={texts.triggers.byKind}>
          <table>
            <thead>
              <tr>
                <th>{texts.triggers.kind}</th>
                <th class="num">{texts.states["deferred"]}</th>
                <th class="num">{texts.triggers.oldest}</th>
                <th class="num narrow-hide" title={texts.triggers.checkedMeaning}>
                  {texts.triggers.checked}
                </th>
                <th class="num narrow-hide" title={texts.triggers.nextCheckMeaning}>
                  {texts.triggers.nextCheck}
                </th>
                <th class="num" title={texts.triggers.firedMeaning}>
                  {texts.triggers.fired}
                </th>
                <th class="num" title={texts.triggers.rateMeaning}>
                  {texts.triggers.rate}
                </th>
              </tr>
            </thead>
            <tbody>
              {data.kinds.map((kind) => (
                <tr key={kind.kind}>
                  <td>{sentenceCase(kind.kind)}</td>
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
        {data.kinds.length === 0 && <Empty>{texts.home.nothingWaits}</Empty>}
      </Panel>
      {hasAges && <Ages ages={data.ages} />}
    </div>
  );
}

function Ages({ ages }: { ages: TriggerSummary["ages"] }) {
  // A logarithmic axis, so that one old wait is visible beside thousands of young ones.
  const most = Math.log(1 + Math.max(1, ...ages.map((age) => age.count)));
  return (
    <Panel title={texts.triggers.ages}>
      <table class="ages">
        <tbody>
          {ages.map((age, index) => (
            <tr key={index}>
              <th scope="row">{age.upto_seconds === null ? texts.triggers.longer : texts.triggers.upTo(span(age.upto_seconds * 1000))}</th>
              <td>
                <i class="b-waiting" style={{ width: `${(100 * Math.log(1 + age.count)) / most}%` }} />
              </td>
              <td class="num">{number(age.count)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

function Stalls() {
  const slow = useItems<Slow>("/triggers/slow", { gap: 5000, every: 15_000 });
  if (!slow.data) return null;
  if (slow.data.length === 0) {
    return (
      <Panel title={texts.triggers.stalls}>
        <Empty>{texts.triggers.noStalls}</Empty>
      </Panel>
    );
  }
  return (
    <Panel title={texts.triggers.stalls}>
      <div class="scroll-x" tabIndex={0} role="region" aria-label={texts.triggers.stalls}>
        <table>
          <thead>
            <tr>
              <th>{texts.triggers.what}</th>
              <th class="num">{texts.triggers.stallCount}</th>
              <th class="num">{texts.triggers.longest}</th>
              <th>{texts.triggers.where}</th>
              <th>{texts.triggers.last}</th>
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
                      {texts.triggers.endQuarantine}
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
