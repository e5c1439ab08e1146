// Filters of the list of runs, as query parameters of the API, and saved views.

import { type TimeRange, resolved } from "./components/dates";

/** Filters with several values. A run has to match any one of them. */
export const CHOICES = ["state", "cause", "dag", "tag"] as const;
export type Choices = (typeof CHOICES)[number];

const TEXTS = ["search", "params"] as const;
const ALL: readonly string[] = [...CHOICES, ...TEXTS, "from", "to"];

export const STATES = ["queued", "running", "success", "partial", "failed", "cancelled"];
export const CAUSES = ["manual", "schedule", "backfill", "event", "task"];

/** Return the part of an address that is a filter. */
export function filterOf(query: URLSearchParams): URLSearchParams {
  return new URLSearchParams([...query].filter(([name, value]) => ALL.includes(name) && value !== ""));
}

export const rangeOf = (filter: URLSearchParams): TimeRange => ({ from: filter.get("from") ?? "", to: filter.get("to") ?? "" });

/** Return the filter with absolute times instead of "the last day". */
export function asAsked(filter: URLSearchParams): URLSearchParams {
  const asked = new URLSearchParams(filter);
  const range = resolved(rangeOf(filter));
  for (const [name, at] of Object.entries(range)) {
    if (at) asked.set(name, at);
    else asked.delete(name);
  }
  return asked;
}

/** Return a path below /api/v1 with a filter and other fields. */
export function withFilter(path: string, filter: URLSearchParams, fields: Record<string, string | number | null> = {}): string {
  const all = new URLSearchParams(filter);
  for (const [name, value] of Object.entries(fields)) if (value !== null) all.set(name, String(value));
  return all.size ? `${path}?${all}` : path;
}

/** Return the filter with a choice added or, if it was there, removed. */
export function toggled(filter: URLSearchParams, name: Choices, value: string): URLSearchParams {
  const chosen = filter.getAll(name);
  const next = new URLSearchParams(filter);
  next.delete(name);
  for (const one of chosen.includes(value) ? chosen.filter((other) => other !== value) : [...chosen, value]) next.append(name, one);
  return next;
}

export function changed(filter: URLSearchParams, fields: Record<string, string>): URLSearchParams {
  const next = new URLSearchParams(filter);
  for (const [name, value] of Object.entries(fields)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  return next;
}

export const runsHref = (filter: URLSearchParams): string => (filter.size ? `/runs?${filter}` : "/runs");

// ── saved views, in this browser ────────────────────────────────────────────────────────

export interface SavedView {
  name: string;
  filter: string;
}

const KEY = "aioflow.runs.views";
const MOST = 30;

export function savedViews(): SavedView[] {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter((one): one is SavedView => typeof one?.name === "string" && typeof one?.filter === "string") : [];
  } catch {
    return [];
  }
}

export function saveView(name: string, filter: URLSearchParams): void {
  store([{ name, filter: String(filter) }, ...savedViews().filter((view) => view.name !== name)].slice(0, MOST));
}

export function deleteView(name: string): void {
  store(savedViews().filter((view) => view.name !== name));
}

function store(views: SavedView[]): void {
  localStorage.setItem(KEY, JSON.stringify(views));
}
