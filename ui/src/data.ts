// What a view shows: asked for once, and again when a commit concerns it.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { Problem, getText } from "./api";
import { type Change, onChange } from "./live";

export interface Data<T> {
  data: T | undefined;
  problem: Problem | undefined;
  isLoading: boolean;
  reload: () => void;
}

export type Concerns = (change: Change) => boolean;

export const always: Concerns = () => true;
export const ofRun = (run: string): Concerns => (change) => change.runs.has(run);
export const ofDag = (dag: string): Concerns => (change) => change.dags.has(dag);

interface Options {
  /** Which commits concern it; by default all. */
  on?: Concerns;
  /** It is asked for at most once in as many milliseconds. */
  gap?: number;
}

function asProblem(error: unknown): Problem {
  return error instanceof Problem ? error : new Problem(0, "page.defect", String(error));
}

/** The answer to a GET; none while the path is null. */
export function useData<T>(path: string | null, { on = always, gap = 250 }: Options = {}): Data<T> {
  const [shown, setShown] = useState<{ path: string | null; data?: T; problem?: Problem }>({ path });
  const text = useRef("");
  const concerns = useRef(on);
  concerns.current = on;
  const asking = useRef<() => void>(() => undefined);

  useEffect(() => {
    if (path === null) return undefined;
    text.current = "";
    return keepAsking(
      gap,
      (signal) => getText(path, signal),
      (given) => {
        if (given === text.current) return;
        text.current = given;
        setShown({ path, data: JSON.parse(given) as T });
      },
      (problem) => {
        text.current = "";
        // What was there stays on view while the daemon is away for a moment.
        setShown((before) => ({ path, data: before.path === path ? before.data : undefined, problem }));
      },
      concerns,
      asking,
    );
  }, [path, gap]);

  const reload = useCallback(() => asking.current(), []);
  const current = shown.path === path ? shown : { path };
  return {
    data: current.data,
    problem: current.problem,
    isLoading: path !== null && current.data === undefined && current.problem === undefined,
    reload,
  };
}

/** Ask now and after each change, one at a time; return what ends it. */
function keepAsking<A>(
  gap: number,
  ask: (signal: AbortSignal) => Promise<A>,
  take: (answer: A) => void,
  fail: (problem: Problem) => void,
  concerns: { current: Concerns },
  asking: { current: () => void },
): () => void {
  const control = new AbortController();
  let isBusy = false;
  let isStale = false;
  let isAbsent = false;
  let askedAt = -Infinity;
  let timer: ReturnType<typeof setTimeout> | undefined;

  async function run(): Promise<void> {
    timer = undefined;
    isBusy = true;
    isStale = false;
    askedAt = performance.now();
    try {
      const answer = await ask(control.signal);
      if (!control.signal.aborted) take(answer);
    } catch (error) {
      if (control.signal.aborted) return;
      const problem = asProblem(error);
      isAbsent = problem.isAbsent;
      fail(problem);
    }
    isBusy = false;
    if (isStale) again();
  }

  function again(): void {
    if (control.signal.aborted) return;
    if (isBusy) isStale = true;
    else if (timer === undefined) timer = setTimeout(run, Math.max(0, askedAt + gap - performance.now()));
  }

  asking.current = () => {
    isAbsent = false;
    again();
  };
  // What is not there is not asked for with every commit; it may be after a reconnect.
  const stop = onChange((change) => {
    if (change.all ? !isAbsent || isBusy : !isAbsent && concerns.current(change)) again();
  });
  void run();
  return () => {
    stop();
    clearTimeout(timer);
    control.abort();
  };
}

export interface Pages<T> extends Data<T[]> {
  isWhole: boolean;
  more: () => void;
}

/** A long list, a page at a time; `pathOf` names the page after a row, and after how many. */
export function usePages<T>(
  pathOf: (last: T | null, count: number) => string,
  size: number,
  options: Options = {},
): Pages<T> {
  const first = pathOf(null, 0);
  const [shown, setShown] = useState<{ first: string; rows?: T[]; isWhole: boolean; problem?: Problem }>({
    first,
    isWhole: false,
  });
  const wanted = useRef(1);
  const concerns = useRef(options.on ?? always);
  concerns.current = options.on ?? always;
  const asking = useRef<() => void>(() => undefined);
  const paths = useRef(pathOf);
  paths.current = pathOf;

  useEffect(() => {
    wanted.current = 1;
    const pathFor = paths.current;
    return keepAsking(
      options.gap ?? 1000,
      async (signal) => {
        const rows: T[] = [];
        for (let page = 0; page < wanted.current; page += 1) {
          const last = rows.at(-1) ?? null;
          const found = JSON.parse(await getText(pathFor(last, rows.length), signal)) as T[];
          rows.push(...found);
          if (found.length !== size) return { rows, isWhole: true };
        }
        return { rows, isWhole: false };
      },
      (answer) => setShown({ first, ...answer }),
      (problem) =>
        setShown((before) => ({ ...(before.first === first ? before : { first, isWhole: true }), problem })),
      concerns,
      asking,
    );
  }, [first, size]);

  const current = shown.first === first ? shown : { first, isWhole: false };
  const loaded = current.rows?.length ?? 0;
  return {
    data: current.rows,
    problem: current.problem,
    isLoading: current.rows === undefined && current.problem === undefined,
    isWhole: current.isWhole,
    reload: () => asking.current(),
    more: () => {
      const pages = Math.ceil(loaded / size) + 1;
      if (current.isWhole || loaded === 0 || pages <= wanted.current) return;
      wanted.current = pages;
      asking.current();
    },
  };
}
