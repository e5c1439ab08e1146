// Why a run or task waits or has failed: one sentence per cause, with times and actions.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

import { clear, mark, meet, pause, setPool } from "./actions";
import { enc, query } from "./api";
import { never, ofRun, useData, useItems } from "./data";
import { fire, fireName } from "./fire";
import { childName, childrenHref, dagHref, runHref, taskHref } from "./parts";
import { Glyph } from "./states";
import "./styles/why.css";
import { texts } from "./texts";
import { When, millis, zoneName } from "./time";
import type { Cause, Chain, Pool, Target, Wait } from "./types";
import { EndTime, WaitTimes, clockOf, endOf } from "./wait_times";

interface WhyProps {
  run: string;
  task?: string;
  map?: number;
  round?: number;
  /** Whether the run or task is active. Otherwise it failed, and the cause of that is shown. */
  isGoingOn: boolean;
}

const BAD = new Set(["failed", "upstream_failed", "cancelled"]);
/** Maximum numbers of causes that are listed, and that are visible at first. */
const LINKS = 60;
const FIRST = 3;
/** The word in the sentence about a sensor that leads to its code. */
const CONDITION = "condition";
const SLOWEST_MS = 5000;
const FASTEST_MS = 2000;

export function Why({ run, task, map = -1, round = 0, isGoingOn }: WhyProps) {
  const base = `/runs/${enc(run)}${task ? `/tasks/${enc(task)}` : ""}/why`;
  const path = query(base, { map: map >= 0 ? map : null, round: round > 0 ? round : null });
  const [every, setEvery] = useState(SLOWEST_MS);
  const [isWhole, setWhole] = useState(false);
  // Poll as well, because a check that finds nothing makes no commit.
  const chain = useData<Chain>(path, isGoingOn ? { gap: 1000, every } : { on: ofRun(run), gap: 1000 });
  const all = chain.data?.causes ?? [];
  useEffect(() => setEvery(pace(all)), [chain.data]);
  const causes = all.filter((cause, index) =>
    // A running task waits for nothing, and the task in question shows its own error elsewhere.
    isGoingOn ? cause.waiting_on !== null || cause.run_id !== run : BAD.has(cause.state) && !(task && index === 0),
  );
  const first = causes[0];
  if (!first || !chain.data) return null;
  const depth = Math.min(...causes.map((cause) => cause.depth));
  const shown = causes.slice(0, isWhole ? LINKS : FIRST);
  const more = chain.data.more + Math.max(0, causes.length - LINKS);
  const hidden = Math.min(causes.length, LINKS) - shown.length;
  const Title = task ? "h3" : "h2";
  return (
    <section class={isGoingOn ? "why" : "why is-bad"}>
      <Title>{isGoingOn ? texts.why.waits : texts.why.failed}</Title>
      <ol>
        {shown.map((cause, index) => (
          <li key={`${cause.run_id} ${cause.task_id} ${cause.map_index} ${cause.round} ${index}`} class={`why-cause depth-${Math.min(cause.depth - depth, 6)}${index === 0 ? " first" : ""}`}>
            <Glyph state={cause.state} />
            <div>
              <p class="why-text">
                <Sentence cause={cause} run={run} />
              </p>
              <Times cause={cause} zone={chain.data?.timezone ?? "UTC"} />
              {isGoingOn && <Actions cause={cause} dag={chain.data?.dag_id ?? ""} />}
            </div>
          </li>
        ))}
      </ol>
      {hidden > 0 && (
        <button type="button" class="small" onClick={() => setWhole(true)}>
          {texts.why.showMore(hidden)}
        </button>
      )}
      {more > 0 && isWhole === (causes.length > FIRST) && <p class="soft">{texts.why.more(more)}</p>}
    </section>
  );
}

interface CauseLineProps {
  run: string;
  isGoingOn: boolean;
  /** Shown if there is no cause. */
  children: ComponentChildren;
}

/** What a run is waiting for, and until when, or which task failed with which error, in one sentence. */
export function CauseLine({ run, isGoingOn, children }: CauseLineProps) {
  const chain = useData<Chain>(`/runs/${enc(run)}/why`, isGoingOn ? { gap: 1000, every: SLOWEST_MS } : { on: ofRun(run), gap: 1000 });
  const causes = (chain.data?.causes ?? []).filter((cause) => (isGoingOn ? cause.waiting_on !== null || cause.run_id !== run : BAD.has(cause.state)));
  const first = causes[0];
  if (!first) return chain.data || chain.problem ? <>{children}</> : null;
  const more = causes.length - 1 + (chain.data?.more ?? 0);
  return (
    <>
      <Glyph state={first.state} /> <Sentence cause={first} run={run} />
      {first.waiting_on && <Until wait={first.waiting_on} />}
      {more > 0 && (
        <>
          {" "}
          <a href={runHref(run)}>{texts.why.more(more)}</a>
        </>
      )}
    </>
  );
}

