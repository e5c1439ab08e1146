// The grid: tasks by runs of a DAG.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { Icon } from "./components/icons";
import { VirtualList } from "./list";
import { runHref } from "./parts";
import { go, usePlace, withQuery } from "./router";
import { Glyph, Legend, isLive, named, ordered, runState, sum, worst } from "./states";
import { texts } from "./texts";
import { local, millis, shortTime, span, briefSpan } from "./time";
import type { Counts, Grid } from "./types";

import "./styles/grid_tools.css";

const TALL = 44;
/** Of the head, and of the padding with a scroll bar. */
const HEAD = 110;
const SPARE = 30;
const ROW = 26;
/** A DAG of more tasks begins with its groups collapsed. */
const MANY = 60;
const STEPS = 6;

type Timed = { started_at: string | null; ended_at: string | null };

/** How long a run took, or has taken so far. */
function lengthOfRun(run: Timed, now: number): number {
  const begun = millis(run.started_at);
  return begun === null ? 0 : Math.max(0, (millis(run.ended_at) ?? now) - begun);
}

/** The full height: the 95th percentile of the runs that have ended, so that one long run does not flatten the others. */
export function fullScale(runs: readonly Timed[]): number {
  const now = Date.now();
  const done = runs.filter((run) => run.ended_at !== null);
  const long = (done.length > 0 ? done : runs).map((run) => lengthOfRun(run, now)).sort((one, other) => one - other);
  return Math.max(1, long[Math.max(0, Math.ceil(0.95 * long.length) - 1)] ?? 1);
}

/** A bar between 3 and ``most`` pixels tall; one that would be taller is cut off there. */
interface BarHeight {
  height: number;
  isCut: boolean;
}

/** How long each run took, as the height of a bar. */
export function heights(runs: readonly Timed[], most: number): BarHeight[] {
  const now = Date.now();
  const full = fullScale(runs);
  return runs.map((run) => {
    const share = lengthOfRun(run, now) / full;
    return { height: Math.max(3, Math.round(most * Math.min(1, share))), isCut: share > 1.001 };
  });
}

/** The first run of a day has its date, and the first day of a month the name of the month. */
interface Day {
  day: string;
  month: string | null;
  /** Both, as displayed. */
  text: string;
}

const MONTH = new Intl.DateTimeFormat("en", { month: "short", timeZone: "UTC" });

/** For each of these dates what its column shows; null for those of the same day as the one before. */
export function shownDays(dates: string[]): (Day | null)[] {
  let month = "";
  return dates.map((date, index) => {
    if (date === "" || date === dates[index - 1]) return null;
    const isNew = date.slice(0, 7) !== month;
    month = date.slice(0, 7);
    const shown = { day: String(Number(date.slice(8))), month: isNew ? MONTH.format(new Date(date)) : null };
    return { ...shown, text: `${shown.month ?? ""} ${shown.day}`.trim() };
  });
}

/** The pixels of a letter and of a level of names, and the least and most of all names. */
const LETTER = 7.2;
const LEVEL = 16;
const NAMES = [140, 280] as const;
const ICON = 34;

/** Each run has a column that is as wide as there is room: a wide one has the durations, too. */
const COLUMN = "minmax(26px, 78px)";

/** The column of names is as wide as they need. */
function tracks(rows: readonly Row[], runs: number): string {
  const widest = Math.max(0, ...rows.map((row) => row.label.length * LETTER + row.depth * LEVEL + (row.task === null ? ICON : 0)));
  const wide = Math.min(NAMES[1], Math.max(NAMES[0], Math.ceil(widest) + 26));
  return `min(${wide}px, 42vw) repeat(${runs}, ${COLUMN})`;
}

/** A cell is shown beside the grid: its task, in a run. */
export interface Picked {
  run: string;
  task: string;
}

export const cellHref = (run: string, task: string): string => withQuery({ task, in: run, map: null, round: null, tab: null, try: null });

/** The cell that the address names, if it names one. */
export function usePicked(): Picked | null {
  const { query } = usePlace();
  const [task, run] = [query.get("task"), query.get("in")];
  return task !== null && run !== null ? { run, task } : null;
}

/** The delay before the pane follows the focus, so that arrow keys do not load each cell they pass. */
const FOLLOW_MS = 180;

