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
  return (
    <>
      <Head title={texts.places.nodes} name={texts.places.nodes} sentence={texts.nodes.sentence} />
      <Shown of={nodes} none={<Empty>{texts.nodes.none}</Empty>}>
        {(rows) => (
          <div class="columns">
            {rows.map((node) => (
              <One key={node.node} node={node} now={node.is_here ? overview.data : undefined} rows={rows.length} />
            ))}
          </div>
        )}
      </Shown>
    </>
  );
}

function One({ node, now, rows }: { node: Node; now: Overview | undefined; rows: number }) {
  const isDrained = node.state.startsWith("drain");
  return (
    <Panel
      title={
        <>
          {texts.nodes.node} {node.name ?? node.node} {node.is_here && rows === 1 && <span class="tag">{texts.nodes.here}</span>}
        </>
      }
      actions={
        <button type="button" data-needs="admin" class="small" onClick={() => drain(node.node, isDrained)}>
          {isDrained ? texts.nodes.undrain : texts.nodes.drain}
        </button>
      }
    >
      <dl class="facts">
        <dt>{texts.task.state}</dt>
        <dd>
          <State state={SHOWN_AS[node.state] ?? "pending"} name={sentenceCase(named(node.state))} />{" "}
          <span class="soft">{MEANINGS[node.state] ?? ""}</span>
        </dd>
        <dt>{texts.run.started}</dt>
        <dd>
          <When at={node.started_at} />
        </dd>
        <dt>{texts.nodes.seen}</dt>
        <dd>
          <When at={node.seen_at} />
        </dd>
        <dt>{texts.run.version}</dt>
        <dd>{node.version || "–"}</dd>
        <dt>{texts.nodes.host}</dt>
        <dd class="break">
          {node.host ?? "–"} {node.pid !== null && <span class="soft">pid {node.pid}</span>}
        </dd>
        <dt>{texts.nodes.epoch}</dt>
        <dd>{node.epoch}</dd>
        <dt>{texts.nodes.triggers}</dt>
        <dd>
          <a href="/triggers">{number(node.triggers)}</a>
        </dd>
        <dt>{texts.pools.slots}</dt>
        <dd>{now ? Object.entries(now.slots).map(([executor, slot]) => <SlotBar key={executor} name={executor} used={slot.used} all={slot.all} />) : number(node.slots)}</dd>
        {now && (
          <>
            <dt title={texts.nodes.lagMeaning}>{texts.nodes.lag}</dt>
            <dd>{span(now.loop_lag_seconds * 1000)}</dd>
          </>
        )}
      </dl>
    </Panel>
  );
}

const SHOWN_AS: Record<string, string> = { joining: "pending", active: "success", standby: "queued", draining: "paused", drained: "paused", left: "skipped", dead: "failed", away: "failed" };
const MEANINGS: Record<string, string> = {
  joining: texts.nodes.joining,
  standby: texts.nodes.standby,
  draining: texts.nodes.draining,
  drained: texts.nodes.drained,
  left: texts.nodes.left,
  dead: texts.nodes.dead,
  away: texts.nodes.away,
};

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
