// A heat map of the children of a mapped task, drawn on one canvas.

import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";

import { enc, query } from "../api";
import { never, useItems } from "../data";
import { go } from "../router";
import { Glyph } from "../states";
import { stateName } from "../texts";
import type { Task } from "../types";
import { type Cells, childOf } from "./cells";
import { bucketName, fanOut } from "./texts";

export type Mode = "state" | "duration";

const TALLEST = 320;
const LARGEST = 18;
const SMALLEST = 3;

const COLOURS: Record<string, string> = {
  success: "--state-done",
  failed: "--state-failed",
  upstream_failed: "--state-failed",
  running: "--state-running",
  sensing: "--state-waiting",
  deferred: "--state-waiting",
  retrying: "--state-waiting-slot",
  queued: "--state-waiting-slot",
  skipped: "--border-strong",
  cancelled: "--state-ended",
  removed: "--state-ended",
};

interface Layout {
  width: number;
  side: number;
  columns: number;
  rows: number;
}

function layoutOf(width: number, count: number): Layout {
  const fitting = Math.floor(Math.sqrt((width * TALLEST) / Math.max(1, count)));
  const side = Math.max(SMALLEST, Math.min(LARGEST, fitting));
  const columns = Math.max(1, Math.floor(width / side));
  return { width, side, columns, rows: Math.ceil(count / columns) };
}

interface HeatMapProps {
  run: string;
  cells: Cells;
  mode: Mode;
  task: string;
  /** The highlighted children; null to highlight all. */
  marked: Set<number> | null;
  hrefOf: (child: number) => string;
  /** Returns the error of a child, if it is known. */
  errorOf: (child: number) => string | undefined;
}

/** Time for which the pointer rests on a cell before its child is requested. */
const REST_MS = 150;

/** The author's label of the child at a cell, once it is known. */
function useLabel(run: string, task: string, child: number | null): string | null {
  const [wanted, setWanted] = useState<number | null>(null);
  useEffect(() => {
    const timer = setTimeout(() => setWanted(child), REST_MS);
    return () => clearTimeout(timer);
  }, [child]);
  const path = wanted === null ? null : query(`/runs/${enc(run)}/tasks`, { task, offset: wanted, limit: 1 });
  const [found] = useItems<Task>(path, { on: never }).data ?? [];
  return found && found.map_index === child ? found.map_label : null;
}

export function HeatMap({ run, cells, mode, task, marked, hrefOf, errorOf }: HeatMapProps) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [at, setAt] = useState<number | null>(null);
  const [theme, setTheme] = useState(0);
  const help = useId();
  const label = useLabel(run, task, at !== null && cells.size === 1 ? at : null);
  const count = cells.states.length;
  const layout = layoutOf(width, count);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    const changed = (): void => setTheme((before) => before + 1);
    const observer = new MutationObserver(changed);
    observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    const preference = matchMedia("(prefers-color-scheme: dark)");
    preference.addEventListener("change", changed);
    return () => {
      observer.disconnect();
      preference.removeEventListener("change", changed);
    };
  }, []);
  useLayoutEffect(() => {
    if (width > 0) draw(canvas.current!, cells, layout, mode, marked, at);
  });

  function cellAt(event: MouseEvent & { currentTarget: HTMLElement }): number | null {
    const edge = event.currentTarget.getBoundingClientRect();
    const [column, row] = [Math.floor((event.clientX - edge.left) / layout.side), Math.floor((event.clientY - edge.top) / layout.side)];
    const index = row * layout.columns + column;
    return column >= 0 && column < layout.columns && row >= 0 && index < count ? index : null;
  }
  function pressed(event: KeyboardEvent): void {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -layout.columns, ArrowDown: layout.columns, Home: -count, End: count }[event.key];
    if (event.key === "Escape" && at !== null) setAt(null);
    else if (event.key === "Enter" && at !== null) go(hrefOf(childOf(cells, at)));
    else if (step !== undefined) setAt(at === null ? 0 : Math.max(0, Math.min(count - 1, at + step)));
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
  return (
    <div ref={box} class="fan-map" data-theme-seen={theme} data-cells={count}>
      <div
        class="fan-map-focus"
        role="application"
        aria-roledescription="heat map"
        aria-label={fanOut.heatMap(task, cells.width)}
        aria-describedby={help}
        tabIndex={0}
        onKeyDown={pressed}
        onBlur={() => setAt(null)}
        onPointerMove={(event) => setAt(cellAt(event))}
        onPointerLeave={() => setAt(null)}
        onClick={(event) => {
          const index = cellAt(event);
          if (index !== null) go(hrefOf(childOf(cells, index)));
        }}
      >
        <canvas ref={canvas} aria-hidden="true" />
      </div>
      <span id={help} class="offscreen">
        {fanOut.help}
      </span>
      <span class="offscreen" role="status">
        {at !== null && at < count && spoken(cells, at, task)}
      </span>
      {at !== null && at < count && <Card cells={cells} at={at} task={task} label={label} layout={layout} error={errorOf(childOf(cells, at))} />}
    </div>
  );
}

