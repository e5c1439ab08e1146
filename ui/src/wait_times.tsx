// How long something has waited, and when that ends: by itself, or with a timeout.

import { Usually } from "./history";
import { named } from "./states";
import { stateName, texts } from "./texts";
import { Both, Next, Took, When, ago, instant, local, millis, shortTime, span, useNow } from "./time";
import type { TaskShown, Wait } from "./types";

/** The detail of a sensor that no trigger host runs; its `until` is when the sensor starts again. */
const NEXT_CHECK = "the next check";

interface End {
  name: string;
  at: string;
  /** Whether the end is that of a pause between two checks. */
  isCheck?: boolean;
}

/** Return when and how a wait ends; null if nothing limits it. */
export function endOf(wait: Pick<Wait, "kind" | "detail" | "until" | "fires_at">): End | null {
  if (wait.fires_at && (!wait.until || (millis(wait.fires_at) ?? 0) <= (millis(wait.until) ?? 0))) return { name: texts.why.ends, at: wait.fires_at };
  if (!wait.until) return null;
  switch (wait.kind) {
    case "retry_at":
      return { name: texts.why.nextTry, at: wait.until };
    case "interval":
      return wait.detail === NEXT_CHECK ? { name: texts.why.nextCheck, at: wait.until, isCheck: true } : { name: texts.why.fails, at: wait.until };
    case "trigger":
    case "event":
      return { name: texts.why.fails, at: wait.until };
    case "decision":
      return { name: texts.why.deadline, at: wait.until };
    default:
      return { name: texts.why.until, at: wait.until };
  }
}

/** The clock time to the minute, with the date unless it is today. */
export function clockOf(at: string): string {
  const text = shortTime(at).replace(/(:\d\d):\d\d$/, "$1");
  return text.startsWith(`${local(instant(Date.now())).slice(0, 10)} `) ? text.slice(11) : text;
}

/** The state of a task with what it waits for, in a few words: "Waiting until 10:20". */
export function stateWithWait({ state, trigger }: Pick<TaskShown, "state" | "trigger">): string {
  if (state !== "deferred" && state !== "sensing") return stateName(state);
  const detail = trigger?.fires_at ? `${texts.why.until} ${clockOf(trigger.fires_at)}` : texts.triggers.for(trigger?.kind ?? "condition");
  return `${stateName(state)} ${detail}`;
}

/** What a task waits for, in as few words as a box has room for: "until 10:20", "for a decision". */
export function briefWait(wait: Wait): string {
  if (wait.fires_at) return `${texts.why.until} ${clockOf(wait.fires_at)}`;
  if (wait.label) return `${texts.why.for} ${wait.label}`;
  return texts.why.kinds[wait.kind] ?? `${texts.why.for} ${named(wait.kind)}`;
}

/**
 * How often it is checked, when it was checked last and with what answer, and when it is next, in sentences.
 * What is not known is left out; undefined if nothing is.
 */
function useChecks(wait: Wait | null | undefined): string | undefined {
  const isPaused = wait?.kind === "interval" && wait.detail === NEXT_CHECK;
  const last = millis(wait?.last_check_at);
  const next = wait?.fires_at ? null : millis(wait?.next_check_at ?? (isPaused ? wait.until : null));
  const now = useNow(last !== null || next !== null);
  const every = wait?.every_seconds;
  const isOften = typeof every === "number" && every <= OFTEN_SECONDS;
  // The words of a trigger's own check are part of what it waits for.
  const answer = wait?.last_answer && !wait.detail.endsWith(wait.last_answer) ? wait.last_answer : null;
  const parts = [
    every ? texts.why.every(everyText(every)) : "",
    isOften ? (answer === null ? "" : texts.why.lastCheck("", answer)) : last === null ? "" : texts.why.lastCheck(ago(last, now), answer),
    next === null || isOften ? "" : texts.why.nextCheckIn(ago(Math.max(next, now), now)),
  ].filter(Boolean);
  return parts.length > 0 ? parts.join(" ") : undefined;
}

/** What is checked so often was always checked just now. */
const OFTEN_SECONDS = 5;

const UNITS: Record<number, string> = { 1: "second", 60: "minute", 3600: "hour" };

const everyText = (seconds: number): string => UNITS[seconds] ?? (Number.isInteger(seconds) && seconds < 60 ? `${seconds}s` : span(1000 * seconds));

export function EndTime({ end: { name, at, isCheck } }: { end: End }) {
  return (
    <>
      {name} {isCheck ? <Next at={at} /> : <When at={at} />}
    </>
  );
}

interface Props {
  wait: Wait | null;
  /** The start, if the wait has none. */
  since?: string | null;
  /** The time zone of the DAG, to show the end and the checks in it. Without it, the end is only relative. */
  zone?: string;
  /** Whether to leave out the time so far if the end is known. */
  isShort?: boolean;
  /** The usual duration of such waits, in seconds. */
  usual?: number | null;
}

export function WaitTimes({ wait, since, zone, isShort = false, usual }: Props) {
  const begun = wait?.since ?? since;
  const end = wait && endOf(wait);
  const checks = useChecks(wait);
  return (
    <span class="wait-times" title={checks}>
      {begun && !(isShort && end) && (
        <span>
          <Took from={begun} to={null} isNamed />{" "}
          <Usually seconds={usual} />
        </span>
      )}
      {end && !(zone !== undefined && checks && end.isCheck) && (
        <span>
          <EndTime end={end} />
          {zone !== undefined && (
            <>
              {", "}
              <Both at={end.at} zone={zone} />
            </>
          )}
        </span>
      )}
      {zone !== undefined && checks && <span class="wait-checks">{checks}</span>}
    </span>
  );
}

/** What a task waits for, and when that ends, in one line of a table. */
export function Waits({ wait }: { wait: Wait | null | undefined }) {
  const checks = useChecks(wait);
  if (!wait) return null;
  const end = endOf(wait);
  const detail = wait.kind === "interval" || (wait.fires_at && wait.label) ? "" : wait.detail;
  return (
    <span class="wait" title={checks}>
      {wait.label ? <b>{wait.label}</b> : <span class="tag">{texts.why.kinds[wait.kind] ?? named(wait.kind)}</span>}
      {detail && <span title={detail}> {detail.replace(/[\w.]+:(\w+)/g, "$1")}</span>}
      {end && (
        <span class="soft">
          {" "}
          <EndTime end={end} />
        </span>
      )}
    </span>
  );
}
