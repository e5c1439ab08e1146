// Since when something waits, and when that ends: by itself, or because it may take no longer.

import { named } from "./states";
import { texts } from "./texts";
import { Both, Next, Took, When, ago, millis, useNow } from "./time";
import type { Wait } from "./types";

/** What a sensor that no host has says; its `until` is when it is started again. */
const NEXT_CHECK = "the next check";

interface End {
  name: string;
  at: string;
}

/** When it ends, and how; null if nothing limits it. */
export function endOf(wait: Pick<Wait, "kind" | "detail" | "until" | "fires_at">): End | null {
  if (wait.fires_at && (!wait.until || (millis(wait.fires_at) ?? 0) <= (millis(wait.until) ?? 0))) return { name: texts.why.ends, at: wait.fires_at };
  if (!wait.until) return null;
  switch (wait.kind) {
    case "retry_at":
      return { name: texts.why.nextTry, at: wait.until };
    case "interval":
      return { name: wait.detail === NEXT_CHECK ? texts.why.nextCheck : texts.why.fails, at: wait.until };
    case "trigger":
    case "event":
      return { name: texts.why.fails, at: wait.until };
    case "decision":
      return { name: texts.why.deadline, at: wait.until };
    default:
      return { name: texts.why.until, at: wait.until };
  }
}

/** How often it is checked, and when: a tooltip, since it does not say when the wait ends. */
export function useChecks(wait: Wait | null | undefined): string | undefined {
  const { last_check_at: last, next_check_at: next, detail, kind } = wait ?? {};
  const isPolled = Boolean(last ?? next);
  const now = useNow(isPolled);
  const at = (text: string | null | undefined) => millis(text);
  const parts = [
    kind === "interval" && detail ? detail : "",
    at(last) === null ? "" : `${texts.why.checked} ${ago(at(last)!, now)}`,
    at(next) === null || wait?.fires_at ? "" : `${texts.why.nextCheck} ${ago(Math.max(at(next)!, now), now)}`,
  ].filter(Boolean);
  return parts.length > 0 ? parts.join(", ") : undefined;
}

interface Props {
  wait: Wait | null;
  /** If the wait does not know it. */
  since?: string | null;
  /** The time zone of its DAG, to name the time of the end in it; without one only how far it is. */
  zone?: string;
  /** How long it has lasted is left out where its end is known. */
  isShort?: boolean;
}

export function WaitTimes({ wait, since, zone, isShort = false }: Props) {
  const begun = wait?.since ?? since;
  const end = wait && endOf(wait);
  const checks = useChecks(wait);
  return (
    <span class="wait-times" title={checks}>
      {begun && !(isShort && end) && (
        <span>
          {texts.why.lasts} <Took from={begun} to={null} />
        </span>
      )}
      {end && (
        <span>
          {end.name} {end.name === texts.why.nextCheck ? <Next at={end.at} /> : <When at={end.at} />}
          {zone !== undefined && (
            <>
              {", "}
              <Both at={end.at} zone={zone} />
            </>
          )}
        </span>
      )}
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
          {end.name} {end.name === texts.why.nextCheck ? <Next at={end.at} /> : <When at={end.at} />}
        </span>
      )}
    </span>
  );
}
