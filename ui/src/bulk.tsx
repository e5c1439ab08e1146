// Bulk actions on the selected runs, or on all that match a filter.

import { Problem, enc, newKey, send } from "./api";
import { ask, attempt, tell } from "./dialog";
import { refreshAll } from "./live";
import { withFilter } from "./run_filters";
import { sum } from "./states";
import { count, stateName, texts } from "./texts";

export type BulkAction = keyof typeof texts.bulk.verbs;

export const BULK_ACTIONS = Object.keys(texts.bulk.verbs) as BulkAction[];

interface Slice {
  matching: number;
  states: Record<string, number>;
  done: number;
  failed: number;
  errors: { run_id: string; code: string; detail: string }[];
  next: string | null;
  is_complete: boolean;
}

interface Total {
  done: number;
  failed: number;
  first: string;
}

/** Show how many runs would change, ask, and act on all runs that match. */
export const actOnMatching = (action: BulkAction, filter: URLSearchParams, then: () => void): Promise<void> => attempt(() => askOfMatching(action, filter, then));

async function askOfMatching(action: BulkAction, filter: URLSearchParams, then: () => void): Promise<void> {
  const path = `/run-actions/${action}`;
  const expected = await send<Slice>("POST", withFilter(path, filter, { dry_run: "true" }));
  const all = sum(expected.states);
  if (all === 0) {
    tell(texts.bulk.nothing(expected.matching));
    return;
  }
  const key = newKey();
  ask({
    title: texts.bulk.title(action, all),
    verb: texts.bulk.verbs[action],
    isGrave: true,
    dismiss: action === "cancel" ? texts.bulk.keep : undefined,
    body: (
      <>
        <p>{texts.bulk.meanings[action]}</p>
        <ul class="preview-counts">
          {Object.entries(expected.states).map(([state, some]) => (
            <li key={state}>
              <b class="num">{count(some)}</b> {stateName(state)}
            </li>
          ))}
        </ul>
        {expected.matching > all && <p class="soft">{texts.bulk.left(expected.matching - all)}</p>}
        {all > SLICE && <p class="soft">{texts.bulk.slices}</p>}
      </>
    ),
    act: async () => {
      const total: Total = { done: 0, failed: 0, first: "" };
      let cursor: string | null = null;
      do {
        const slice: Slice = await send<Slice>("POST", withFilter(path, filter, { cursor }), undefined, key).catch((error: unknown) => {
          throw total.done > 0 && error instanceof Problem ? new Problem(error.status, error.code, `${texts.bulk.cut(total.done, all)} ${error.message}`) : error;
        });
        total.done += slice.done;
        total.failed += slice.failed;
        total.first ||= slice.errors[0]?.detail ?? "";
        cursor = slice.next;
        if (cursor !== null) refreshAll();
      } while (cursor !== null);
      then();
      return texts.bulk.done(action, total.done, total.failed, total.first);
    },
  });
}

const SLICE = 200;

const SINGLE: Record<BulkAction, (run: string, key: string) => Promise<unknown>> = {
  cancel: (run) => send("POST", `/runs/${enc(run)}/cancel`),
  clear_failed: (run, key) => send("POST", `/runs/${enc(run)}/clear`, { failed: true }, key),
  mark_success: (run) => send("POST", `/runs/${enc(run)}/mark`, { state: "success" }),
  mark_failed: (run) => send("POST", `/runs/${enc(run)}/mark`, { state: "failed" }),
  delete: (run) => send("DELETE", `/runs/${enc(run)}`),
};

/** Number of concurrent requests. A browser has few connections to one host. */
const AT_ONCE = 4;

/** Ask, and act on the selected runs. */
export function actOnSelected(action: BulkAction, runs: string[], then: () => void): void {
  const key = newKey();
  ask({
    title: texts.bulk.title(action, runs.length),
    verb: texts.bulk.verbs[action],
    isGrave: true,
    dismiss: action === "cancel" ? texts.bulk.keep : undefined,
    body: <p>{texts.bulk.meanings[action]}</p>,
    act: async () => {
      const total: Total = { done: 0, failed: 0, first: "" };
      const left = [...runs];
      const work = async (): Promise<void> => {
        for (let run = left.shift(); run !== undefined; run = left.shift()) await one(run);
      };
      const one = async (run: string): Promise<void> => {
        try {
          await SINGLE[action](run, key);
          total.done += 1;
        } catch (error) {
          if (!(error instanceof Problem) || error.status === 0 || error.status >= 500 || error.status === 401 || error.status === 403) {
            left.length = 0; // the others would fail, too
            throw error;
          }
          total.failed += 1;
          total.first ||= error.message;
        }
      };
      await Promise.all(Array.from({ length: AT_ONCE }, work));
      then();
      return texts.bulk.done(action, total.done, total.failed, total.first);
    },
  });
}
