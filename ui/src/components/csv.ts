// A table as CSV. Loaded when a user asks for it.

import { render } from "preact";

import type { Column } from "./table";

const FORMULA = /^[=+@\t\r]|^-(?![\d.])/;

/** A field as RFC 4180 has it. What a spreadsheet would calculate is shown as text. */
function field(text: string): string {
  const safe = FORMULA.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** The text of a cell: full times instead of relative ones, and images by their name. */
function textOf(node: Node): string {
  if (!(node instanceof Element)) return node.textContent ?? "";
  if (node.classList.contains("phone-only")) return ""; // another column has it
  if (node instanceof HTMLTimeElement) return node.dateTime;
  if (node.getAttribute("aria-hidden") === "true" || node instanceof HTMLButtonElement) return "";
  if (node.getAttribute("role") === "img") return node.getAttribute("aria-label") ?? "";
  return [...node.childNodes].map(textOf).join("");
}

export function csvOf<T>(columns: Column<T>[], items: readonly (T | undefined)[]): string {
  const named = columns.filter((column) => column.title !== "");
  const box = document.createElement("div");
  const cell = (column: Column<T>, item: T, index: number): string => {
    render(column.cell(item, index), box);
    return textOf(box).trim();
  };
  const rows = items.flatMap((item, index) => (item === undefined ? [] : [named.map((column) => cell(column, item, index))]));
  render(null, box);
  return [named.map((column) => column.title), ...rows].map((row) => `${row.map(field).join(",")}\r\n`).join("");
}
