// What people do: each says what will happen before, and what has happened after.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { Problem, enc, filled, get, newKey, query, send } from "./api";
import { type Page, useItems } from "./data";
import { act, ask, reason, tell } from "./dialog";
import { Conf, ConfFields, fieldsOf, parsed } from "./form";
import { later } from "./later";
import { childName, runHref, shortVersion } from "./parts";
import { go } from "./router";
import { texts } from "./texts";
import { shortTime } from "./time";
import { type Touched, TouchedTasks } from "./touched";
import type { Dag, DagDetail, FireTime, Run } from "./types";

interface Answer {
  state: string;
  marked?: number;
}

interface Cleared {
  state: string;
  cleared: number;
  /** What the run continues with. */
  version: string;
  /** That which its file gives; null where no file defines the DAG any more. */
  newest_version: string | null;
  /** What comes after it and stays so. */
  upstream_failed: string[];
}

const ENDS: Option[] = [
  ["success", "success"],
  ["failed", "failed"],
];

const REPROCESS: Option[] = [
  ["none", "Leave them"],
  ["failed", "Run the failed ones again"],
  ["all", "Run all of them again"],
];

export async function trigger(dagId: string): Promise<void> {
  try {
    askToTrigger(dagId, await get<DagDetail>(`/dags/${enc(dagId)}`));
  } catch (error) {
    tell(reason(error), true);
  }
}

/** A new run with the parameters of an earlier one, which can be changed before. */
export async function runAgain(run: Run): Promise<void> {
  try {
    askToTrigger(run.dag_id, await get<DagDetail>(`/dags/${enc(run.dag_id)}`), run);
  } catch (error) {
    tell(reason(error), true);
  }
}

function askToTrigger(dagId: string, dag: DagDetail, again?: Run): void {
  const fields = fieldsOf(dag);
  const conf = new Conf(fields, (again?.conf ?? {}) as Record<string, unknown>);
  const wanted = { run_id: "", logical_date: "" };
  const key = newKey();
  ask({
    title: again ? `Run ${dagId} again` : `Trigger ${dagId}`,
    verb: again ? "Run" : "Trigger",
    body: (
      <>
        <p>
          Starts a {again ? "new " : ""}run of the newest version now{dag.paused ? ", although the DAG is paused" : ""}
          {again && <>, with the parameters of <code>{again.run_id}</code></>}.
        </p>
        <ConfFields fields={fields} conf={conf} />
        <details>
          <summary>Advanced</summary>
          <Text label="Run id" hint="made by the daemon" onValue={(text) => (wanted.run_id = text)} />
          <Text label="Logical date" hint="2026-01-31 or 2026-01-31T03:00:00Z" onValue={(text) => (wanted.logical_date = text)} />
        </details>
      </>
    ),
    act: async () => {
      const body = { conf: conf.value(), ...filled(wanted) };
      const made = await send<{ run_id: string; created: boolean }>("POST", `/dags/${enc(dagId)}/runs`, body, key);
      go(runHref(made.run_id));
      return made.created ? `Started ${made.run_id}` : `${made.run_id} was there already`;
    },
  });
}

export function pause(dagId: string, paused: boolean): Promise<void> {
  return act(async () => {
    await send("POST", `/dags/${enc(dagId)}/${paused ? "pause" : "resume"}`);
    return paused ? `${dagId} is paused: its schedule starts no runs, active runs continue` : `${dagId} follows its schedule again`;
  });
}

export function cancel(run: string): void {
  ask({
    title: "Cancel this run?",
    verb: "Cancel run",
    isGrave: true,
    dismiss: texts.bulk.keep,
    body: (
      <p>
        Stops the running tasks of <code>{run}</code>, and starts no more. It can be cleared later.
      </p>
    ),
    act: async () => `${run} is ${(await send<Answer>("POST", `/runs/${enc(run)}/cancel`)).state}`,
  });
}

interface Which {
  run: string;
  task?: string;
  map?: number;
  round?: number;
}

