// A graph of tasks: one box for each, also for a mapped one, with a bar of its children.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import type { Placed } from "./layout";
import { number } from "./parts";
import { go } from "./router";
import { Glyph, ended, named, ordered, sum, worst } from "./states";
import { sentenceCase, stateName, texts } from "./texts";
import type { Counts, DagDetail, Graph, GraphNode } from "./types";

const WIDTH = 208;
const HEIGHT = 46;
const TEXT_WIDTH = WIDTH - 40;
const LARGE = 600;
const ZOOMS = { least: 0.1, most: 2.5 };

/** The graph as the tasks of a DAG tell it, for a daemon that has no better one. */
export function graphOf(dag: DagDetail): Graph {
  return {
    version: dag.version,
    nodes: dag.tasks.map((task) => ({ ...task, group: null })),
    edges: dag.tasks.flatMap((task) => task.parents.map((parent) => ({ from: parent, to: task.task_id }))),
    groups: [],
  };
}

interface Props {
  graph: Graph;
  counts?: Record<string, Counts>;
  hrefOf?: (task: string) => string;
  picked?: string | null;
}

export function GraphView(props: Props) {
  const [isWanted, setWanted] = useState(false);
  if (props.graph.nodes.length === 0) return <p class="empty">No tasks.</p>;
  if (props.graph.nodes.length > LARGE && !isWanted) {
    return (
      <div class="empty">
        <p>{texts.graph.large(props.graph.nodes.length)}</p>
        <button type="button" onClick={() => setWanted(true)}>
          {texts.graph.draw}
        </button>
      </div>
    );
  }
  return <Drawn {...props} />;
}

function usePlaced(graph: Graph): Placed | null {
  const [placed, setPlaced] = useState<Placed | null>(null);
  // Counts come with every commit; what is drawn where changes with the version only.
  const shape = useMemo(() => JSON.stringify([graph.nodes, graph.edges, graph.groups]), [graph]);
  useEffect(() => {
    let isWanted = true;
    void import("./layout").then(({ place }) => isWanted && setPlaced(place(graph)));
    return () => {
      isWanted = false;
    };
  }, [shape]);
  return placed;
}

function Drawn({ graph, counts, hrefOf, picked }: Props) {
  const placed = usePlaced(graph);
  const box = useRef<HTMLDivElement>(null);
  const [zoom, setZoom] = useState<number | null>(null);
  const fit = placed && box.current ? fitting(placed, box.current) : 1;
  const scale = zoom ?? fit;

  function change(factor: number): void {
    setZoom(Math.min(ZOOMS.most, Math.max(ZOOMS.least, scale * factor)));
  }

  useEffect(() => {
    const node = box.current;
    if (!node) return undefined;
    const wheel = (event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      setZoom((before) => Math.min(ZOOMS.most, Math.max(ZOOMS.least, (before ?? fit) * (event.deltaY < 0 ? 1.1 : 0.9))));
    };
    node.addEventListener("wheel", wheel, { passive: false });
    const stop = dragging(node);
    return () => {
      node.removeEventListener("wheel", wheel);
      stop();
    };
  }, [fit]);

  return (
    <div class="graph" style={placed ? { "--tall": `${Math.ceil(placed.height * 1.15) + 60}px` } : undefined}>
      <div class="zoom" role="group" aria-label="Size of the graph">
        <button type="button" aria-label={texts.graph.out} onClick={() => change(1 / 1.25)}>
          −
        </button>
        <button type="button" aria-label={texts.graph.fit} onClick={() => setZoom(null)}>
          {texts.graph.fit}
        </button>
        <button type="button" aria-label={texts.graph.in} onClick={() => change(1.25)}>
          +
        </button>
      </div>
      <div ref={box} class="canvas" tabIndex={0} role="region" aria-label="Graph of tasks" data-boxes="">
        {placed && (
          <svg width={placed.width * scale} height={placed.height * scale} viewBox={`0 0 ${placed.width} ${placed.height}`} role="group" aria-label={`${placed.nodes.length} tasks`}>
            <defs>
              <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
                <path d="M0 0 8 4 0 8z" class="arrow" />
              </marker>
            </defs>
            {placed.groups.map((group) => (
              <g key={group.id} class="group">
                <rect x={group.x} y={group.y} width={group.width} height={group.height} rx="8" />
                <text x={group.x + 8} y={group.y + 13}>
                  {group.id}
                </text>
              </g>
            ))}
            {placed.edges.map((edge) => (
              <path key={`${edge.from} ${edge.to}`} class="edge" d={edge.path} marker-end="url(#arrow)">
                {edge.rule && <title>{named(edge.rule)}</title>}
              </path>
            ))}
            {placed.nodes.map(({ node, x, y }) => (
              <Box key={node.task_id} node={node} x={x} y={y} counts={counts?.[node.task_id]} href={hrefOf?.(node.task_id)} isPicked={picked === node.task_id} />
            ))}
          </svg>
        )}
      </div>
    </div>
  );
}

