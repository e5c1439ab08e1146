// A card that explains what the pointer or the focus is on.

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

import { placeBeside } from "./popover";

const AFTER_MS = 250;
const LINGERS_MS = 120;

interface HoverCardProps {
  /** What the card says. */
  card: ComponentChildren;
  children: ComponentChildren;
  class?: string;
}

/** Show a card while the pointer is on it or on what it explains; Escape hides it. */
export function HoverCard({ card, children, class: name = "" }: HoverCardProps) {
  const id = useId();
  const around = useRef<HTMLSpanElement>(null);
  const box = useRef<HTMLSpanElement>(null);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const [isOpen, setOpen] = useState(false);
  function later(wanted: boolean): void {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setOpen(wanted), wanted ? AFTER_MS : LINGERS_MS);
  }
  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => {
    if (!isOpen || !box.current || !around.current) return;
    box.current.showPopover();
    placeBeside(box.current, around.current);
  }, [isOpen]);
  return (
    <span
      ref={around}
      class={`hover-card ${name}`}
      aria-describedby={isOpen ? id : undefined}
      onPointerEnter={() => later(true)}
      onPointerLeave={() => later(false)}
      onFocusIn={() => later(true)}
      onFocusOut={() => later(false)}
      onKeyDown={(event) => event.key === "Escape" && setOpen(false)}
    >
      {children}
      {isOpen && (
        <span ref={box} id={id} role="tooltip" popover="manual" class="card">
          {card}
        </span>
      )}
    </span>
  );
}
