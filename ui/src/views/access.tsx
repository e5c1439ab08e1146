// Users, sessions and API tokens.

import type { ComponentChildren } from "preact";
import { texts as said } from "../action_texts";
import { useState } from "preact/hooks";

import { type Option, Select, Text } from "../actions";
import { enc, send } from "../api";
import { CopyButton } from "../components/copy";
import { Detail } from "../components/detail";
import { Menu } from "../components/menu";
import { SplitPane } from "../components/split";
import { type Column, Table } from "../components/table";
import { type Data, useItems } from "../data";
import { ask } from "../dialog";
import { Empty, Head, Shown, Trouble } from "../parts";
import { usePlace, withQuery } from "../router";
import { sentenceCase, texts } from "../texts";
import { At, DAY_MS, When } from "../time";
import type { Me } from "../types";

interface User {
  name: string;
  role: string;
  groups: string[];
  disabled: boolean;
  created_at: string;
  changed_at: string;
}

interface Session {
  session_id: number;
  name: string;
  created_at: string;
  expires_at: string;
  address: string;
  user_agent: string;
  last_used_at: string | null;
  /** Whether it is the session of this browser. */
  is_current: boolean;
}

interface Token {
  token_id: number;
  name: string;
  role: string;
  scopes: string[] | null;
  state: string;
  created_at: string;
  created_by: string;
  expires_at: string | null;
  revoked_at: string | null;
  last_used_at: string | null;
}

type Made = Token & { token: string };

const ROLES: Option[] = [
  ["viewer", "viewer: reads"],
  ["operator", "operator: acts on runs, DAGs, triggers, pools"],
  ["admin", "admin: everything"],
];

const LIVES: Option[] = [
  ["30", "30 days"],
  ["90", "90 days"],
  ["365", "a year"],
  ["", "never"],
];

export default function Access({ me }: { me: Me | undefined }) {
  const users = useItems<User>("/users", { gap: 1000 });
  const sessions = useItems<Session>("/sessions", { gap: 1000 });
  const tokens = useItems<Token>("/tokens", { gap: 1000 });
  const [made, setMade] = useState<Made | null>(null);
  const open = usePlace().query.get("open");
  const user = users.data?.find((one) => `user:${one.name}` === open);
  const token = tokens.data?.find((one) => `token:${one.token_id}` === open);
  return (
    <>
      <Head title={texts.places.access} name={texts.places.access}>
        <button type="button" data-needs="admin" onClick={() => makeToken(setMade)}>
          {texts.access.addToken}
        </button>
        <button type="button" data-needs="admin" class="main" onClick={addUser}>
          {texts.access.addUser}
        </button>
      </Head>
      <SplitPane
        name="access"
        side={
          user ? (
            <UserDetail key={user.name} user={user} sessions={sessions.data?.filter((one) => one.name === user.name) ?? []} />
          ) : token ? (
            <TokenDetail key={token.token_id} token={token} />
          ) : null
        }
      >
        <p class="sentence about">{texts.access.sentence}</p>
        {made && <Once made={made} done={() => setMade(null)} />}
        {users.problem?.status === 403 ? (
          <Trouble problem={users.problem} />
        ) : (
          <>
            <Listed name="users" title={texts.access.users} of={users} none={texts.access.noUsers} columns={userColumns(me, sessions.data ?? [])} keyOf={(one) => `user:${one.name}`} />
            <Listed name="tokens" title={texts.access.tokens} of={tokens} none={texts.access.noTokens} columns={TOKENS} keyOf={(one) => `token:${one.token_id}`} />
            <Listed name="sessions" title={texts.access.sessions} of={sessions} none={texts.access.noSessions} columns={SESSIONS} keyOf={(one) => `session:${one.session_id}`} actions={<EndOthers me={me} sessions={sessions.data ?? []} />} isFlat />
          </>
        )}
      </SplitPane>
    </>
  );
}

interface ListedProps<T> {
  name: string;
  title: string;
  of: Data<T[]>;
  none: string;
  columns: Column<T>[];
  keyOf: (row: T) => string;
  /** Whether its rows have no details. */
  isFlat?: boolean;
  actions?: ComponentChildren;
}

