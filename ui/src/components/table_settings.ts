// Table settings: columns and density, stored by the browser.

import { useEffect, useState } from "preact/hooks";

export type Density = "comfortable" | "compact";
export type Columns = Record<string, boolean>;

const DENSITY = "aioflow.density";
const PHONE = "(max-width: 720px)";

export const density = (): Density => (localStorage.getItem(DENSITY) === "compact" ? "compact" : "comfortable");

export function setDensity(wanted: Density): Density {
  localStorage.setItem(DENSITY, wanted);
  return wanted;
}

/** Which columns of a table are shown, where that differs from how it begins. */
export function columnsOf(table: string): Columns {
  try {
    return JSON.parse(localStorage.getItem(`aioflow.columns.${table}`) ?? "{}") as Columns;
  } catch {
    return {};
  }
}

export function storeColumns(table: string, columns: Columns): Columns {
  localStorage.setItem(`aioflow.columns.${table}`, JSON.stringify(columns));
  return columns;
}

/** Whether the window is as narrow as a phone. */
export function useIsPhone(): boolean {
  const [isPhone, setPhone] = useState(() => matchMedia(PHONE).matches);
  useEffect(() => {
    const media = matchMedia(PHONE);
    const changed = () => setPhone(media.matches);
    media.addEventListener("change", changed);
    return () => media.removeEventListener("change", changed);
  }, []);
  return isPhone;
}