const nameOf = ({ task, map = -1, round = 0 }: Which): string => (task ? childName(task, map, round) : "all tasks");

interface Versions {
  own: string;
  /** Null where the DAG is known no more. */
  newest: string | null;
  /** Why the file as it is now gives no version. */
  importError: string | null;
}

async function versionsOf(run: string): Promise<Versions> {
  const { version: own, dag_id } = await get<Run>(query(`/runs/${enc(run)}`, { limit: 1 }));
  try {
    const dag = await get<DagDetail>(`/dags/${enc(dag_id)}`);
    return { own, newest: dag.version, importError: dag.import_error };
  } catch (error) {
    if (error instanceof Problem && error.isAbsent) return { own, newest: null, importError: null };
    throw error;
  }
}

export async function clear(which: Which): Promise<void> {
  try {
    askToClear(which, await versionsOf(which.run));
  } catch (error) {
    tell(reason(error), true);
  }
}

function askToClear(which: Which, versions: Versions): void {
  const wanted = { downstream: which.task !== undefined, failed: false, map: (which.map ?? -1) >= 0, latest: false };
  const path = `/runs/${enc(which.run)}/clear`;
  const key = newKey();
  const body = () => ({
    tasks: which.task ? [which.task] : [],
    map_index: wanted.map ? (which.map ?? -1) : -1,
    downstream: wanted.downstream,
    failed: wanted.failed,
    latest: wanted.latest,
  });
  const look = () => send<Touched>("POST", path, { ...body(), dry_run: true }).catch(asOfThePage);
  ask({
    title: `Clear ${nameOf(which)}?`,
    verb: "Clear",
    isGrave: true,
    body: <ClearFields which={which} versions={versions} wanted={wanted} look={look} />,
    act: async () => {
      const touched = await look();
      const asked = body();
      return later(texts.touched.clears(touched.cleared ?? 0), async (isLeaving) => {
        const answer = await send<Cleared>("POST", path, asked, key, { isLeaving }).catch(asOfThePage);
        return `Cleared ${texts.common.many(answer.cleared, "task")}; the run is ${answer.state}. It runs version ${versionText(answer)}${leftText(answer)}`;
      });
    },
  });
}

interface ClearFieldsProps {
  which: Which;
  versions: Versions;
  wanted: { downstream: boolean; failed: boolean; map: boolean; latest: boolean };
  look: () => Promise<Touched>;
}

function ClearFields({ which, versions, wanted, look }: ClearFieldsProps) {
  const [asked, setAsked] = useState(JSON.stringify(wanted));
  const isOfChild = useState(wanted.map)[0];
  const set = (name: keyof typeof wanted) => (on: boolean) => {
    wanted[name] = on;
    setAsked(JSON.stringify(wanted));
  };
  return (
    <>
      <p>
        Cleared tasks run again: their results are deleted, their tries and logs are retained. Running tasks are stopped
        first. An ended run resumes.
      </p>
      {which.task && <Check label="With everything downstream" isOn onOn={set("downstream")} />}
      {(which.round ?? 0) > 0 ? <p>Its whole loop restarts with the first round.</p> : <Check label="Only what failed, or was cancelled" onOn={set("failed")} />}
      {isOfChild && <Check label={`Only index ${which.map}, not all of its siblings`} isOn onOn={set("map")} />}
      <NewestCode versions={versions} onOn={set("latest")} />
      <TouchedTasks look={look} asked={asked} />
    </>
  );
}

/** The option to move a run to the newest version of its DAG, where it does not run that. */
function NewestCode({ versions, onOn }: { versions: Versions; onOn: (on: boolean) => void }) {
  const { own, newest, importError } = versions;
  return (
    <>
      {newest !== null && newest !== own && (
        <Check
          label={
            <>
              With the newest code
              <small>
                The run moves from version <code>{shortVersion(own)}</code> to <code>{shortVersion(newest)}</code>. What is pending runs that, too; what has
                ended and is not cleared stays as it is.
              </small>
            </>
          }
          onOn={onOn}
        />
      )}
      {importError && <p class="wrong">The file of its DAG cannot be read now, so a change in it has no effect yet: {importError}</p>}
    </>
  );
}

