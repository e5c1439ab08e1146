// Action dialogs: each states its effect before it is confirmed.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { Problem, enc, encName, filled, get, newKey, query, send } from "./api";
import type { Page } from "./data";
import { act, ask, attempt, reason } from "./dialog";
import { Conf, ConfFields, fieldsOf, parsed } from "./form";
import { later } from "./later";
import { childName, runHref, shortVersion, useDagIds } from "./parts";
import { go } from "./router";
import { texts } from "./action_texts";
import { texts as shared } from "./texts";
import { shortTime } from "./time";
import { type Touched, TouchedTasks } from "./touched";
import type { DagDetail, FireTime, Run } from "./types";

interface Answer {
  state: string;
  marked?: number;
}

interface Cleared {
  state: string;
  cleared: number;
  /** The version with which the run continues. */
  version: string;
  /** The version that the DAG's file gives; null if no file defines the DAG any more. */
  newest_version: string | null;
  /** Tasks downstream that stay upstream_failed. */
  upstream_failed: string[];
}

const ENDS: Option[] = Object.entries(texts.ends);
const REPROCESS: Option[] = Object.entries(texts.backfill.reprocessed);

export const trigger = (dagId: string): Promise<void> => attempt(async () => askToTrigger(dagId, await get<DagDetail>(`/dags/${enc(dagId)}`)));

/** Start a new run with the parameters of an earlier one. They can be changed first. */
export const runAgain = (run: Run): Promise<void> => attempt(async () => askToTrigger(run.dag_id, await get<DagDetail>(`/dags/${enc(run.dag_id)}`), run));

function askToTrigger(dagId: string, dag: DagDetail, again?: Run): void {
  const fields = fieldsOf(dag);
  const conf = new Conf(fields, (again?.conf ?? {}) as Record<string, unknown>);
  const wanted = { run_id: "", logical_date: "" };
  const key = newKey();
  ask({
    title: again ? texts.trigger.again(dagId) : texts.trigger.title(dagId),
    verb: again ? texts.trigger.verbAgain : texts.trigger.verb,
    body: (
      <>
        <p>{texts.trigger.meaning(dag.paused, again?.run_id ?? null)}</p>
        <ConfFields fields={fields} conf={conf} />
        <details>
          <summary>{texts.advanced}</summary>
          <Text label={texts.trigger.runId} hint={texts.trigger.runIdHint} onValue={(text) => (wanted.run_id = text)} />
          <Text label={texts.trigger.logicalDate} hint={texts.trigger.logicalDateHint} onValue={(text) => (wanted.logical_date = text)} />
        </details>
      </>
    ),
    act: async () => {
      const body = { conf: conf.value(), ...filled(wanted) };
      const made = await send<{ run_id: string; created: boolean }>("POST", `/dags/${enc(dagId)}/runs`, body, key);
      go(runHref(made.run_id));
      return made.created ? texts.trigger.started(made.run_id) : texts.trigger.existed(made.run_id);
    },
  });
}

export function pause(dagId: string, paused: boolean): Promise<void> {
  return act(async () => {
    await send("POST", `/dags/${enc(dagId)}/${paused ? "pause" : "resume"}`);
    return paused ? texts.pause.paused(dagId) : texts.pause.resumed(dagId);
  });
}

export function cancel(run: string): void {
  ask({
    title: texts.cancel.title,
    verb: shared.actions.cancel,
    isGrave: true,
    dismiss: shared.bulk.keep,
    body: <p>{texts.cancel.meaning(run)}</p>,
    act: async () => texts.cancel.done(run, (await send<Answer>("POST", `/runs/${enc(run)}/cancel`)).state),
  });
}

interface Which {
  run: string;
  task?: string;
  map?: number;
  round?: number;
}

const nameOf = ({ task, map = -1, round = 0 }: Which): string => (task ? childName(task, map, round) : texts.clear.allTasks);

