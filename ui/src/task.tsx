// The task pane: why it waits, log, tries, data and code.

import type { ComponentChildren } from "preact";

import { clear, mark, retry } from "./actions";
import { enc, query } from "./api";
import { CopyButton } from "./components/copy";
import { usePaneFocus } from "./components/detail";
import { Icon } from "./components/icons";
import { lazy } from "./components/lazy";
import { type Tab, TabBar } from "./components/tabs";
import { ofRun, useData, useItems } from "./data";
import { DecisionById } from "./decision";
import { TaskLog } from "./log";
import { NoteBox } from "./note";
import { Usually } from "./history";
import { Fact, Json, Shown, childName, childrenHref, number, taskHref } from "./parts";
import { closePane } from "./pane_place";
import { TaskCode } from "./task_code";
import { go, usePlace, withQuery } from "./router";
import { Bar, Glyph, Legend, State, isLive, named, sum } from "./states";
import { texts } from "./texts";
import { At, Took, When } from "./time";
import type { Note, RunGraphTask, Task, TaskShown, Try } from "./types";
import { stateWithWait } from "./wait_times";
import { Why } from "./why";

interface Props {
  run: string;
  /** The DAG and the version of its code that the run uses. */
  dag?: string;
  version?: string;
  task: string;
  map: number;
  round: number;
  /** All tasks of the run in their order, to find the ones before and after this one. */
  tasks?: RunGraphTask[];
  /**
   * The address of another task of this run, for a pane that is not on the page of the run.
   * The pane then names the run, and does not take the focus.
   */
  hrefOf?: (task: string) => string;
}

/** Return the task as the daemon shows it or, if it shows none, from the list of tasks. */
function useTask({ run, task, map, round }: Props) {
  const base = `/runs/${enc(run)}/tasks`;
  const fields = { map: map >= 0 ? map : null, round: round > 0 ? round : null };
  const on = ofRun(run);
  const shown = useData<TaskShown>(query(`${base}/${enc(task)}/show`, fields), { on });
  const isOld = shown.problem?.isAbsent === true;
  const listed = useItems<Task>(isOld ? query(base, { task, limit: 1000 }) : null, { on });
  if (!isOld) return shown;
  const found = listed.data?.find((one) => one.task_id === task && one.map_index === map && one.round === round);
  return { ...listed, data: found as TaskShown | undefined, problem: listed.data && !found ? shown.problem : listed.problem };
}

/** Return the address of the previous or next task; for a mapped child, that of its sibling. */
function beside({ run, task, map, tasks, hrefOf }: Props, by: 1 | -1): string | null {
  const at = tasks?.findIndex((one) => one.task_id === task) ?? -1;
  if (at === -1 || !tasks) return null;
  if (map >= 0) {
    const next = map + by;
    return next >= 0 && next < sum(tasks[at]!.counts) ? taskHref(run, task, next) : null;
  }
  const next = tasks[at + by];
  if (!next) return null;
  return hrefOf ? hrefOf(next.task_id) : taskHref(run, next.task_id);
}

export function TaskPane(props: Props) {
  const { run, task, map, round, tasks } = props;
  const place = usePlace();
  const box = usePaneFocus(props.hrefOf !== undefined);
  const shown = useTask(props);
  const group = tasks?.find((one) => one.task_id === task);
  const name = childName(task, map, round, shown.data?.map_label);
  const isWhole = map < 0 && !place.query.has("round") && (group?.width ?? null) !== null;
  const isFull = place.query.has("full");
  const [before, after] = [beside(props, -1), beside(props, 1)];
  return (
    <div ref={box} class="drawer" role="region" aria-label={`${texts.task.name} ${name}`} tabIndex={-1}>
      <header>
        <h2 class="cut" title={name}>
          {shown.data && !isWhole && <Glyph state={shown.data.state} />} <span class="cut">{name}</span>
          <CopyButton text={name} label={texts.task.copyName} />
        </h2>
        <div class="actions tight">
          <button type="button" class="plain icon-only" data-key="[" disabled={before === null} aria-label={texts.task.before} title={`${texts.task.before} ([)`} onClick={() => before !== null && go(before, { replace: true })}>
            <Icon name="chevron-up" />
          </button>
          <button type="button" class="plain icon-only" data-key="]" disabled={after === null} aria-label={texts.task.after} title={`${texts.task.after} (])`} onClick={() => after !== null && go(after, { replace: true })}>
            <Icon name="chevron-down" />
          </button>
          <button type="button" class="plain icon-only full" data-key="f" aria-label={isFull ? texts.task.narrow : texts.task.full} title={`${isFull ? texts.task.narrow : texts.task.full} (f)`} onClick={() => go(withQuery({ full: isFull ? null : "1" }), { replace: true })}>
            <Icon name={isFull ? "minimize-2" : "maximize-2"} size={15} />
          </button>
          <button type="button" class="plain icon-only" aria-label={texts.common.close} title={`${texts.common.close} (Esc)`} onClick={closePane}>
            <Icon name="x" size={18} />
          </button>
        </div>
      </header>
      {isWhole && group ? (
        <Children run={run} task={task} group={group} note={shown.data?.note} hasRun={props.hrefOf !== undefined} />
      ) : (
        <Shown of={shown}>{(data) => <One {...props} shown={data} />}</Shown>
      )}
    </div>
  );
}

