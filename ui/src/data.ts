// Data for views: loaded once, and again after each relevant commit.

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
/** For data that is not reloaded after any change. */
export const never: Concerns = () => false;
export const ofRun = (run: string): Concerns => (change) => change.runs.has(run);
export const ofDag = (dag: string): Concerns => (change) => change.dags.has(dag);

interface Options {
  /** Which commits concern the data; by default all. */
  on?: Concerns;
  /** Minimum interval between two requests, in milliseconds. */
  gap?: number;
  /** Polling interval in milliseconds, for data that also changes without a commit. */
  every?: number;
}

function asProblem(error: unknown): Problem {
  return error instanceof Problem ? error : new Problem(0, "page.defect", String(error));
}

/** Return the response to a GET; none while the path is null. */
export function useData<T>(path: string | null, { on = always, gap = 250, every }: Options = {}): Data<T> {
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
        // The old data remains visible while the daemon is away for a moment.
        setShown((before) => ({ path, data: before.path === path ? before.data : undefined, problem }));
      },
      concerns,
      asking,
      every,
    );
  }, [path, gap, every]);

  const reload = useCallback(() => asking.current(), []);
  const current = shown.path === path ? shown : { path };
  return {
    data: current.data,
    problem: current.problem,
    isLoading: path !== null && current.data === undefined && current.problem === undefined,
    reload,
  };
}

/** Request now and after each change, one request at a time. Return a function that ends this. */
function keepAsking<A>(
  gap: number,
  ask: (signal: AbortSignal) => Promise<A>,
  take: (answer: A) => void,
  fail: (problem: Problem) => void,
  concerns: { current: Concerns },
  asking: { current: () => void },
  every?: number,
): () => void {
  const control = new AbortController();
  let isBusy = false;
  let isStale = false;
  let isAbsent = false;
  let isUrgent = false;
  let askedAt = -Infinity;
  let timer: ReturnType<typeof setTimeout> | undefined;

  async function run(): Promise<void> {
    timer = undefined;
    isBusy = true;
    isStale = isUrgent = false;
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
    else if (timer === undefined) timer = setTimeout(run, isUrgent ? 0 : Math.max(0, askedAt + gap - performance.now()));
  }

  // Ask at once, because the user waits after scrolling or pressing a button: the gap is for commits.
  asking.current = () => {
    isAbsent = false;
    isUrgent = true;
    clearTimeout(timer);
    timer = undefined;
    again();
  };
  // A missing object is not requested after every commit, only after a reconnect.
  const stop = onChange((change) => {
    if (change.all ? !isAbsent || isBusy : !isAbsent && concerns.current(change)) again();
  });
  const clock = every === undefined ? undefined : setInterval(() => document.hidden || isAbsent || again(), every);
  void run();
  return () => {
    stop();
    clearInterval(clock);
    clearTimeout(timer);
    control.abort();
  };
}

/** A page of a list, as the API returns it. */
export interface Page<T> {
  items: T[];
  next: string | null;
}

/** Return the first page of a list; none while the path is null. */
export function useItems<T>(path: string | null, options: Options = {}): Data<T[]> {
  const found = useData<Page<T>>(path, options);
  return { ...found, data: found.data?.items };
}

export interface Pages<T> extends Data<T[]> {
  isWhole: boolean;
  more: () => void;
}

const REFRESHED = 4;

interface Loaded<T> {
  rows: T[];
  /** The cursor of the page after the last row; null at the end of the list. */
  next: string | null;
}

