// The loaded lines of a log: a window that moves with scrolling, and follows the end.

import { Problem, enc, get, query } from "../api";
import { onChange } from "../live";

const PAGE = 300;
/** Maximum number of loaded lines. Lines added at one end are dropped at the other. */
const MOST = 20_000;
const POLL_MS = 1500;
/** Minimum interval between two updates, for tasks that print much. */
const SHOW_MS = 100;

export interface LogLine {
  text: string;
  at: string | null;
  level: string | null;
  /** `stderr` if this is known. */
  stream: string | null;
  is_open: boolean;
  try_number?: number;
  /** Set in the log of a task. */
  offset?: number;
  line?: number | null;
  is_cut?: boolean;
  /** Set in the log of a run. */
  task_id?: string;
  map_index?: number;
  map_label?: string | null;
  round?: number;
  /** Identifies the line among the loaded ones. */
  key: number;
}

export interface Filter {
  search: string;
  regex: boolean;
  case: boolean;
  level: string;
  tasks: string[];
}

export const NO_FILTER: Filter = { search: "", regex: false, case: false, level: "", tasks: [] };

/** Where to begin: at the end, at the beginning, or at a line by its number. */
export type Anchor = { at: "end" } | { at: "begin" } | { at: "line"; line: number };

interface Page {
  lines: LogLine[];
  /** Where to continue in either direction; null at that end. */
  before: string | null;
  after: string | null;
  /** Where future output begins. */
  resume: string;
  isLive: boolean;
}

/** A log that can be read in parts. */
export interface Source {
  readonly id: string;
  first(anchor: Anchor, filter: Filter, signal: AbortSignal): Promise<Page>;
  more(from: string, way: "before" | "after", filter: Filter, signal: AbortSignal): Promise<Page>;
  /** Find the next line that matches, in a direction from a line. */
  find?(from: LogLine | undefined, way: 1 | -1, filter: Filter, signal: AbortSignal): Promise<LogLine | null>;
  stream?(from: string): EventSource;
  concerns(runs: ReadonlySet<string>): boolean;
  download(): string;
}

export interface Printed {
  run: string;
  task: string;
  map?: number;
  round?: number;
  tryNumber?: number | null;
}

interface LinesAnswer {
  lines: Omit<LogLine, "key">[];
  next_offset: number | null;
  before_offset: number | null;
  end_offset: number;
  is_live: boolean;
}

const fieldsOf = (filter: Filter) => ({
  search: filter.search,
  regex: filter.search !== "" && filter.regex ? true : null,
  case: filter.search !== "" && filter.case ? true : null,
  level: filter.level,
});

export const isFiltered = (filter: Filter): boolean => filter.search !== "" || filter.level !== "" || filter.tasks.length > 0;

/** The log of a task, or of one of its tries. */
export class TaskSource implements Source {
  readonly id: string;

  constructor(private readonly printed: Printed) {
    this.id = JSON.stringify(printed);
  }

  private path(what: "" | "/stream", fields: Record<string, string | number | boolean | null>): string {
    const { run, task, map = -1, round = 0, tryNumber } = this.printed;
    return query(`/runs/${enc(run)}/tasks/${enc(task)}/logs${what}`, { map: map >= 0 ? map : null, round: round > 0 ? round : null, try: tryNumber, ...fields });
  }

  private async ask(fields: Record<string, string | number | boolean | null>, filter: Filter, signal: AbortSignal): Promise<LinesAnswer> {
    return get<LinesAnswer>(this.path("", { format: "lines", limit: PAGE, ...fieldsOf(filter), ...fields }), signal);
  }

  private async page(fields: Record<string, string | number | boolean | null>, filter: Filter, signal: AbortSignal): Promise<Page> {
    const answer = await this.ask(fields, filter, signal);
    const lines = answer.lines.map((line) => ({ ...line, key: line.offset! }));
    const last = lines.at(-1);
    return {
      lines,
      before: answer.before_offset === null ? null : String(answer.before_offset),
      after: answer.next_offset === null ? null : String(answer.next_offset),
      resume: String(last?.is_open ? last.offset : answer.end_offset),
      isLive: answer.is_live,
    };
  }

  first(anchor: Anchor, filter: Filter, signal: AbortSignal): Promise<Page> {
    if (anchor.at === "line") return this.page({ line: Math.max(1, anchor.line - PAGE / 3) }, filter, signal);
    return this.page(anchor.at === "end" ? { tail: true } : {}, filter, signal);
  }

