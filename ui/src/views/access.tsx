// Who is let in: people, their sessions, and the tokens of programs.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { type Option, Select, Text } from "../actions";
import { enc, send } from "../api";
import { type Data, useData } from "../data";
import { ask, tell } from "../dialog";
import { Empty, Head, Panel, Shown } from "../parts";
import { At, When } from "../time";
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

const DAY_MS = 86_400_000;
const LIVES: Option[] = [
  ["30", "30 days"],
  ["90", "90 days"],
  ["365", "a year"],
  ["", "until it is revoked"],
];

export function Access({ me }: { me: Me | undefined }) {
  const users = useData<User[]>("/users", { gap: 1000 });
  const sessions = useData<Session[]>("/sessions", { gap: 1000 });
  const tokens = useData<Token[]>("/tokens", { gap: 1000 });
  const [made, setMade] = useState<Made | null>(null);
  return (
    <>
      <Head title="Access" name="Access">
        <button type="button" data-needs="admin" onClick={() => makeToken(setMade)}>
          Make a token …
        </button>
        <button type="button" data-needs="admin" class="main" onClick={addUser}>
          Add a user …
        </button>
      </Head>
      {made && <Once made={made} done={() => setMade(null)} />}
      <Rows title="Users" of={users} none="No users. Anyone who opens the link of the daemon's banner has full access.">
        {(user) => <UserRow key={user.name} user={user} me={me} sessions={sessions.data?.filter((one) => one.name === user.name)} />}
      </Rows>
      <Rows title="Tokens" of={tokens} none="Programs have no token but that of the home.">
        {(token) => <TokenRow key={token.token_id} token={token} />}
      </Rows>
      <Rows title="Sessions" of={sessions} none="There are no sessions.">
        {(session) => <SessionRow key={session.session_id} session={session} isNamed />}
      </Rows>
    </>
  );
}

interface RowsProps<T> {
  title: string;
  of: Data<T[]>;
  none: string;
  children: (row: T) => ComponentChildren;
}

function Rows<T>({ title, of, none, children }: RowsProps<T>) {
  return (
    <Panel title={title}>
      <Shown of={of}>{(rows) => (rows.length === 0 ? <Empty>{none}</Empty> : <ul class="rows">{rows.map(children)}</ul>)}</Shown>
    </Panel>
  );
}

/** The value of a token, shown once: it cannot be read again. */
function Once({ made, done }: { made: Made; done: () => void }) {
  async function copy(): Promise<void> {
    try {
      await navigator.clipboard.writeText(made.token);
      tell("Copied");
    } catch {
      tell("This browser does not let the page copy; mark it and copy it yourself", true);
    }
  }
  return (
    <section class="panel once" role="status" aria-label={`Token ${made.name}`}>
      <p>
        <b>{made.name}</b> is made. Copy it now: it is not shown again.
      </p>
      <p>
        <code class="break">{made.token}</code>
      </p>
      <p class="actions">
        <button type="button" onClick={() => void copy()}>
          Copy
        </button>
        <button type="button" onClick={done}>
          I have saved it
        </button>
      </p>
    </section>
  );
}

function UserRow({ user, me, sessions }: { user: User; me: Me | undefined; sessions: Session[] | undefined }) {
  const isMe = me?.kind === "session" && me.name === user.name;
  const count = sessions?.length ?? 0;
  return (
    <li>
      <details>
        <summary class="row" data-row>
          <b class="cut grow">{user.name}</b>
          {isMe && <span class="tag">you</span>}
          {user.disabled && <span class="bad">disabled</span>}
          {user.groups.map((group) => (
            <span key={group} class="tag">
              {group}
            </span>
          ))}
          <span class="kind">{user.role}</span>
          <span class="num soft narrow-hide">{count === 0 ? "not signed in" : count === 1 ? "1 session" : `${count} sessions`}</span>
        </summary>
        <div class="inset">
          <p class="actions">
            <button type="button" data-needs="admin" onClick={() => setRole(user)}>
              Change role …
            </button>
            <button type="button" data-needs="admin" onClick={() => setGroups(user)}>
              Change groups …
            </button>
            <button type="button" data-needs="admin" onClick={() => setPassword(user)}>
              Set password …
            </button>
            <button type="button" data-needs="admin" onClick={() => setDisabled(user)}>
              {user.disabled ? "Enable …" : "Disable …"}
            </button>
            <button type="button" data-needs="admin" onClick={() => deleteUser(user)}>
              Delete …
            </button>
          </p>
          <p class="soft">
            Added <When at={user.created_at} />, changed <When at={user.changed_at} />.
          </p>
          {count > 0 && (
            <ul class="rows">
              {sessions?.map((session) => <SessionRow key={session.session_id} session={session} />)}
            </ul>
          )}
        </div>
      </details>
    </li>
  );
}