const nameOf = (cells: Cells, at: number, task: string): string => {
  const first = at * cells.size;
  return cells.size === 1 ? `${task}[${first}]` : `${task}[${first}–${Math.min(cells.width, first + cells.size) - 1}]`;
};

function durationOf(cells: Cells, at: number): string {
  const bucket = cells.buckets[at] ?? -1;
  return bucket < 0 ? fanOut.noDuration : bucketName(cells.bounds[bucket - 1] ?? null, cells.bounds[bucket] ?? null);
}

const spoken = (cells: Cells, at: number, task: string): string => `${nameOf(cells, at, task)}, ${stateName(cells.states[at]!)}, ${durationOf(cells, at)}`;

interface CardProps {
  cells: Cells;
  at: number;
  task: string;
  label: string | null;
  layout: Layout;
  error?: string;
}

function Card({ cells, at, task, label, layout, error }: CardProps) {
  const column = (at % layout.columns) * layout.side;
  const row = Math.floor(at / layout.columns);
  const isRight = column > layout.width / 2;
  return (
    <div class={`chart-tip fan-map-card ${isRight ? "is-right" : ""}`} style={{ left: `${column + (isRight ? 0 : layout.side)}px`, top: `${(row + 1) * layout.side}px` }}>
      <strong>{nameOf(cells, at, task)}</strong>
      {label !== null && <span class="break">{label}</span>}
      <span>
        <Glyph state={cells.states[at]!} size={12} /> {stateName(cells.states[at]!)}
        <em>{durationOf(cells, at)}</em>
      </span>
      {error && <span class="bad">{error}</span>}
    </div>
  );
}

function draw(canvas: HTMLCanvasElement, cells: Cells, layout: Layout, mode: Mode, marked: Set<number> | null, at: number | null): void {
  const { side, columns, rows } = layout;
  const ratio = devicePixelRatio || 1;
  const [width, height] = [columns * side, rows * side];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  if (pen === null) return;
  pen.scale(ratio, ratio);
  const style = getComputedStyle(canvas);
  const read = new Map<string, string>();
  const colour = (name: string): string => {
    if (!read.has(name)) {
      // The style resolves the variable for the theme, which a canvas cannot do.
      canvas.style.color = `var(${name})`;
      read.set(name, style.color);
    }
    return read.get(name)!;
  };
  const gap = side >= 6 ? 1 : side >= 4 ? 0.5 : 0;
  const known = cells.buckets.filter((bucket) => bucket >= 0);
  const least = known.reduce((found, bucket) => Math.min(found, bucket), Infinity);
  const most = known.reduce((found, bucket) => Math.max(found, bucket), -Infinity);
  cells.states.forEach((state, index) => {
    const [x, y] = [(index % columns) * side, Math.floor(index / columns) * side];
    const isMarked = marked === null || isIn(marked, index, cells.size);
    const bucket = cells.buckets[index]!;
    const isEmpty = mode === "state" ? state === "pending" : bucket < 0;
    pen.globalAlpha = isMarked ? 1 : 0.22;
    if (isEmpty) pen.fillStyle = colour("--border");
    else if (mode === "state") {
      if (state === "upstream_failed") pen.globalAlpha *= 0.45;
      pen.fillStyle = colour(COLOURS[state] ?? "--state-ended");
    } else {
      pen.globalAlpha *= most > least ? 0.16 + (0.84 * (bucket - least)) / (most - least) : 0.6;
      pen.fillStyle = colour("--state-running");
    }
    pen.fillRect(x, y, side - gap, side - gap);
    if (mode === "state" && state === "failed" && side >= 8) cross(pen, x, y, side - gap, colour("--surface"));
  });
  pen.globalAlpha = 1;
  if (at === null) return;
  pen.strokeStyle = colour("--text");
  pen.lineWidth = 2;
  pen.strokeRect((at % columns) * side - 0.5, Math.floor(at / columns) * side - 0.5, side + 0.5, side + 0.5);
}

/** Mark a failure by its shape, too, for people who cannot distinguish the colours. */
function cross(pen: CanvasRenderingContext2D, x: number, y: number, side: number, colour: string): void {
  const edge = side * 0.3;
  pen.strokeStyle = colour;
  pen.lineWidth = Math.max(1, side / 10);
  pen.beginPath();
  pen.moveTo(x + edge, y + edge);
  pen.lineTo(x + side - edge, y + side - edge);
  pen.moveTo(x + side - edge, y + edge);
  pen.lineTo(x + edge, y + side - edge);
  pen.stroke();
}

function isIn(marked: Set<number>, index: number, size: number): boolean {
  if (size === 1) return marked.has(index);
  for (let child = index * size; child < (index + 1) * size; child += 1) if (marked.has(child)) return true;
  return false;
}
