// A line diff (Myers) with a limit on its cost.

export interface DiffLine {
  kind: "same" | "added" | "removed";
  /** Line numbers in the old and the new text, from 1. */
  old: number | null;
  new: number | null;
  text: string;
}

const MOST_EDITS = 4_000;

export function diffLines(before: string, after: string): DiffLine[] {
  const [one, two] = [linesOf(before), linesOf(after)];
  let start = 0;
  while (start < one.length && start < two.length && one[start] === two[start]) start += 1;
  let end = 0;
  while (end < one.length - start && end < two.length - start && one[one.length - 1 - end] === two[two.length - 1 - end]) end += 1;
  const middle = edits(one.slice(start, one.length - end), two.slice(start, two.length - end));
  const found: DiffLine[] = [];
  const same = (old: number, now: number) => found.push({ kind: "same", old: old + 1, new: now + 1, text: one[old]! });
  for (let at = 0; at < start; at += 1) same(at, at);
  let [old, now] = [start, start];
  for (const kind of middle) {
    if (kind === "same") same(old, now);
    else if (kind === "removed") found.push({ kind, old: old + 1, new: null, text: one[old]! });
    else found.push({ kind, old: null, new: now + 1, text: two[now]! });
    if (kind !== "added") old += 1;
    if (kind !== "removed") now += 1;
  }
  for (let at = 0; at < end; at += 1) same(one.length - end + at, two.length - end + at);
  return found;
}

export const linesOf = (text: string): string[] => (text === "" ? [] : text.replace(/\n$/, "").split("\n"));

/** Return what to do with each line, in order. If too much differs, everything is replaced. */
function edits(one: string[], two: string[]): DiffLine["kind"][] {
  const most = Math.min(one.length + two.length, MOST_EDITS);
  const furthest = new Map<number, number>([[1, 0]]);
  const steps: Map<number, number>[] = [];
  for (let depth = 0; depth <= most; depth += 1) {
    steps.push(new Map(furthest));
    for (let diagonal = -depth; diagonal <= depth; diagonal += 2) {
      const isDown = diagonal === -depth || (diagonal !== depth && (furthest.get(diagonal - 1) ?? -1) < (furthest.get(diagonal + 1) ?? -1));
      let x = isDown ? (furthest.get(diagonal + 1) ?? 0) : (furthest.get(diagonal - 1) ?? 0) + 1;
      while (x < one.length && x - diagonal < two.length && one[x] === two[x - diagonal]) x += 1;
      furthest.set(diagonal, x);
      if (x >= one.length && x - diagonal >= two.length) return path(steps, one.length, two.length);
    }
    if (depth * steps.length > 3_000_000) break;
  }
  return [...one.map(() => "removed" as const), ...two.map(() => "added" as const)];
}

function path(steps: Map<number, number>[], width: number, height: number): DiffLine["kind"][] {
  const found: DiffLine["kind"][] = [];
  let [x, y] = [width, height];
  for (let depth = steps.length - 1; depth >= 0; depth -= 1) {
    const known = steps[depth]!;
    const diagonal = x - y;
    const isDown = diagonal === -depth || (diagonal !== depth && (known.get(diagonal - 1) ?? -1) < (known.get(diagonal + 1) ?? -1));
    const before = isDown ? diagonal + 1 : diagonal - 1;
    const fromX = known.get(before) ?? 0;
    const fromY = fromX - before;
    while (x > fromX && y > fromY) {
      found.push("same");
      x -= 1;
      y -= 1;
    }
    if (depth > 0) found.push(isDown ? "added" : "removed");
    [x, y] = [fromX, fromY];
  }
  return found.reverse();
}

/** Omit the lines that are equal on both sides, except for some around each change. */
export function hunksOf(lines: DiffLine[], around = 3): (DiffLine | { skipped: number })[] {
  const near = new Uint8Array(lines.length);
  for (const [index, line] of lines.entries()) {
    if (line.kind !== "same") near.fill(1, Math.max(0, index - around), index + around + 1);
  }
  const found: (DiffLine | { skipped: number })[] = [];
  let skipped = 0;
  for (const [index, line] of lines.entries()) {
    if (near[index] === 0) {
      skipped += 1;
      continue;
    }
    if (skipped > 0) found.push({ skipped });
    skipped = 0;
    found.push(line);
  }
  if (skipped > 0) found.push({ skipped });
  return found;
}
