// One task of a run: why it waits, its tries, its log, what went in and what came out.

import { useEffect, useRef, useState } from "preact/hooks";

import { clear, mark } from "./actions";
import { enc, query } from "./api";
import { ofRun, useData } from "./data";
import { Log } from "./log";
import { Json, Shown, childName, runHref, taskHref } from "./parts";
import { go, withQuery } from "./router";
import { Bar, Glyph, Legend, State, isLive, sum } from "./states";
import { Took, When } from "./time";
import type { RunGraphTask, Task, TaskShown, Try } from "./types";
import { Why } from "./why";

interface Props {
  run: string;
  task: string;
  map: number;
  round: number;
  group?: RunGraphTask;
}

export const closed = () => go(withQuery({ task: null, map: null, round: null, try: null }));

/** The task as the daemon shows it, or out of the list of tasks where it shows none. */
function useTask({ run, task, map, round }: Props) {
  const base = `/runs/${enc(run)}/tasks`;
  const fields = { map: map >= 0 ? map : null, round: round > 0 ? round : null };
  const on = ofRun(run);
  const shown = useData<TaskShown>(query(`${base}/${enc(task)}/show`, fields), { on });
  const isOld = shown.problem?.isAbsent === true;
  const listed = useData<Task[]>(isOld ? query(base, { task, limit: 1000 }) : null, { on });
  if (!isOld) return shown;
  const found = listed.data?.find((one) => one.task_id === task && one.map_index === map && one.round === round);
  return { ...listed, data: found as TaskShown | undefined, problem: listed.data && !found ? shown.problem : listed.problem };
}

export function Drawer(props: Props) {
  const { run, task, map, round, group } = props;
  const box = useRef<HTMLDivElement>(null);
  const shown = useTask(props);
  const name = childName(task, map, round, shown.data?.map_label);
  const isWhole = map < 0 && (group?.width ?? null) !== null;
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    box.current?.focus();
    return () => before?.isConnected && before.focus();
  }, []);
  return (
    <div ref={box} class="drawer" role="dialog" aria-label={`Task ${name}`} tabIndex={-1}>
      <header>
        <h2>{name}</h2>
        <button type="button" class="plain" aria-label="Close" onClick={closed}>
          ×
        </button>
      </header>
      <div class="scroll">
        <div class="actions">
          <button type="button" data-needs="operator" onClick={() => clear({ run, task, map, round })}>
            Clear …
          </button>
          <button type="button" data-needs="operator" onClick={() => mark({ run, task, map })}>
            Mark …
          </button>
        </div>
        {isWhole && group ? <Children run={run} task={task} group={group} /> : <Shown of={shown}>{(data) => <One {...props} shown={data} />}</Shown>}
      </div>
    </div>
  );
}

/** A mapped task as a whole. */
function Children({ run, task, group }: { run: string; task: string; group: RunGraphTask }) {
  const isGoingOn = Object.keys(group.counts).some(isLive);
  const failed = group.counts["failed"] ?? 0;
  return (
    <>
      <h3>Children</h3>
      <Bar counts={group.counts} />
      <Legend counts={group.counts} hrefOf={(state) => `${runHref(run)}/tasks?of=${enc(task)}&state=${state}`} />
      <p>
        <a href={`${runHref(run)}/tasks?of=${enc(task)}`}>
          All {sum(group.counts).toLocaleString("en")} of them
        </a>
      </p>
      {failed > 0 && <Failures run={run} task={task} />}
      {(isGoingOn || (failed === 0 && (group.counts["upstream_failed"] ?? 0) > 0)) && <Why run={run} task={task} isGoingOn={isGoingOn} />}
    </>
  );
}

const FAILURES = 20;

/** The first of those that failed, and why: most failures of many have one cause. */
function Failures({ run, task }: { run: string; task: string }) {
  const failed = useData<Task[]>(query(`/runs/${enc(run)}/tasks`, { task, state: "failed", limit: FAILURES }), { on: ofRun(run), gap: 1000 });
  return (
    <section>
      <h3>Failed</h3>
      <Shown of={failed}>
        {(rows) => (
          <ul class="rows">
            {rows.map((row) => (
              <li key={`${row.map_index} ${row.round}`}>
                <a class="row" href={taskHref(run, row.task_id, row.map_index, row.round)}>
                  <Glyph state={row.state} />
                  <span class="cut">{childName(row.task_id, row.map_index, row.round, row.map_label)}</span>
                  <span class="cut grow soft" title={row.error?.message}>
                    {row.error && `${row.error.type || row.error.reason}: ${row.error.message}`}
                  </span>
                </a>
              </li>
            ))}
          </ul>
        )}
      </Shown>
    </section>
  );
}

