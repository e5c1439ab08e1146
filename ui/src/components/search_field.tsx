// A search field for the list or drawing next to it.

import type { ComponentChildren } from "preact";

import { Icon } from "./icons";

interface SearchFieldProps {
  label: string;
  value: string;
  onValue: (text: string) => void;
  /** Go to the next match or, with Shift, to the previous one. */
  onEnter?: (way: 1 | -1) => void;
  class?: string;
  /** Shown at the right within the field. */
  children?: ComponentChildren;
}

export function SearchField({ label, value, onValue, onEnter, class: name = "", children }: SearchFieldProps) {
  return (
    <span class={`search-field ${name}`}>
      <Icon name="search" size={14} />
      <input
        type="search"
        placeholder={label}
        aria-label={label}
        value={value}
        onInput={(event) => onValue(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || !onEnter) return;
          event.preventDefault();
          onEnter(event.shiftKey ? -1 : 1);
        }}
      />
      {children}
    </span>
  );
}
