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

/** The columns of a table that the user has shown or hidden, against the default. */
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

/** The widths of the columns that the user has resized, in pixels. */
export type Widths = Record<string, number>;

export const NARROWEST = 48;
export const WIDEST = 1200;

export function widthsOf(table: string): Widths {
  try {
    const found = Object.entries(JSON.parse(localStorage.getItem(`aioflow.widths.${table}`) ?? "{}") as Record<string, unknown>);
    return Object.fromEntries(found.flatMap(([column, width]) => (typeof width === "number" ? [[column, within(width)]] : [])));
  } catch {
    return {};
  }
}

/** Store the width of a column; null resets it. */
export function withWidth(table: string, widths: Widths, column: string, width: number | null): Widths {
  const { [column]: _, ...others } = widths;
  return storeWidths(table, width === null ? others : { ...others, [column]: within(width) });
}

export function storeWidths(table: string, widths: Widths): Widths {
  localStorage.setItem(`aioflow.widths.${table}`, JSON.stringify(widths));
  return widths;
}

export const within = (width: number): number => Math.round(Math.min(WIDEST, Math.max(NARROWEST, width)));

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