function SessionRow({ session, isNamed = false }: { session: Session; isNamed?: boolean }) {
  return (
    <li class="row">
      {isNamed && <b class="cut grow">{session.name}</b>}
      <span class={`cut soft ${isNamed ? "narrow-hide" : "grow"}`}>from {session.address || "the home's socket"}</span>
      <span class="num soft">
        since <When at={session.created_at} />
      </span>
      <span class="num soft narrow-hide">
        ends <When at={session.expires_at} />
      </span>
      <button type="button" data-needs="admin" class="small" aria-label={`End session ${session.session_id} of ${session.name}`} onClick={() => endSession(session)}>
        End …
      </button>
    </li>
  );
}

function TokenRow({ token }: { token: Token }) {
  const isGood = token.state === "active";
  return (
    <li>
      <details>
        <summary class="row" data-row>
          <b class={`cut grow ${isGood ? "" : "soft"}`}>{token.name}</b>
          {!isGood && <span class="soft">{token.state}</span>}
          <span class="kind">{token.role}</span>
          <span class="num soft narrow-hide">
            used <When at={token.last_used_at} none="never" />
          </span>
        </summary>
        <div class="inset">
          {isGood && (
            <p class="actions">
              <button type="button" data-needs="admin" onClick={() => revoke(token)}>
                Revoke …
              </button>
            </p>
          )}
          <dl class="facts">
            <dt>Good for</dt>
            <dd class="break">{token.scopes === null ? "everything" : `the DAGs ${token.scopes.join(", ")}`}</dd>
            <dt>Made</dt>
            <dd>
              <At at={token.created_at} /> by {token.created_by}
            </dd>
            <dt>Expires</dt>
            <dd>
              <At at={token.expires_at} none="never" />
            </dd>
            <dt>Last used</dt>
            <dd>
              <At at={token.last_used_at} none="never" />
            </dd>
            {token.revoked_at && (
              <>
                <dt>Revoked</dt>
                <dd>
                  <At at={token.revoked_at} />
                </dd>
              </>
            )}
          </dl>
        </div>
      </details>
    </li>
  );
}

// ── what is done ───────────────────────────────────────────────────────────────────────

function Roles({ value, onValue }: { value: string; onValue: (role: string) => void }) {
  return <Select label="Role" value={value} options={ROLES} onValue={onValue} />;
}

function addUser(): void {
  const wanted = { name: "", password: "", role: "viewer" };
  ask({
    title: "Add a user",
    verb: "Add",
    body: (
      <>
        <p>They sign in with this name and password, and may choose another password themselves.</p>
        <Text label="Name" isRequired onValue={(text) => (wanted.name = text)} />
        <Text label="Password" hint="10 characters at least" isRequired isSecret onValue={(text) => (wanted.password = text)} />
        <Roles value="viewer" onValue={(role) => (wanted.role = role)} />
      </>
    ),
    act: async () => {
      await send("POST", "/users", wanted);
      return `${wanted.name} may sign in`;
    },
  });
}

const userPath = (user: User): string => `/users/${enc(user.name)}`;

