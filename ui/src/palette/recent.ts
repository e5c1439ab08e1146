// Recently opened DAGs and runs, stored by the browser.

const KEY = "aioflow.recent";
const MOST = 8;

export function recentPlaces(): string[] {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter((href): href is string => typeof href === "string" && /^\/(dags|runs)\/[^/]+$/.test(href)) : [];
  } catch {
    return [];
  }
}

/** Store that a DAG or a run was opened. Other places are not stored. */
export function openedPlace(parts: string[]): void {
  const [kind, id] = parts;
  if ((kind !== "dags" && kind !== "runs") || id === undefined) return;
  const href = `/${kind}/${encodeURIComponent(id)}`;
  localStorage.setItem(KEY, JSON.stringify([href, ...recentPlaces().filter((one) => one !== href)].slice(0, MOST)));
}
