// The rows of a log: lines, separators between tries, and collapsible tracebacks.

import { PLAIN, type Style, plain, styleAfter } from "./ansi";
import { withShortPath } from "./files";
import type { LogLine } from "./lines";
import { childName } from "../parts";

export type Row =
  | { kind: "line"; key: string; line: LogLine; style: Style; text: string }
  | { kind: "try"; key: string; attempt: number; isCleared: boolean; first: LogLine }
  | { kind: "fold"; key: string; lines: LogLine[]; text: string; isOpen: boolean };

const CLEARED = /^\[aioflow: the task was cleared; try \d+ follows\]$/;
const BEGIN = "Traceback (most recent call last):";
const CHAINED = /^(?:During handling of the above exception, another exception occurred:|The above exception was the direct cause of the following exception:)$/;

/** Where the borders between tries are: none, those of a task, or those of all tasks of a run. */
export type Borders = "none" | "task" | "run";

/** The name of the task that printed a line of a run's log. */
export const nameOf = (line: LogLine): string => childName(line.task_id ?? "", line.map_index ?? -1, line.round ?? 0, line.map_label);

const sourceOf = (line: LogLine): string => (line.task_id === undefined ? "" : `${line.task_id} ${line.map_index} ${line.round}`);

/**
 * Make rows of lines.
 *
 * @param open - The tracebacks that are shown, by the key of their first line.
 * @param borders - Where to draw a border when another try begins. In the log of a run, first tries have none.
 */
export function rowsOf(lines: readonly LogLine[], open: ReadonlySet<number>, borders: Borders): Row[] {
  const hasTries = borders === "task";
  const rows: Row[] = [];
  const attempts = new Map<string, number>();
  const styles = new Map<string, Style>();
  let attempt = -1;
  let isCleared = false;
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at]!;
    if (hasTries && CLEARED.test(line.text)) {
      // The border of the next try says the same.
      const before = rows.at(-1);
      if (before?.kind === "line" && before.text === "") rows.pop();
      isCleared = true;
      continue;
    }
    if (hasTries && line.try_number !== attempt) {
      attempt = line.try_number ?? 1;
      rows.push({ kind: "try", key: `try ${attempt} ${line.key}`, attempt, isCleared, first: line });
      isCleared = false;
    }
    const own = line.try_number ?? 1;
    if (borders === "run" && own !== (attempts.get(sourceOf(line)) ?? 1)) {
      attempts.set(sourceOf(line), own);
      rows.push({ kind: "try", key: `try ${own} ${line.key}`, attempt: own, isCleared: false, first: line });
    }
    const end = line.text.startsWith(BEGIN) ? tracebackEnd(lines, at) : at;
    if (end > at + 1) {
      const part = lines.slice(at, end);
      const isOpen = open.has(line.key);
      rows.push({ kind: "fold", key: `fold ${line.key}`, lines: part, text: plain(part.at(-1)!.text), isOpen });
      if (isOpen) for (const one of part) rows.push(rowOf(one, styles));
      at = end - 1;
      continue;
    }
    rows.push(rowOf(line, styles));
  }
  return rows;
}

/** Return the rows that are errors, and those that are warnings. A traceback is one error. */
export function seriousOf(rows: readonly Row[]): { error: Row[]; warning: Row[] } {
  const found: { error: Row[]; warning: Row[] } = { error: [], warning: [] };
  let inside = new Set<LogLine>();
  for (const row of rows) {
    if (row.kind === "fold") {
      inside = new Set(row.lines);
      found.error.push(row);
    } else if (row.kind === "line" && !inside.has(row.line)) {
      if (row.line.level === "error" || row.line.level === "critical") found.error.push(row);
      else if (row.line.level === "warning") found.warning.push(row);
    }
  }
  return found;
}

function rowOf(line: LogLine, styles: Map<string, Style>): Row {
  const source = sourceOf(line);
  const style = styles.get(source) ?? PLAIN;
  const after = styleAfter(line.text, style);
  if (after !== style) styles.set(source, after);
  return { kind: "line", key: String(line.key), line, style, text: withShortPath(plain(line.text)) };
}

/** Return the index after the traceback that begins at an index, including its causes. */
function tracebackEnd(lines: readonly LogLine[], from: number): number {
  const source = sourceOf(lines[from]!);
  const own = (index: number): string | null => (index < lines.length && sourceOf(lines[index]!) === source ? lines[index]!.text : null);
  for (let at = from + 1; ; at += 1) {
    const text = own(at);
    if (text === null) return at;
    if (/^\s/.test(text)) continue;
    // The line that names the exception; notes below it are indented or follow the next blank line.
    if (own(at + 1) === "" && CHAINED.test(own(at + 2) ?? "") && own(at + 3) === "" && own(at + 4)?.startsWith(BEGIN)) {
      at += 4;
      continue;
    }
    return at + 1;
  }
}