function setGroups(user: User): void {
  let wanted = user.groups.join(" ");
  ask({
    title: `Change the groups of ${user.name}`,
    verb: "Change",
    body: (
      <>
        <p>A task may ask a group for a decision. Groups give no permission besides. The user's sessions end.</p>
        <Text label="Groups" hint="names, separated by spaces" value={wanted} onValue={(text) => (wanted = text)} />
      </>
    ),
    act: async () => {
      await send("PUT", userPath(user), { groups: wanted.split(/\s+/).filter(Boolean) });
      return `${user.name} has new groups`;
    },
  });
}

function setRole(user: User): void {
  const wanted = { role: user.role };
  ask({
    title: `Change the role of ${user.name}`,
    verb: "Change",
    body: (
      <>
        <p>Their sessions end, and tokens they have made keep no larger role.</p>
        <Roles value={user.role} onValue={(role) => (wanted.role = role)} />
      </>
    ),
    act: async () => {
      await send("PUT", userPath(user), wanted);
      return `${user.name} is ${wanted.role}`;
    },
  });
}

function setPassword(user: User): void {
  const wanted = { password: "" };
  ask({
    title: `Set the password of ${user.name}`,
    verb: "Set",
    body: (
      <>
        <p>Their sessions end; they sign in again with the new one.</p>
        <Text label="Password" hint="10 characters at least" isRequired isSecret onValue={(text) => (wanted.password = text)} />
      </>
    ),
    act: async () => {
      await send("PUT", userPath(user), wanted);
      return `${user.name} has a new password`;
    },
  });
}

function setDisabled(user: User): void {
  ask({
    title: user.disabled ? `Let ${user.name} sign in again?` : `Disable ${user.name}?`,
    verb: user.disabled ? "Enable" : "Disable",
    isGrave: !user.disabled,
    body: (
      <p>
        {user.disabled
          ? "With the password they had. Tokens that were revoked stay so."
          : "Their sessions end, the tokens they have made are revoked, and they cannot sign in until they are enabled again."}
      </p>
    ),
    act: async () => {
      await send("PUT", userPath(user), { disabled: !user.disabled });
      return user.disabled ? `${user.name} may sign in again` : `${user.name} is disabled`;
    },
  });
}

function deleteUser(user: User): void {
  ask({
    title: `Delete ${user.name}?`,
    verb: "Delete",
    isGrave: true,
    body: <p>Their sessions end, and the tokens they have made are revoked. The audit continues to name them.</p>,
    act: async () => {
      await send("DELETE", userPath(user));
      return `${user.name} is deleted`;
    },
  });
}

function endSession(session: Session): void {
  ask({
    title: `End this session of ${session.name}?`,
    verb: "End it",
    isGrave: true,
    body: <p>Its user is signed out at once, and may sign in again.</p>,
    act: async () => {
      await send("DELETE", `/sessions/${session.session_id}`);
      return `A session of ${session.name} has ended`;
    },
  });
}

function makeToken(onMade: (made: Made) => void): void {
  const wanted = { name: "", role: "viewer", scopes: "", days: LIVES[1]![0] };
  ask({
    title: "Make a token",
    verb: "Make",
    body: (
      <>
        <p>A program that has it may do what its role says. It is shown once.</p>
        <Text label="Name" isRequired onValue={(text) => (wanted.name = text)} />
        <Roles value="viewer" onValue={(role) => (wanted.role = role)} />
        <Text label="DAGs" hint="all; or ids, separated by commas" onValue={(text) => (wanted.scopes = text)} />
        <Select label="Good for" value={wanted.days} options={LIVES} onValue={(days) => (wanted.days = days)} />
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
      return `Token ${wanted.name} is made`;
    },
  });
}

function revoke(token: Token): void {
  ask({
    title: `Revoke token ${token.name}?`,
    verb: "Revoke",
    isGrave: true,
    body: <p>Requests with it are refused from now on. This cannot be undone; another of the same name may be created.</p>,
    act: async () => {
      await send("DELETE", `/tokens/${token.token_id}`);
      return `Token ${token.name} is revoked`;
    },
  });
}
