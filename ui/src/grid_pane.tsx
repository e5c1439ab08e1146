// The task of a cell, beside the grid of its DAG.

import { useEffect } from "preact/hooks";

import { enc, query } from "./api";
import { ofRun, useData } from "./data";
import { type Picked, cellHref } from "./grid";
import { usePlace } from "./router";
import { TaskPane } from "./task";
import type { Run, RunGraph } from "./types";

/** Return the focus from a closed pane to its cell. */
function focusCell(href: string): void {
  if (document.activeElement !== document.body) return;
  const cells = [...document.querySelectorAll<HTMLElement>(".grid a.cell")];
  cells.find((cell) => cell.getAttribute("href") === href)?.focus();
}

export function GridPane({ dag, picked: { run, task } }: { dag: string; picked: Picked }) {
  const { query: fields } = usePlace();
  const of = useData<Run>(query(`/runs/${enc(run)}`, { limit: 1 }), { on: ofRun(run), gap: 3000 });
  const graph = useData<RunGraph>(`/runs/${enc(run)}/graph`, { on: ofRun(run), gap: 1000 });
  const map = Number(fields.get("map") ?? -1);
  const round = Number(fields.get("round") ?? 0);
  useEffect(() => () => focusCell(cellHref(run, task)), [run, task]);
  return <TaskPane key={`${run} ${task} ${map} ${round}`} run={run} dag={dag} version={of.data?.version} task={task} map={map} round={round} tasks={graph.data?.tasks} hrefOf={(other) => cellHref(run, other)} />;
}
