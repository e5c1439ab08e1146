// A rendered log line: colours, links and highlighted matches.

import type { ComponentChildren } from "preact";

import { enc } from "../api";
import { type Style, classOf, spansOf } from "./ansi";
import type { Filter } from "./lines";
import { texts } from "./texts";

const URLS = /https?:\/\/[^\s<>"'`\u00b7]+/g;
const END = /[.,;:!?)\]}]+$/;
const CODE = /File "(?:[^"]*\/)?code\/([0-9a-f]{12,64})\/([^"]+)", line (\d+)/;

/** The expression that a filter searches for; null for none, or one that this browser cannot read. */
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
  isCode?: boolean;
  isMark?: boolean;
}

const MOST_MARKS = 200;

function linksOf(text: string, dag: string | undefined): Piece[] {
  const found: Piece[] = [];
  const code = dag === undefined ? null : CODE.exec(text);
  if (code) {
    const [, version, file, line] = code as unknown as [string, string, string, string];
    const href = `/dags/${enc(dag!)}/code?version=${enc(version)}&file=${enc(file)}&line=${line}`;
    found.push({ from: code.index, to: code.index + code[0].length, href, isCode: true });
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

/** The text is plain text throughout: nothing of it becomes markup. */
export function LineText({ text, style, dag, expression }: LineProps) {
  const [spans] = spansOf(text, style);
  const whole = spans.map((span) => span.text).join("");
  const links = linksOf(whole, dag);
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
    if (link?.isCode) part = <a key={from} href={link.href} title={texts.openCode}>{part}</a>;
    else if (link) part = <a key={from} href={link.href} target="_blank" rel="noopener noreferrer">{part}</a>;
    shown.push(part);
  }
  return <>{shown}</>;
}
