// A virtual list: only visible rows are in the document.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { entryId, storeFocus, storeScroll, storedFocus, storedScroll } from "./router";

const AROUND = 8;
/** An assumed height, enough for the first rows, until the list is measured. */
const UNMEASURED = 800;

interface Props<T> {
  items: readonly T[];
  /** The height of each row, in pixels. */
  height: number;
  label: string;
  row: (item: T, index: number) => ComponentChildren;
  keyOf: (item: T, index: number) => string | number;
  onEnd?: () => void;
  onRange?: (first: number, end: number) => void;
  class?: string;
  head?: ComponentChildren;
  /** Whether arrow keys go from one `data-box` to the next. */
  hasBoxes?: boolean;
  /** Whether rows have cells: they are read as a table, and the head is its first row. */
  isTable?: boolean;
  /** The height of the list, in pixels; by default it fills the room. */
  tall?: number;
  /** Custom properties for the style of its rows. */
  variables?: Record<string, string>;
  rowClass?: (item: T, index: number) => string;
  /** The few rows that are lower than the others, such as the heads of groups. */
  low?: { height: number; has: (item: T) => boolean };
}

interface View {
  top: number;
  height: number;
}

/**
 * Return the part of a list that is in view.
 *
 * Apart from the component: what lives as long as the list must not refer to the rows of one of its renderings, which
 * keep all that were removed since.
 */
function useView(box: { current: HTMLDivElement | null }, isTable: boolean): View {
  const [view, setView] = useState<View>({ top: 0, height: UNMEASURED });
  useLayoutEffect(() => {
    const node = box.current;
    if (!node) return undefined;
    const id = `${entryId()} list`;
    if (isTable) node.scrollTop = storedScroll(id);
    const see = () => {
      if (isTable) storeScroll(id, node.scrollTop);
      setView((seen) =>
        seen.top === node.scrollTop && seen.height === node.clientHeight ? seen : { top: node.scrollTop, height: node.clientHeight },
      );
    };
    const focused = (event: FocusEvent) => {
      const row = (event.target as Element).closest("[data-row]");
      if (row) storeFocus(id, row.getAttribute("href") ?? "");
    };
    if (isTable) node.addEventListener("focusin", focused);
    const watch = new ResizeObserver(see);
    watch.observe(node);
    node.addEventListener("scroll", see, { passive: true });
    see();
    return () => {
      watch.disconnect();
      node.removeEventListener("focusin", focused);
      node.removeEventListener("scroll", see);
    };
  }, []);
  return view;
}

interface Shown {
  first: number;
  end: number;
  length: number;
  onRange?: (first: number, end: number) => void;
  onEnd?: () => void;
}

/** Report the visible rows when they change. */
function useRange(shown: Shown): void {
  const { first, end, length } = shown;
  const latest = useRef(shown);
  latest.current = shown;
  useEffect(() => {
    latest.current.onRange?.(first, end);
    if (end >= length) latest.current.onEnd?.();
  }, [first, end, length]);
}

/** Focus the row that was opened when the user goes back. */
function useFoundRow(box: { current: HTMLDivElement | null }, isTable: boolean, height: number): void {
  const isFound = useRef(false);
  useEffect(() => {
    const href = isTable && !isFound.current ? storedFocus(`${entryId()} list`) : undefined;
    isFound.current = isFound.current || height !== UNMEASURED;
    if (!href || document.activeElement !== document.body) return;
    const rows = [...(box.current?.querySelectorAll<HTMLElement>("[data-row]") ?? [])];
    rows.find((row) => row.getAttribute("href") === href)?.focus({ preventScroll: true });
  }, [height]);
}

function useVariables(box: { current: HTMLDivElement | null }, text: string): void {
  useLayoutEffect(() => {
    const variables = JSON.parse(text) as Record<string, string>;
    for (const [name, value] of Object.entries(variables)) box.current?.style.setProperty(name, value);
  }, [text]);
}

function lessBefore<T>(items: readonly T[], height: number, low: Props<T>["low"]): number[] | null {
  if (!low) return null;
  const found = [0];
  for (const item of items) found.push(found.at(-1)! + (low.has(item) ? height - low.height : 0));
  return found;
}

export function VirtualList<T>(props: Props<T>) {
  const { items, height, label, row, keyOf, onEnd, onRange, isTable = false } = props;
  const box = useRef<HTMLDivElement>(null);
  const view = useView(box, isTable);
  const { low } = props;
  // For each row, how much lower the rows before it are than ordinary ones, in total.
  const less = useMemo(() => lessBefore(items, height, low), [items, height, low?.height]);
  const all = less?.at(-1) ?? 0;
  const first = Math.max(0, Math.min(Math.floor(view.top / height) - AROUND, items.length - 1));
  const end = Math.min(items.length, Math.ceil((view.top + view.height + all) / height) + AROUND);
  const topOf = (index: number): number => index * height - (less?.[index] ?? 0);

  useRange({ first, end, length: items.length, onRange, onEnd });
  useFoundRow(box, isTable, view.height);
  useVariables(box, JSON.stringify(props.variables ?? {}));

  return (
    <div
      ref={box}
      class={`virtual ${props.class ?? ""}`}
      tabIndex={0}
      role={isTable ? "table" : "region"}
      aria-label={label}
      aria-rowcount={isTable ? items.length + 1 : undefined}
      data-boxes={props.hasBoxes ? "" : undefined}
      style={props.tall === undefined ? undefined : { height: `${props.tall}px` }}
    >
      {props.head && (
        <div class="virtual-head" role={isTable ? "rowgroup" : undefined}>
          {props.head}
        </div>
      )}
      <div role={isTable ? "rowgroup" : "list"} class="virtual-rows" style={{ height: `${topOf(items.length)}px` }}>
        {items.slice(first, end).map((item, offset) => (
          <div
            key={keyOf(item, first + offset)}
            role={isTable ? "row" : "listitem"}
            class={`virtual-row ${props.rowClass?.(item, first + offset) ?? ""}`}
            style={{ height: `${topOf(first + offset + 1) - topOf(first + offset)}px`, transform: `translateY(${topOf(first + offset)}px)` }}
            aria-setsize={isTable ? undefined : items.length}
            aria-posinset={isTable ? undefined : first + offset + 1}
            aria-rowindex={isTable ? first + offset + 2 : undefined}
          >
            {row(item, first + offset)}
          </div>
        ))}
      </div>
    </div>
  );
}
