// The live stream: one per page. Changes are passed on at most four times a second. Without a stream, views poll
// every three seconds.

import { useEffect, useState } from "preact/hooks";

import { onReached } from "./api";

export interface Change {
  all: boolean;
  runs: Set<string>;
  dags: Set<string>;
  triggers: boolean;
  /** The tasks whose new state was reported. */
  moves: Move[];
  /** The runs for which only the number of changed tasks was reported. */
  counted: Set<string>;
}

export interface Move {
  run_id: string;
  task_id: string;
  map_index: number;
  round: number;
  state: string;
}

export type Mode = "off" | "live" | "polling" | "away";

/** The state of the active node as a standby reports it; the active node itself reports none. */
export type ActiveNode = "alive" | "silent" | "missing" | "unknown";

type Told = (change: Change) => void;

const PAUSE_MS = 250;
const POLL_MS = 3000;
const AGAIN_MS = 2000;
/** Delay before the stream is reopened: a standby that becomes active closes its streams, then answers at once. */
const TAKEN_OVER_MS = 300;
const SAID_MS = 100;

const listeners = new Set<Told>();
const modes = new Set<(mode: Mode) => void>();
const ofActive = new Set<(state: ActiveNode) => void>();
let mode: Mode = "off";
let activeNode: ActiveNode = "alive";
let awaySince: number | null = null;
let backAt = -Infinity;
let source: EventSource | null = null;
let pending: Change = nothing();
let flushing: ReturnType<typeof setTimeout> | undefined;
let flushedAt = 0;
let polling: ReturnType<typeof setInterval> | undefined;
let again: ReturnType<typeof setTimeout> | undefined;
let answering: ReturnType<typeof setTimeout> | undefined;
let isOpen = false;
let opened = false;

function nothing(): Change {
  return { all: false, runs: new Set(), dags: new Set(), triggers: false, moves: [], counted: new Set() };
}

export function onChange(told: Told): () => void {
  listeners.add(told);
  return () => listeners.delete(told);
}

export function onMode(told: (mode: Mode) => void): () => void {
  modes.add(told);
  return () => modes.delete(told);
}

export function currentMode(): Mode {
  return mode;
}

/** The current mode of updates. */
export function useMode(): Mode {
  const [mode, setMode] = useState<Mode>(currentMode);
  useEffect(() => onMode(setMode), []);
  return mode;
}

/** Whether the active node answers, if the page is open at a standby. */
export function useActiveNode(): ActiveNode {
  const [state, setState] = useState<ActiveNode>(activeNode);
  useEffect(() => {
    ofActive.add(setState);
    setState(activeNode);
    return () => void ofActive.delete(setState);
  }, []);
  return state;
}

function setActiveNode(next: ActiveNode): void {
  if (activeNode === next) return;
  activeNode = next;
  for (const told of ofActive) told(next);
  if (next === "alive") refreshAll();
}

/** Return the time since which the daemon has not answered; null while it answers. */
export function goneSince(): number | null {
  return awaySince;
}

function setMode(next: Mode): void {
  if (mode === next) return;
  mode = next;
  if (next === "away") awaySince ??= Date.now();
  else if (next !== "off") awaySince = null;
  for (const told of modes) told(next);
}

/** Start. A hidden page closes its stream, because a browser has few connections to one host. */
export function start(): void {
  if (opened) return;
  opened = true;
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  onReached((isThere) => {
    if (mode === "polling" && !isThere) setMode("away");
    else if (mode === "away" && isThere) back();
  });
  if (!document.hidden) open();
}

function open(): void {
  if (source !== null) return;
  clearTimeout(again);
  source = new EventSource("/api/v1/stream");
  source.addEventListener("open", () => {
    clearInterval(polling);
    polling = undefined;
    isOpen = true;
    setMode("live");
    refreshAll();
  });
  source.addEventListener("commit", (event) => take((event as MessageEvent<string>).data));
  // A standby sends the state of the active node right after this event; the active node sends none.
  for (const first of ["ready", "reset"]) source.addEventListener(first, () => (answering = setTimeout(() => setActiveNode("alive"), SAID_MS)));
  source.addEventListener("active_node", (event) => {
    clearTimeout(answering);
    setActiveNode((JSON.parse((event as MessageEvent<string>).data) as { state: ActiveNode }).state);
  });
  source.addEventListener("error", () => {
    clearTimeout(answering);
    const wasCut = isOpen;
    isOpen = false;
    if (wasCut && activeNode !== "alive") {
      source?.close();
      source = null;
      again = setTimeout(open, TAKEN_OVER_MS);
    } else if (source?.readyState === EventSource.CLOSED) {
      source = null;
      poll();
    } else {
      void probe();
    }
  });
}

function close(): void {
  source?.close();
  source = null;
  clearInterval(polling);
  clearTimeout(again);
  polling = undefined;
  setMode("off");
}

/** Check whether the daemon answers, after the stream was cut. The browser reconnects by itself. */
async function probe(): Promise<void> {
  const began = source;
  try {
    await fetch("/health/live", { cache: "no-store", signal: AbortSignal.timeout(POLL_MS) });
  } catch {
    if (source !== null && source === began && source.readyState === EventSource.CONNECTING) setMode("away");
  }
}

/** Handle that the daemon answers again. The browser may take a while to reconnect the stream. */
function back(): void {
  if (performance.now() - backAt < AGAIN_MS) return;
  backAt = performance.now();
  setMode("polling");
  source?.close();
  source = null;
  open();
}

/** Poll, because the daemon has no stream or refuses one more. Try the stream again from time to time. */
function poll(): void {
  if (mode !== "away") setMode("polling");
  if (polling === undefined) polling = setInterval(refreshAll, POLL_MS);
  again = setTimeout(open, AGAIN_MS * 15);
}

export function refreshAll(): void {
  pending.all = true;
  flush();
}

interface Commit {
  runs?: { run_id: string; dag_id: string }[];
  tasks?: Move[];
  counts?: Record<string, unknown>;
  dags?: string[];
  triggers?: number;
}

function take(text: string): void {
  const commit = JSON.parse(text) as Commit;
  for (const run of commit.runs ?? []) {
    pending.runs.add(run.run_id);
    pending.dags.add(run.dag_id);
  }
  for (const task of commit.tasks ?? []) {
    pending.runs.add(task.run_id);
    pending.moves.push(task);
  }
  for (const run of Object.keys(commit.counts ?? {})) {
    pending.runs.add(run);
    pending.counted.add(run);
  }
  for (const dag of commit.dags ?? []) pending.dags.add(dag);
  if (commit.triggers) pending.triggers = true;
  flush();
}

function flush(): void {
  if (flushing !== undefined) return;
  const rest = Math.max(0, flushedAt + PAUSE_MS - performance.now());
  flushing = setTimeout(() => {
    flushing = undefined;
    flushedAt = performance.now();
    const change = pending;
    pending = nothing();
    for (const told of listeners) told(change);
  }, rest);
}