function Listed<T>({ name, title, of, none, columns, keyOf, isFlat, actions }: ListedProps<T>) {
  const open = usePlace().query.get("open");
  return (
    <section class="listed" aria-label={title}>
      <header class="listed-head">
        <h2>{title}</h2>
        {actions}
      </header>
      <Shown of={of} none={<Empty>{none}</Empty>}>
        {(rows) => (
          <Table
            name={name}
            label={`${title}: ${rows.length}`}
            columns={columns}
            items={rows}
            keyOf={keyOf}
            hrefOf={isFlat ? undefined : (row) => withQuery({ open: keyOf(row) })}
            current={(row) => keyOf(row) === open}
            isShort
            isPlain
          />
        )}
      </Shown>
    </section>
  );
}

const userColumns = (me: Me | undefined, sessions: Session[]): Column<User>[] => [
  {
    id: "name",
    title: texts.access.name,
    width: "minmax(120px, 2fr)",
    phone: "title",
    isFixed: true,
    cell: (user) => (
      <>
        {user.name}
        {me?.kind === "session" && me.name === user.name && <span class="tag">{texts.access.you}</span>}
      </>
    ),
    sort: (one, other) => one.name.localeCompare(other.name),
  },
  { id: "role", title: texts.access.role, width: "120px", phone: "second", cell: (user) => sentenceCase(user.role) },
  { id: "state", title: texts.access.state, width: "120px", phone: "end", cell: (user) => (user.disabled ? <span class="bad">{texts.access.disabled}</span> : <span class="soft">{texts.access.active}</span>) },
  {
    id: "sessions",
    title: texts.access.sessions,
    width: "130px",
    isNumber: true,
    phone: "second-end",
    cell: (user) => {
      const count = sessions.filter((one) => one.name === user.name).length;
      return count === 0 ? <span class="soft">{texts.access.notSignedIn}</span> : texts.access.sessionCount(count);
    },
  },
  { id: "created", title: texts.access.created, width: "110px", isNumber: true, isWideOnly: true, cell: (user) => <When at={user.created_at} /> },
];

const TOKENS: Column<Token>[] = [
  { id: "name", title: texts.access.name, width: "minmax(120px, 2fr)", phone: "title", isFixed: true, cell: (token) => token.name, sort: (one, other) => one.name.localeCompare(other.name) },
  { id: "role", title: texts.access.role, width: "120px", phone: "second", cell: (token) => sentenceCase(token.role) },
  { id: "state", title: texts.access.state, width: "120px", phone: "end", cell: (token) => <span class="soft">{sentenceCase(token.state)}</span> },
  { id: "used", title: texts.access.lastUsed, width: "130px", isNumber: true, phone: "second-end", cell: (token) => <When at={token.last_used_at} none={texts.access.neverUsed} /> },
  { id: "expires", title: texts.access.expires, width: "110px", isNumber: true, isWideOnly: true, cell: (token) => <When at={token.expires_at} none={texts.access.never} /> },
];

