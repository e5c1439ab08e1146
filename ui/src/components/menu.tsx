// A menu: a button that opens a list of actions in the top layer of the browser.

import { useId, useRef } from "preact/hooks";

import { Icon, type IconName } from "./icons";
import { placeBeside } from "./popover";

export interface MenuItem {
  name: string;
  icon?: IconName;
  /** The action of the item. Use `href` for a link instead. */
  act?: () => void;
  href?: string;
  isGrave?: boolean;
  /** For a switch: whether it is on. The menu stays open after a click. */
  isOn?: boolean;
  needs?: "operator" | "admin";
  hint?: string;
  /** What the item does, as its tooltip. */
  meaning?: string;
  /** For a switch: whether it is on. Unlike with `isOn`, the menu closes. */
  isPressed?: boolean;
}

interface MenuProps {
  /** The text of the button; also its accessible name. */
  label: string;
  icon?: IconName;
  /** Whether only the icon is shown. */
  isBare?: boolean;
  items: (MenuItem | "line")[];
  class?: string;
  /** The role that is needed for the actions. */
  needs?: "operator" | "admin";
}

const STEPS: Record<string, (at: number, count: number) => number> = {
  ArrowDown: (at, count) => (at + 1) % count,
  ArrowUp: (at, count) => (at - 1 + count) % count,
  Home: () => 0,
  End: (_, count) => count - 1,
};

export function Menu({ label, icon, isBare, items, class: name = "", needs }: MenuProps) {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const all = () => [...(list.current?.querySelectorAll<HTMLElement>("[role^=menuitem]") ?? [])].filter((one) => one.offsetParent !== null);

  function opened(event: { newState: string }): void {
    const isOpen = event.newState === "open";
    button.current?.setAttribute("aria-expanded", String(isOpen));
    if (!isOpen || !button.current || !list.current) return;
    placeBeside(list.current, button.current);
    all()[0]?.focus();
  }
  function pressed(event: KeyboardEvent): void {
    const step = STEPS[event.key];
    const found = all();
    if (event.key === "Tab") list.current?.hidePopover();
    if (event.key === "Escape") {
      event.stopPropagation();
      list.current?.hidePopover();
      button.current?.focus();
    }
    if (!step || found.length === 0) return;
    event.preventDefault();
    event.stopPropagation();
    found[step(found.indexOf(document.activeElement as HTMLElement), found.length)]?.focus();
  }
  function chosen(item: MenuItem): void {
    if (item.isOn === undefined) {
      list.current?.hidePopover();
      button.current?.focus();
    }
    item.act?.();
  }
  return (
    <>
      <button ref={button} type="button" class={`menu-button ${isBare ? "plain icon-only" : ""} ${name}`} data-needs={needs} aria-haspopup="menu" aria-expanded="false" aria-label={isBare ? label : undefined} title={isBare ? label : undefined} popovertarget={id}>
        {icon && <Icon name={icon} />}
        {!isBare && <span>{label}</span>}
        {!isBare && <Icon name="chevron-down" size={14} />}
      </button>
      <div ref={list} id={id} popover="auto" role="menu" aria-label={label} class="menu" onToggle={opened} onKeyDown={pressed}>
        {items.map((item, index) =>
          item === "line" ? (
            <hr key={index} />
          ) : item.href !== undefined ? (
            <a key={item.name} role="menuitem" tabIndex={-1} href={item.href} data-needs={item.needs} onClick={() => list.current?.hidePopover()}>
              {item.icon && <Icon name={item.icon} />}
              <span>{item.name}</span>
              {item.hint && <small>{item.hint}</small>}
            </a>
          ) : (
            <button key={item.name} type="button" tabIndex={-1} role={item.isOn === undefined ? "menuitem" : "menuitemcheckbox"} aria-checked={item.isOn} class={item.isGrave ? "grave" : ""} data-needs={item.needs} title={item.meaning} onClick={() => chosen(item)}>
              {item.isOn !== undefined ? <span class="tick">{item.isOn && <Icon name="check" />}</span> : item.icon && <Icon name={item.icon} />}
              <span>{item.name}</span>
              {item.hint && <small>{item.hint}</small>}
            </button>
          ),
        )}
      </div>
    </>
  );
}
