// The visible part of a graph: collapsed groups, the tasks related to one task, and the critical path.

import { worst } from "../states";
import type { Counts, Graph, GraphNode } from "../types";

export interface ShownNode {
  id: string;
  /** The task; null for a collapsed group. */
  node: GraphNode | null;
  label: string;
  counts?: Counts;
  group: string | null;
  /** Number of tasks in a collapsed group. */
  tasks: number;
}

export interface ShownGraph {
  nodes: ShownNode[];
  edges: { from: string; to: string; rule: string | null }[];
  groups: { id: string; label: string; parent: string | null }[];
}

const groupKey = (group: string): string => `group:${group}`;

/** Return the groups around a task, the outermost last. */
function around(group: string | null, parents: ReadonlyMap<string, string | null>): string[] {
  const found: string[] = [];
  for (let at = group; at && !found.includes(at); at = parents.get(at) ?? null) found.push(at);
  return found;
}

/** Return a name without the prefix of its group. */
export function within(name: string, group: string | null): string {
  return group !== null && name.startsWith(`${group}.`) ? name.slice(group.length + 1) : name;
}

export function shownGraph(graph: Graph, collapsed: ReadonlySet<string>, counts?: Record<string, Counts>, only?: ReadonlySet<string> | null): ShownGraph {
  const parents = new Map(graph.groups.map((group) => [group.group_id, group.parent]));
  const nodes = new Map<string, ShownNode>();
  const places = new Map<string, string>();
  const groups = new Set<string>();
  for (const node of graph.nodes) {
    if (only && !only.has(node.task_id)) continue;
    const outer = around(node.group ?? null, parents);
    const folded = outer.findLast((group) => collapsed.has(group));
    const visible = folded === undefined ? outer : outer.slice(outer.indexOf(folded) + 1);
    for (const group of visible) groups.add(group);
    const parent = visible[0] ?? null;
    if (folded === undefined) {
      nodes.set(node.task_id, { id: node.task_id, node, label: within(node.task_id, parent), counts: counts?.[node.task_id], group: parent, tasks: 1 });
      places.set(node.task_id, node.task_id);
      continue;
    }
    const id = groupKey(folded);
    const before = nodes.get(id);
    nodes.set(id, { id, node: null, label: within(folded, parent), counts: counts && added(before?.counts, counts[node.task_id]), group: parent, tasks: (before?.tasks ?? 0) + 1 });
    places.set(node.task_id, id);
  }
  const edges = new Map<string, { from: string; to: string; rule: string | null }>();
  for (const edge of graph.edges) {
    const [from, to] = [places.get(edge.from), places.get(edge.to)];
    if (from === undefined || to === undefined || from === to) continue;
    const isFolded = from !== edge.from || to !== edge.to;
    edges.set(`${from} ${to}`, { from, to, rule: isFolded ? null : (edge.rule ?? null) });
  }
  return {
    nodes: [...nodes.values()],
    edges: [...edges.values()],
    groups: [...groups].map((group) => ({ id: group, label: within(group, parents.get(group) ?? null), parent: parents.get(group) ?? null })),
  };
}

/** Add the states of a task to those of its group. A mapped task counts as its worst child. */
function added(before: Counts | undefined, counts: Counts | undefined): Counts {
  const found = { ...before };
  if (counts && Object.keys(counts).length > 0) {
    const state = worst(counts);
    found[state] = (found[state] ?? 0) + 1;
  }
  return found;
}

/** Return a task, all that it depends on, and all that depends on it. */
export function related(graph: Graph, task: string): Set<string> {
  return new Set([...reached(graph, task, "to", "from"), ...reached(graph, task, "from", "to")]);
}

function reached(graph: Graph, task: string, near: "from" | "to", far: "from" | "to"): Set<string> {
  const next = new Map<string, string[]>();
  for (const edge of graph.edges) next.set(edge[near], [...(next.get(edge[near]) ?? []), edge[far]]);
  const found = new Set([task]);
  const queue = [task];
  for (let at = queue.pop(); at !== undefined; at = queue.pop()) {
    for (const one of next.get(at) ?? []) {
      if (!found.has(one)) queue.push(one);
      found.add(one);
    }
  }
  return found;
}

export interface Times {
  from: number | null;
  to: number | null;
}

/** Return the chain of tasks that determined the end of the last task: before each, its slowest parent. */
export function criticalPath(graph: Graph, times: Readonly<Record<string, Times>>): string[] {
  const now = Date.now();
  const end = (task: string): number | null => {
    const time = times[task];
    return !time || time.from === null ? null : (time.to ?? now);
  };
  let at: string | null = null;
  for (const node of graph.nodes) {
    const ended = end(node.task_id);
    if (ended !== null && (at === null || ended > end(at)!)) at = node.task_id;
  }
  const found: string[] = [];
  while (at !== null && !found.includes(at)) {
    found.push(at);
    let last: string | null = null;
    for (const edge of graph.edges) {
      if (edge.to !== at) continue;
      const ended = end(edge.from);
      if (ended !== null && (last === null || ended > end(last)!)) last = edge.from;
    }
    at = last;
  }
  return found.reverse();
}
