// Box positions of a graph. The layout code is loaded on first use.

import { useEffect, useMemo, useState } from "preact/hooks";

import type { ShownGraph } from "./shape";
import type { Placed, Way } from "./sizes";

/** Place the boxes of a graph, again when its shape changes; null until the layout is loaded. */
export function usePlaced(shown: ShownGraph, widthOf: (label: string) => number, way: Way): Placed | null {
  const [placed, setPlaced] = useState<Placed | null>(null);
  // Counts change with every commit, but positions only with the shape.
  const shape = useMemo(() => JSON.stringify([shown.nodes.map((node) => [node.id, node.label, node.group]), shown.edges, shown.groups, way]), [shown, way]);
  useEffect(() => {
    let isWanted = true;
    const widths = new Map(shown.nodes.map((node) => [node.id, widthOf(node.label)]));
    void import("../layout").then(({ place }) => isWanted && setPlaced(place(shown, widths, way)));
    return () => {
      isWanted = false;
    };
  }, [shape]);
  return placed;
}

/** Shorten a text in its middle: names differ at their ends. */
export const shortened = (text: string, most: number): string => `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(-Math.floor(most / 2))}`;