function versionText({ version, newest_version: newest }: Cleared): string {
  const own = shortVersion(version);
  if (newest === null) return `${own}; no file defines its DAG any more`;
  return newest === version ? `${own}, the newest` : `${own}, not the newest, ${shortVersion(newest)}`;
}

const NAMES_SHOWN = 3;

export function leftText({ upstream_failed: left }: Pick<Cleared, "upstream_failed">): string {
  if (left.length === 0) return "";
  const names = left.slice(0, NAMES_SHOWN).join(", ") + (left.length > NAMES_SHOWN ? " ..." : "");
  return `. ${names} ${left.length === 1 ? "stays" : "stay"} upstream_failed; clear with everything downstream to run that, too`;
}

/** A refusal, whose remedy is an option of the command, in the words of the page. */
function asOfThePage(error: unknown): never {
  if (error instanceof Problem && error.code === "request.version_differs")
    throw new Problem(error.status, error.code, error.message.replace("clear without --latest", "clear without the newest code"));
  throw error;
}

export function mark(which: Which): void {
  const wanted = { state: "success" };
  const path = `/runs/${enc(which.run)}/mark`;
  const body = () => ({ state: wanted.state, tasks: which.task ? [which.task] : [], map_index: which.map ?? -1 });
  const look = () => send<Touched>("POST", path, { ...body(), dry_run: true });
  ask({
    title: `Set the state of ${which.task ? nameOf(which) : "the run"}?`,
    verb: "Set state",
    isGrave: true,
    body: <MarkFields isOfTask={which.task !== undefined} wanted={wanted} look={look} />,
    act: async () => {
      await look();
      const asked = body();
      return later(texts.touched.marks(which.task ? nameOf(which) : which.run, asked.state), async (isLeaving) => {
        const answer = await send<Answer>("POST", path, asked, undefined, { isLeaving });
        return `Marked ${texts.common.many(answer.marked ?? 0, "task")}; the run is ${answer.state}`;
      });
    },
  });
}

function MarkFields({ isOfTask, wanted, look }: { isOfTask: boolean; wanted: { state: string }; look: () => Promise<Touched> }) {
  const [state, setState] = useState(wanted.state);
  function set(chosen: string): void {
    wanted.state = chosen;
    setState(chosen);
  }
  return (
    <>
      <p>
        It ends in the state you choose; running tasks are stopped. It has no result.
        {isOfTask ? " The tasks after it are evaluated again." : ""}
      </p>
      <Select label="State" value={state} options={ENDS} onValue={set} />
      <TouchedTasks look={look} asked={state} state={state} />
    </>
  );
}

export function deleteRun(run: string): void {
  ask({
    title: "Delete this run?",
    verb: "Delete",
    isGrave: true,
    body: (
      <p>
        Deletes <code>{run}</code> with its results and logs. This cannot be undone.
      </p>
    ),
    act: async () => {
      await send("DELETE", `/runs/${enc(run)}`);
      go("/runs");
      return `Deleted ${run}`;
    },
  });
}

export function unquarantine(classPath: string): void {
  ask({
    title: "End the quarantine?",
    verb: "End quarantine",
    body: (
      <p>
        Triggers of <code>{classPath}</code> run on the shared event loop again. If they block it once more, they return to quarantine.
      </p>
    ),
    act: async () => {
      await send("DELETE", `/triggers/quarantine/${enc(classPath)}`);
      return `${classPath} is out of quarantine`;
    },
  });
}

export function drain(node: number, isDrained: boolean): void {
  ask({
    title: isDrained ? `Undrain node ${node}?` : `Drain node ${node}?`,
    verb: isDrained ? "Undrain" : "Drain",
    body: (
      <p>
        {isDrained
          ? "It starts tasks and hosts triggers again."
          : "It starts no new tasks and hosts no new triggers. Running tasks continue to their end."}
      </p>
    ),
    act: async () => {
      await send("POST", `/nodes/${node}/${isDrained ? "undrain" : "drain"}`);
      return `Node ${node} is ${isDrained ? "working again" : "being drained"}`;
    },
  });
}

