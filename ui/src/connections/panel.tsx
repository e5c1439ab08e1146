// Connections: set by the form of their type, and tested. Loaded with the settings of an admin.

import { useState } from "preact/hooks";

import { texts as actionTexts } from "../action_texts";
import { deleteValue, valuePath } from "../actions";
import { get, send } from "../api";
import { Menu } from "../components/menu";
import { useItems } from "../data";
import { ask, attempt, reason } from "../dialog";
import { Empty, Panel, Shown } from "../parts";
import { When } from "../time";
import { ConnectionForm, type Detail, Draft, type Type } from "./form";
import { texts } from "./texts";
import { texts as shared } from "../texts";

interface Row {
  name: string;
  set_at: string;
  opens: boolean;
  conn_type: string | null;
  host: string | null;
}

interface Outcome {
  isOk: boolean;
  text: string;
}

const said = actionTexts.value;
const path = (name: string): string => valuePath("connection", name);

export default function Connections() {
  const found = useItems<Row>("/connections", { gap: 2000 });
  const [outcomes, setOutcomes] = useState<Record<string, Outcome | "pending">>({});

  async function test(name: string): Promise<void> {
    const note = (outcome: Outcome | "pending"): void => setOutcomes((before) => ({ ...before, [name]: outcome }));
    note("pending");
    try {
      const { ok, message } = await send<{ ok: boolean; message: string }>("POST", `${path(name)}/test`);
      note({ isOk: ok, text: ok ? texts.ok(message) : texts.failed(message) });
    } catch (error) {
      note({ isOk: false, text: reason(error) });
    }
  }

  return (
    <Panel
      title={texts.title}
      actions={
        <button type="button" data-needs="admin" class="small" onClick={() => void attempt(edit)}>
          {texts.set}
        </button>
      }
    >
      <Shown of={found} none={<Empty>{texts.none}</Empty>}>
        {(rows) => (
          <ul class="rows">
            {rows.map((row) => (
              <li key={row.name}>
                <div class="row">
                  <span class="cut grow">
                    {row.name} <span class="soft">{where(row)}</span>
                  </span>
                  {!row.opens && <span class="bad">{texts.otherKey}</span>}
                  <span class="soft">
                    <When at={row.set_at} />
                  </span>
                  <button type="button" data-needs="admin" class="small" disabled={outcomes[row.name] === "pending" || !row.opens} aria-label={texts.testRow(row.name)} onClick={() => void test(row.name)}>
                    {outcomes[row.name] === "pending" ? texts.testing : texts.test}
                  </button>
                  <button type="button" data-needs="admin" class="small" disabled={!row.opens} aria-label={texts.editRow(row.name)} onClick={() => void attempt(() => edit(row.name))}>
                    {texts.edit}
                  </button>
                  <Menu label={shared.common.moreOf(row.name)} icon="ellipsis" isBare needs="admin" items={[{ name: said.remove(row.name), act: () => deleteValue("connection", row.name), isGrave: true, needs: "admin" }]} />
                </div>
                <Told outcome={outcomes[row.name]} />
              </li>
            ))}
          </ul>
        )}
      </Shown>
    </Panel>
  );
}

const where = (row: Row): string => [row.conn_type, row.host].filter(Boolean).join(" · ");

function Told({ outcome }: { outcome?: Outcome | "pending" }) {
  return (
    <div role="status" class="outcome">
      {outcome && outcome !== "pending" && <span class={outcome.isOk ? "soft" : "bad"}>{outcome.text}</span>}
    </div>
  );
}

async function edit(name?: string): Promise<void> {
  const [{ types }, was] = await Promise.all([get<{ types: Type[] }>("/connection-types"), name === undefined ? undefined : get<Detail>(path(name))]);
  const draft = new Draft(types, was);
  ask({
    title: name === undefined ? said.setTitle("connection", "") : texts.editOne(name),
    verb: texts.set,
    body: <ConnectionForm draft={draft} />,
    act: async () => {
      await send("PUT", path(draft.name), draft.body());
      return said.done(draft.name);
    },
  });
}
