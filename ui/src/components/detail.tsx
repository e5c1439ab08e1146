// The pane next to a table: details of one row.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

import { closePane } from "../pane_place";
import { texts } from "../texts";
import { Icon } from "./icons";

/** Focus a pane when it opens; when it closes, focus the element that had opened it. A quiet pane does not take the focus. */
export function usePaneFocus(isQuiet = false): { current: HTMLDivElement | null } {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (isQuiet) return undefined;
    const opener = document.activeElement as HTMLElement | null;
    box.current?.focus({ preventScroll: true });
    return () => opener?.isConnected && opener.focus();
  }, []);
  return box;
}

export function Detail({ title, name, actions, children }: { title: ComponentChildren; name: string; actions?: ComponentChildren; children: ComponentChildren }) {
  const box = usePaneFocus();
  return (
    <div ref={box} class="drawer detail" role="region" aria-label={name} tabIndex={-1}>
      <header>
        <h2 class="cut">{title}</h2>
        <div class="actions tight">
          <button type="button" class="plain icon-only" aria-label={texts.common.close} title={`${texts.common.close} (Esc)`} onClick={closePane}>
            <Icon name="x" size={18} />
          </button>
        </div>
      </header>
      <div class="scroll">
        {actions && <div class="actions">{actions}</div>}
        {children}
      </div>
    </div>
  );
}
