// The graph of tasks: one box per task. A mapped task has one box with a bar of its children.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { Icon } from "./components/icons";
import { SearchField } from "./components/search_field";
import { shortened, usePlaced } from "./graph/placed";
import { type ShownNode, type Times, criticalPath, related, shownGraph } from "./graph/shape";
import { LINE, NODE_HEIGHT, type Placed, type PlacedNode, type Way } from "./graph/sizes";
import { number } from "./parts";
import { Glyph, ended, endedOf, endedParts, isLive, named, ordered, sum, worst } from "./states";
import { sentenceCase, stateName, texts } from "./texts";
import type { Counts, DagDetail, Graph } from "./types";

import "./styles/graph_tools.css";

/** Up to this many tasks, no search is needed. */
const FEW = 8;
const LARGE = 600;
/** Above this number of tasks, groups are collapsed at first. */
const MANY = 60;
const ZOOMS = { least: 0.04, most: 2.5, usual: 1.15 };
/** A box is wide enough for the longest text below its name: "10,000 of 10,000". */
const WIDTHS = { least: 144, most: 300, around: 46 };
/** On a phone a graph from left to right is too small to be read. */
const NARROW = 720;
/** A graph of more tasks is shown as a whole there, too. */
const LEGIBLE = 20;
const NOTABLE = new Set(["failed", "running", "retrying", "sensing", "deferred", "queued"]);
const KEY = "aioflow.graph.way";

/** Return the graph by the tasks of a DAG, for a daemon that provides no better one. */
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
  /** When the tasks of a run began and ended. */
  times?: Record<string, Times>;
  /** The second line in the box of each task: its duration, or what it waits for. */
  details?: Record<string, string>;
  hrefOf?: (task: string) => string;
  picked?: string | null;
}

export function GraphView(props: Props) {
  const [isWanted, setWanted] = useState(false);
  const { nodes, groups } = props.graph;
  if (nodes.length === 0) return <p class="empty">{texts.graph.none}</p>;
  if (nodes.length > LARGE && groups.length === 0 && !isWanted) {
    return (
      <div class="empty">
        <p>{texts.graph.large(nodes.length)}</p>
        <button type="button" onClick={() => setWanted(true)}>
          {texts.graph.draw}
        </button>
      </div>
    );
  }
  return <Drawn key={props.graph.version} {...props} />;
}

let measured: CanvasRenderingContext2D | null = null;

/** Return the width of a text in the font of the page. */
function widthOf(text: string): number {
  measured ??= document.createElement("canvas").getContext("2d");
  if (!measured) return text.length * 7;
  measured.font = `600 12px ${getComputedStyle(document.body).fontFamily}`;
  return measured.measureText(text).width;
}

const boxWidth = (label: string): number => Math.round(Math.min(WIDTHS.most, Math.max(WIDTHS.least, widthOf(label) + WIDTHS.around)));

/** Return as much of a text as fits into a width. */
function cut(text: string, width: number): string {
  if (widthOf(text) <= width) return text;
  let most = text.length;
  while (most > 8 && widthOf(shortened(text, most)) > width) most -= 1;
  return shortened(text, most);
}

interface Seen {
  left: number;
  top: number;
  width: number;
  height: number;
}

