import { useState } from "preact/hooks";

import { Text } from "../actions";
import { enc, send } from "../api";
import { useItems } from "../data";
import { act, ask } from "../dialog";
import { parsed } from "../form";
import { Choice, Empty, Head, Panel, Shown } from "../parts";
import { type Theme, setTheme, theme } from "../theme";
import { type Zone, When, local, ownZone, setZone, useNow, utc, zone } from "../time";
import type { Me } from "../types";

interface Value {
  name: string;
  set_at: string;
  opens: boolean;
}

const KINDS = [
  ["secret", "Secrets", "A text."],
  ["connection", "Connections", "A URI."],
  ["variable", "Variables", "Any JSON."],
] as const;

type Kind = (typeof KINDS)[number][0];

export function Settings({ me }: { me: Me | undefined }) {
  const [look, setLook] = useState<Theme>(theme());
  const [times, setTimes] = useState<Zone>(zone());
  function change(value: string): void {
    setTheme(value as Theme);
    setLook(value as Theme);
  }
  return (
    <>
      <Head title="Settings" name="Settings" />
      <div class="columns">
        <Panel title="You">
          <p>{me ? `${me.name}, ${me.role} (${me.kind})` : "This daemon has one token, and who knows it may do everything."}</p>
          {me?.kind === "session" && (
            <button type="button" onClick={() => void act(signOut)}>
              Sign out
            </button>
          )}
          <div class="choices">
            <span>Look</span>
            <Choice
              label="Look"
              value={look}
              options={[
                ["auto", "as the system"],
                ["light", "light"],
                ["dark", "dark"],
              ]}
              onValue={change}
            />
            <span>Times</span>
            <Choice
              label="Times"
              value={times}
              options={[
                ["local", `of this computer (${ownZone()})`],
                ["utc", "in UTC"],
              ]}
              onValue={(value) => {
                setZone(value as Zone);
                setTimes(value as Zone);
              }}
            />
            <span />
            <Clock />
          </div>
          <p class="soft">Both are stored by this browser. Every time has its UTC in a tooltip.</p>
        </Panel>
        {(me?.role ?? "admin") === "admin" && KINDS.map(([kind, title, hint]) => <Values key={kind} kind={kind} title={title} hint={hint} />)}
      </div>
    </>
  );
}

function Clock() {
  const now = new Date(useNow()).toISOString();
  return (
    <span class="soft" title={utc(now)}>
      now {local(now)}
    </span>
  );
}

async function signOut(): Promise<string> {
  await send("DELETE", "/sessions/current");
  window.location.assign("/");
  return "Signed out";
}

function Values({ kind, title, hint }: { kind: Kind; title: string; hint: string }) {
  const values = useItems<Value>(`/${kind}s`, { gap: 2000 });
  return (
    <Panel
      title={title}
      actions={
        <button type="button" data-needs="admin" class="small" onClick={() => set(kind, "", hint)}>
          Set …
        </button>
      }
    >
      <Shown of={values}>
        {(rows) =>
          rows.length === 0 ? (
            <Empty>None is set. Values can be written here, and never read.</Empty>
          ) : (
            <ul class="rows">
              {rows.map((row) => (
                <li key={row.name} class="row">
                  <span class="cut grow">{row.name}</span>
                  {!row.opens && <span class="bad">sealed by another key</span>}
                  <span class="soft">
                    <When at={row.set_at} />
                  </span>
                  <button type="button" data-needs="admin" class="small" aria-label={`Replace ${row.name}`} onClick={() => set(kind, row.name, hint)}>
                    Replace …
                  </button>
                  <button type="button" data-needs="admin" class="small" aria-label={`Delete ${row.name}`} onClick={() => remove(kind, row.name)}>
                    Delete …
                  </button>
                </li>
              ))}
            </ul>
          )
        }
      </Shown>
    </Panel>
  );
}

const path = (kind: Kind, name: string): string => `/${kind}s/${name.split("/").map(enc).join("/")}`;

function set(kind: Kind, name: string, hint: string): void {
  const wanted = { name, value: "" };
  ask({
    title: name ? `Replace ${kind} ${name}` : `Set a ${kind}`,
    verb: "Set",
    body: (
      <>
        <p>Tasks that begin from now on are given it. It cannot be read here again.</p>
        {!name && <Text label="Name" isRequired onValue={(text) => (wanted.name = text)} />}
        <Text label="Value" hint={hint} isRequired isSecret={kind !== "variable"} onValue={(text) => (wanted.value = text)} />
      </>
    ),
    act: async () => {
      const value: unknown = kind === "variable" ? parsed("the value", wanted.value) : wanted.value;
      await send("PUT", path(kind, wanted.name), { value });
      return `${wanted.name} is set`;
    },
  });
}

function remove(kind: Kind, name: string): void {
  ask({
    title: `Delete ${kind} ${name}?`,
    verb: "Delete",
    isGrave: true,
    body: <p>Tasks that ask for it from now on fail.</p>,
    act: async () => {
      await send("DELETE", path(kind, name));
      return `${name} is deleted`;
    },
  });
}
