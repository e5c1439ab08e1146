// What the installation is made of: nodes, files that cannot be read, who did what.

import { drain } from "../actions";
import { query } from "../api";
import { useData, useItems, usePages } from "../data";
import { Empty, Head, Json, Panel, Shown, number } from "../parts";
import { State } from "../states";
import { When, span } from "../time";
import type { AuditRow, Node, Overview } from "../types";

export function Nodes() {
  const nodes = useItems<Node>("/nodes", { gap: 2000, every: 5000 });
  const overview = useData<Overview>("/overview", { gap: 2000, every: 5000 });
  return (
    <>
      <Head title="Nodes" name="Nodes" />
      <Shown of={nodes}>
        {(rows) =>
          rows.length === 0 ? (
            <Empty>No node has said a word yet.</Empty>
          ) : (
            <div class="columns">
              {rows.map((node) => (
                <One key={node.node} node={node} now={node.is_here ? overview.data : undefined} />
              ))}
            </div>
          )
        }
      </Shown>
    </>
  );
}

function One({ node, now }: { node: Node; now: Overview | undefined }) {
  const isDrained = node.state.startsWith("drain");
  return (
    <Panel
      title={
        <>
          Node {node.node} {node.is_here && <span class="tag">this one</span>}
        </>
      }
      actions={
        <button type="button" data-needs="admin" class="small" onClick={() => drain(node.node, isDrained)}>
          {isDrained ? "Undrain …" : "Drain …"}
        </button>
      }
    >
      <dl class="facts">
        <dt>State</dt>
        <dd>
          <State state={SHOWN_AS[node.state] ?? "pending"} name={node.state.replaceAll("_", " ")} />{" "}
          <span class="soft">{MEANINGS[node.state] ?? ""}</span>
        </dd>
        <dt>Started</dt>
        <dd>
          <When at={node.started_at} />
        </dd>
        <dt>Seen</dt>
        <dd>
          <When at={node.seen_at} />
        </dd>
        <dt>Version</dt>
        <dd>{node.version || "–"}</dd>
        <dt>Host</dt>
        <dd class="break">
          {node.host ?? "–"} {node.pid !== null && <span class="soft">pid {node.pid}</span>}
        </dd>
        <dt>Epoch</dt>
        <dd>{node.epoch}</dd>
        <dt>Triggers</dt>
        <dd>
          <a href="/triggers">{number(node.triggers)}</a>
        </dd>
        <dt>Slots</dt>
        <dd>{now ? Object.entries(now.slots).map(([executor, slot]) => <SlotBar key={executor} name={executor} used={slot.used} all={slot.all} />) : number(node.slots)}</dd>
        {now && (
          <>
            <dt title="How late the daemon's own loop is at most">Loop lag</dt>
            <dd>{span(now.loop_lag_seconds * 1000)}</dd>
          </>
        )}
      </dl>
    </Panel>
  );
}

const SHOWN_AS: Record<string, string> = { up: "success", drained: "paused", away: "failed" };
const MEANINGS: Record<string, string> = {
  drained: "starts no task and hosts no further trigger",
  away: "this daemon cannot see it",
};

function SlotBar({ name, used, all }: { name: string; used: number; all: number }) {
  const text = `${number(used)} of ${number(all)} for ${name} tasks`;
  return (
    <div class="slot-bar">
      <span class="bar" role="img" aria-label={text}>
        <i class="b-running" style={{ width: `${(100 * used) / Math.max(1, all)}%` }} />
      </span>
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
      <Head title="Import errors" name="Import errors" />
      <Shown of={errors}>
        {(rows) =>
          rows.length === 0 ? (
            <Empty>Every DAG file could be read.</Empty>
          ) : (
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
                    <b class="bad">{row.reason.replaceAll("_", " ")}</b>{" "}
                    <span class="soft">
                      {row.last_good_version ? `its version ${row.last_good_version.slice(0, 12)} stays in use until the file is fixed` : "it has no DAGs until it is fixed"}
                    </span>
                  </p>
                  <pre class="code" tabIndex={0}>
                    {row.message}
                  </pre>
                </Panel>
              ))}
            </>
          )
        }
      </Shown>
    </>
  );
}

const PAGE = 100;

export function Audit() {
  const rows = usePages<AuditRow>((cursor) => query("/audit", { limit: PAGE, cursor }), (row) => row.audit_id, PAGE, { gap: 2000 });
  return (
    <>
      <Head title="Audit" name="Audit" />
      <Shown of={rows}>
        {(data) =>
          data.length === 0 ? (
            <Empty>There are no changes yet.</Empty>
          ) : (
            <Panel>
              <ul class="rows">
                {data.map((row) => (
                  <li key={row.audit_id}>
                    <details>
                      <summary class="row" data-row>
                        <b class="c-actor cut">{row.actor || "unknown"}</b>
                        <span class="c-action cut">{row.action}</span>
                        <span class="cut grow soft">{row.target}</span>
                        {row.outcome !== "done" && (
                          <span class="bad">
                            {row.outcome} {row.code}
                          </span>
                        )}
                        <span class="num">
                          <When at={row.at} />
                        </span>
                      </summary>
                      <div class="inset">
                        <p class="soft">
                          {row.role && `as ${row.role} `}
                          {row.address && `from ${row.address}`}
                        </p>
                        {row.before !== null && row.before !== undefined && (
                          <>
                            <h3>Before</h3>
                            <Json value={row.before} />
                          </>
                        )}
                        {row.after !== null && row.after !== undefined && (
                          <>
                            <h3>After</h3>
                            <Json value={row.after} />
                          </>
                        )}
                      </div>
                    </details>
                  </li>
                ))}
              </ul>
              {!rows.isWhole && (
                <button type="button" onClick={rows.more}>
                  Older rows
                </button>
              )}
            </Panel>
          )
        }
      </Shown>
    </>
  );
}