export function setPool(name: string | null, slots: number, includeDeferred: boolean): void {
  const wanted = { name: name ?? "", slots, include: includeDeferred };
  ask({
    title: name ? `Change the limit of ${name}` : "New pool",
    verb: name ? "Change" : "Create",
    body: (
      <>
        <p>At most this many slots of the pool are used at once. Running tasks continue.</p>
        {name === null && <Text label="Pool" isRequired onValue={(text) => (wanted.name = text)} />}
        <label>
          <span>Slots</span>
          <input type="number" min={1} required defaultValue={slots} onInput={(event) => (wanted.slots = event.currentTarget.valueAsNumber)} />
        </label>
        <Check label="Deferred tasks hold slots, too" isOn={includeDeferred} onOn={(on) => (wanted.include = on)} />
      </>
    ),
    act: async () => {
      await send("PUT", `/pools/${enc(wanted.name)}`, { slots: wanted.slots, include_deferred: wanted.include });
      return `Pool ${wanted.name} has ${texts.common.many(wanted.slots, "slot")}`;
    },
  });
}

export function liftPool(name: string): void {
  ask({
    title: `Remove the limit of pool ${name}?`,
    verb: "Remove",
    isGrave: true,
    body: <p>Only the workers limit its tasks then.</p>,
    act: async () => {
      await send("DELETE", `/pools/${enc(name)}`);
      return `Pool ${name} has no limit`;
    },
  });
}

export function emit(): void {
  const wanted = { name: "", key: "", data: "null" };
  const once = newKey();
  ask({
    title: "Emit event",
    verb: "Emit",
    body: (
      <>
        <p>Every task that waits for an event of this name, and whose filter accepts it, resumes.</p>
        <Text label="Name" isRequired onValue={(text) => (wanted.name = text)} />
        <Text label="Key" hint="none" onValue={(text) => (wanted.key = text)} />
        <Text label="Data (JSON)" value="null" onValue={(text) => (wanted.data = text)} />
      </>
    ),
    act: async () => {
      const key = wanted.key ? `?key=${enc(wanted.key)}` : "";
      const path = `/events/${wanted.name.split("/").map(enc).join("/")}${key}`;
      const made = await send<{ event_id: number }>("POST", path, parsed("the data", wanted.data || "null"), once);
      return `Event ${made.event_id} is stored`;
    },
  });
}

export function cancelBackfill(id: number): void {
  ask({
    title: `Cancel backfill ${id}?`,
    verb: "Cancel backfill",
    isGrave: true,
    body: <p>It creates no more runs, and its active runs are cancelled.</p>,
    act: async () => {
      await send("POST", `/backfills/${id}/cancel`);
      return `Backfill ${id} is cancelled`;
    },
  });
}

/** Start one; without a DAG it is asked for first. */
export function backfill(given: string | null): void {
  const of = { dag: given ?? "" };
  const wanted = { from: "", to: "", reprocess: "none", max_active: 0, reverse: false };
  ask({
    title: given === null ? "New backfill" : `Backfill ${given}`,
    verb: "Start backfill",
    body: (
      <>
        {given === null && <DagText onValue={(text) => (of.dag = text)} />}
        <BackfillFields of={of} wanted={wanted} />
      </>
    ),
    act: async () => {
      const made = await send<{ backfill_id: number }>("POST", `/dags/${enc(of.dag)}/backfills`, wanted);
      go("/backfills");
      return `Backfill ${made.backfill_id} makes its runs`;
    },
  });
}

type Range = { from: string; to: string; reprocess: string; max_active: number; reverse: boolean };

