// A rendered log line: colours, links and highlighted matches.

import type { ComponentChildren } from "preact";

import { enc } from "../api";
import { type Style, classOf, spansOf } from "./ansi";
import { type CodeFile, codeFileOf, withShortPath } from "./files";
import type { Filter } from "./lines";
import { texts } from "./texts";

const URLS = /https?:\/\/[^\s<>"'`\u00b7]+/g;
const END = /[.,;:!?)\]}]+$/;

/** Return the expression of a filter; null if it has none, or one that this browser does not support. */
export function expressionOf(filter: Filter): RegExp | null {
  if (filter.search === "") return null;
  const flags = filter.case ? "gu" : "giu";
  try {
    return new RegExp(filter.regex ? filter.search : filter.search.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), flags);
  } catch {
    return null;
  }
}

interface Piece {
  from: number;
  to: number;
  href?: string;
  /** For a file of the code: its path, and what a click does. */
  title?: string;
  isMark?: boolean;
}

const MOST_MARKS = 200;

function linksOf(text: string, code: CodeFile | null, dag: string | undefined): Piece[] {
  const found: Piece[] = [];
  const from = code === null ? -1 : text.indexOf(code.shown);
  if (code && from >= 0) {
    const href = dag === undefined ? undefined : `/dags/${enc(dag)}/code?version=${enc(code.version)}&file=${enc(code.file)}&line=${code.line}`;
    found.push({ from, to: from + code.shown.length, href, title: href ? `${code.path}\n${texts.openCode}` : code.path });
  }
  for (const url of text.matchAll(URLS)) {
    const shown = url[0].replace(END, "");
    if (shown.length > 8) found.push({ from: url.index, to: url.index + shown.length, href: shown });
  }
  return found;
}

function marksOf(text: string, expression: RegExp | null): Piece[] {
  const found: Piece[] = [];
  if (expression === null) return found;
  for (const match of text.matchAll(expression)) {
    if (match[0] !== "") found.push({ from: match.index, to: match.index + match[0].length, isMark: true });
    if (found.length >= MOST_MARKS) break;
  }
  return found;
}

interface LineProps {
  text: string;
  style: Style;
  dag?: string;
  expression: RegExp | null;
}

/** A line of a log. It remains plain text: no part of it becomes markup. */
export function LineText({ text, style, dag, expression }: LineProps) {
  const code = codeFileOf(text);
  const [spans] = spansOf(code === null ? text : withShortPath(text), style);
  const whole = spans.map((span) => span.text).join("");
  const links = linksOf(whole, code, dag);
  const marks = marksOf(whole, expression);
  if (links.length === 0 && marks.length === 0 && spans.length === 1) {
    const name = classOf(spans[0]!.style);
    return name === "" ? <>{whole}</> : <span class={name}>{whole}</span>;
  }
  const cuts = new Set<number>([0, whole.length]);
  for (const piece of [...links, ...marks]) cuts.add(piece.from).add(piece.to);
  let place = 0;
  for (const span of spans) cuts.add((place += span.text.length));
  const ends = [...cuts].sort((one, other) => one - other);
  const shown: ComponentChildren[] = [];
  let at = 0;
  let behind = spans[0]?.text.length ?? 0;
  for (let index = 1; index < ends.length; index += 1) {
    const [from, to] = [ends[index - 1]!, ends[index]!];
    while (from >= behind && at + 1 < spans.length) behind += spans[(at += 1)]!.text.length;
    let part: ComponentChildren = whole.slice(from, to);
    if (marks.some((mark) => mark.from <= from && to <= mark.to)) part = <mark key={from}>{part}</mark>;
    const name = classOf(spans[at]!.style);
    if (name !== "") part = <span class={name}>{part}</span>;
    const link = links.find((one) => one.from <= from && to <= one.to);
    if (link?.title) part = link.href ? <a key={from} href={link.href} title={link.title}>{part}</a> : <span key={from} title={link.title}>{part}</span>;
    else if (link) part = <a key={from} href={link.href} target="_blank" rel="noopener noreferrer">{part}</a>;
    shown.push(part);
  }
  return <>{shown}</>;
}