function Drawn({ graph, counts, times, details, hrefOf, picked }: Props) {
  const hasGroups = graph.groups.length > 0;
  const [collapsed, setCollapsed] = useState<ReadonlySet<string>>(() => new Set(graph.nodes.length > MANY ? graph.groups.map((group) => group.group_id) : []));
  const [way, setWay] = useState<Way>(() => (localStorage.getItem(KEY) as Way | null) ?? (innerWidth <= NARROW ? "TB" : "LR"));
  const [isRelated, setRelated] = useState(false);
  const [isCritical, setCritical] = useState(false);
  const [search, setSearch] = useState("");
  const [found, setFound] = useState(-1);
  const only = useMemo(() => (isRelated && picked ? related(graph, picked) : null), [isRelated, picked, graph]);
  const shown = useMemo(() => shownGraph(graph, collapsed, counts, only), [graph, collapsed, counts, only]);
  const placed = usePlaced(shown, boxWidth, way);
  const nodes = useMemo(() => new Map(shown.nodes.map((node) => [node.id, node])), [shown]);
  const critical = useMemo(() => (isCritical && times ? new Set(criticalPath(graph, times)) : null), [isCritical, times, graph]);
  const hits = useMemo(() => hitsOf(graph, search), [graph, search]);

  const box = useRef<HTMLDivElement>(null);
  const [zoom, setZoom] = useState<number | null>(null);
  const [seen, setSeen] = useState<Seen>({ left: 0, top: 0, width: 0, height: 0 });
  // On a phone a text that is too small to be read says less than a part of the graph.
  const least = innerWidth <= NARROW && graph.nodes.length <= LEGIBLE ? 1 : 0;
  const fit = placed && seen.width > 0 ? Math.max(least, Math.min(ZOOMS.usual, seen.width / placed.width, seen.height / placed.height)) : 1;
  const scale = zoom ?? fit;

  function change(factor: number): void {
    setZoom(Math.min(ZOOMS.most, Math.max(ZOOMS.least, scale * factor)));
  }
  useEffect(() => {
    const node = box.current;
    if (!node) return undefined;
    const see = () => setSeen({ left: node.scrollLeft, top: node.scrollTop, width: node.clientWidth, height: node.clientHeight });
    const wheel = (event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      setZoom((before) => Math.min(ZOOMS.most, Math.max(ZOOMS.least, (before ?? fit) * (event.deltaY < 0 ? 1.1 : 0.9))));
    };
    const watch = new ResizeObserver(see);
    watch.observe(node);
    node.addEventListener("scroll", see, { passive: true });
    node.addEventListener("wheel", wheel, { passive: false });
    const stop = dragging(node);
    return () => {
      watch.disconnect();
      node.removeEventListener("scroll", see);
      node.removeEventListener("wheel", wheel);
      stop();
    };
  }, [fit]);

  /** A task to bring into view, even if its group is collapsed. */
  const target = useRef<string | null>(null);
  function show(task: string): void {
    target.current = task;
    const node = graph.nodes.find((one) => one.task_id === task);
    const open = new Set(collapsed);
    for (let at: string | null | undefined = node?.group; at; at = graph.groups.find((one) => one.group_id === at)?.parent) open.delete(at);
    if (open.size !== collapsed.size) setCollapsed(open);
    if (scale < 0.6) setZoom(0.8);
    else bring();
  }
  function bring(): void {
    const at = placed?.nodes.find((one) => one.id === target.current);
    if (!at || !box.current) return;
    box.current.scrollTo({ left: at.x * scale - box.current.clientWidth / 2 + 60, top: at.y * scale - box.current.clientHeight / 2 });
    target.current = null;
  }
  useLayoutEffect(bring, [placed, scale]);
  // Of a graph that is larger than a phone, what failed, waits or runs is in view first.
  const isBegun = useRef(false);
  useLayoutEffect(() => {
    if (isBegun.current || least === 0 || !placed || !counts || seen.width === 0) return;
    isBegun.current = true;
    const first = graph.nodes.find(({ task_id: task }) => counts[task] && NOTABLE.has(worst(counts[task])));
    if (!first) return;
    target.current = first.task_id;
    bring();
  }, [placed, counts, seen.width]);
  function find(by: 1 | -1): void {
    if (hits.length === 0) return;
    const next = found === -1 ? (by === 1 ? 0 : hits.length - 1) : (found + by + hits.length) % hits.length;
    setFound(next);
    show(hits[next]!);
  }
  function turn(next: Way): void {
    localStorage.setItem(KEY, next);
    setWay(next);
  }
  function toggle(group: string): void {
    const next = new Set(collapsed);
    if (!next.delete(group)) next.add(group);
    setCollapsed(next);
  }
  const isBeyond = placed !== null && (placed.width * scale > seen.width + 2 || placed.height * scale > seen.height + 2);
  const current = search === "" ? null : hits[found];
  const dims = (id: string): boolean => (critical !== null && !critical.has(id)) || (search !== "" && !hits.includes(id));
  return (
    <div class="graph" style={placed ? { "--tall": `${Math.ceil(placed.height * Math.min(ZOOMS.usual, seen.width > 0 ? seen.width / placed.width : 1)) + 72}px` } : undefined}>
      <div class="graph-tools">
        {graph.nodes.length > FEW && <SearchField
          class="graph-find"
          label={texts.graph.search}
          value={search}
          onValue={(text) => {
            setSearch(text);
            setFound(-1);
          }}
          onEnter={find}
        >
          {search !== "" && <small>{texts.graph.found(found, hits.length)}</small>}
        </SearchField>}
        {hasGroups && (
          <button type="button" class="small" onClick={() => setCollapsed(new Set(collapsed.size > 0 ? [] : graph.groups.map((group) => group.group_id)))}>
            {collapsed.size > 0 ? texts.graph.expand : texts.graph.collapse}
          </button>
        )}
        {picked && (
          <button type="button" class="small" aria-pressed={isRelated} title={texts.graph.related} onClick={() => setRelated(!isRelated)}>
            <Icon name="filter" size={12} /> {cut(picked, 120)}
          </button>
        )}
        {times && (
          <button type="button" class="small" aria-pressed={isCritical} title={texts.graph.criticalHint} onClick={() => setCritical(!isCritical)}>
            <i class="tick-box" aria-hidden="true">
              {isCritical && <Icon name="check" size={10} />}
            </i>
            {texts.graph.critical}
          </button>
        )}
        <span class="switch" role="group" aria-label={texts.graph.direction}>
          {(["LR", "TB"] as const).map((one) => (
            <button key={one} type="button" class="small" aria-pressed={way === one} aria-label={texts.graph.way[one]} title={texts.graph.way[one]} onClick={() => turn(one)}>
              <Icon name={one === "LR" ? "arrow-right" : "arrow-down"} size={12} />
            </button>
          ))}
        </span>
        <span class="graph-zoom" role="group" aria-label={texts.graph.size}>
          <button type="button" class="small" aria-label={texts.graph.smaller} onClick={() => change(1 / 1.25)}>
            −
          </button>
          <button type="button" class="small" aria-label={texts.graph.fit} onClick={() => setZoom(null)}>
            {texts.graph.fit}
          </button>
          <button type="button" class="small" aria-label={texts.graph.larger} onClick={() => change(1.25)}>
            +
          </button>
        </span>
      </div>
      <div ref={box} class="canvas" tabIndex={0} role="region" aria-label={texts.graph.region} data-boxes="">
        {placed && (
          <svg width={placed.width * scale} height={placed.height * scale} viewBox={`0 0 ${placed.width} ${placed.height}`} role="group" aria-label={texts.common.many(graph.nodes.length, "task")}>
            <defs>
              <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
                <path d="M0 0 8 4 0 8z" class="arrow" />
              </marker>
            </defs>
            {placed.groups.map((group) => (
              <g key={group.id} class="group">
                <rect x={group.x} y={group.y} width={group.width} height={group.height} rx="8" />
                <g class="group-name" role="button" tabIndex={0} aria-label={`${texts.graph.collapse}: ${group.id}`} onClick={() => toggle(group.id)} onKeyDown={(event) => event.key === "Enter" && toggle(group.id)}>
                  <rect x={group.x + 4} y={group.y + 2} width={Math.min(group.width - 8, widthOf(group.label) + 28)} height="24" rx="4" />
                  <text x={group.x + 10} y={group.y + 18}>
                    − {cut(group.label, group.width - 30)}
                  </text>
                </g>
              </g>
            ))}
            {placed.edges.map((edge) => {
              const isOn = critical !== null && critical.has(edge.from) && critical.has(edge.to);
              return (
                <path key={`${edge.from} ${edge.to}`} class={`edge ${isOn ? "critical" : ""} ${!isOn && (dims(edge.from) || dims(edge.to)) ? "dim" : ""}`} d={edge.path} marker-end="url(#arrow)">
                  {edge.rule && <title>{named(edge.rule)}</title>}
                </path>
              );
            })}
            {placed.nodes.map((at) => {
              const node = nodes.get(at.id);
              if (!node) return null;
              return (
                <Box
                  key={at.id}
                  at={at}
                  shown={node}
                  detail={details?.[node.id]}
                  href={node.node ? hrefOf?.(node.id) : undefined}
                  isPicked={picked === at.id}
                  isFound={current === at.id}
                  isDim={node.node !== null && dims(at.id)}
                  isCritical={critical?.has(at.id) ?? false}
                  onOpen={node.node ? undefined : () => toggle(at.id.slice("group:".length))}
                />
              );
            })}
          </svg>
        )}
      </div>
      {placed && isBeyond && <MiniMap placed={placed} nodes={nodes} scale={scale} seen={seen} move={(left, top) => box.current?.scrollTo({ left, top })} />}
    </div>
  );
}

