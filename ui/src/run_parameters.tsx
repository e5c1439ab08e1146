// The effective parameters of a run: its own, and the DAG's defaults.

import { enc } from "./api";
import { never, useData } from "./data";
import { Empty, Json, Panel } from "./parts";
import { texts } from "./texts";
import type { DagDetail, Run } from "./types";

const isPlain = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);

export function RunParameters({ run }: { run: Run }) {
  const dag = useData<DagDetail>(`/dags/${enc(run.dag_id)}`, { on: never });
  const given = isPlain(run.conf) ? run.conf : {};
  if (run.conf !== null && !isPlain(run.conf)) {
    return (
      <Panel title={texts.run.parameters}>
        <Json value={run.conf} />
      </Panel>
    );
  }
  // Defaults are known only for the newest version.
  const params = dag.data?.version === run.version ? dag.data.params : {};
  const defaults = Object.entries(params).filter(([name, param]) => "default" in param && !(name in given));
  const isNone = Object.keys(given).length === 0 && defaults.length === 0;
  return (
    <Panel title={texts.run.parameters}>
      {isNone ? (
        <Empty>{texts.run.noParameters}</Empty>
      ) : (
        <dl class="facts">
          {Object.entries(given).map(([name, value]) => (
            <Parameter key={name} name={name} value={value} />
          ))}
          {defaults.map(([name, param]) => (
            <Parameter key={name} name={name} value={param.default} isDefault />
          ))}
        </dl>
      )}
    </Panel>
  );
}

function Parameter({ name, value, isDefault }: { name: string; value: unknown; isDefault?: boolean }) {
  return (
    <>
      <dt class="mono">{name}</dt>
      <dd class={`mono break ${isDefault ? "soft" : ""}`}>
        {typeof value === "string" ? value : JSON.stringify(value)} {isDefault && <small>{texts.run.isDefault}</small>}
      </dd>
    </>
  );
}