/** The pane that is open shows the cell that has the focus. */
function useFollow(picked: Picked | null): (run: string, task: string) => void {
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => () => clearTimeout(timer.current), [picked === null]);
  return (run, task) => {
    clearTimeout(timer.current);
    if (picked) timer.current = setTimeout(() => go(cellHref(run, task), { replace: true }), FOLLOW_MS);
  };
}

interface Cell {
  counts: Counts;
  from: string | null;
  to: string | null;
}

/** A task, or a group of tasks whose ids begin with its own. */
interface Row {
  key: string;
  label: string;
  depth: number;
  /** The index of the task; null of a group. */
  task: number | null;
  /** Of a group the indexes of its tasks. */
  tasks: number[];
}

function rowsOf(tasks: readonly string[], collapsed: ReadonlySet<string>): Row[] {
  const rows: Row[] = [];
  const groups = new Map<string, Row>();
  for (const [index, task] of tasks.entries()) {
    const parts = task.split(".");
    let isHidden = false;
    let prefix = "";
    for (const [depth, part] of parts.slice(0, -1).entries()) {
      prefix = prefix === "" ? part : `${prefix}.${part}`;
      let group = groups.get(prefix);
      if (!group) {
        group = { key: prefix, label: part, depth, task: null, tasks: [] };
        groups.set(prefix, group);
        if (!isHidden) rows.push(group);
      }
      group.tasks.push(index);
      isHidden ||= collapsed.has(prefix);
    }
    if (!isHidden) rows.push({ key: task, label: parts.at(-1)!, depth: parts.length - 1, task: index, tasks: [index] });
  }
  return rows;
}

const groupsOf = (tasks: readonly string[]): string[] => [
  ...new Set(tasks.flatMap((task) => task.split(".").slice(0, -1).map((_, depth, parts) => parts.slice(0, depth + 1).join(".")))),
];

/** What a group shows of its tasks: of each the worst of its children. */
function joined(row: Row, cells: ReadonlyMap<number, Cell>): Cell | undefined {
  if (row.task !== null) return cells.get(row.task);
  const found: Cell = { counts: {}, from: null, to: null };
  for (const task of row.tasks) {
    const cell = cells.get(task);
    if (!cell || sum(cell.counts) === 0) continue;
    const state = worst(cell.counts);
    found.counts[state] = (found.counts[state] ?? 0) + 1;
    if (cell.from !== null && (found.from === null || cell.from < found.from)) found.from = cell.from;
    if (cell.to !== null && (found.to === null || cell.to > found.to)) found.to = cell.to;
  }
  return found;
}

const lengthOf = (cell: Cell | undefined): number | null => {
  const [begun, over] = [millis(cell?.from), millis(cell?.to)];
  return begun === null || over === null ? null : Math.max(0, over - begun);
};

