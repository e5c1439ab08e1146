// The keyboard: where to go, and up and down in lists.

import { closed } from "./drawer";
import { go, here } from "./router";

export const PLACES: [string, string, string][] = [
  ["h", "Home", "/"],
  ["d", "DAGs", "/dags"],
  ["r", "Runs", "/runs"],
  ["t", "Triggers", "/triggers"],
  ["e", "Events", "/events"],
  ["p", "Pools", "/pools"],
  ["s", "Schedules", "/schedules"],
  ["b", "Backfills", "/backfills"],
  ["n", "Nodes", "/nodes"],
  ["a", "Audit", "/audit"],
  ["i", "Errors", "/errors"],
  [",", "Settings", "/settings"],
];

const SECOND_MS = 1200;
let wentAt = -Infinity;

interface Wanted {
  search: () => void;
  help: () => void;
}

export function listenToKeys({ search, help }: Wanted): () => void {
  function pressed(event: KeyboardEvent): void {
    if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      search();
      return;
    }
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (target.matches("input, textarea, select")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (act(event.key, search, help)) event.preventDefault();
  }
  document.addEventListener("keydown", pressed);
  return () => document.removeEventListener("keydown", pressed);
}

function act(key: string, search: () => void, help: () => void): boolean {
  if (performance.now() - wentAt < SECOND_MS) {
    wentAt = -Infinity;
    const place = PLACES.find(([letter]) => letter === key);
    if (place) go(place[2]);
    return place !== undefined;
  }
  switch (key) {
    case "g":
      wentAt = performance.now();
      return true;
    case "/":
      (document.querySelector<HTMLElement>("main [data-search]") ?? { focus: search }).focus();
      return true;
    case "?":
      help();
      return true;
    case "j":
      return move(1);
    case "k":
      return move(-1);
    case "Escape":
      if (here().query.has("task")) closed();
      return here().query.has("task");
    default:
      return false;
  }
}

function move(by: 1 | -1): boolean {
  const rows = [...document.querySelectorAll<HTMLElement>("main [data-row]")].sort(
    (one, other) => one.getBoundingClientRect().top - other.getBoundingClientRect().top,
  );
  if (rows.length === 0) return false;
  const at = rows.indexOf(document.activeElement as HTMLElement);
  const next = rows[at === -1 ? 0 : Math.max(0, Math.min(rows.length - 1, at + by))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
  return true;
}
