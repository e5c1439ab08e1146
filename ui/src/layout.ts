// The layout of a graph, loaded on first use.

import { Graph as Dagre, layout } from "@dagrejs/dagre";

import { NODE_HEIGHT } from "./graph/sizes";
import type { Placed, Way } from "./graph/sizes";
import type { ShownGraph } from "./graph/shape";

/** The height of a group's name, which is above its tasks. */
const NAME_HEIGHT = 14;

interface Point {
  x: number;
  y: number;
}

export function place(graph: ShownGraph, widths: ReadonlyMap<string, number>, way: Way): Placed {
  const drawn = new Dagre({ compound: true });
  drawn.setGraph({ rankdir: way, nodesep: graph.groups.length > 0 ? 30 : way === "LR" ? 18 : 26, ranksep: 46, marginx: 16, marginy: 22 });
  drawn.setDefaultEdgeLabel(() => ({}));
  const groupOf = (group: string): string => `around:${group}`;
  for (const group of graph.groups) drawn.setNode(groupOf(group.id), {});
  for (const node of graph.nodes) drawn.setNode(node.id, { width: widths.get(node.id) ?? 160, height: NODE_HEIGHT });
  const known = new Set(graph.groups.map((group) => group.id));
  for (const group of graph.groups) if (group.parent && known.has(group.parent)) drawn.setParent(groupOf(group.id), groupOf(group.parent));
  for (const node of graph.nodes) if (node.group && known.has(node.group)) drawn.setParent(node.id, groupOf(node.group));
  for (const edge of graph.edges) drawn.setEdge(edge.from, edge.to);
  layout(drawn);
  const size = drawn.graph() as { width?: number; height?: number };
  return {
    width: Math.ceil(size.width ?? 0),
    height: Math.ceil(size.height ?? 0),
    nodes: graph.nodes.map(({ id }) => {
      const { x, y, width } = drawn.node(id) as { x: number; y: number; width: number };
      return { id, x: x - width / 2, y: y - NODE_HEIGHT / 2, width };
    }),
    edges: graph.edges.map((edge) => {
      const { points } = drawn.edge(edge.from, edge.to) as { points: Point[] };
      const [from, to] = [drawn.node(edge.from) as Point & { width: number }, drawn.node(edge.to) as Point & { width: number }];
      const ends: [Point, Point] =
        way === "LR"
          ? [{ x: from.x + from.width / 2, y: from.y }, { x: to.x - to.width / 2, y: to.y }]
          : [{ x: from.x, y: from.y + NODE_HEIGHT / 2 }, { x: to.x, y: to.y - NODE_HEIGHT / 2 }];
      return { ...edge, path: curve([ends[0], ...points.slice(1, -1), ends[1]], way) };
    }),
    groups: graph.groups.map((group) => {
      const at = drawn.node(groupOf(group.id)) as Point & { width: number; height: number };
      return { ...group, x: at.x - at.width / 2, y: at.y - at.height / 2 - NAME_HEIGHT, width: at.width, height: at.height + NAME_HEIGHT };
    }),
  };
}

/** Return the path of a smooth line through the points. */
function curve(points: Point[], way: Way): string {
  const [first, ...rest] = points;
  if (!first) return "";
  let path = `M${first.x},${first.y}`;
  let before = first;
  for (const point of rest) {
    const [x, y] = [(before.x + point.x) / 2, (before.y + point.y) / 2];
    path += way === "LR" ? `C${x},${before.y} ${x},${point.y} ${point.x},${point.y}` : `C${before.x},${y} ${point.x},${y} ${point.x},${point.y}`;
    before = point;
  }
  return path;
}
