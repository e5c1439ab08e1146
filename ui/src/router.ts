// Addresses: every view has one, and links are ordinary links.

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

export function go(href: string, { replace = false } = {}): void {
  if (href === here().href) return;
  history[replace ? "replaceState" : "pushState"](null, "", href);
  for (const tell of told) tell();
}

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

/** The address that we are at with other fields in its query; null takes one out. */
export function withQuery(fields: Record<string, string | number | null>): string {
  const { query } = here();
  for (const [name, value] of Object.entries(fields)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, String(value));
  }
  const text = query.toString();
  return window.location.pathname + (text === "" ? "" : `?${text}`);
}

/** Follow links to our own addresses without reloading the page. */
export function followLinks(): void {
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const link = (event.target as Element).closest?.("a");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== window.location.origin) return;
    if (link.pathname.startsWith("/api/") || link.pathname.startsWith("/static/")) return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
}
