// The output of a task: present output is read at once, new output comes by a stream.

import { useEffect, useRef, useState } from "preact/hooks";

import { Problem, enc, getResponse, query } from "./api";
import { Lines, wholeCharacters } from "./lines";
import { onChange } from "./live";

const PIECE = 256 * 1024;
const SHOWN_BYTES = 4 * 1024 * 1024;
/** From a place in the middle so much is read, and no more: else what was looked for is pushed out. */
const PAGE = { bytes: 3 * 1024 * 1024, lines: 40_000 };
const LOOK_MS = 2000;
/** Output of a task that prints much is not shown more often than this. */
const SHOW_MS = 100;

export interface Printed {
  run: string;
  task: string;
  map?: number;
  round?: number;
  tryNumber?: number | null;
  isGoingOn: boolean;
}

export interface Log {
  lines: Lines;
  /** The bytes that were read: those before the first are too many to be shown. */
  from: number;
  end: number;
  isLive: boolean;
  /** Whether more follows that is not read. */
  isCut: boolean;
  problem?: Problem;
}

export function logPath({ run, task, map = -1, round = 0, tryNumber }: Printed, what: "" | "/stream", fields: Record<string, string | number | boolean>): string {
  return query(`/runs/${enc(run)}/tasks/${enc(task)}/logs${what}`, {
    map: map >= 0 ? map : null,
    round: round > 0 ? round : null,
    try: tryNumber,
    ...fields,
  });
}

/** Its log from a byte on; without one from its beginning, or near its end if it is very long. */
export function useLog(printed: Printed, start: number | null): Log | null {
  const [log, setLog] = useState<Log | null>(null);
  const follower = useRef<Follower | undefined>(undefined);
  const { run, task, map, round, tryNumber, isGoingOn } = printed;
  useEffect(() => {
    setLog(null);
    const following = new Follower(printed, start, setLog);
    follower.current = following;
    return () => following.end();
  }, [run, task, map, round, tryNumber, start]);
  useEffect(() => follower.current?.looked(isGoingOn), [isGoingOn]);
  return log;
}

class Follower {
  private readonly control = new AbortController();
  private readonly lines = new Lines();
  private readonly stops: (() => void)[];
  private from = 0;
  private at: number | null;
  private isBusy = false;
  private isGoingOn: boolean;
  private isLive = false;
  private isCut = false;
  private source: EventSource | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private problem: Problem | undefined;
  private telling: ReturnType<typeof setTimeout> | undefined;
  private toldAt = -Infinity;

  constructor(
    private readonly printed: Printed,
    private readonly start: number | null,
    private readonly show: (log: Log) => void,
  ) {
    this.at = start;
    this.isGoingOn = printed.isGoingOn;
    this.from = start ?? 0;
    const seen = () => (document.hidden ? this.rest() : this.goOn());
    document.addEventListener("visibilitychange", seen);
    this.stops = [
      () => document.removeEventListener("visibilitychange", seen),
      onChange((change) => this.isGoingOn && (change.all || change.runs.has(printed.run)) && this.goOn()),
    ];
    this.goOn();
  }

  /** What has just ended may have printed more; a restarted one will. */
  looked(isGoingOn: boolean): void {
    if (this.isGoingOn === isGoingOn) return;
    this.isGoingOn = isGoingOn;
    this.goOn();
  }

  end(): void {
    this.control.abort();
    this.rest();
    clearTimeout(this.telling);
    for (const stop of this.stops) stop();
  }

  /** A browser has few connections to one host: what is not looked at has none. */
  private rest(): void {
    this.source?.close();
    this.source = null;
    clearTimeout(this.timer);
  }

  /** Read what is there, and then listen if more may come. */
  goOn(): void {
    if (this.isBusy || this.isCut || this.source !== null || this.control.signal.aborted || document.hidden) return;
    clearTimeout(this.timer);
    void this.read();
  }

  private async read(): Promise<void> {
    this.isBusy = true;
    try {
      this.at ??= await this.beginning();
      await this.readOn(this.at);
      this.tell();
      if (this.isLive) this.listen(this.at);
    } catch (error) {
      if (this.control.signal.aborted) return;
      this.isLive = false;
      this.tell(error instanceof Problem ? error : new Problem(0, "page.defect", String(error)));
    } finally {
      this.isBusy = false;
    }
  }

  private async readOn(from: number): Promise<void> {
    for (let at = from; ; ) {
      const answer = await getResponse(this.path(at, PIECE), this.control.signal);
      const body = new Uint8Array(await answer.arrayBuffer());
      const length = wholeCharacters(body) || body.length;
      this.lines.add(new TextDecoder().decode(body.subarray(0, length)));
      at += length;
      this.at = at;
      this.isLive = answer.headers.get("x-log-live") === "1";
      if (body.length < PIECE) return;
      if (this.isFull) {
        [this.isCut, this.isLive] = [true, false];
        return;
      }
      this.tell();
    }
  }

  private get isFull(): boolean {
    return this.start !== null && (this.at! - this.start >= PAGE.bytes || this.lines.stored.length >= PAGE.lines);
  }

  private listen(at: number): void {
    if (document.hidden) return;
    const source = new EventSource(`/api/v1${logPath(this.printed, "/stream", { offset: at })}`);
    this.source = source;
    source.addEventListener("log", (event) => {
      const { data, lastEventId } = event as MessageEvent<string>;
      this.lines.add((JSON.parse(data) as { text: string }).text);
      this.at = Number(lastEventId);
      this.tell();
    });
    source.addEventListener("end", () => {
      this.rest();
      this.isLive = false;
      this.tell();
    });
    source.addEventListener("error", () => {
      if (source.readyState !== EventSource.CLOSED || this.source !== source) return;
      // There are as many listening as may: look now and then instead.
      this.source = null;
      this.timer = setTimeout(() => this.goOn(), LOOK_MS);
    });
  }

  private tell(problem?: Problem): void {
    this.problem = problem;
    this.telling ??= setTimeout(() => {
      this.telling = undefined;
      this.toldAt = performance.now();
      this.show({ lines: this.lines, from: this.from, end: this.at ?? 0, isLive: this.isLive, isCut: this.isCut, problem: this.problem });
    }, Math.max(0, this.toldAt + SHOW_MS - performance.now()));
  }

  private path(offset: number, limit: number): string {
    return logPath(this.printed, "", { offset, limit });
  }

  /** Of a very long log the end is what one wants to see: find it by asking for single bytes. */
  private async beginning(): Promise<number> {
    if (!(await this.isBeyond(SHOWN_BYTES))) return 0;
    let [least, most] = [SHOWN_BYTES, SHOWN_BYTES * 2];
    while (await this.isBeyond(most)) [least, most] = [most, most * 2];
    while (most - least > PIECE) {
      const middle = Math.floor((least + most) / 2);
      if (await this.isBeyond(middle)) least = middle;
      else most = middle;
    }
    this.from = await this.lineAt(least - PIECE);
    return this.from;
  }

  private async isBeyond(offset: number): Promise<boolean> {
    const answer = await getResponse(this.path(offset, 1), this.control.signal);
    return (await answer.arrayBuffer()).byteLength > 0;
  }

  /** The beginning of the first line behind a byte. */
  private async lineAt(offset: number): Promise<number> {
    const answer = await getResponse(this.path(offset, PIECE), this.control.signal);
    return offset + new Uint8Array(await answer.arrayBuffer()).indexOf(10) + 1;
  }
}
