// Two panes with a movable divider.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { texts } from "../texts";

const LEAST = 0.25;
const MOST = 0.75;
const STEP = 0.04;

interface SplitProps {
  /** The name by which the width is stored. */
  name: string;
  children: ComponentChildren;
  /** The pane at the right. Without it, the other pane has all the room. */
  side: ComponentChildren | null;
  /** Whether the side pane has all the room, and the other one is hidden. */
  isFull?: boolean;
  /** The initial share of the side pane, until the divider is moved. */
  initial?: number;
}

const within = (share: number): number => Math.min(MOST, Math.max(LEAST, share));

function stored(key: string, initial: number): number {
  const found = Number(localStorage.getItem(key));
  return found > 0 ? within(found) : initial;
}

/** The default share of the side pane. In a narrow window it is half, or each line of text would wrap. */
const usual = (): number => (innerWidth < 1600 ? 0.5 : 0.42);

export function SplitPane({ name, children, side, isFull, initial = usual() }: SplitProps) {
  const key = `aioflow.split.${name}`;
  const box = useRef<HTMLDivElement>(null);
  const [share, setShare] = useState(() => stored(key, initial));
  useEffect(() => box.current?.style.setProperty("--split", `${(share * 100).toFixed(2)}%`), [share, side === null]);
  function change(wanted: number): void {
    const next = within(wanted);
    localStorage.setItem(key, next.toFixed(4));
    setShare(next);
  }
  function dragged(event: PointerEvent): void {
    const handle = event.currentTarget as HTMLElement;
    if (!handle.hasPointerCapture(event.pointerId) || !box.current) return;
    const { right, width } = box.current.getBoundingClientRect();
    change((right - event.clientX) / width);
  }
  function pressed(event: KeyboardEvent): void {
    const by = event.key === "ArrowLeft" ? STEP : event.key === "ArrowRight" ? -STEP : 0;
    if (by === 0) return;
    event.preventDefault();
    change(share + by);
  }
  return (
    <div ref={box} class={`split ${side === null ? "" : "has-side"} ${isFull ? "is-full" : ""}`}>
      <div class="split-main">{children}</div>
      {side !== null && (
        <>
          <div
            class="split-handle"
            role="separator"
            aria-orientation="vertical"
            aria-label={texts.common.resize}
            aria-valuemin={LEAST * 100}
            aria-valuemax={MOST * 100}
            aria-valuenow={Math.round(share * 100)}
            tabIndex={0}
            onPointerDown={(event) => {
              event.preventDefault();
              event.currentTarget.setPointerCapture(event.pointerId);
            }}
            onPointerMove={dragged}
            onKeyDown={pressed}
            onDblClick={() => change(initial)}
          />
          <div class="split-side">{side}</div>
        </>
      )}
    </div>
  );
}