/** When a wait ends by itself, as a part of its sentence; else its deadline. */
function Until({ wait }: { wait: Wait }) {
  const end = endOf(wait);
  if (!end) return null;
  if (end.at !== wait.fires_at) return <span class="soft"> · <EndTime end={end} /></span>;
  return (
    <>
      , {texts.why.until} {clockOf(end.at)} {zoneName()} (<When at={end.at} />)
    </>
  );
}

/** How often to ask, so that what is checked often is not shown as of long ago. */
function pace(causes: Cause[]): number {
  const lengths = causes.map(({ waiting_on: wait }) => (millis(wait?.next_check_at) ?? Infinity) - (millis(wait?.last_check_at) ?? 0));
  return Math.max(FASTEST_MS, Math.min(SLOWEST_MS, ...lengths));
}

/** The daemon's sentence, with links at the names in it. */
function Sentence({ cause, run }: { cause: Cause; run: string }) {
  const name = childName(cause.task_id, cause.map_index, cause.round, cause.map_label);
  const href = cause.count > 1 ? childrenHref(cause.run_id, cause.task_id, cause.state) : taskHref(cause.run_id, cause.task_id, cause.map_index, cause.round);
  const who = cause.count > 1 ? cause.text.slice(0, cause.text.indexOf(` of ${cause.task_id} `) + ` of ${cause.task_id}`.length) : name;
  const links: [string, string][] = cause.shares.map((share) => [share.run_id, runHref(share.run_id)]);
  const target = cause.target && targetHref(cause.target);
  if (cause.target && target) links.unshift([cause.target.name, target]);
  if (cause.waiting_on?.kind === "interval") links.unshift([CONDITION, `${href}&tab=code`]);
  const starts = cause.text.startsWith(who);
  return (
    <>
      {cause.run_id !== run && <a href={runHref(cause.run_id)}>{cause.run_id}</a>} {starts ? <a href={href}>{who}</a> : <a href={href}>{name}</a>}
      {linked(starts ? cause.text.slice(who.length) : `: ${cause.text}`, links)}
    </>
  );
}

function targetHref(target: Target): string | null {
  switch (target.type) {
    case "pool":
      return `/pools?open=${enc(target.name)}`;
    case "run":
      return target.run_id && (target.task_id ? taskHref(target.run_id, target.task_id) : runHref(target.run_id));
    case "dag":
      return target.dag_id && dagHref(target.dag_id);
    case "event":
      return `/events?name=${enc(target.name)}`;
    default:
      return null;
  }
}

/** Return a text in which the first occurrence of each name is a link. */
export function linked(text: string, links: [name: string, href: string][]): ComponentChildren {
  const found = links
    .map(([name, href]) => ({ name, href, at: name ? text.indexOf(name) : -1 }))
    .filter((one) => one.at >= 0)
    .sort((a, b) => a.at - b.at || b.name.length - a.name.length);
  const parts: ComponentChildren[] = [];
  let end = 0;
  for (const { name, href, at } of found) {
    if (at < end) continue;
    parts.push(text.slice(end, at), <a href={href}>{name}</a>);
    end = at + name.length;
  }
  return [...parts, text.slice(end)];
}

function Times({ cause, zone }: { cause: Cause; zone: string }) {
  const wait = cause.waiting_on;
  return wait && (wait.since ?? endOf(wait)) && (
    <p class="why-times soft">
      <WaitTimes wait={wait} zone={zone} usual={cause.usual_seconds} />
    </p>
  );
}

/**
 * The actions of a user on a wait, one button each, if the user's role allows them.
 * Failures are cleared at the task or the run.
 */
function Actions({ cause, dag }: { cause: Cause; dag: string }) {
  const { actions, target, waiting_on: wait } = cause;
  const name = childName(cause.task_id, cause.map_index, cause.round, cause.map_label);
  const which = { run: cause.run_id, task: cause.task_id, map: cause.count > 1 ? -1 : cause.map_index, round: cause.round };
  const one = (key: string, text: string, act: () => void) => (
    <button key={key} type="button" class="small" data-needs="operator" onClick={act}>
      {text}
    </button>
  );
  const shown = actions.flatMap((action) => {
    switch (action) {
      case "fire":
        return wait?.trigger_id && cause.count === 1 ? [one(action, fireName(target?.type), () => void fire(wait.trigger_id!, name))] : [];
      case "set_pool":
        return target ? [<PoolAction key={action} name={target.name} />] : [];
      case "resume":
        return [one(action, texts.why.resumeDag, () => void pause(dag, false))];
      case "clear":
        return [one(action, texts.actions.clear, () => clear(which))];
      case "mark":
        return [wait?.kind === "interval" ? one(action, texts.actions.markMet, () => meet(which)) : one(action, texts.actions.markTask, () => mark(which))];
      default:
        return [];
    }
  });
  return shown.length > 0 ? <div class="why-actions">{shown}</div> : null;
}

function PoolAction({ name }: { name: string }) {
  const pools = useItems<Pool>("/pools", { on: never });
  const pool = pools.data?.find((one) => one.name === name);
  if (!pool) return null;
  return (
    <button type="button" class="small" data-needs="operator" onClick={() => setPool(name, pool.slots, pool.include_deferred)}>
      {texts.why.changePool}
    </button>
  );
}
