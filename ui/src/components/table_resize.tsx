// The handle that resizes a column of a table.

import { useEffect, useRef, useState } from "preact/hooks";

import { texts } from "../texts";
import { NARROWEST, WIDEST, within } from "./table_settings";

const STEP = 16;

interface HandleProps {
  /** The title of the column. */
  name: string;
  /** In pixels; undefined until it has been changed. */
  width: number | undefined;
  /** Called with the new width, or with null to reset it. */
  onWidth: (width: number | null) => void;
}

const widthNow = (handle: Element): number => handle.parentElement!.getBoundingClientRect().width;

export function ResizeHandle({ name, width, onWidth }: HandleProps) {
  /** The place at which the pointer was pressed, and the width of the column at that time. */
  const start = useRef<{ x: number; width: number } | null>(null);
  const box = useRef<HTMLSpanElement>(null);
  const [shown, setShown] = useState(NARROWEST);
  useEffect(() => setShown(within(widthNow(box.current!))), [width]);
  function pressed(event: PointerEvent & { currentTarget: HTMLElement }): void {
    if (event.button !== 0) return;
    event.preventDefault();
    event.currentTarget.setPointerCapture(event.pointerId);
    start.current = { x: event.clientX, width: widthNow(event.currentTarget) };
  }
  function moved(event: PointerEvent & { currentTarget: HTMLElement }): void {
    if (!start.current || !event.currentTarget.hasPointerCapture(event.pointerId)) return;
    onWidth(start.current.width + event.clientX - start.current.x);
  }
  function typed(event: KeyboardEvent & { currentTarget: HTMLElement }): void {
    const by = { ArrowLeft: -STEP, ArrowRight: STEP }[event.key];
    if (by === undefined && event.key !== "Home") return;
    event.preventDefault();
    event.stopPropagation();
    onWidth(by === undefined ? null : widthNow(event.currentTarget) + by);
  }
  return (
    <span
      ref={box}
      class="table-resize"
      role="separator"
      aria-orientation="vertical"
      aria-label={texts.table.resize(name)}
      aria-valuemin={NARROWEST}
      aria-valuemax={WIDEST}
      aria-valuenow={shown}
      tabIndex={0}
      title={texts.table.resizeHint}
      onPointerDown={pressed}
      onPointerMove={moved}
      onPointerUp={() => (start.current = null)}
      onPointerCancel={() => (start.current = null)}
      onDblClick={() => onWidth(null)}
      onKeyDown={typed}
    />
  );
}