interface ActionsProps {
  run: string;
  task: string;
  map: number;
  round: number;
  /** Whether clearing is the main action. */
  isBad: boolean;
  /** Whether it is a mapped task, of which only some children may have failed. */
  isGroup?: boolean;
  children?: ComponentChildren;
}

function Actions({ run, task, map, round, isBad, isGroup, children }: ActionsProps) {
  const isOfFailed = isBad && isGroup === true;
  const which = { run, task, map, round };
  const name = isOfFailed ? texts.actions.retryFailed : isBad ? texts.actions.retryTask : texts.actions.clear;
  const meaning = isOfFailed ? texts.actions.retryChildrenMeaning : isBad ? texts.actions.retryTaskMeaning : undefined;
  return (
    <div class="actions">
      <button type="button" data-needs="operator" data-key="c" class={isBad ? "main" : ""} title={meaning} onClick={() => void (isBad ? retry(which, isOfFailed) : clear(which))}>
        {name}
      </button>
      <button type="button" data-needs="operator" onClick={() => mark({ run, task, map })}>
        {texts.actions.markTask}
      </button>
      {children}
    </div>
  );
}

const FanOut = lazy(() => import("./fan_out/view"));

/** A mapped task as a whole. */
function Children({ run, task, group, note, hasRun }: { run: string; task: string; group: RunGraphTask; note: Note | null | undefined; hasRun: boolean }) {
  const isGoingOn = Object.keys(group.counts).some(isLive);
  const failed = group.counts["failed"] ?? 0;
  return (
    <div class="scroll">
      {hasRun && (
        <dl class="facts inline">
          <OfRun run={run} task={task} />
        </dl>
      )}
      <Actions run={run} task={task} map={-1} round={0} isBad={failed > 0 && !isGoingOn} isGroup>
        {note === null && <NoteBox of={{ run, task }} note={null} />}
      </Actions>
      {note && <NoteBox of={{ run, task }} note={note} />}
      <Bar counts={group.counts} />
      <Legend counts={group.counts} hrefOf={(state) => childrenHref(run, task, state)} />
      {(isGoingOn || (failed === 0 && (group.counts["upstream_failed"] ?? 0) > 0)) && <Why run={run} task={task} isGoingOn={isGoingOn} />}
      <FanOut run={run} task={task} isGoingOn={isGoingOn} failed={failed} />
    </div>
  );
}

/** The reason of an error whose traceback is in the log, so that it is not repeated beside the log. */
const IN_LOG = "raised";

/** Return the tab that answers the most likely question. */
const firstTab = (state: string): string => (isLive(state) && state !== "running" ? "why" : state === "upstream_failed" ? "why" : "log");

function OfRun({ run, task, map, round }: { run: string; task: string; map?: number; round?: number }) {
  return (
    <Fact name={texts.runs.run}>
      <a class="mono break" href={taskHref(run, task, map, round)}>
        {run}
      </a>
    </Fact>
  );
}

