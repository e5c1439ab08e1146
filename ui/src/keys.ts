// Keyboard shortcuts.

import type { IconName } from "./components/icons";
import { closePane, isPaneOpen } from "./pane_place";
import { go } from "./router";
import { texts } from "./texts";

type PlaceName = keyof typeof texts.places;

/** Every place of the page: the key after `g`, its name, its address and its group in the rail. */
const ALL: [string, PlaceName, string, keyof typeof texts.shell.groups][] = [
  ["h", "home", "/", "now"],
  ["r", "runs", "/runs", "now"],
  ["t", "triggers", "/triggers", "now"],
  ["q", "decisions", "/decisions", "now"],
  ["d", "dags", "/dags", "build"],
  ["o", "assets", "/assets", "build"],
  ["s", "schedules", "/schedules", "build"],
  ["b", "backfills", "/backfills", "build"],
  ["p", "pools", "/pools", "operate"],
  ["x", "executors", "/executors", "operate"],
  ["e", "events", "/events", "operate"],
  ["n", "nodes", "/nodes", "operate"],
  ["i", "errors", "/errors", "operate"],
  ["u", "access", "/access", "admin"],
  ["a", "audit", "/audit", "admin"],
  [",", "settings", "/settings", "admin"],
];

export const PLACES: [string, string, string][] = ALL.map(([letter, name, href]) => [letter, texts.places[name], href]);

export const GROUPS = (["now", "build", "operate", "admin"] as const).map((group) => ({
  name: texts.shell.groups[group],
  places: ALL.filter(([, , , of]) => of === group).map(([letter, name, href]): [string, string, string] => [letter, texts.places[name], href]),
}));

const ICONS: Record<string, IconName> = {
  "/": "house",
  "/runs": "play",
  "/triggers": "hourglass",
  "/decisions": "user-check",
  "/dags": "workflow",
  "/assets": "boxes",
  "/schedules": "calendar-clock",
  "/backfills": "history",
  "/pools": "gauge",
  "/executors": "cpu",
  "/events": "zap",
  "/nodes": "server",
  "/errors": "triangle-alert",
  "/access": "users",
  "/audit": "scroll-text",
  "/settings": "settings",
};

export const placeIcon = (href: string): IconName => ICONS[href] ?? "chevron-right";

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
    if (step(target, event.key) || act(event.key, search, help)) event.preventDefault();
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
    case "x":
      return check();
    case "Escape":
      if (!isPaneOpen()) return false;
      closePane();
      return true;
    default:
      return click(key);
  }
}

/** Select the row that has the focus. */
function check(): boolean {
  const box = document.activeElement?.closest(".table-row")?.querySelector<HTMLElement>("[data-check]");
  box?.click();
  return box != null;
}

/** Click the button or link that has this key. */
function click(key: string): boolean {
  const found = key.length === 1 ? [...document.querySelectorAll<HTMLElement>("[data-key]")].find((one) => one.dataset["key"] === key && one.offsetParent !== null) : undefined;
  found?.click();
  return found !== undefined;
}

const ARROWS: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const ASIDE = 3;

/** Move the focus from a box of a grid or a graph to the next one in a direction. */
function step(from: HTMLElement, key: string): boolean {
  const way = ARROWS[key];
  const around = from.closest("[data-boxes]");
  if (!way || !around || !from.matches("[data-box]")) return false;
  const [x, y] = centre(from);
  let next: HTMLElement | null = null;
  let least = Infinity;
  for (const box of around.querySelectorAll<HTMLElement>("[data-box]")) {
    const [left, top] = [centre(box)[0] - x, centre(box)[1] - y];
    const along = left * way[0] + top * way[1];
    const away = along + ASIDE * Math.abs(left * way[1] + top * way[0]);
    if (along > 1 && away < least) [next, least] = [box, away];
  }
  next?.focus();
  next?.scrollIntoView({ block: "nearest", inline: "nearest" });
  return true;
}

function centre(box: Element): [number, number] {
  const { left, top, width, height } = box.getBoundingClientRect();
  return [left + width / 2, top + height / 2];
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
