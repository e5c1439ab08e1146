// A list that has only those rows in the document that can be seen.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const AROUND = 8;

interface Props<T> {
  items: readonly T[];
  /** Of each row, in pixels. */
  height: number;
  label: string;
  row: (item: T, index: number) => ComponentChildren;
  keyOf: (item: T, index: number) => string | number;
  onEnd?: () => void;
  onRange?: (first: number, end: number) => void;
  /** Keep the last row in view as rows come. */
  follow?: boolean;
  class?: string;
  head?: ComponentChildren;
}

export function VirtualList<T>(props: Props<T>) {
  const { items, height, label, row, keyOf, onEnd, onRange, follow } = props;
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 800 });

  useLayoutEffect(() => {
    const node = box.current;
    if (!node) return undefined;
    const see = () =>
      setView((before) =>
        before.top === node.scrollTop && before.height === node.clientHeight
          ? before
          : { top: node.scrollTop, height: node.clientHeight },
      );
    const watch = new ResizeObserver(see);
    watch.observe(node);
    node.addEventListener("scroll", see, { passive: true });
    see();
    return () => {
      watch.disconnect();
      node.removeEventListener("scroll", see);
    };
  }, []);

  const first = Math.max(0, Math.min(Math.floor(view.top / height) - AROUND, items.length - 1));
  const end = Math.min(items.length, Math.ceil((view.top + view.height) / height) + AROUND);

  useEffect(() => {
    onRange?.(first, end);
    if (onEnd && end >= items.length) onEnd();
  }, [first, end, items.length]);
  useLayoutEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [follow, items.length]);

  return (
    <div ref={box} class={`virtual ${props.class ?? ""}`} tabIndex={0} role="region" aria-label={label}>
      {props.head && <div class="virtual-head">{props.head}</div>}
      <div role="list" class="virtual-rows" style={{ height: `${items.length * height}px` }}>
        {items.slice(first, end).map((item, offset) => (
          <div
            key={keyOf(item, first + offset)}
            role="listitem"
            class="virtual-row"
            style={{ height: `${height}px`, transform: `translateY(${(first + offset) * height}px)` }}
            aria-setsize={items.length}
            aria-posinset={first + offset + 1}
          >
            {row(item, first + offset)}
          </div>
        ))}
      </div>
    </div>
  );
}
