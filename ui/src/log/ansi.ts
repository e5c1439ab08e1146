// ANSI colours and emphasis. Other escape sequences are removed.

export interface Style {
  fg: number | null;
  bg: number | null;
  bold: boolean;
  dim: boolean;
  italic: boolean;
  underline: boolean;
  strike: boolean;
  inverse: boolean;
}

export interface Span {
  text: string;
  style: Style;
}

export const PLAIN: Style = { fg: null, bg: null, bold: false, dim: false, italic: false, underline: false, strike: false, inverse: false };

const LONGEST = 4_000;
const TAB = 8;
const ESCAPES = /\u001b(?:\[([0-?]*)[ -/]*([@-~])|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-_])/g;
// Control characters, and those that change the direction of the text around them.
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;

/** Return a text without escape sequences, with tabs expanded. */
export function plain(text: string): string {
  return clean(text.includes("\u001b") ? text.replace(ESCAPES, "") : text);
}

function clean(text: string): string {
  const shown = text.replace(CONTROLS, "\u00b7");
  if (!shown.includes("\t")) return shown.slice(0, LONGEST);
  let found = "";
  for (const part of shown.slice(0, LONGEST).split("\t")) found += part + " ".repeat(TAB - ((found.length + part.length) % TAB));
  return found.trimEnd();
}

/** Return the parts of a line with one style each, and the style in which the next line begins. */
export function spansOf(text: string, style: Style): [Span[], Style] {
  if (!text.includes("\u001b")) return [[{ text: clean(text), style }], style];
  const spans: Span[] = [];
  let from = 0;
  let now = style;
  for (const found of text.matchAll(ESCAPES)) {
    if (found.index > from) spans.push({ text: clean(text.slice(from, found.index)), style: now });
    from = found.index + found[0].length;
    if (found[2] === "m") now = changed(now, found[1] ?? "");
  }
  if (from < text.length) spans.push({ text: clean(text.slice(from)), style: now });
  return [spans, now];
}

/** Return the style after a line, without creating its parts. */
export function styleAfter(text: string, style: Style): Style {
  if (!text.includes("\u001b[")) return style;
  let now = style;
  for (const found of text.matchAll(ESCAPES)) if (found[2] === "m") now = changed(now, found[1] ?? "");
  return now;
}

const ON: Record<number, Partial<Style>> = {
  1: { bold: true },
  2: { dim: true },
  3: { italic: true },
  4: { underline: true },
  7: { inverse: true },
  9: { strike: true },
  21: { underline: true },
  22: { bold: false, dim: false },
  23: { italic: false },
  24: { underline: false },
  27: { inverse: false },
  29: { strike: false },
  39: { fg: null },
  49: { bg: null },
};

function changed(style: Style, parameters: string): Style {
  if (!/^[\d;:]*$/.test(parameters)) return style;
  const numbers = parameters.split(/[;:]/).map(Number);
  let now = style;
  for (let at = 0; at < numbers.length; at += 1) {
    const number = numbers[at]!;
    if (number === 0) now = PLAIN;
    else if (ON[number]) now = { ...now, ...ON[number] };
    else if (number >= 30 && number <= 37) now = { ...now, fg: number - 30 };
    else if (number >= 40 && number <= 47) now = { ...now, bg: number - 40 };
    else if (number >= 90 && number <= 97) now = { ...now, fg: number - 82 };
    else if (number >= 100 && number <= 107) now = { ...now, bg: number - 92 };
    else if (number === 38 || number === 48) {
      const isIndex = numbers[at + 1] === 5;
      const colour = isIndex ? ofIndex(numbers[at + 2] ?? 0) : nearest(numbers[at + 2] ?? 0, numbers[at + 3] ?? 0, numbers[at + 4] ?? 0);
      now = { ...now, [number === 38 ? "fg" : "bg"]: colour };
      at += isIndex ? 2 : 4;
    }
  }
  return now;
}

/** Return one of sixteen colours, which both themes can show, for one of 256. */
function ofIndex(index: number): number {
  if (index < 16) return index;
  if (index >= 232) return nearest((index - 232) * 10 + 8, (index - 232) * 10 + 8, (index - 232) * 10 + 8);
  const part = (value: number): number => (value === 0 ? 0 : value * 40 + 55);
  const cube = index - 16;
  return nearest(part(Math.floor(cube / 36)), part(Math.floor(cube / 6) % 6), part(cube % 6));
}

function nearest(red: number, green: number, blue: number): number {
  const [least, most] = [Math.min(red, green, blue), Math.max(red, green, blue)];
  if (most - least < 40) return most < 64 ? 0 : most < 144 ? 8 : most < 216 ? 7 : 15;
  const isOver = (value: number): number => (value - least > (most - least) / 2 ? 1 : 0);
  return isOver(red) + 2 * isOver(green) + 4 * isOver(blue) + (most > 200 ? 8 : 0);
}

export function classOf(style: Style): string {
  if (style === PLAIN) return "";
  const [fg, bg] = style.inverse ? [style.bg ?? "base", style.fg ?? "text"] : [style.fg, style.bg];
  const names = [fg === null ? "" : `fg-${fg}`, bg === null ? "" : `on-${bg}`];
  for (const name of ["bold", "dim", "italic", "underline", "strike"] as const) if (style[name]) names.push(`t-${name}`);
  return names.filter(Boolean).join(" ");
}
