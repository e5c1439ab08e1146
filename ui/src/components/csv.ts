// A table as CSV. Loaded when a user asks for it.

import { render } from "preact";

import type { Column } from "./table";

const FORMULA = /^[=+@\t\r]|^-(?![\d.])/;

/** Encode a field (RFC 4180). Escape what a spreadsheet would take for a formula. */
function field(text: string): string {
  const safe = FORMULA.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Return the text of a cell, with full instead of relative times, and names instead of images. */
function textOf(node: Node): string {
  if (!(node instanceof Element)) return node.textContent ?? "";
  if (node.classList.contains("phone-only")) return ""; // another column contains it
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
