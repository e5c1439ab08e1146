// Nodes and import errors.

import { drain } from "../actions";
import { useData, useItems } from "../data";
import { Empty, Head, Panel, Shown, number, shortVersion } from "../parts";
import { State, UsageBar, named } from "../states";
import { sentenceCase, texts } from "../texts";
import { When, span } from "../time";
import type { Node, Overview } from "../types";

export function Nodes() {
  const nodes = useItems<Node>("/nodes", { gap: 2000, every: 5000 });
  const overview = useData<Overview>("/overview", { gap: 2000, every: 5000 });
  const rows = nodes.data && [...nodes.data].sort((one, other) => rank(one) - rank(other) || one.node - other.node);
  const active = rows?.find((node) => ACTIVE.includes(node.state));
  return (
    <>
      <Head title={texts.places.nodes} name={texts.places.nodes} sentence={rows && rows.length > 1 ? summary(rows, active) : texts.nodes.sentence} />
      <Shown of={{ ...nodes, data: rows }} none={<Empty>{texts.nodes.none}</Empty>}>
        {(found) => (
          <div class="columns nodes">
            {found.map((node) => (
              <One key={node.node} node={node} now={node.is_here ? overview.data : undefined} newest={active?.version ?? null} isOnly={found.length === 1} />
            ))}
          </div>
        )}
      </Shown>
    </>
  );
}

/** The states in the order of display: the active node first, dead nodes last. */
const ORDER = ["active", "draining", "standby", "joining", "drained", "away", "dead", "left"];

/** The states of an active node. A draining node is active until its tasks have ended. */
const ACTIVE = ["active", "draining"];

const rank = (node: Node): number => (ORDER.includes(node.state) ? ORDER.indexOf(node.state) : ORDER.length);

const nameOf = (node: Node): string => node.name ?? `${texts.nodes.node} ${node.node}`;

/** Return a text about which node is active, and which could take over. */
function summary(nodes: Node[], active: Node | undefined): string {
  const namesOf = (state: string): string[] => nodes.filter((node) => node.state === state).map(nameOf);
  return [
    active === undefined ? texts.nodes.noActive : texts.nodes.isActive(nameOf(active), active.state === "draining"),
    texts.nodes.standbys(namesOf("standby")),
    texts.nodes.away(namesOf("away")),
    texts.nodes.dead(namesOf("dead")),
  ]
    .filter(Boolean)
    .join(" ");
}

interface OneProps {
  node: Node;
  now: Overview | undefined;
  /** The version of the active node. */
  newest: string | null;
  isOnly: boolean;
}

function One({ node, now, newest, isOnly }: OneProps) {
  const isDrained = node.state.startsWith("drain");
  const isGone = GONE.has(node.state);
  const isOdd = newest !== null && node.version !== null && node.version !== newest;
  return (
    <Panel
      title={
        <>
          <span class="cut">{nameOf(node)}</span> <State state={SHOWN_AS[node.state] ?? "pending"} name={sentenceCase(named(node.state))} /> {node.is_here && isOnly && <span class="tag">{texts.nodes.here}</span>}
        </>
      }
      class={isGone ? "node is-gone" : "node"}
      actions={
        !isGone && (
          <button type="button" data-needs="admin" class="small" onClick={() => drain(node.node, isDrained)}>
            {isDrained ? texts.nodes.undrain : texts.nodes.drain}
          </button>
        )
      }
    >
      {texts.nodes.meanings[node.state] && <p class="soft">{texts.nodes.meanings[node.state]}</p>}
      <dl class="facts">
        <dt>{texts.nodes.seen}</dt>
        <dd>
          <When at={node.seen_at} />
        </dd>
        {!isGone && (
          <>
            <dt>{texts.run.started}</dt>
            <dd>
              <When at={node.started_at} />
            </dd>
          </>
        )}
        {node.host && (
          <>
            <dt>{texts.nodes.host}</dt>
            <dd class="break">
              {node.host} {node.pid !== null && !isGone && <span class="soft">pid {node.pid}</span>}
            </dd>
          </>
        )}
        {node.version && (
          <>
            <dt>{texts.run.version}</dt>
            <dd>
              {node.version} {isOdd && <span class={isGone ? "soft" : "bad"}>{texts.nodes.odd(newest)}</span>}
            </dd>
          </>
        )}
        <dt title={texts.nodes.epochMeaning}>{texts.nodes.epoch}</dt>
        <dd>{node.epoch}</dd>
        <Load node={node} now={now} />
      </dl>
    </Panel>
  );
}

/** The load of the active node; other nodes have none. */
function Load({ node, now }: { node: Node; now: Overview | undefined }) {
  return (
    <>
      {node.runs !== null && (
        <>
          <dt>{texts.places.runs}</dt>
          <dd>
            <a href="/runs?state=running">{number(node.runs)}</a>
          </dd>
        </>
      )}
      {node.triggers !== null && (
        <>
          <dt>{texts.nodes.triggers}</dt>
          <dd>
            <a href="/triggers">{number(node.triggers)}</a>
          </dd>
        </>
      )}
      {now ? (
        <>
          <dt>{texts.pools.slots}</dt>
          <dd>
            {Object.entries(now.slots).map(([executor, slot]) => (
              <SlotBar key={executor} name={executor} used={slot.used} all={slot.all} />
            ))}
          </dd>
          <dt title={texts.nodes.lagMeaning}>{texts.nodes.lag}</dt>
          <dd>{span(now.loop_lag_seconds * 1000)}</dd>
        </>
      ) : (
        node.slots !== null && (
          <>
            <dt>{texts.pools.slots}</dt>
            <dd>{number(node.slots)}</dd>
          </>
        )
      )}
    </>
  );
}

/** The states of nodes that no longer run anything. */
const GONE = new Set(["dead", "left"]);
const SHOWN_AS: Record<string, string> = { joining: "pending", active: "success", standby: "queued", draining: "paused", drained: "paused", left: "skipped", dead: "failed", away: "failed" };

function SlotBar({ name, used, all }: { name: string; used: number; all: number }) {
  const text = `${number(used)} of ${number(all)} for ${name} tasks`;
  return (
    <div class="slot-bar">
      <UsageBar used={used} all={all} label={text} />
      <span class="soft">{text}</span>
    </div>
  );
}

interface Broken {
  file: string;
  reason: string;
  message: string;
  at: string | null;
  last_good_version: string | null;
}

export function Errors() {
  const errors = useItems<Broken>("/import-errors", { on: (change) => change.dags.size > 0, gap: 1000 });
  return (
    <>
      <Head title={texts.places.errors} name={texts.places.errors} sentence={errors.data && errors.data.length > 0 ? texts.errors.sentence(errors.data.length) : undefined} />
      <Shown of={errors} none={<Empty>{texts.errors.none}</Empty>}>
        {(rows) => (
          <>
            {rows.map((row) => (
              <Panel
                key={row.file}
                title={<span class="break">{row.file}</span>}
                actions={
                  <span class="soft">
                    <When at={row.at} none="" />
                  </span>
                }
              >
                <p>
                  <b class="bad">{sentenceCase(named(row.reason))}</b>{" "}
                  <span class="soft">
                    {row.last_good_version ? texts.errors.lastGood(shortVersion(row.last_good_version)) : texts.errors.noDags}
                  </span>
                </p>
                <pre class="code" tabIndex={0}>
                  {row.message}
                </pre>
              </Panel>
            ))}
          </>
        )}
      </Shown>
    </>
  );
}