function One({ run, dag, version, task, map, round, shown, tasks, hrefOf }: Props & { shown: TaskShown }) {
  const place = usePlace();
  const live = isLive(shown.state);
  const at = place.query.get("tab") ?? firstTab(shown.state);
  const tries = Math.max(shown.try_number, ...(shown.tries ?? []).map((one) => one.try_number));
  const last = shown.tries?.at(-1);
  const tabs: Tab[] = (["why", "log", "tries", "data", "code"] as const).map((key) => ({
    key,
    name: texts.task.tabs[key],
    href: withQuery({ tab: key }),
    badge: key === "tries" && tries > 1 ? number(tries) : undefined,
  }));
  return (
    <>
      <div class="task-top">
        <dl class="facts inline">
          {hrefOf && <OfRun run={run} task={task} map={map} round={round} />}
          <div>
            <dt class="offscreen">{texts.task.state}</dt>
            <dd>
              <State state={shown.state} name={stateWithWait(shown)} />
            </dd>
          </div>
          <div>
            <dt>{texts.task.try}</dt>
            <dd>
              {shown.try_number > 0 ? `${shown.try_number} of ${shown.max_tries}` : `none yet, of ${shown.max_tries}`}
              {shown.interruptions > 0 && `, interrupted ${shown.interruptions} times`}
            </dd>
          </div>
          <div>
            <dt>{texts.task.started}</dt>
            <dd>
              <When at={shown.started_at} />
            </dd>
          </div>
          <div>
            <dt>{live ? texts.common.elapsed : texts.task.duration}</dt>
            <dd>
              <Took from={shown.started_at} to={live ? null : shown.ended_at} /> <Usually seconds={tasks?.find((one) => one.task_id === task)?.usual_seconds} />
            </dd>
          </div>
          {last && last.executor !== null && (
            <div>
              <dt>{last.state === "running" ? texts.task.runsOn : texts.task.ranOn}</dt>
              <dd class="break">
                <RanOn one={last} isShort />
              </dd>
            </div>
          )}
        </dl>
        <Actions run={run} task={task} map={map} round={round} isBad={shown.state === "failed"}>
          {!shown.note && <NoteBox of={{ run, task, map, round }} note={null} />}
        </Actions>
        {shown.note && <NoteBox of={{ run, task, map, round }} note={shown.note} />}
        {shown.error && !(at === "log" && shown.error.reason === IN_LOG) && (
          <div class="error" role="note">
            <strong>{shown.error.type || shown.error.reason}</strong> <span class="soft">{named(shown.error.reason)}</span>
            <pre tabIndex={0}>{shown.error.message}</pre>
          </div>
        )}
      </div>
      <TabBar label={texts.task.views} at={at} tabs={tabs} replace />
      <div class="scroll" key={at}>
        {at === "log" ? (
          <TaskLog run={run} task={task} map={map} round={round} tries={tries} isGoingOn={live} />
        ) : at === "tries" ? (
          <Tries tries={shown.tries ?? []} />
        ) : at === "data" ? (
          <TaskData run={run} shown={shown} />
        ) : at === "code" ? (
          <TaskCode dag={dag} version={version} task={task} />
        ) : (
          <WhyOf run={run} task={task} map={map} round={round} shown={shown} />
        )}
      </div>
    </>
  );
}

function WhyOf({ run, task, map, round, shown }: { run: string; task: string; map: number; round: number; shown: TaskShown }) {
  const live = isLive(shown.state);
  const trigger = shown.trigger;
  return (
    <>
      {live || shown.state === "upstream_failed" ? (
        <Why run={run} task={task} map={map} round={round} isGoingOn={live} />
      ) : (
        <p class="soft">{shown.state === "failed" ? texts.task.ownError : texts.task.waitsForNothing}</p>
      )}
      {trigger?.kind === "person" && <DecisionById id={trigger.trigger_id} />}
      {trigger && trigger.kind !== "person" && (
        <section>
          <h3>{texts.task.trigger}</h3>
          <dl class="facts">
            <dt>{texts.task.kind}</dt>
            <dd>
              {trigger.kind} <a href={`/triggers?kind=${enc(trigger.kind)}`}>{texts.common.showAll}</a>
            </dd>
            <dt>{texts.task.waitingFor}</dt>
            <dd class="break">
              {trigger.label && <b>{trigger.label}: </b>}
              {(trigger.text ?? trigger.detail).replace(/^for /, "")}
            </dd>
            <dt>{texts.task.state}</dt>
            <dd>{named(trigger.state)}</dd>
            <dt>{texts.common.elapsed}</dt>
            <dd>
              <Took from={trigger.since} to={null} />
            </dd>
            {trigger.fires_at && (
              <>
                <dt>{texts.triggers.ends}</dt>
                <dd>
                  <When at={trigger.fires_at} />
                </dd>
              </>
            )}
            {trigger.deadline && trigger.deadline !== trigger.fires_at && (
              <>
                <dt>{texts.task.deadline}</dt>
                <dd>
                  <When at={trigger.deadline} /> <span class="soft">(<At at={trigger.deadline} hasZone />)</span>
                </dd>
              </>
            )}
            {trigger.shared_with !== null && trigger.shared_with > 0 && (
              <>
                <dt>{texts.task.shared}</dt>
                <dd>{texts.task.sharedWith(trigger.shared_with)}</dd>
              </>
            )}
          </dl>
        </section>
      )}
      {shown.records && shown.records.length > 0 && (
        <section>
          <h3>{texts.task.timeline}</h3>
          <ol class="timeline">
            {shown.records.map((record) => (
              <li key={record.ordinal}>
                <b>{record.label ?? record.kind}</b> {record.label && `${record.kind} `}
                {record.name} <span class="soft">{record.at}</span>
                {record.value !== null && record.value !== undefined && <Json value={record.value} />}
              </li>
            ))}
          </ol>
        </section>
      )}
    </>
  );
}