function One({ run, task, map, round, shown }: Props & { shown: TaskShown }) {
  const live = isLive(shown.state);
  const trigger = shown.trigger;
  return (
    <>
      <dl class="facts">
        <dt>State</dt>
        <dd>
          <State state={shown.state} />
        </dd>
        <dt>Try</dt>
        <dd>
          {shown.try_number > 0 ? `${shown.try_number} of ${shown.max_tries}` : `none yet, of ${shown.max_tries}`}
          {shown.interruptions > 0 && `, interrupted ${shown.interruptions} times`}
        </dd>
        <dt>Started</dt>
        <dd>
          <When at={shown.started_at} />
        </dd>
        <dt>{live ? "Takes" : "Took"}</dt>
        <dd>
          <Took from={shown.started_at} to={live ? null : shown.ended_at} />
        </dd>
      </dl>
      {shown.error && (
        <div class="error" role="note">
          <strong>{shown.error.type || shown.error.reason}</strong> <span class="soft">{shown.error.reason}</span>
          <pre tabIndex={0}>{shown.error.message}</pre>
        </div>
      )}
      {(live || shown.state === "upstream_failed") && <Why run={run} task={task} map={map} round={round} isGoingOn={live} />}
      {trigger && (
        <>
          <h3>Trigger</h3>
          <dl class="facts">
            <dt>Kind</dt>
            <dd>
              {trigger.kind}, <a href={`/triggers?kind=${enc(trigger.kind)}`}>all of them</a>
            </dd>
            <dt>Waiting for</dt>
            <dd class="break">
              {trigger.label && <b>{trigger.label}: </b>}
              {(trigger.text ?? trigger.detail).replace(/^for /, "")}
            </dd>
            <dt>State</dt>
            <dd>{trigger.state.replaceAll("_", " ")}</dd>
            <dt>Since</dt>
            <dd>
              <When at={trigger.since} />
            </dd>
            {trigger.deadline && (
              <>
                <dt>At the latest</dt>
                <dd>
                  <When at={trigger.deadline} />
                </dd>
              </>
            )}
            {trigger.shared_with !== null && trigger.shared_with > 0 && (
              <>
                <dt>Shares its watch</dt>
                <dd>with {trigger.shared_with} others</dd>
              </>
            )}
          </dl>
        </>
      )}
      {shown.inputs && shown.inputs.length > 0 && (
        <Fold title="Inputs">
          {shown.inputs.map((input) => (
            <div key={input.name}>
              <h4>
                {input.name} {input.from_task && <a href={taskHref(run, input.from_task)}>from {input.from_task}</a>}
              </h4>
              <Json value={input.value} />
            </div>
          ))}
        </Fold>
      )}
      {shown.state === "success" && shown.result !== null && (
        <Fold title="Result">
          <Json value={shown.result} />
        </Fold>
      )}
      {shown.tries && shown.tries.length > 0 && <Tries tries={shown.tries} />}
      {shown.records && shown.records.length > 0 && (
        <Fold title="Timeline">
          <ol class="timeline">
            {shown.records.map((record) => (
              <li key={record.ordinal}>
                <b>{record.label ?? record.kind}</b> {record.label && `${record.kind} `}
                {record.name} <span class="soft">{record.at}</span>
                {record.value !== null && record.value !== undefined && <Json value={record.value} />}
              </li>
            ))}
          </ol>
        </Fold>
      )}
      <Logs run={run} task={task} map={map} round={round} tries={Math.max(shown.try_number, ...(shown.tries ?? []).map((one) => one.try_number))} isGoingOn={live} />
    </>
  );
}

function Fold({ title, children }: { title: string; children: preact.ComponentChildren }) {
  return (
    <details open>
      <summary>
        <h3>{title}</h3>
      </summary>
      {children}
    </details>
  );
}

/** Only pages of the web are linked to: the address comes from the engine of the executor. */
const isPage = (url: string | null): url is string => url !== null && /^https?:\/\//.test(url);

function RanOn({ one }: { one: Try }) {
  const text = [one.executor, one.host].filter(Boolean).join(", ");
  return (
    <span title={one.worker ?? undefined}>
      {isPage(one.worker_url) ? (
        <a href={one.worker_url} target="_blank" rel="noopener noreferrer">
          {text}
        </a>
      ) : (
        text
      )}
      {one.worker && <small class="soft"> {one.worker}</small>}
    </span>
  );
}

function Tries({ tries }: { tries: Try[] }) {
  const isRemote = tries.some((one) => one.executor !== null);
  return (
    <Fold title="Tries">
      <table>
        <thead>
          <tr>
            <th>Try</th>
            <th>State</th>
            <th>Started</th>
            <th>Took</th>
            {isRemote && <th>Ran on</th>}
            <th>Why it ended</th>
          </tr>
        </thead>
        <tbody>
          {tries.flatMap((one, index) => [
            one.cleared && (
              <tr key={`cleared ${index}`} class="cleared">
                <td colSpan={isRemote ? 6 : 5}>
                  Cleared{one.cleared.by && ` by ${one.cleared.by}`}
                  {one.cleared.at && (
                    <>
                      {" "}
                      <When at={one.cleared.at} />
                    </>
                  )}
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
              <td>
                <Took from={one.started_at} to={one.ended_at} />
              </td>
              {isRemote && <td class="break">{one.executor === null ? "local" : <RanOn one={one} />}</td>}
              <td class="break">{one.error ?? one.reason ?? ""}</td>
            </tr>,
          ])}
        </tbody>
      </table>
    </Fold>
  );
}

function Logs({ run, task, map, round, tries, isGoingOn }: { run: string; task: string; map: number; round: number; tries: number; isGoingOn: boolean }) {
  const [wanted, setWanted] = useState("");
  return (
    <section class="log-section">
      <h3>
        Log{" "}
        {tries > 1 && (
          <select aria-label="Log of which try" value={wanted} onChange={(event) => setWanted(event.currentTarget.value)}>
            <option value="">all tries</option>
            {Array.from({ length: tries }, (_, index) => (
              <option key={index} value={String(index + 1)}>
                try {index + 1}
              </option>
            ))}
          </select>
        )}
      </h3>
      <Log key={`${task} ${map} ${round} ${wanted}`} run={run} task={task} map={map} round={round} tryNumber={wanted === "" ? null : Number(wanted)} isGoingOn={isGoingOn} />
    </section>
  );
}