/** The id of a DAG, with those that begin as it is typed. */
function DagText({ onValue }: { onValue: (text: string) => void }) {
  const [text, setText] = useState("");
  const found = useItems<Dag>(query("/dags", { search: text, limit: 20 }), { on: () => false });
  return (
    <label>
      <span>DAG</span>
      <input
        list="dags"
        required
        autocomplete="off"
        spellcheck={false}
        onInput={(event) => {
          setText(event.currentTarget.value);
          onValue(event.currentTarget.value);
        }}
      />
      <datalist id="dags">
        {found.data?.map((dag) => dag.dag_id !== null && <option key={dag.dag_id} value={dag.dag_id} />)}
      </datalist>
    </label>
  );
}

function BackfillFields({ of, wanted }: { of: { dag: string }; wanted: Range }) {
  const [seen, setSeen] = useState<FireTime[] | null>(null);
  const [wrong, setWrong] = useState("");
  async function look(): Promise<void> {
    try {
      setSeen((await send<Page<FireTime>>("POST", `/dags/${enc(of.dag)}/backfills`, { ...wanted, dry_run: true })).items);
      setWrong("");
    } catch (error) {
      setSeen(null);
      setWrong(reason(error));
    }
  }
  const runs = seen?.filter((one) => one.action === "run") ?? [];
  return (
    <>
      <p>Each fire time of its schedule in the range gets a run, both ends included.</p>
      <Text label="From" hint="2026-01-01 or 2026-01-01T03:00:00Z" isRequired onValue={(text) => (wanted.from = text)} />
      <Text label="To" hint="2026-01-31 or 2026-01-31T03:00:00Z" isRequired onValue={(text) => (wanted.to = text)} />
      <Select label="Fire times that have a run" value={wanted.reprocess} options={REPROCESS} onValue={(which) => (wanted.reprocess = which)} />
      <label>
        <span>At once</span>
        <input type="number" min={0} max={1000} placeholder="as its DAG says" onInput={(event) => (wanted.max_active = event.currentTarget.valueAsNumber || 0)} />
      </label>
      <Check label="The newest first" onOn={(on) => (wanted.reverse = on)} />
      <p>
        <button type="button" onClick={look}>
          Show what it would do
        </button>
      </p>
      {wrong && <p class="wrong">{wrong}</p>}
      {seen && (
        <div class="preview" role="status">
          <p>
            {texts.common.many(runs.length, "run")} would be made, {texts.common.many(seen.length - runs.length, "fire time")} left alone.
          </p>
          <ul tabIndex={0} aria-label="Fire times">
            {seen.slice(0, 200).map((one) => (
              <li key={one.logical_date}>
                {one.action === "run" ? "run" : "skip"} {shortTime(one.logical_date)} {one.state && <span class="soft">has one: {one.state}</span>}
              </li>
            ))}
          </ul>
        </div>
      )}
    </>
  );
}

interface TextProps {
  label: string;
  hint?: string;
  value?: string;
  isRequired?: boolean;
  isSecret?: boolean;
  isNumber?: boolean;
  onValue: (text: string) => void;
}

export function Text({ label, hint, value, isRequired, isSecret, isNumber, onValue }: TextProps) {
  return (
    <label>
      <span>{label}</span>
      <input
        type={(isSecret ? "password" : isNumber ? "number" : "text") as "text"}
        placeholder={hint}
        defaultValue={value}
        required={isRequired}
        autocomplete="off"
        spellcheck={false}
        onInput={(event) => onValue(event.currentTarget.value)}
      />
    </label>
  );
}

/** A value, and what it is called. */
export type Option = [string, string];

export function Select({ label, value, options, onValue }: { label: string; value: string; options: Option[]; onValue: (value: string) => void }) {
  return (
    <label>
      <span>{label}</span>
      <select onChange={(event) => onValue(event.currentTarget.value)}>
        {options.map(([one, name]) => (
          <option key={one} value={one} selected={one === value}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}

export function Check({ label, isOn = false, onOn }: { label: ComponentChildren; isOn?: boolean; onOn: (on: boolean) => void }) {
  return (
    <label class="check">
      <input type="checkbox" defaultChecked={isOn} onChange={(event) => onOn(event.currentTarget.checked)} />
      <span>{label}</span>
    </label>
  );
}
