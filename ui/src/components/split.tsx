// Two panes with a movable divider.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { texts } from "../texts";

const LEAST = 0.25;
const MOST = 0.75;
const STEP = 0.04;

interface SplitProps {
  /** The width is stored by this name. */
  name: string;
  children: ComponentChildren;
  /** The pane at the right; without one, the other has all the room. */
  side: ComponentChildren | null;
  /** Whether the side has all the room, and what was beside it is hidden. */
  isFull?: boolean;
  /** The share of the side until it is moved. */
  initial?: number;
}

const within = (share: number): number => Math.min(MOST, Math.max(LEAST, share));

function stored(key: string, initial: number): number {
  const found = Number(localStorage.getItem(key));
  return found > 0 ? within(found) : initial;
}

/** In a narrow window half of it is for the side: text that is beside something else wraps on each line. */
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
