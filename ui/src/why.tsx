// Why something waits or failed: the chain of its causes.

import { useEffect, useState } from "preact/hooks";

import { enc, query } from "./api";
import { ofRun, useData } from "./data";
import { Checks, Waits, childName, number, taskHref } from "./parts";
import { State } from "./states";
import { millis } from "./time";
import type { Cause, Chain } from "./types";

interface WhyProps {
  run: string;
  task?: string;
  map?: number;
  round?: number;
  /** Whether it is active; else it failed, and the cause is shown. */
  isGoingOn: boolean;
}

const BAD = new Set(["failed", "upstream_failed", "cancelled"]);
const LINKS = 60;
/** Of a message so many characters; the task has all of it. */
const MESSAGE = 300;
const SLOWEST_MS = 5000;
const FASTEST_MS = 2000;

/** What something waits for, and what that waits for; or what it has failed of. */
export function Why({ run, task, map = -1, round = 0, isGoingOn }: WhyProps) {
  const base = `/runs/${enc(run)}${task ? `/tasks/${enc(task)}` : ""}/why`;
  const path = query(base, { map: map >= 0 ? map : null, round: round > 0 ? round : null });
  const [every, setEvery] = useState(SLOWEST_MS);
  // Also without a commit: a look that finds nothing makes none, nor does "ask again".
  const chain = useData<Chain>(path, isGoingOn ? { gap: 1000, every } : { on: ofRun(run), gap: 1000 });
  const all = chain.data?.causes ?? [];
  useEffect(() => setEvery(pace(all)), [chain.data]);
  const isNews = (cause: Cause, index: number): boolean => {
    // What just runs waits for nothing; what was asked about has its own error above.
    if (isGoingOn) return cause.waiting_on !== null || cause.run_id !== run;
    return BAD.has(cause.state) && !(task && index === 0);
  };
  const causes = all.filter(isNews);
  if (causes.length === 0) return null;
  const depth = Math.min(...causes.map((cause) => cause.depth));
  const more = (chain.data?.more ?? 0) + Math.max(0, causes.length - LINKS);
  const Title = task ? "h3" : "h2";
  return (
    <section class="why">
      <Title>{isGoingOn ? "Why it waits" : "Why it failed"}</Title>
      <ol>
        {causes.slice(0, LINKS).map((cause, index) => (
          <li key={index} style={{ marginLeft: `${Math.min(cause.depth - depth, 10) * 14}px` }}>
            <Link run={run} cause={cause} />
          </li>
        ))}
      </ol>
      {more > 0 && <p class="soft">and {number(more)} more</p>}
    </section>
  );
}

/** How often to ask, so that what is looked at often is not shown as of long ago. */
function pace(causes: Cause[]): number {
  const lengths = causes.map(({ waiting_on: wait }) => (millis(wait?.next_check_at) ?? Infinity) - (millis(wait?.last_check_at) ?? 0));
  return Math.max(FASTEST_MS, Math.min(SLOWEST_MS, ...lengths));
}

/** One link of a chain of causes. */
function Link({ run, cause }: { run: string; cause: Cause }) {
  const { waiting_on: wait, error, count } = cause;
  return (
    <>
      <a href={taskHref(cause.run_id, cause.task_id, cause.map_index, cause.round)}>
        <State state={cause.state} /> {count > 1 && `${number(count)} children like `}
        {cause.run_id !== run && `${cause.run_id} `}
        {childName(cause.task_id, cause.map_index, cause.round, cause.map_label)}
      </a>{" "}
      <Waits wait={wait} /> {wait && <Checks wait={wait} />}
      {error && (
        <span class="bad break">
          {error.type || error.reason}
          {error.message && `: ${error.message.slice(0, MESSAGE)}${error.message.length > MESSAGE ? " …" : ""}`}
        </span>
      )}
    </>
  );
}
