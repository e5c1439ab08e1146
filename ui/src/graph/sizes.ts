// Sizes and positions of the boxes of a graph.

export const NODE_HEIGHT = 46;
/** The base line of the first text in a box. */
export const LINE = 20;

export type Way = "LR" | "TB";

export interface PlacedNode {
  id: string;
  x: number;
  y: number;
  width: number;
}

export interface Placed {
  width: number;
  height: number;
  nodes: PlacedNode[];
  edges: { from: string; to: string; rule: string | null; path: string }[];
  groups: { id: string; label: string; x: number; y: number; width: number; height: number }[];
}