const BROWSERS: [RegExp, string][] = [
  [/\bEdg(?:e|A|iOS)?\/(\d+)/, "Edge"],
  [/\bOPR\/(\d+)/, "Opera"],
  [/\bSamsungBrowser\/(\d+)/, "Samsung Internet"],
  [/\b(?:Firefox|FxiOS)\/(\d+)/, "Firefox"],
  [/\b(?:HeadlessChrome|Chrome|CriOS|Chromium)\/(\d+)/, "Chrome"],
  [/\bVersion\/(\d+)[\d.]* (?:Mobile\/\S+ )?Safari\//, "Safari"],
  [/^curl\/(\d+)/, "curl"],
];
const SYSTEMS: [RegExp, string][] = [
  [/\b(?:iPhone|iPad)\b/, "iOS"],
  [/\bAndroid\b/, "Android"],
  [/\bWindows\b/, "Windows"],
  [/\bMac OS X\b/, "macOS"],
  [/\bCrOS\b/, "ChromeOS"],
  [/\bLinux\b/, "Linux"],
];

/** Return a browser's user agent in short: "Firefox 140 on Linux". */
function browserOf(agent: string): string {
  const [, name] = BROWSERS.find(([pattern]) => pattern.test(agent)) ?? [];
  if (name === undefined) return agent.slice(0, 40) || texts.access.unknownBrowser;
  const version = BROWSERS.map(([pattern, one]) => (one === name ? pattern.exec(agent)?.[1] : undefined)).find(Boolean);
  const system = SYSTEMS.find(([pattern]) => pattern.test(agent))?.[1];
  return [name, version, system && `${texts.access.on} ${system}`].filter(Boolean).join(" ");
}

const Browser = ({ session }: { session: Session }) => (
  <>
    <span title={session.user_agent || undefined}>{browserOf(session.user_agent)}</span>
    {session.is_current && <span class="tag">{texts.access.thisBrowser}</span>}
  </>
);

const SESSIONS: Column<Session>[] = [
  { id: "name", title: texts.access.user, width: "minmax(90px, 1fr)", phone: "title", isFixed: true, cell: (session) => session.name },
  { id: "browser", title: texts.access.browser, width: "minmax(150px, 2fr)", phone: "second", cell: (session) => <Browser session={session} /> },
  { id: "address", title: texts.access.address, width: "130px", isMono: true, isWideOnly: true, cell: (session) => session.address || texts.access.socket },
  { id: "used", title: texts.access.lastUsed, width: "110px", isNumber: true, phone: "second-end", cell: (session) => <When at={session.last_used_at} none={texts.access.never} /> },
  { id: "since", title: texts.access.signedIn, width: "110px", isNumber: true, isWideOnly: true, cell: (session) => <When at={session.created_at} /> },
  { id: "ends", title: texts.access.ends, width: "110px", isNumber: true, isWideOnly: true, isOptional: true, cell: (session) => <When at={session.expires_at} /> },
  { id: "end", title: "", width: "64px", isFixed: true, isInteractive: true, phone: "end", cell: (session) => <EndSession session={session} /> },
];

/** End the user's other sessions, but not that of this browser. */
function endOthers(): void {
  ask({
    title: texts.access.endOthersTitle,
    verb: texts.access.endOthers,
    isGrave: true,
    body: <p>{texts.access.endOthersText}</p>,
    act: async () => texts.access.endedOthers((await send<{ ended: number }>("DELETE", "/sessions")).ended),
  });
}

function EndOthers({ me, sessions }: { me: Me | undefined; sessions: Session[] }) {
  const isOther = sessions.some((one) => one.name === me?.name && !one.is_current);
  if (!isOther) return null;
  return (
    <button type="button" class="small" onClick={endOthers}>
      {texts.access.endOthers}
    </button>
  );
}

function EndSession({ session }: { session: Session }) {
  return (
    <button type="button" data-needs="admin" class="small" aria-label={said.session.label(session.session_id, session.name)} onClick={() => endSession(session)}>
      {texts.access.end}
    </button>
  );
}

/** The value of a token. It is shown once, because it cannot be read again. */
function Once({ made, done }: { made: Made; done: () => void }) {
  return (
    <section class="panel once" role="status" aria-label={`Token ${made.name}`}>
      <p>
        <b>{made.name}</b>: {texts.access.tokenOnce}
      </p>
      <p>
        <code class="break">{made.token}</code>
      </p>
      <p class="actions">
        <CopyButton text={made.token} isNamed />
        <button type="button" onClick={done}>
          {texts.access.tokenSaved}
        </button>
      </p>
    </section>
  );
}

function UserDetail({ user, sessions }: { user: User; sessions: Session[] }) {
  return (
    <Detail
      title={user.name}
      name={user.name}
      actions={
        <>
          <button type="button" data-needs="admin" onClick={() => setRole(user)}>
            {texts.access.changeRole}
          </button>
          <button type="button" data-needs="admin" onClick={() => setGroups(user)}>
            {texts.access.changeGroups}
          </button>
          <button type="button" data-needs="admin" onClick={() => setPassword(user)}>
            {texts.access.setPassword}
          </button>
          <button type="button" data-needs="admin" onClick={() => setDisabled(user)}>
            {user.disabled ? texts.access.enable : texts.access.disable}
          </button>
          <Menu label={texts.common.moreOf(user.name)} icon="ellipsis" isBare needs="admin" items={[{ name: texts.access.remove, act: () => deleteUser(user), isGrave: true, needs: "admin" }]} />
        </>
      }
    >
      <dl class="facts">
        <dt>{texts.access.role}</dt>
        <dd>{sentenceCase(user.role)}</dd>
        <dt>{texts.access.groups}</dt>
        <dd class="break">{user.groups.join(", ") || texts.common.none}</dd>
        <dt>{texts.access.state}</dt>
        <dd>{user.disabled ? <span class="bad">{texts.access.disabled}</span> : texts.access.active}</dd>
        <dt>{texts.access.created}</dt>
        <dd>
          <When at={user.created_at} />
        </dd>
        <dt>{texts.access.changed}</dt>
        <dd>
          <When at={user.changed_at} />
        </dd>
      </dl>
      {sessions.length > 0 && (
        <>
          <h3>{texts.access.sessions}</h3>
          <ul class="rows">
            {sessions.map((session) => (
              <li key={session.session_id} class="row">
                <span class="cut grow">
                  <Browser session={session} />
                </span>
                <span class="num soft">
                  <When at={session.last_used_at ?? session.created_at} />
                </span>
                <EndSession session={session} />
              </li>
            ))}
          </ul>
        </>
      )}
    </Detail>
  );
}

function TokenDetail({ token }: { token: Token }) {
  return (
    <Detail
      title={token.name}
      name={token.name}
      actions={
        token.state === "active" && (
          <button type="button" data-needs="admin" class="grave" onClick={() => revoke(token)}>
            {texts.access.revoke}
          </button>
        )
      }
    >
      <dl class="facts">
        <dt>{texts.access.role}</dt>
        <dd>{sentenceCase(token.role)}</dd>
        <dt>{texts.access.state}</dt>
        <dd>{sentenceCase(token.state)}</dd>
        <dt>{texts.access.scopes}</dt>
        <dd class="break">{token.scopes === null ? texts.access.everything : texts.access.dags(token.scopes)}</dd>
        <dt>{texts.access.created}</dt>
        <dd>
          <At at={token.created_at} />
        </dd>
        <dt>{texts.access.createdBy}</dt>
        <dd>{token.created_by}</dd>
        <dt>{texts.access.expires}</dt>
        <dd>
          <At at={token.expires_at} none={texts.access.never} />
        </dd>
        <dt>{texts.access.lastUsed}</dt>
        <dd>
          <At at={token.last_used_at} none={texts.access.neverUsed} />
        </dd>
        {token.revoked_at && (
          <>
            <dt>{texts.access.revoked}</dt>
            <dd>
              <At at={token.revoked_at} />
            </dd>
          </>
        )}
      </dl>
    </Detail>
  );
}

// ── what is done ───────────────────────────────────────────────────────────────────────

function Roles({ value, onValue }: { value: string; onValue: (role: string) => void }) {
  return <Select label={said.user.role} value={value} options={ROLES} onValue={onValue} />;
}

function addUser(): void {
  const wanted = { name: "", password: "", role: "viewer" };
  ask({
    title: texts.access.addUser,
    verb: said.user.add,
    body: (
      <>
        <p>{said.user.addMeaning}</p>
        <Text label={said.name} isRequired onValue={(text) => (wanted.name = text)} />
        <Text label={said.user.password} hint={said.user.passwordHint} isRequired isSecret onValue={(text) => (wanted.password = text)} />
        <Roles value="viewer" onValue={(role) => (wanted.role = role)} />
      </>
    ),
    act: async () => {
      await send("POST", "/users", wanted);
      return said.user.added(wanted.name);
    },
  });
}

const userPath = (user: User): string => `/users/${enc(user.name)}`;

function setGroups(user: User): void {
  let wanted = user.groups.join(" ");
  ask({
    title: said.user.groupsTitle(user.name),
    verb: said.user.change,
    body: (
      <>
        <p>{said.user.groupsMeaning}</p>
        <Text label={texts.access.groups} hint={said.user.groupsHint} value={wanted} onValue={(text) => (wanted = text)} />
      </>
    ),
    act: async () => {
      await send("PUT", userPath(user), { groups: wanted.split(/\s+/).filter(Boolean) });
      return said.user.groupsDone(user.name);
    },
  });
}

function setRole(user: User): void {
  const wanted = { role: user.role };
  ask({
    title: said.user.roleTitle(user.name),
    verb: said.user.change,
    body: (
      <>
        <p>{said.user.roleMeaning}</p>
        <Roles value={user.role} onValue={(role) => (wanted.role = role)} />
      </>
    ),
    act: async () => {
      await send("PUT", userPath(user), wanted);
      return said.user.roleDone(user.name, wanted.role);
    },
  });
}

function setPassword(user: User): void {
  const wanted = { password: "" };
  ask({
    title: said.user.passwordTitle(user.name),
    verb: said.user.set,
    body: (
      <>
        <p>{said.user.passwordMeaning}</p>
        <Text label={said.user.password} hint={said.user.passwordHint} isRequired isSecret onValue={(text) => (wanted.password = text)} />
      </>
    ),
    act: async () => {
      await send("PUT", userPath(user), wanted);
      return said.user.passwordDone(user.name);
    },
  });
}

function setDisabled(user: User): void {
  ask({
    title: user.disabled ? said.user.enableTitle(user.name) : said.user.disableTitle(user.name),
    verb: user.disabled ? texts.access.enable : texts.access.disable,
    isGrave: !user.disabled,
    body: <p>{user.disabled ? said.user.enableMeaning : said.user.disableMeaning}</p>,
    act: async () => {
      await send("PUT", userPath(user), { disabled: !user.disabled });
      return user.disabled ? said.user.enabled(user.name) : said.user.disabled(user.name);
    },
  });
}

function deleteUser(user: User): void {
  ask({
    title: said.user.removeTitle(user.name),
    verb: texts.access.remove,
    isGrave: true,
    body: <p>{said.user.removeMeaning}</p>,
    act: async () => {
      await send("DELETE", userPath(user));
      return said.user.removed(user.name);
    },
  });
}

function endSession(session: Session): void {
  ask({
    title: said.session.title(session.name),
    verb: said.session.verb,
    isGrave: true,
    body: <p>{said.session.meaning}</p>,
    act: async () => {
      await send("DELETE", `/sessions/${session.session_id}`);
      return said.session.done(session.name);
    },
  });
}

function makeToken(onMade: (made: Made) => void): void {
  const wanted = { name: "", role: "viewer", scopes: "", days: LIVES[1]![0] };
  ask({
    title: texts.access.addToken,
    verb: said.token.verb,
    body: (
      <>
        <p>{said.token.meaning}</p>
        <Text label={said.name} isRequired onValue={(text) => (wanted.name = text)} />
        <Roles value="viewer" onValue={(role) => (wanted.role = role)} />
        <Text label={said.token.dags} hint={said.token.dagsHint} onValue={(text) => (wanted.scopes = text)} />
        <Select label={said.token.expires} value={wanted.days} options={LIVES} onValue={(days) => (wanted.days = days)} />
      </>
    ),
    act: async () => {
      const scopes = wanted.scopes.split(",").map((one) => one.trim()).filter(Boolean);
      const body = {
        name: wanted.name,
        role: wanted.role,
        scopes: scopes.length > 0 ? scopes : null,
        expires_at: wanted.days ? new Date(Date.now() + Number(wanted.days) * DAY_MS).toISOString() : null,
      };
      onMade(await send<Made>("POST", "/tokens", body));
      return said.token.created(wanted.name);
    },
  });
}

function revoke(token: Token): void {
  ask({
    title: said.token.revokeTitle(token.name),
    verb: texts.access.revoke,
    isGrave: true,
    body: <p>{said.token.revokeMeaning}</p>,
    act: async () => {
      await send("DELETE", `/tokens/${token.token_id}`);
      return said.token.revoked(token.name);
    },
  });
}
