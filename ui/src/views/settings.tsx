import { texts as said } from "../action_texts";
import { useState } from "preact/hooks";

import { Text, deleteValue, valuePath } from "../actions";
import { send } from "../api";
import { lazy } from "../components/lazy";
import { Menu } from "../components/menu";
import { useItems } from "../data";
import { act, ask } from "../dialog";
import { parsed } from "../form";
import { Choice, Empty, Head, Panel, Shown } from "../parts";
import { texts } from "../texts";
import { type Theme, setTheme, theme } from "../theme";
import { type Zone, When, local, ownZone, setZone, useNow, utc, zone } from "../time";
import type { Me } from "../types";

const Connections = lazy<object>(() => import("../connections/panel"));

interface Value {
  name: string;
  set_at: string;
  opens: boolean;
}

const KINDS = [
  ["secret", "Secrets", "A text."],
  ["variable", "Variables", "Any JSON."],
] as const;

type Kind = (typeof KINDS)[number][0];

export default function Settings({ me }: { me: Me | undefined }) {
  const [look, setLook] = useState<Theme>(theme());
  const [times, setTimes] = useState<Zone>(zone());
  function change(value: string): void {
    setTheme(value as Theme);
    setLook(value as Theme);
  }
  return (
    <>
      <Head title={texts.places.settings} name={texts.places.settings} />
      <div class="columns">
        <Panel title={texts.settings.you}>
          <p>{me ? `${me.name}, ${me.role} (${me.kind})` : texts.settings.noUser}</p>
          {me?.kind === "session" && (
            <button type="button" onClick={() => void act(signOut)}>
              {texts.settings.signOut}
            </button>
          )}
          <div class="choices">
            <span>{texts.settings.theme}</span>
            <Choice
              label={texts.settings.theme}
              value={look}
              options={[
                ["auto", texts.settings.themes.auto],
                ["light", texts.settings.themes.light],
                ["dark", texts.settings.themes.dark],
              ]}
              onValue={change}
            />
            <span>{texts.settings.zone}</span>
            <Choice
              label={texts.settings.zone}
              value={times}
              options={[
                ["local", texts.settings.local(ownZone())],
                ["utc", texts.settings.utc],
              ]}
              onValue={(value) => {
                setZone(value as Zone);
                setTimes(value as Zone);
              }}
            />
            <span />
            <Clock />
          </div>
          <p class="soft">{texts.settings.stored}</p>
        </Panel>
        {(me?.role ?? "admin") === "admin" && (
          <>
            <Connections />
            {KINDS.map(([kind, title, hint]) => (
              <Values key={kind} kind={kind} title={title} hint={hint} />
            ))}
          </>
        )}
      </div>
    </>
  );
}

function Clock() {
  const now = new Date(useNow()).toISOString();
  return (
    <span class="soft" title={utc(now)}>
      {texts.settings.now} {local(now)}
    </span>
  );
}

async function signOut(): Promise<string> {
  await send("DELETE", "/sessions/current");
  window.location.assign("/");
  return said.session.signedOut;
}

function Values({ kind, title, hint }: { kind: Kind; title: string; hint: string }) {
  const values = useItems<Value>(`/${kind}s`, { gap: 2000 });
  return (
    <Panel
      title={title}
      actions={
        <button type="button" data-needs="admin" class="small" onClick={() => set(kind, "", hint)}>
          {texts.settings.set}
        </button>
      }
    >
      <Shown of={values} none={<Empty>{texts.settings.noValues}</Empty>}>
        {(rows) => (
          <ul class="rows">
            {rows.map((row) => (
              <li key={row.name} class="row">
                <span class="cut grow">{row.name}</span>
                {!row.opens && <span class="bad">{texts.settings.otherKey}</span>}
                <span class="soft">
                  <When at={row.set_at} />
                </span>
                <button type="button" data-needs="admin" class="small" aria-label={said.value.replace(row.name)} onClick={() => set(kind, row.name, hint)}>
                  {texts.settings.replace}
                </button>
                <Menu label={texts.common.moreOf(row.name)} icon="ellipsis" isBare needs="admin" items={[{ name: said.value.remove(row.name), act: () => deleteValue(kind, row.name), isGrave: true, needs: "admin" }]} />
              </li>
            ))}
          </ul>
        )}
      </Shown>
    </Panel>
  );
}

function set(kind: Kind, name: string, hint: string): void {
  const wanted = { name, value: "" };
  ask({
    title: said.value.setTitle(kind, name),
    verb: said.value.set,
    body: (
      <>
        <p>{said.value.meaning}</p>
        {!name && <Text label={said.name} isRequired onValue={(text) => (wanted.name = text)} />}
        <Text label={said.value.value} hint={hint} isRequired isSecret={kind !== "variable"} onValue={(text) => (wanted.value = text)} />
      </>
    ),
    act: async () => {
      const value: unknown = kind === "variable" ? parsed(said.value.what, wanted.value) : wanted.value;
      await send("PUT", valuePath(kind, wanted.name), { value });
      return said.value.done(wanted.name);
    },
  });
}
