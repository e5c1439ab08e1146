// Opening and closing side panes. Closing returns to the address before the pane was opened.

import { cameFromHere, go, here, withQuery } from "./router";

const FIELDS = ["task", "in", "map", "round", "try", "tab", "full", "open"];

export const isPaneOpen = (): boolean => here().query.has("task") || here().query.has("open");

export function closePane(): void {
  const href = withQuery(Object.fromEntries(FIELDS.map((field) => [field, null])));
  // If the previous entry is the same view without the pane, going back closes it without a new entry.
  if (cameFromHere(href)) history.back();
  else go(href, { replace: true });
}