function hitsOf(graph: Graph, search: string): string[] {
  const wanted = search.trim().toLowerCase();
  if (wanted === "") return [];
  return graph.nodes.map((node) => node.task_id).filter((task) => task.toLowerCase().includes(wanted));
}

const MAP = { width: 168, height: 104 };

/** The whole graph, and the part in view. The pointer moves that part; the canvas itself scrolls by keys. */
function MiniMap({ placed, nodes, scale, seen, move }: { placed: Placed; nodes: Map<string, ShownNode>; scale: number; seen: Seen; move: (left: number, top: number) => void }) {
  const by = Math.min(MAP.width / placed.width, MAP.height / placed.height);
  const to = (event: PointerEvent) => {
    const { left, top } = (event.currentTarget as Element).getBoundingClientRect();
    move(((event.clientX - left) / by) * scale - seen.width / 2, ((event.clientY - top) / by) * scale - seen.height / 2);
  };
  return (
    <svg
      class="graph-map"
      width={placed.width * by}
      height={placed.height * by}
      role="img"
      aria-label={texts.graph.map}
      onPointerDown={(event) => {
        event.currentTarget.setPointerCapture(event.pointerId);
        to(event);
      }}
      onPointerMove={(event) => event.buttons > 0 && to(event)}
    >
      {placed.nodes.map((at) => {
        const counts = nodes.get(at.id)?.counts;
        const state = counts && sum(counts) > 0 ? worst(counts) : "pending";
        return <rect key={at.id} class={`f-${state}`} x={at.x * by} y={at.y * by} width={Math.max(2, at.width * by)} height={Math.max(1.5, NODE_HEIGHT * by)} />;
      })}
      <rect class="graph-view" x={(seen.left / scale) * by} y={(seen.top / scale) * by} width={Math.min(placed.width, seen.width / scale) * by} height={Math.min(placed.height, seen.height / scale) * by} />
    </svg>
  );
}

