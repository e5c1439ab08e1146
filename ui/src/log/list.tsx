// A virtual list with rows of varying height.
//
// The visible rows stay in place when rows are added or removed above them.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

const AROUND = 400;
const NEAR = 900;

interface Props<T extends { key: string }> {
  rows: readonly T[];
  heightOf: (row: T) => number;
  row: (row: T) => ComponentChildren;
  label: string;
  class?: string;
  /** Whether to keep the last row in view when rows are added. */
  follow: boolean;
  onFollow: (follow: boolean) => void;
  /** Called when the first or last row is near. */
  onBefore?: () => void;
  onAfter?: () => void;
  /** A row to bring into view, and a number that changes with each request. */
  at?: { key: string; wish: number };
  /** Called with the width of the list. */
  onWidth?: (width: number) => void;
}

export function RowList<T extends { key: string }>(props: Props<T>) {
  const { rows, heightOf, row, label, follow, at } = props;
  const box = useRef<HTMLDivElement>(null);
  const latest = useRef(props);
  latest.current = props;
  const anchor = useRef<{ key: string; shift: number } | null>(null);
  const scrolledTo = useRef(0);
  const [view, setView] = useState({ top: 0, height: 800 });

  const tops = useMemo(() => {
    const found = new Float64Array(rows.length + 1);
    for (let index = 0; index < rows.length; index += 1) found[index + 1] = found[index]! + heightOf(rows[index]!);
    return found;
  }, [rows, heightOf]);
  const places = useMemo(() => new Map(rows.map((one, index) => [one.key, index])), [rows]);
  const whole = tops[rows.length]!;
  const current = useRef({ tops, rows });
  current.current = { tops, rows };

  function remember(node: HTMLElement): void {
    const { tops: known, rows: shown } = current.current;
    const index = indexAt(known, node.scrollTop);
    const first = shown[index];
    anchor.current = first ? { key: first.key, shift: node.scrollTop - known[index]! } : null;
  }

  useLayoutEffect(() => {
    const node = box.current;
    if (!node) return undefined;
    const see = () => {
      const isAtEnd = node.scrollTop + node.clientHeight >= node.scrollHeight - 30;
      if (node.scrollTop < scrolledTo.current - 1 && !isAtEnd) latest.current.onFollow(false);
      else if (isAtEnd && node.scrollTop > scrolledTo.current + 1) latest.current.onFollow(true);
      scrolledTo.current = node.scrollTop;
      remember(node);
      if (node.scrollTop < NEAR) latest.current.onBefore?.();
      if (node.scrollTop + node.clientHeight > node.scrollHeight - NEAR) latest.current.onAfter?.();
      setView((seen) => (seen.top === node.scrollTop && seen.height === node.clientHeight ? seen : { top: node.scrollTop, height: node.clientHeight }));
    };
    const watch = new ResizeObserver(() => {
      latest.current.onWidth?.(node.clientWidth);
      see();
    });
    watch.observe(node);
    node.addEventListener("scroll", see, { passive: true });
    see();
    return () => {
      watch.disconnect();
      node.removeEventListener("scroll", see);
    };
  }, []);

  useLayoutEffect(() => {
    const node = box.current;
    if (!node) return;
    if (follow) node.scrollTop = node.scrollHeight;
    else if (anchor.current !== null) {
      const index = places.get(anchor.current.key);
      if (index !== undefined) node.scrollTop = tops[index]! + anchor.current.shift;
    }
    scrolledTo.current = node.scrollTop;
    remember(node);
    if (node.scrollTop < NEAR) latest.current.onBefore?.();
    if (node.scrollTop + node.clientHeight > node.scrollHeight - NEAR) latest.current.onAfter?.();
  }, [tops, follow]);

  useEffect(() => {
    const node = box.current;
    const index = at === undefined ? undefined : places.get(at.key);
    if (!node || index === undefined) return;
    // Show the first row in view completely.
    node.scrollTop = tops[indexAt(tops, Math.max(0, tops[index]! - node.clientHeight / 3))]!;
    scrolledTo.current = node.scrollTop;
    remember(node);
  }, [at?.wish, at !== undefined && places.has(at.key)]);

  const first = indexAt(tops, view.top - AROUND);
  const end = Math.min(rows.length, indexAt(tops, view.top + view.height + AROUND) + 1);
  return (
    <div ref={box} class={`virtual ${props.class ?? ""}`} tabIndex={0} role="region" aria-label={label}>
      <div role="list" class="virtual-rows" style={{ height: `${whole}px` }}>
        {rows.slice(first, end).map((one, index) => (
          <div key={one.key} role="listitem" class="virtual-row" style={{ height: `${heightOf(one)}px`, transform: `translateY(${tops[first + index]}px)` }} aria-setsize={-1} aria-posinset={first + index + 1}>
            {row(one)}
          </div>
        ))}
      </div>
    </div>
  );
}

/** Return the row at a height, by binary search. */
function indexAt(tops: Float64Array, height: number): number {
  let [low, high] = [0, Math.max(0, tops.length - 2)];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (tops[middle]! <= height) low = middle;
    else high = middle - 1;
  }
  return low;
}
