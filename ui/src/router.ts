// Routing: every view has an address, and links are ordinary links.

import { useEffect, useState } from "preact/hooks";

export interface Place {
  parts: string[];
  query: URLSearchParams;
  href: string;
}

const told = new Set<() => void>();

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function here(): Place {
  const { pathname, search } = window.location;
  return {
    parts: pathname.split("/").filter(Boolean).map(decoded),
    query: new URLSearchParams(search),
    href: pathname + search,
  };
}

interface Entry {
  /** The address of the previous history entry, if it belongs to this page. */
  from?: string;
  id: string;
}

const entry = (): Partial<Entry> => (history.state ?? {}) as Partial<Entry>;
const newId = (): string => Math.random().toString(36).slice(2);

export function go(href: string, { replace = false } = {}): void {
  if (href === here().href) return;
  const from = replace ? entry().from : here().href;
  history[replace ? "replaceState" : "pushState"]({ from, id: replace ? (entry().id ?? newId()) : newId() }, "", href);
  for (const tell of told) tell();
}

/** Whether going back leads to that address. */
export const cameFromHere = (href: string): boolean => entry().from === href;

const scrolled = new Map<string, number>();

/** Return the id of this history entry, by which its scroll position is stored. */
export function entryId(): string {
  const { id } = entry();
  if (id !== undefined) return id;
  const made = newId();
  history.replaceState({ ...entry(), id: made }, "");
  return made;
}

export const storeScroll = (id: string, top: number): void => void scrolled.set(id, top);
const focused = new Map<string, string>();

/** Store which row of a list had the focus, by its address. */
export const storeFocus = (id: string, href: string): void => void focused.set(id, href);
export const storedFocus = (id: string): string | undefined => focused.get(id);
export const storedScroll = (id: string): number => scrolled.get(id) ?? 0;

export function usePlace(): Place {
  const [place, setPlace] = useState(here);
  useEffect(() => {
    const tell = () => setPlace(here());
    told.add(tell);
    window.addEventListener("popstate", tell);
    return () => {
      told.delete(tell);
      window.removeEventListener("popstate", tell);
    };
  }, []);
  return place;
}

/** Return the current address with other fields in its query. Null removes a field. */
export function withQuery(fields: Record<string, string | number | null>): string {
  const { query } = here();
  for (const [name, value] of Object.entries(fields)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, String(value));
  }
  const text = query.toString();
  return window.location.pathname + (text === "" ? "" : `?${text}`);
}

/** Follow links within the page without reloading it. */
export function followLinks(): void {
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const link = (event.target as Element).closest?.("a");
    const href = link?.getAttribute("href") ?? null;
    if (!link || href === null || link.hasAttribute("target") || link.hasAttribute("download")) return;
    // A link in an SVG has no resolved address.
    const { origin, pathname, search } = new URL(href, window.location.href);
    if (origin !== window.location.origin || pathname.startsWith("/api/") || pathname.startsWith("/static/")) return;
    event.preventDefault();
    if (link.getAttribute("aria-disabled") !== "true") go(pathname + search, { replace: link.dataset["replace"] !== undefined });
  });
}