export function GridView({ grid }: { grid: Grid }) {
  const picked = usePicked();
  const follow = useFollow(picked);
  const groups = useMemo(() => groupsOf(grid.tasks), [grid.tasks.join("\n")]);
  const [collapsed, setCollapsed] = useState<ReadonlySet<string>>(() => new Set(grid.tasks.length > MANY ? groups : []));
  const [isHeat, setHeat] = useState(false);
  const runs = useMemo(() => [...grid.runs].reverse(), [grid]);
  const cells = useMemo(() => runs.map((run) => new Map((run.cells ?? []).map(([index, counts, from, to]): [number, Cell] => [index, { counts, from, to }]))), [runs]);
  const rows = useMemo(() => rowsOf(grid.tasks, collapsed), [grid, collapsed]);
  const box = useRef<HTMLDivElement>(null);
  // Where there is no room for all runs, the newest ones are in view.
  useLayoutEffect(() => {
    const shown = box.current?.querySelector(".grid");
    if (shown) shown.scrollLeft = shown.scrollWidth;
  }, [runs.at(-1)?.run_id, runs.length]);
  if (runs.length === 0) return <p class="empty">{texts.grid.noRuns}</p>;
  const tall = heights(runs, TALL);
  const days = shownDays(runs.map((run) => local(run.logical_date ?? run.started_at).slice(0, 10)));
  const hasMany = grid.runs.some((run) => run.cells?.some(([, counts]) => sum(counts) > 1));
  const columns = { gridTemplateColumns: tracks(rows, runs.length) };
  function toggle(group: string): void {
    const next = new Set(collapsed);
    if (!next.delete(group)) next.add(group);
    setCollapsed(next);
  }
  return (
    <div ref={box} class="grid-view">
      <div class="grid-tools">
        <span role="group" aria-label={texts.grid.shown} class="switch">
          <button type="button" class="small" aria-pressed={!isHeat} onClick={() => setHeat(false)}>
            {texts.grid.states}
          </button>
          <button type="button" class="small" aria-pressed={isHeat} onClick={() => setHeat(true)}>
            {texts.grid.durations}
          </button>
        </span>
        {groups.length > 0 && (
          <button type="button" class="small" onClick={() => setCollapsed(new Set(collapsed.size > 0 ? [] : groups))}>
            {collapsed.size > 0 ? texts.graph.expand : texts.graph.collapse}
          </button>
        )}
        {isHeat && <small class="soft">{texts.grid.heat}</small>}
      </div>
      <VirtualList
        class="grid"
        items={rows}
        height={ROW}
        tall={HEAD + rows.length * ROW + SPARE}
        label={texts.grid.label}
        hasBoxes
        keyOf={(row) => row.key}
        head={
          <div class="grid-row grid-head" style={columns}>
            <span class="soft">
              <small class="grid-scale" title={texts.grid.scale}>
                {span(fullScale(runs))}
              </small>
              {texts.task.name}
            </span>
            {runs.map((run, index) => (
              <a key={run.run_id} data-box="" tabIndex={index === runs.length - 1 ? 0 : -1} href={runHref(run.run_id)} title={runTitle(run)} aria-label={[days[index]?.text, tall[index]!.isCut ? briefly(run) : "", runTitle(run)].filter(Boolean).join(" ")} class={days[index] ? "is-new-day" : ""}>
                {days[index] && (
                  <small class="grid-day" aria-hidden="true">
                    <span>{days[index].month}</span> {days[index].day}
                  </small>
                )}
                {!days[index] && run.cause === "manual" && (
                  <small class="grid-day" aria-hidden="true">
                    <Icon name="play" size={10} />
                  </small>
                )}
                {" "}
                <small class="grid-mark" aria-hidden="true">
                  {tall[index]!.isCut ? briefly(run) : days[index] && run.cause === "manual" && <Icon name="play" size={10} />}
                </small>
                <RunBar run={run} bar={tall[index]!} />
                <Glyph state={runState(run)} size={12} />
              </a>
            ))}
          </div>
        }
        row={(row) => <GridRow row={row} name={row.task === null ? row.key : grid.tasks[row.task]!} runs={runs} cells={cells} columns={columns} isHeat={isHeat} isFolded={collapsed.has(row.key)} toggle={toggle} picked={picked} follow={follow} />}
      />
      <Legend counts={allOf(grid)} isBare>
        {hasMany && (
          <li>
            <i class="stack" aria-hidden="true" /> {texts.grid.severalChildren}
          </li>
        )}
        {tall.some((bar) => bar.isCut) && (
          <li>
            <i class="column b-success is-cut" aria-hidden="true" /> {texts.grid.longer}
          </li>
        )}
        {runs.some((run) => run.cause === "manual") && (
          <li>
            <Icon name="play" size={10} /> {texts.grid.manual}
          </li>
        )}
      </Legend>
    </div>
  );
}

interface RowProps {
  row: Row;
  name: string;
  runs: Grid["runs"];
  cells: ReadonlyMap<number, Cell>[];
  columns: Record<string, string>;
  isHeat: boolean;
  isFolded: boolean;
  toggle: (group: string) => void;
  picked: Picked | null;
  follow: (run: string, task: string) => void;
}

