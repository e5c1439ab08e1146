// Where the tasks of a graph are drawn. Loaded when a graph is first shown.

import { Graph as Dagre, layout } from "@dagrejs/dagre";

import type { Graph, GraphNode } from "./types";

export const NODE_WIDTH = 208;
export const NODE_HEIGHT = 46;

interface Point {
  x: number;
  y: number;
}

export interface Placed {
  width: number;
  height: number;
  nodes: { node: GraphNode; x: number; y: number }[];
  edges: { from: string; to: string; rule: string | null; path: string }[];
  groups: { id: string; x: number; y: number; width: number; height: number }[];
}

export function place(graph: Graph): Placed {
  const drawn = new Dagre({ compound: true });
  drawn.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 46, marginx: 16, marginy: 16 });
  drawn.setDefaultEdgeLabel(() => ({}));
  const groups = graph.groups.filter((group) => graph.nodes.some((node) => isWithin(node, group.group_id, graph)));
  for (const group of groups) drawn.setNode(`group:${group.group_id}`, {});
  for (const node of graph.nodes) drawn.setNode(node.task_id, { width: NODE_WIDTH, height: NODE_HEIGHT });
  for (const group of groups) if (group.parent) drawn.setParent(`group:${group.group_id}`, `group:${group.parent}`);
  for (const node of graph.nodes) if (node.group) drawn.setParent(node.task_id, `group:${node.group}`);
  const known = new Set(graph.nodes.map((node) => node.task_id));
  const edges = graph.edges.filter((edge) => known.has(edge.from) && known.has(edge.to));
  for (const edge of edges) drawn.setEdge(edge.from, edge.to);
  layout(drawn);
  const size = drawn.graph() as { width?: number; height?: number };
  return {
    width: Math.ceil(size.width ?? 0),
    height: Math.ceil(size.height ?? 0),
    nodes: graph.nodes.map((node) => {
      const { x, y } = drawn.node(node.task_id) as { x: number; y: number };
      return { node, x: x - NODE_WIDTH / 2, y: y - NODE_HEIGHT / 2 };
    }),
    edges: edges.map((edge) => {
      const { points } = drawn.edge(edge.from, edge.to) as { points: Point[] };
      const [from, to] = [drawn.node(edge.from) as Point, drawn.node(edge.to) as Point];
      const ends = [{ x: from.x + NODE_WIDTH / 2, y: from.y }, { x: to.x - NODE_WIDTH / 2, y: to.y }] as const;
      return { from: edge.from, to: edge.to, rule: edge.rule ?? null, path: curve([ends[0], ...points.slice(1, -1), ends[1]]) };
    }),
    groups: groups.map((group) => {
      const at = drawn.node(`group:${group.group_id}`) as { x: number; y: number; width: number; height: number };
      return { id: group.group_id, x: at.x - at.width / 2, y: at.y - at.height / 2, width: at.width, height: at.height };
    }),
  };
}

function isWithin(node: GraphNode, group: string, graph: Graph): boolean {
  for (let at: string | null | undefined = node.group; at; at = graph.groups.find((one) => one.group_id === at)?.parent) {
    if (at === group) return true;
  }
  return false;
}

/** A smooth line through the points. */
function curve(points: Point[]): string {
  const [first, ...rest] = points;
  if (!first) return "";
  let path = `M${first.x},${first.y}`;
  let before = first;
  for (const point of rest) {
    const middle = (before.x + point.x) / 2;
    path += `C${middle},${before.y} ${middle},${point.y} ${point.x},${point.y}`;
    before = point;
  }
  return path;
}