function TaskData({ run, shown }: { run: string; shown: TaskShown }) {
  const inputs = shown.inputs ?? [];
  const hasResult = shown.state === "success" && shown.result !== null;
  if (inputs.length === 0 && !hasResult) return <p class="soft">{texts.task.noData}</p>;
  return (
    <>
      {inputs.length > 0 && <h3>{texts.task.inputs}</h3>}
      {inputs.map((input) => (
        <div key={input.name}>
          <h4>
            {input.name} {input.from_task && <a href={taskHref(run, input.from_task)}>from {input.from_task}</a>}
          </h4>
          <Json value={input.value} />
        </div>
      ))}
      {hasResult && (
        <>
          <h3>{texts.task.result}</h3>
          <Json value={shown.result} />
        </>
      )}
    </>
  );
}

/** Whether a URL is a web page. Others are not linked, because the URL comes from the executor's engine. */
const isPage = (url: string | null): url is string => url !== null && /^https?:\/\//.test(url);

function RanOn({ one, isShort }: { one: Try; isShort?: boolean }) {
  return (
    <span title={one.worker ?? undefined}>
      <a href={`/executors?open=${enc(one.executor ?? "")}`}>{one.executor}</a>
      {one.host && `, ${one.host}`}
      {one.worker && !isShort && <small class="soft"> {one.worker}</small>}
      {isPage(one.worker_url) && (
        <>
          {" "}
          <a href={one.worker_url} target="_blank" rel="noopener noreferrer">
            {texts.task.dashboard}
          </a>
        </>
      )}
    </span>
  );
}

function Tries({ tries }: { tries: Try[] }) {
  const isRemote = tries.some((one) => one.executor !== null);
  if (tries.length === 0) return <p class="soft">{texts.task.noTries}</p>;
  return (
    <table>
      <thead>
        <tr>
          <th>{texts.task.try}</th>
          <th>{texts.task.state}</th>
          <th>{texts.task.started}</th>
          <th class="num">{texts.task.duration}</th>
          {isRemote && <th>{texts.task.ranOn}</th>}
          <th>{texts.task.whyEnded}</th>
        </tr>
      </thead>
      <tbody>
        {tries.flatMap((one, index) => [
          one.cleared && (
            <tr key={`cleared ${index}`} class="cleared">
              <td colSpan={isRemote ? 6 : 5}>
                {texts.task.clearedBy(one.cleared.by)} {one.cleared.at && <When at={one.cleared.at} />}
              </td>
            </tr>
          ),
          <tr key={index}>
            <td>{one.try_number}</td>
            <td>
              <State state={one.state} />
            </td>
            <td>
              <When at={one.started_at} />
            </td>
            <td class="num">
              <Took from={one.started_at} to={one.ended_at} />
            </td>
            {isRemote && <td class="break">{one.executor === null ? "local" : <RanOn one={one} />}</td>}
            <td class="break">{one.error ?? one.reason ?? ""}</td>
          </tr>,
        ])}
      </tbody>
    </table>
  );
}