/** Enter on a cell opens the pane beside the grid; once more, it goes into the pane. */
function intoPane(event: KeyboardEvent): void {
  if (event.key !== "Enter" || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  document.querySelector<HTMLElement>(".drawer")?.focus();
}

function GridRow({ row, name, runs, cells, columns, isHeat, isFolded, toggle, picked, follow }: RowProps) {
  const own = runs.map((_, column) => joined(row, cells[column]!));
  const longest = Math.max(1, ...own.map((cell) => lengthOf(cell) ?? 0));
  return (
    <div class="grid-row" style={columns}>
      <span class={`cut depth-${Math.min(row.depth, 4)}`} title={name}>
        {row.task === null ? (
          <button type="button" class="plain grid-group" aria-expanded={!isFolded} onClick={() => toggle(row.key)}>
            <Icon name={isFolded ? "chevron-right" : "chevron-down"} size={13} />
            {row.label} <small class="soft">{row.tasks.length}</small>
          </button>
        ) : (
          row.label
        )}
      </span>
      {runs.map((run, column) => {
        const cell = own[column];
        if (!cell || sum(cell.counts) === 0) return <span key={run.run_id} />;
        const text = cellTitle(name, cell.counts, cell.from, cell.to, run.run_id);
        const length = lengthOf(cell);
        const inner =
          isHeat && length !== null ? (
            <i class={`heat heat-${Math.min(STEPS, Math.ceil((length / longest) * STEPS) || 1)}`} />
          ) : (
            <CellState counts={cell.counts} />
          );
        const took = length !== null && Object.keys(cell.counts).every((state) => !isLive(state)) ? <small class="cell-took">{span(length)}</small> : null;
        if (row.task === null) {
          return (
            <span key={run.run_id} class="cell" role="img" title={text} aria-label={text}>
              {inner}
              {took}
            </span>
          );
        }
        const isPicked = picked !== null && picked.task === name && picked.run === run.run_id;
        return (
          <a
            key={run.run_id}
            class="cell"
            data-box=""
            aria-current={isPicked ? "true" : undefined}
            onFocus={() => follow(run.run_id, name)}
            onKeyDown={isPicked ? intoPane : undefined}
            tabIndex={column === runs.length - 1 ? 0 : -1}
            data-row={column === runs.length - 1 ? "" : undefined}
            href={cellHref(run.run_id, name)}
            title={text}
            aria-label={text}
          >
            {inner}
            {took}
          </a>
        );
      })}
    </div>
  );
}

/** How long a run took, in the colour of its state. */
function RunBar({ run, bar: { height, isCut } }: { run: Grid["runs"][number]; bar: BarHeight }) {
  return <i class={`column ${isCut ? "is-cut" : ""} b-${runState(run)}`} style={{ height: `${height}px` }} />;
}

/** From so many on, a count leaves no room for the icon. */
const MANY_FAILED = 10;
const MOST_FAILED = 1000;

/** One glyph; several children lie behind each other, and those that failed are counted. */
function CellState({ counts }: { counts: Counts }) {
  const state = worst(counts);
  const failed = counts["failed"] ?? 0;
  if (sum(counts) === 1) return <Glyph state={state} size={14} />;
  const isCounted = state === "failed" && failed < MOST_FAILED;
  return (
    <span class="stack">
      {isCounted && <b class="s-failed" data-text={failed} />}
      {(!isCounted || failed < MANY_FAILED) && <Glyph state={state} size={isCounted ? 10 : 13} />}
    </span>
  );
}

/** How long a run took, in its largest unit. */
const briefly = (run: Timed): string => briefSpan(lengthOfRun(run, Date.now()));

/** Which states there are at all. */
function allOf(grid: Grid): Counts {
  const found: Counts = {};
  for (const run of grid.runs) {
    found[runState(run)] = 1;
    for (const [, counts] of run.cells ?? []) found[worst(counts)] = 1;
  }
  return found;
}

function runTitle(run: Grid["runs"][number]): string {
  const took = run.started_at === null ? "" : `, ${span(lengthOfRun(run, Date.now()), true)}`;
  return `${run.run_id}: ${named(runState(run))}${run.logical_date ? `, for ${shortTime(run.logical_date)}` : ""}${took}${run.cause === "manual" ? `, ${texts.grid.manual.toLowerCase()}` : ""}`;
}

function cellTitle(task: string, counts: Counts, from: string | null, to: string | null, run: string): string {
  const begun = millis(from);
  const over = millis(to);
  const took = begun !== null && over !== null ? `, ${span(over - begun, true)}` : begun !== null ? `, since ${local(from)}` : "";
  const all = sum(counts);
  const states = ordered(counts).map(([state, count]) => (all > 1 ? `${count} ${named(state)}` : named(state)));
  return `${task} in ${run}: ${states.join(", ")}${took}`;
}