/** Load a long list page by page. `pathOf` returns the path of the page at a cursor. */
export function usePages<T>(
  pathOf: (cursor: string | null) => string,
  keyOf: (row: T) => string | number,
  size: number,
  options: Options = {},
): Pages<T> {
  const first = pathOf(null);
  const [shown, setShown] = useState<{ first: string; problem?: Problem } & Partial<Loaded<T>>>({ first });
  const loaded = useRef<Loaded<T>>({ rows: [], next: null });
  const wantsMore = useRef(false);
  const concerns = useRef(options.on ?? always);
  concerns.current = options.on ?? always;
  const asking = useRef<() => void>(() => undefined);
  const paths = useRef(pathOf);
  paths.current = pathOf;
  const keys = useRef(keyOf);
  keys.current = keyOf;

  useEffect(() => {
    const pathFor = paths.current;
    loaded.current = { rows: [], next: null };
    const page = async (cursor: string | null, signal: AbortSignal) => JSON.parse(await getText(pathFor(cursor), signal)) as Page<T>;

    async function ask(signal: AbortSignal): Promise<Loaded<T>> {
      const before = loaded.current;
      if (wantsMore.current && before.next !== null) {
        wantsMore.current = false;
        const found = await page(before.next, signal);
        return { rows: [...before.rows, ...found.items], next: found.next };
      }
      const rows: T[] = [];
      let cursor: string | null = null;
      const pages = Math.min(REFRESHED, Math.max(1, Math.ceil(before.rows.length / size)));
      for (let count = 0; count < pages; count += 1) {
        const found: Page<T> = await page(cursor, signal);
        rows.push(...found.items);
        cursor = found.next;
        if (cursor === null) return { rows, next: null };
      }
      const later = after(before.rows, rows.at(-1), keys.current);
      return later.length === 0 ? { rows, next: cursor } : { rows: [...rows, ...later], next: before.next };
    }

    return keepAsking(
      options.gap ?? 1000,
      ask,
      (answer) => {
        loaded.current = answer;
        wantsMore.current = wantsMore.current && answer.next !== null;
        setShown({ first, ...answer });
      },
      (problem) => setShown((before) => ({ ...(before.first === first ? before : { first }), problem })),
      concerns,
      asking,
    );
  }, [first, size]);

  const current = shown.first === first ? shown : { first };
  return {
    data: current.rows,
    problem: current.problem,
    isLoading: current.rows === undefined && current.problem === undefined,
    isWhole: current.next === null,
    reload: () => asking.current(),
    more: () => {
      if (!current.next || wantsMore.current) return;
      wantsMore.current = true;
      asking.current();
    },
  };
}

/** Return the rows loaded earlier that come after `last`, a row that has been read again. */
function after<T>(rows: T[], last: T | undefined, keyOf: (row: T) => string | number): T[] {
  const at = last === undefined ? -1 : rows.findIndex((row) => keyOf(row) === keyOf(last));
  return at === -1 ? [] : rows.slice(at + 1);
}

export interface Window<T> {
  /** One entry per row; undefined until its page is loaded. */
  items: (T | undefined)[];
  problem: Problem | undefined;
  onRange: (first: number, end: number) => void;
}

/** Load a list of known length, but only the pages in view. */
export function useWindow<T>(total: number, pathOf: (offset: number) => string, size: number, options: Options = {}): Window<T> {
  const [range, setRange] = useState<[number, number]>([0, 1]);
  const [pages, setPages] = useState<{ of: string; found: Map<number, T[]>; problem?: Problem }>({ of: "", found: new Map() });
  const concerns = useRef(options.on ?? always);
  concerns.current = options.on ?? always;
  const asking = useRef<() => void>(() => undefined);
  const of = pathOf(0);
  const wanted = useRef(range);
  wanted.current = range;

  useEffect(
    () =>
      keepAsking(
        options.gap ?? 700,
        async (signal) => {
          const found = new Map<number, T[]>();
          for (let page = wanted.current[0]; page <= wanted.current[1]; page += 1)
            found.set(page, (JSON.parse(await getText(pathOf(page * size), signal)) as Page<T>).items);
          return found;
        },
        (found) => setPages((before) => ({ of, found: new Map([...(before.of === of ? before.found : []), ...found]) })),
        (problem) => setPages((before) => ({ of, found: before.of === of ? before.found : new Map(), problem })),
        concerns,
        asking,
      ),
    [of, size, range[0], range[1]],
  );

  const found = pages.of === of ? pages.found : new Map<number, T[]>();
  const short = [...found.entries()].find(([, rows]) => rows.length < size);
  // A filtered list may be shorter than expected, and new rows may make it longer.
  const length = short ? short[0] * size + short[1].length : Math.max(total, ...[...found.keys()].map((page) => (page + 1) * size + 1));
  return {
    items: Array.from({ length }, (_, index) => found.get(Math.floor(index / size))?.[index % size]),
    problem: pages.of === of ? pages.problem : undefined,
    onRange: (first, end) => {
      const next: [number, number] = [Math.floor(first / size), Math.floor(Math.max(first, end - 1) / size)];
      if (next[0] !== range[0] || next[1] !== range[1]) setRange(next);
    },
  };
}