  more(from: string, way: "before" | "after", filter: Filter, signal: AbortSignal): Promise<Page> {
    return this.page({ [way === "before" ? "before" : "offset"]: Number(from) }, filter, signal);
  }

  async find(from: LogLine | undefined, way: 1 | -1, filter: Filter, signal: AbortSignal): Promise<LogLine | null> {
    const own = from?.offset;
    let at: Record<string, number | boolean> = own === undefined ? (way === 1 ? {} : { tail: true }) : way === 1 ? { offset: own } : { before: own };
    for (;;) {
      const answer = await this.ask({ ...at, limit: 2 }, filter, signal);
      const hits = answer.lines.filter((line) => line.offset !== own);
      const hit = way === 1 ? hits[0] : hits.at(-1);
      if (hit) return { ...hit, key: hit.offset! };
      const next = way === 1 ? answer.next_offset : answer.before_offset;
      if (next === null) return null;
      at = way === 1 ? { offset: next } : { before: next };
    }
  }

  stream(from: string): EventSource {
    return new EventSource(`/api/v1${this.path("/stream", { format: "lines", offset: Number(from) })}`);
  }

  concerns(runs: ReadonlySet<string>): boolean {
    return runs.has(this.printed.run);
  }

  download(): string {
    return `/api/v1${this.path("", { download: true })}`;
  }
}

interface RunAnswer {
  items: Omit<LogLine, "key">[];
  next: string | null;
  resume: string;
  is_first: boolean;
  is_live: boolean;
}

/** The log of all tasks of a run, in the order of time. */
export class RunSource implements Source {
  readonly id: string;
  private made = 0;

  constructor(private readonly run: string) {
    this.id = `run ${run}`;
  }

  private async page(fields: Record<string, string | number | boolean | null>, filter: Filter, signal: AbortSignal): Promise<Page> {
    const path = query(`/runs/${enc(this.run)}/logs`, { limit: PAGE, ...fieldsOf(filter), ...fields });
    const tasks = filter.tasks.map((task) => `&task=${enc(task)}`).join("");
    const answer = await get<RunAnswer>(path + tasks, signal);
    const lines = answer.items.map((line) => ({ ...line, key: (this.made += 1) }));
    return { lines, before: answer.is_first ? null : "", after: answer.next, resume: answer.resume, isLive: answer.is_live };
  }

  first(anchor: Anchor, filter: Filter, signal: AbortSignal): Promise<Page> {
    return this.page(anchor.at === "end" ? { tail: true } : {}, filter, signal);
  }

  async more(from: string, way: "before" | "after", filter: Filter, signal: AbortSignal): Promise<Page> {
    const page = await this.page({ cursor: from }, filter, signal);
    return way === "after" ? page : { ...page, before: null };
  }

  concerns(runs: ReadonlySet<string>): boolean {
    return runs.has(this.run);
  }

  download(): string {
    return `/api/v1/runs/${enc(this.run)}/logs?download=true`;
  }
}

export interface Loaded {
  lines: LogLine[];
  /** Whether there are more lines before or after the loaded ones. */
  hasBefore: boolean;
  hasAfter: boolean;
  isLive: boolean;
  problem?: Problem;
}

/** Loads lines of a source, and reports the loaded lines. */
export class LineWindow {
  private readonly control = new AbortController();
  private readonly stops: (() => void)[];
  private lines: LogLine[] = [];
  private before: string | null = null;
  private after: string | null = null;
  private resume = "";
  private isLive = false;
  private isBusy = true;
  private problem: Problem | undefined;
  private events: EventSource | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private telling: ReturnType<typeof setTimeout> | undefined;
  private toldAt = -Infinity;

  constructor(
    private readonly source: Source,
    anchor: Anchor,
    private readonly filter: Filter,
    private readonly show: (loaded: Loaded) => void,
  ) {
    const seen = () => (document.hidden ? this.rest() : this.goOn());
    document.addEventListener("visibilitychange", seen);
    this.stops = [
      () => document.removeEventListener("visibilitychange", seen),
      onChange((change) => (change.all || this.source.concerns(change.runs)) && this.after === null && !this.isBusy && this.events === null && void this.look()),
    ];
    void this.load(async (signal) => {
      const page = await source.first(anchor, filter, signal);
      this.before = page.before;
      this.append(page);
    });
  }

  end(): void {
    this.control.abort();
    this.rest();
    clearTimeout(this.telling);
    for (const stop of this.stops) stop();
  }