function fitting(placed: Placed, box: HTMLElement): number {
  const least = Math.min(box.clientWidth / placed.width, Math.max(box.clientHeight, 260) / placed.height);
  return Math.max(0.62, Math.min(1.15, least)); // smaller cannot be read: one scrolls then
}

/** Move what is too large to be seen by pulling at its ground. */
function dragging(node: HTMLElement): () => void {
  let from: { x: number; y: number; left: number; top: number } | null = null;
  const down = (event: PointerEvent) => {
    if (event.button !== 0 || event.pointerType === "touch" || (event.target as Element).closest("a")) return;
    from = { x: event.clientX, y: event.clientY, left: node.scrollLeft, top: node.scrollTop };
  };
  const move = (event: PointerEvent) => {
    if (!from) return;
    node.scrollLeft = from.left + from.x - event.clientX;
    node.scrollTop = from.top + from.y - event.clientY;
  };
  const up = () => (from = null);
  node.addEventListener("pointerdown", down);
  window.addEventListener("pointermove", move);
  window.addEventListener("pointerup", up);
  return () => {
    node.removeEventListener("pointerdown", down);
    window.removeEventListener("pointermove", move);
    window.removeEventListener("pointerup", up);
  };
}

interface BoxProps {
  node: GraphNode;
  x: number;
  y: number;
  counts?: Counts;
  href?: string;
  isPicked: boolean;
}

function kindOf(node: GraphNode): string {
  if (node.kind) return node.kind;
  return node.is_sensor ? "sensor" : node.body;
}

function Box({ node, x, y, counts, href, isPicked }: BoxProps) {
  const all = counts ? sum(counts) : 0;
  const state = counts && all > 0 ? worst(counts) : null;
  const below =
    counts && node.is_mapped
      ? all === 0 ? "Not expanded yet" : `${number(ended(counts))} of ${number(all)}`
      : state ? stateName(state) : `${sentenceCase(named(kindOf(node)))}${node.is_mapped ? ", mapped" : ""}`;
  const text = counts ? ordered(counts).map(([name, count]) => `${count} ${named(name)}`).join(", ") : below;
  const inner = (
    <>
      <title>{`${node.task_id}: ${text}${node.doc ? `\n${node.doc}` : ""}`}</title>
      {node.is_mapped && <rect class="under" x={x + 4} y={y + 4} width={WIDTH} height={HEIGHT} rx="6" />}
      <rect class={`node ${state ? `n-${state}` : ""} ${isPicked ? "picked" : ""}`} x={x} y={y} width={WIDTH} height={HEIGHT} rx="6" />
      <svg x={x + 9} y={y + 9} width="14" height="14" overflow="visible">
        <Glyph state={state ?? (counts ? "pending" : node.is_sensor ? "sensor" : node.is_mapped ? "mixed" : "task")} />
      </svg>
      <text class="name" aria-hidden="true" x={x + 30} y={y + 20}>
        {fitted(nameIn(node), "name")}
      </text>
      <text class="below" aria-hidden="true" x={x + 30} y={y + 35}>
        {fitted(below, "below")}
      </text>
      {counts && node.is_mapped && all > 0 && <Share counts={counts} x={x + 1} y={y + HEIGHT - 5} />}
    </>
  );
  if (!href) return <g data-task={node.task_id}>{inner}</g>;
  return (
    <a
      href={href}
      data-task={node.task_id}
      data-box=""
      data-state={state ?? ""}
      onClick={(event) => {
        // An SVG link has no plain address to follow.
        if (event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        go(href);
      }}
    >
      {inner}
    </a>
  );
}

function Share({ counts, x, y }: { counts: Counts; x: number; y: number }) {
  const all = sum(counts);
  const width = WIDTH - 2;
  let at = x;
  return (
    <g>
      {ordered(counts).map(([state, count]) => {
        const wide = (width * count) / all;
        at += wide;
        return <rect key={state} class={`f-${state}`} x={at - wide} y={y} width={wide} height="4" />;
      })}
    </g>
  );
}

const measured = document.createElement("canvas").getContext("2d");
const FONTS = { name: '600 12px "Inter", sans-serif', below: '400 12px "Inter", sans-serif' } as const;

/** A text without its middle where it is wider than the box. */
function fitted(text: string, font: keyof typeof FONTS): string {
  if (!measured) return text;
  measured.font = FONTS[font];
  const isWide = (one: string) => measured.measureText(one).width > TEXT_WIDTH;
  if (!isWide(text)) return text;
  let [least, most] = [4, text.length - 1];
  while (least < most) {
    const middle = Math.ceil((least + most) / 2);
    if (isWide(cutTo(text, middle))) most = middle - 1;
    else least = middle;
  }
  return cutTo(text, least);
}

const cutTo = (text: string, count: number): string => `${text.slice(0, Math.ceil(count * 0.6))}…${text.slice(text.length - Math.floor(count * 0.4))}`;

/** Inside its group a task goes without the group's name. */
function nameIn(node: GraphNode): string {
  const prefix = `${node.group ?? ""}.`;
  return node.group && node.task_id.startsWith(prefix) ? node.task_id.slice(prefix.length) : node.task_id;
}
