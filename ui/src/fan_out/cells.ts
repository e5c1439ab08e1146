// The cells of a heat map: loaded with one request, then updated by the live stream.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { enc } from "../api";
import { type Data, useData } from "../data";
import { onChange } from "../live";

export interface CellsAnswer {
  width: number;
  /** The number of children in each cell. */
  size: number;
  letters: Record<string, string>;
  states: string;
  durations: string;
  offsets: number[];
  bounds_seconds: number[];
}

export interface Cells {
  width: number;
  size: number;
  /** The state of each cell. */
  states: string[];
  /** The bucket of each cell's longest duration; -1 for none. */
  buckets: number[];
  offsets: number[];
  bounds: number[];
}

function cellsOf(answer: CellsAnswer): Cells {
  return {
    width: answer.width,
    size: answer.size,
    states: Array.from(answer.states, (letter) => answer.letters[letter] ?? "pending"),
    buckets: Array.from(answer.durations, (letter) => (letter === "." ? -1 : letter.charCodeAt(0) - 65)),
    offsets: answer.offsets,
    bounds: answer.bounds_seconds,
  };
}

/** The cells of a task. Changes of children come with the stream; only counts are requested again. */
export function useCells(run: string, task: string): Data<Cells> {
  const known = useRef<Cells | undefined>(undefined);
  const found = useData<CellsAnswer>(`/runs/${enc(run)}/tasks/${enc(task)}/children/cells`, {
    on: (change) => {
      const cells = known.current;
      if (change.counted.has(run) || cells === undefined) return change.runs.has(run);
      const own = change.moves.filter((move) => move.run_id === run && move.task_id === task);
      return own.length > 0 && (cells.size > 1 || own.some((move) => move.map_index >= cells.width));
    },
    gap: 2000,
  });
  const cells = useMemo(() => found.data && cellsOf(found.data), [found.data]);
  known.current = cells;
  const [, setChanged] = useState(0);
  useEffect(
    () =>
      onChange((change) => {
        const own = change.moves.filter((move) => move.run_id === run && move.task_id === task);
        if (!known.current || known.current.size > 1 || own.length === 0) return;
        for (const { map_index: index, round, state } of own) {
          const at = index >= 0 ? index : round;
          if (at < known.current.width) known.current.states[at] = state;
        }
        setChanged((count) => count + 1);
      }),
    [run, task],
  );
  return { ...found, data: cells };
}

/** Return the child to open for a cell: the first one that has the cell's state. */
export const childOf = (cells: Cells, at: number): number => at * cells.size + (cells.offsets[at] ?? 0);

/** Return the numbers in ranges such as "3,7-9". */
export function numbersOf(ranges: string): Set<number> {
  const found = new Set<number>();
  for (const piece of ranges.split(",")) {
    if (piece === "") continue;
    const [first, last] = piece.split("-").map(Number);
    for (let number = first!; number <= (last ?? first!); number += 1) found.add(number);
  }
  return found;
}
