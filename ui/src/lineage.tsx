// The lineage graph: DAGs update assets, and assets start DAGs.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { shortened, usePlaced } from "./graph/placed";
import type { ShownGraph } from "./graph/shape";
import { NODE_HEIGHT } from "./graph/sizes";
import { dagHref } from "./parts";
import { texts } from "./texts";
import type { Asset } from "./types";

const WIDTHS = { least: 110, most: 240, letter: 7.2, around: 36 };
const ZOOM = { least: 0.35, small: 0.8, most: 1 };

interface Props {
  assets: Asset[];
  picked?: string | null;
  hrefOf: (asset: string) => string;
  /** Whether the graph is shown beside a table. */
  isSmall?: boolean;
}

const assetKey = (name: string): string => `asset:${name}`;
const dagKey = (id: string): string => `dag:${id}`;
const nameOf = (key: string): string => key.slice(key.indexOf(":") + 1);

function graphOf(assets: Asset[]): ShownGraph {
  const ids = new Set<string>();
  const edges = new Map<string, { from: string; to: string; rule: string | null }>();
  const join = (from: string, to: string) => {
    ids.add(from).add(to);
    edges.set(`${from} ${to}`, { from, to, rule: null });
  };
  for (const asset of assets) {
    ids.add(assetKey(asset.name));
    for (const one of asset.producers) join(dagKey(one.dag_id), assetKey(asset.name));
    for (const one of asset.consumers) join(assetKey(asset.name), dagKey(one.dag_id));
  }
  return { nodes: [...ids].map((id) => ({ id, node: null, label: nameOf(id), group: null, tasks: 1 })), edges: [...edges.values()], groups: [] };
}

const widthOf = (text: string): number => Math.round(Math.min(WIDTHS.most, Math.max(WIDTHS.least, text.length * WIDTHS.letter + WIDTHS.around)));

function cut(text: string, width: number): string {
  const most = Math.round((width - WIDTHS.around) / WIDTHS.letter);
  return text.length <= most ? text : shortened(text, most);
}

export function Lineage({ assets, picked, hrefOf, isSmall }: Props) {
  const graph = useMemo(() => graphOf(assets), [assets]);
  const placed = usePlaced(graph, widthOf, "LR");
  const box = useRef<HTMLDivElement>(null);
  const [wide, setWide] = useState(0);
  useEffect(() => {
    if (!box.current) return undefined;
    const watch = new ResizeObserver(([entry]) => setWide(entry?.contentRect.width ?? 0));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  // Scroll the asset in question into view if there is no room for all.
  useEffect(() => {
    const node = box.current?.querySelector<SVGAElement>("a[aria-current]");
    if (!node || !box.current) return;
    const [own, around] = [node.getBoundingClientRect(), box.current.getBoundingClientRect()];
    box.current.scrollLeft += own.left + own.width / 2 - around.left - around.width / 2;
  }, [placed, picked, wide > 0]);
  const scale = placed && wide > 0 ? Math.max(isSmall ? ZOOM.small : ZOOM.least, Math.min(ZOOM.most, wide / placed.width)) : 1;
  return (
    <div ref={box} class={`lineage ${isSmall ? "small" : ""}`} tabIndex={0} role="region" aria-label={texts.assets.lineage} data-boxes="">
      {placed && (
        <svg width={placed.width * scale} height={placed.height * scale} viewBox={`0 0 ${placed.width} ${placed.height}`} role="group" aria-label={texts.assets.lineageOf(assets.length)}>
          <defs>
            <marker id={isSmall ? "lineage-arrow-small" : "lineage-arrow"} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
              <path d="M0 0 8 4 0 8z" class="arrow" />
            </marker>
          </defs>
          {placed.edges.map((edge) => (
            <path key={`${edge.from} ${edge.to}`} class="edge" d={edge.path} marker-end={`url(#${isSmall ? "lineage-arrow-small" : "lineage-arrow"})`} />
          ))}
          {placed.nodes.map((at) => {
            const isAsset = at.id.startsWith("asset:");
            const name = nameOf(at.id);
            const href = isAsset ? hrefOf(name) : dagHref(name);
            const kind = isAsset ? texts.assets.one : texts.run.dag;
            return (
              <a key={at.id} href={href} data-box="" aria-current={isAsset && name === picked ? "true" : undefined}>
                <title>{`${kind} ${name}`}</title>
                <rect class={`node ${isAsset ? "of-asset" : ""} ${isAsset && name === picked ? "picked" : ""}`} x={at.x} y={at.y} width={at.width} height={NODE_HEIGHT} rx={isAsset ? NODE_HEIGHT / 2 : 6} />
                <text class="name" aria-hidden="true" x={at.x + at.width / 2} y={at.y + 20}>
                  {cut(name, at.width)}
                </text>
                <text class="below" aria-hidden="true" x={at.x + at.width / 2} y={at.y + 35}>
                  {kind}
                </text>
              </a>
            );
          })}
        </svg>
      )}
    </div>
  );
}
