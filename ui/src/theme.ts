// The theme: the system's, until the user chooses one.

export type Theme = "auto" | "light" | "dark";

const KEY = "aioflow.theme";

export function theme(): Theme {
  const stored = localStorage.getItem(KEY);
  return stored === "light" || stored === "dark" ? stored : "auto";
}

export function setTheme(wanted: Theme): void {
  if (wanted === "auto") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, wanted);
  applyTheme();
}

export function applyTheme(): void {
  const chosen = theme();
  if (chosen === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = chosen;
}

export function isDark(): boolean {
  const chosen = theme();
  return chosen === "auto" ? matchMedia("(prefers-color-scheme: dark)").matches : chosen === "dark";
}