  older(): void {
    const { before } = this;
    if (this.isBusy || before === null || before === "") return;
    void this.load(async (signal) => {
      const page = await this.source.more(before, "before", this.filter, signal);
      this.before = page.before;
      this.lines = [...page.lines, ...this.lines];
      const dropped = this.lines[MOST];
      if (dropped === undefined) return;
      this.rest();
      this.lines = this.lines.slice(0, MOST);
      // Continue from the first line that was dropped.
      this.after = String(dropped.offset);
    });
  }

  newer(): void {
    const { after } = this;
    if (this.isBusy || after === null) return;
    void this.load(async (signal) => this.append(await this.source.more(after, "after", this.filter, signal)));
  }

  private append(page: Page): void {
    this.join(page.lines);
    this.after = page.after;
    this.resume = page.resume;
    this.isLive = page.isLive;
    if (this.lines.length > MOST) {
      this.lines = this.lines.slice(this.lines.length - MOST);
      this.before = this.lines[0]!.offset === undefined ? "" : String(this.lines[0]!.offset);
    }
  }

  /** Add lines. The continuation of an open line replaces it or is appended to it. */
  private join(lines: LogLine[]): void {
    const all = [...this.lines];
    for (const line of lines) {
      if (line.offset !== undefined) {
        if (all.at(-1)?.offset === line.offset) all.pop();
        all.push(line);
        continue;
      }
      const at = all.findLastIndex((one) => one.task_id === line.task_id && one.map_index === line.map_index && one.round === line.round);
      const last = all[at];
      if (last?.is_open) all[at] = { ...last, text: last.text + line.text, is_open: line.is_open };
      else all.push(line);
    }
    this.lines = all;
  }

  private async load(work: (signal: AbortSignal) => Promise<void>): Promise<void> {
    this.isBusy = true;
    try {
      await work(this.control.signal);
      this.problem = undefined;
    } catch (error) {
      if (this.control.signal.aborted) return;
      this.problem = error instanceof Problem ? error : new Problem(0, "page.defect", String(error));
    } finally {
      this.isBusy = false;
    }
    this.tell();
    this.goOn();
  }

  /** Listen for more, because the end of the output so far is reached. */
  private goOn(): void {
    clearTimeout(this.timer);
    if (this.control.signal.aborted || document.hidden || !this.isLive || this.after !== null || this.events !== null || this.isBusy) return;
    if (this.source.stream && !isFiltered(this.filter)) this.listen(this.source.stream(this.resume));
    else this.timer = setTimeout(() => void this.look(), POLL_MS);
  }

  private async look(): Promise<void> {
    if (this.isBusy || this.after !== null || this.resume === "") return;
    await this.load(async (signal) => this.append(await this.source.more(this.resume, "after", this.filter, signal)));
  }

  /** Stop listening while the log is not visible: a browser has few connections to one host. */
  private rest(): void {
    this.events?.close();
    this.events = null;
    clearTimeout(this.timer);
  }

  private listen(events: EventSource): void {
    this.events = events;
    events.addEventListener("lines", (event) => {
      const { lines, next_offset } = JSON.parse((event as MessageEvent<string>).data) as { lines: LogLine[]; next_offset: number };
      const last = lines.at(-1);
      this.append({
        lines: lines.map((line) => ({ ...line, key: line.offset! })),
        before: this.before,
        after: null,
        resume: String(last?.is_open ? last.offset : next_offset),
        isLive: true,
      });
      this.tell();
    });
    events.addEventListener("end", () => {
      this.rest();
      this.isLive = false;
      this.tell();
    });
    events.addEventListener("error", () => {
      if (events.readyState !== EventSource.CLOSED || this.events !== events) return;
      // The maximum number of listeners is reached, so poll instead.
      this.events = null;
      this.timer = setTimeout(() => void this.look(), POLL_MS);
    });
  }

  /** Number the lines. Those of a run have no numbers, so count them if all from the first on are loaded. */
  private numbered(): LogLine[] {
    if (this.before !== null || isFiltered(this.filter)) return this.lines;
    return this.lines.map((line, index) => (line.offset === undefined ? { ...line, line: index + 1 } : line));
  }

  private tell(): void {
    this.telling ??= setTimeout(() => {
      this.telling = undefined;
      this.toldAt = performance.now();
      this.show({
        lines: this.numbered(),
        hasBefore: this.before !== null,
        hasAfter: this.after !== null,
        isLive: this.isLive,
        problem: this.problem,
      });
    }, Math.max(0, this.toldAt + SHOW_MS - performance.now()));
  }
}