/** Let the pointer scroll an element by dragging its background. */
function dragging(node: HTMLElement): () => void {
  let from: { x: number; y: number; left: number; top: number } | null = null;
  const down = (event: PointerEvent) => {
    if (event.button !== 0 || event.pointerType === "touch" || (event.target as Element).closest("a, [role=button]")) return;
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
  at: PlacedNode;
  shown: ShownNode;
  detail?: string;
  href?: string;
  isPicked: boolean;
  isFound: boolean;
  isDim: boolean;
  isCritical: boolean;
  /** For a collapsed group: expands it. */
  onOpen?: () => void;
}

function kindOf({ node }: ShownNode): string {
  if (!node) return "";
  return node.kind ?? (node.is_sensor ? "sensor" : node.body);
}

/** Add the detail to the counts of children if there is room: the counts matter more. */
function withDetail(counts: string, detail: string | undefined, room: number): string {
  const both = `${counts}, ${detail}`;
  return detail !== undefined && widthOf(both) <= room ? both : counts;
}

/** Return the second line of a box. The icon shows the state, so a detail may replace the word unless it failed. */
function belowOf(shown: ShownNode, state: string | null, detail: string | undefined, room: number): string {
  const { counts, node } = shown;
  const all = counts ? sum(counts) : 0;
  const tasks = texts.common.many(shown.tasks, "task");
  if (!node) return counts && all > 0 ? `${number(ended(counts))} of ${tasks}` : tasks;
  if (counts && node.is_mapped) return all === 0 ? texts.graph.unexpanded : withDetail(endedOf(counts), detail, room);
  if (state && detail) return state === "success" || isLive(state) ? sentenceCase(detail) : `${stateName(state)}, ${detail}`;
  return state ? stateName(state) : `${sentenceCase(named(kindOf(shown)))}${node.is_mapped ? ", mapped" : ""}`;
}

function Box({ at, shown, detail, href, isPicked, isFound, isDim, isCritical, onOpen }: BoxProps) {
  const { x, y, width } = at;
  const { node, counts } = shown;
  const all = counts ? sum(counts) : 0;
  const state = counts && all > 0 ? worst(counts) : null;
  const room = width - WIDTHS.around + 16;
  const below = belowOf(shown, state, detail, room);
  const text = counts ? ordered(counts).map(([name, count]) => `${count} ${named(name)}`).join(", ") : below;
  const isStacked = node === null || node.is_mapped;
  const names = ["node", state ? `n-${state}` : counts ? "n-pending" : "", isPicked ? "picked" : "", isFound ? "found" : "", isCritical ? "on-path" : ""].filter(Boolean).join(" ");
  const inner = (
    <>
      <title>{`${node?.task_id ?? shown.label}: ${text}${detail ? `, ${detail}` : ""}${node?.doc ? `\n${node.doc}` : ""}`}</title>
      {isStacked && <rect class="under" x={x + 4} y={y + 4} width={width} height={NODE_HEIGHT} rx="6" />}
      <rect class={names} x={x} y={y} width={width} height={NODE_HEIGHT} rx="6" />
      <svg x={x + 9} y={y + 9} width="14" height="14" overflow="visible">
        <Glyph state={state ?? (counts ? "pending" : node === null ? "mixed" : node.is_sensor ? "sensor" : node.is_mapped ? "mixed" : "task")} />
      </svg>
      <text class="name" aria-hidden="true" x={x + 30} y={y + LINE}>
        {cut(shown.label, width - WIDTHS.around + 8)}
      </text>
      <text class="below" aria-hidden="true" x={x + 30} y={y + LINE + 15}>
        {cut(below, room)}
      </text>
      {counts && isStacked && all > 0 && <Share counts={counts} x={x + 1} y={y + NODE_HEIGHT - 5} width={width - 2} />}
    </>
  );
  const dim = isDim ? "dim" : undefined;
  if (onOpen) {
    return (
      <g
        class={`folded ${dim ?? ""}`}
        role="button"
        tabIndex={0}
        data-box=""
        data-state={state ?? ""}
        aria-label={`${texts.graph.expand}: ${shown.label}, ${text}`}
        onClick={onOpen}
        onKeyDown={(event) => event.key === "Enter" && onOpen()}
      >
        {inner}
      </g>
    );
  }
  if (!href) return <g class={dim} data-task={shown.id}>{inner}</g>;
  return (
    <a class={dim} href={href} data-task={shown.id} data-box="" data-state={state ?? ""}>
      {inner}
    </a>
  );
}

function Share({ counts, x, y, width }: { counts: Counts; x: number; y: number; width: number }) {
  const all = sum(counts);
  let at = x;
  return (
    <g>
      {endedParts(counts).map(([state, count]) => {
        const wide = (width * count) / all;
        at += wide;
        return <rect key={state} class={`f-${state}`} x={at - wide} y={y} width={wide} height="4" />;
      })}
    </g>
  );
}