interface Versions {
  own: string;
  /** Null if the DAG is no longer known. */
  newest: string | null;
  /** Why the current file gives no version. */
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

/** Run tasks again. The dialog begins with the failed tasks, or with all. */
export const clear = (which: Which, isOfFailed = false): Promise<void> => attempt(async () => askToClear(which, { isOfFailed, isRetry: false }, await versionsOf(which.run)));

/** The same, worded as a retry, for the buttons of failed tasks. */
export const retry = (which: Which, isOfFailed = false): Promise<void> => attempt(async () => askToClear(which, { isOfFailed, isRetry: true }, await versionsOf(which.run)));

interface Begin {
  isOfFailed: boolean;
  isRetry: boolean;
}

function askToClear(which: Which, { isOfFailed, isRetry }: Begin, versions: Versions): void {
  const wanted = { downstream: which.task !== undefined, failed: isOfFailed, map: (which.map ?? -1) >= 0, latest: false };
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
    title: isRetry ? texts.clear.retryTitle(which.task ? nameOf(which) : texts.clear.failedTasks) : texts.clear.title(nameOf(which)),
    verb: isRetry ? shared.actions.retry : shared.actions.clear,
    isGrave: true,
    body: <ClearFields which={which} versions={versions} wanted={wanted} look={look} />,
    act: async () => {
      const touched = await look();
      const asked = body();
      return later(shared.touched.clears(touched.cleared ?? 0), async (isLeaving) => {
        const answer = await send<Cleared>("POST", path, asked, key, { isLeaving }).catch(asOfThePage);
        return texts.clear.done(answer.cleared, answer.state, versionText(answer), leftText(answer));
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
  const [{ map: isOfChild, failed: isOfFailed }] = useState({ ...wanted });
  const set = (name: keyof typeof wanted) => (on: boolean) => {
    wanted[name] = on;
    setAsked(JSON.stringify(wanted));
  };
  return (
    <>
      <p>{texts.clear.meaning}</p>
      {which.task && <Check label={texts.clear.downstream} isOn onOn={set("downstream")} />}
      {(which.round ?? 0) > 0 ? <p>{texts.clear.loop}</p> : <Check label={texts.clear.onlyFailed} isOn={isOfFailed} onOn={set("failed")} />}
      {isOfChild && <Check label={texts.clear.onlyChild(which.map ?? 0)} isOn onOn={set("map")} />}
      <NewestCode versions={versions} onOn={set("latest")} />
      <TouchedTasks look={look} asked={asked} />
    </>
  );
}

/** The option to move a run to the newest version of its DAG, if it runs an older one. */
function NewestCode({ versions, onOn }: { versions: Versions; onOn: (on: boolean) => void }) {
  const { own, newest, importError } = versions;
  return (
    <>
      {newest !== null && newest !== own && (
        <Check
          label={
            <>
              {texts.clear.newest}
              <small>{texts.clear.newestMeaning(shortVersion(own), shortVersion(newest))}</small>
            </>
          }
          onOn={onOn}
        />
      )}
      {importError && <p class="wrong">{texts.clear.unreadable(importError)}</p>}
    </>
  );
}

function versionText({ version, newest_version: newest }: Cleared): string {
  const own = shortVersion(version);
  if (newest === null) return texts.clear.noFile(own);
  return newest === version ? texts.clear.isNewest(own) : texts.clear.isOlder(own, shortVersion(newest));
}

const NAMES_SHOWN = 3;

export function leftText({ upstream_failed: left }: Pick<Cleared, "upstream_failed">): string {
  if (left.length === 0) return "";
  const names = left.slice(0, NAMES_SHOWN).join(", ") + (left.length > NAMES_SHOWN ? " ..." : "");
  return texts.clear.left(names, left.length);
}

/** Throw a refusal again. If its remedy is an option of the command, use the words of the page. */
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
    title: texts.mark.title(which.task ? nameOf(which) : null),
    verb: shared.actions.mark,
    isGrave: true,
    body: <MarkFields isOfTask={which.task !== undefined} wanted={wanted} look={look} />,
    act: async () => {
      await look();
      const asked = body();
      return later(shared.touched.marks(which.task ? nameOf(which) : which.run, asked.state), async (isLeaving) => {
        const answer = await send<Answer>("POST", path, asked, undefined, { isLeaving });
        return texts.mark.done(answer.marked ?? 0, answer.state);
      });
    },
  });
}

/** Let a sensor that waits for its condition end as a success. */
export function meet(which: Which & { task: string }): void {
  const path = `/runs/${enc(which.run)}/mark`;
  const asked = { state: "success", tasks: [which.task], map_index: which.map ?? -1 };
  const look = () => send<Touched>("POST", path, { ...asked, dry_run: true });
  ask({
    title: texts.mark.metTitle(nameOf(which)),
    verb: shared.actions.markMet,
    body: (
      <>
        <p>
          {texts.mark.met} {texts.mark.after}
        </p>
        <TouchedTasks look={look} asked={asked.state} state={asked.state} />
      </>
    ),
    act: async () => {
      await look();
      return later(shared.touched.marks(nameOf(which), asked.state), async (isLeaving) => {
        const answer = await send<Answer>("POST", path, asked, undefined, { isLeaving });
        return texts.mark.done(answer.marked ?? 0, answer.state);
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
        {texts.mark.meaning}
        {isOfTask ? ` ${texts.mark.after}` : ""}
      </p>
      <Select label={texts.state} value={state} options={ENDS} onValue={set} />
      <TouchedTasks look={look} asked={state} state={state} />
    </>
  );
}

export function deleteRun(run: string): void {
  ask({
    title: texts.remove.title,
    verb: shared.actions.remove,
    isGrave: true,
    body: <p>{texts.remove.meaning(run)}</p>,
    act: async () => {
      await send("DELETE", `/runs/${enc(run)}`);
      go("/runs");
      return texts.remove.done(run);
    },
  });
}

export function unquarantine(classPath: string): void {
  ask({
    title: texts.quarantine.title,
    verb: shared.triggers.endQuarantine,
    body: <p>{texts.quarantine.meaning(classPath)}</p>,
    act: async () => {
      await send("DELETE", `/triggers/quarantine/${enc(classPath)}`);
      return texts.quarantine.done(classPath);
    },
  });
}

export function drain(node: number, isDrained: boolean): void {
  ask({
    title: texts.drain.title(node, isDrained),
    verb: isDrained ? shared.nodes.undrain : shared.nodes.drain,
    body: <p>{isDrained ? texts.drain.start : texts.drain.stop}</p>,
    act: async () => {
      await send("POST", `/nodes/${node}/${isDrained ? "undrain" : "drain"}`);
      return texts.drain.done(node, isDrained);
    },
  });
}

export function setPool(name: string | null, slots: number, includeDeferred: boolean): void {
  const wanted = { name: name ?? "", slots, include: includeDeferred };
  ask({
    title: name ? texts.pool.title(name) : shared.pools.add,
    verb: name ? texts.pool.change : texts.pool.create,
    body: (
      <>
        <p>{texts.pool.meaning}</p>
        {name === null && <Text label={shared.pools.name} isRequired onValue={(text) => (wanted.name = text)} />}
        <label>
          <span>{shared.pools.slots}</span>
          <input type="number" min={1} required defaultValue={slots} onInput={(event) => (wanted.slots = event.currentTarget.valueAsNumber)} />
        </label>
        <Check label={texts.pool.deferred} isOn={includeDeferred} onOn={(on) => (wanted.include = on)} />
      </>
    ),
    act: async () => {
      await send("PUT", `/pools/${enc(wanted.name)}`, { slots: wanted.slots, include_deferred: wanted.include });
      return texts.pool.done(wanted.name, wanted.slots);
    },
  });
}

export function liftPool(name: string): void {
  ask({
    title: texts.pool.liftTitle(name),
    verb: texts.pool.lift,
    isGrave: true,
    body: <p>{texts.pool.liftMeaning}</p>,
    act: async () => {
      await send("DELETE", `/pools/${enc(name)}`);
      return texts.pool.lifted(name);
    },
  });
}

export type ValueKind = "secret" | "connection" | "variable";

export const valuePath = (kind: ValueKind, name: string): string => `/${kind}s/${encName(name)}`;

export function deleteValue(kind: ValueKind, name: string): void {
  ask({
    title: texts.value.removeTitle(kind, name),
    verb: shared.settings.remove,
    isGrave: true,
    body: <p>{texts.value.removeMeaning}</p>,
    act: async () => {
      await send("DELETE", valuePath(kind, name));
      return texts.value.removed(name);
    },
  });
}

export function emit(): void {
  const wanted = { name: "", key: "", data: "null" };
  const once = newKey();
  ask({
    title: shared.events.emit,
    verb: texts.emit.verb,
    body: (
      <>
        <p>{texts.emit.meaning}</p>
        <Text label={texts.name} isRequired onValue={(text) => (wanted.name = text)} />
        <Text label={texts.key} hint={texts.noKey} onValue={(text) => (wanted.key = text)} />
        <Text label={texts.data} value="null" onValue={(text) => (wanted.data = text)} />
      </>
    ),
    act: async () => {
      const key = wanted.key ? `?key=${enc(wanted.key)}` : "";
      const path = `/events/${encName(wanted.name)}${key}`;
      const made = await send<{ event_id: number }>("POST", path, parsed(texts.emit.what, wanted.data || "null"), once);
      return texts.emit.done(made.event_id);
    },
  });
}

export function cancelBackfill(id: number): void {
  ask({
    title: texts.backfill.cancelTitle(id),
    verb: texts.backfill.cancel,
    isGrave: true,
    body: <p>{texts.backfill.cancelMeaning}</p>,
    act: async () => {
      await send("POST", `/backfills/${id}/cancel`);
      return texts.backfill.cancelled(id);
    },
  });
}

/** Start a backfill. If no DAG is given, ask for it first. */
export function backfill(given: string | null): void {
  const of = { dag: given ?? "" };
  const wanted = { from: "", to: "", reprocess: "none", max_active: 0, reverse: false };
  ask({
    title: given === null ? shared.backfills.add : texts.backfill.title(given),
    verb: texts.backfill.verb,
    body: (
      <>
        {given === null && <DagText onValue={(text) => (of.dag = text)} />}
        <BackfillFields of={of} wanted={wanted} />
      </>
    ),
    act: async () => {
      const made = await send<{ backfill_id: number }>("POST", `/dags/${enc(of.dag)}/backfills`, wanted);
      go("/backfills");
      return texts.backfill.started(made.backfill_id);
    },
  });
}

type Range = { from: string; to: string; reprocess: string; max_active: number; reverse: boolean };

/** A field for the id of a DAG. */
function DagText({ onValue }: { onValue: (text: string) => void }) {
  const [text, setText] = useState("");
  const ids = useDagIds(text);
  return (
    <label>
      <span>{shared.run.dag}</span>
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
        {ids.map((id) => (
          <option key={id} value={id} />
        ))}
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
      <p>{texts.backfill.meaning}</p>
      <Text label={texts.backfill.from} hint={texts.backfill.fromHint} isRequired onValue={(text) => (wanted.from = text)} />
      <Text label={texts.backfill.to} hint={texts.backfill.toHint} isRequired onValue={(text) => (wanted.to = text)} />
      <Select label={texts.backfill.reprocess} value={wanted.reprocess} options={REPROCESS} onValue={(which) => (wanted.reprocess = which)} />
      <label>
        <span>{texts.backfill.atOnce}</span>
        <input type="number" min={0} max={1000} placeholder={texts.backfill.atOnceHint} onInput={(event) => (wanted.max_active = event.currentTarget.valueAsNumber || 0)} />
      </label>
      <Check label={texts.backfill.newestFirst} onOn={(on) => (wanted.reverse = on)} />
      <p>
        <button type="button" onClick={look}>
          {texts.backfill.preview}
        </button>
      </p>
      {wrong && <p class="wrong">{wrong}</p>}
      {seen && (
        <div class="preview" role="status">
          <p>{texts.backfill.counted(runs.length, seen.length - runs.length)}</p>
          <ul tabIndex={0} aria-label={texts.backfill.fireTimes}>
            {seen.slice(0, 200).map((one) => (
              <li key={one.logical_date}>
                {one.action === "run" ? texts.backfill.run : texts.backfill.skip} {shortTime(one.logical_date)} {one.state && <span class="soft">{texts.backfill.has(one.state)}</span>}
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

/** A value, and its label. */
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
