// SVG charts over time: stacked columns and lines, with a legend and a data table.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import "./styles/chart.css";
import { go } from "./router";
import { count, texts } from "./texts";
import { HOUR_MS, local, useZoneName } from "./time";

export interface Series {
  key: string;
  name: string;
  /** Class of the series' colour: `h-…`. */
  tone: string;
}

/** One column of a bar chart, or one point of each line. */
export interface Point {
  /** Start of the point's period. */
  at: number;
  values: Record<string, number | null>;
}

/** A single value in a period, beside the series: its mark has the shape of its kind. */
export interface Mark {
  /** When it happened. It is drawn in the middle of its period. */
  at: number;
  value: number;
  /** Key of its kind in `markKinds`. */
  kind: string;
  name: string;
  href: string;
}

interface ChartProps {
  /** Accessible name of the chart, and caption of its table. */
  label: string;
  kind: "columns" | "lines";
  /** Of lines: single values, and their kinds for the legend. */
  marks?: Mark[];
  markKinds?: Series[];
  series: Series[];
  points: Point[];
  /** A line over the columns that changes in steps, for example a limit. */
  line?: Series;
  /** Interval of the axis labels, in points. If there is no room, a multiple of it is used. */
  labelEvery?: number;
  /** Formats the start of a period, for example "14:00" or "Nov 26". */
  nameOf: (at: number) => string;
  format: (value: number) => string;
  /** The link of a period, or of one series in it. */
  hrefOf?: (at: number, key?: string) => string;
  /** A text after a value, for example the counts behind a share. */
  moreOf?: (at: number, key: string) => string;
  /** Whether the last column is of a period that has not ended yet. */
  isOpen?: boolean;
  /** Whether to show the table instead of the drawing; by default it opens below the drawing. */
  isTable?: boolean;
  height?: number;
  /** Whether the view names the zone of the times; a single series then has no legend. */
  isBare?: boolean;
  /** Whether a period without a value interrupts the line. */
  isBroken?: boolean;
  empty?: ComponentChildren;
  /** Round steps for the scale; by default 1, 2, 5, 10 … */
  scale?: (most: number) => number[];
}

const LEFT = 48;
const BOTTOM = 22;
const TOP = 8;
const LABELLED = 20;
/** The maximum width of a column, so that a few columns are not slabs. */
const WIDEST_COLUMN = 48;
const LABEL_WIDTH = 52;
/** Half the width of a label, so that the last one stays within the chart. */
const LABEL_HALF = 18;

/** Return round numbers from 0 to at least the largest value. */
export function niceScale(most: number, isWhole = true): number[] {
  const rough = Math.max(most, isWhole ? 1 : 1e-3) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough)!;
  const used = isWhole ? Math.max(1, step) : step;
  return steps(most, used);
}

const steps = (most: number, step: number): number[] => Array.from({ length: Math.max(1, Math.ceil(most / step - 1e-9)) + 1 }, (_, index) => index * step);

const SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/** Return round durations, in seconds, from 0 to at least the largest value. */
export function durationScale(most: number): number[] {
  const step = SECONDS.find((one) => one >= most / 4) ?? Math.ceil(most / 4 / 86400) * 86400;
  return steps(most, step);
}

function useWidth(): [{ current: HTMLDivElement | null }, number] {
  const box = useRef<HTMLDivElement | null>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!box.current) return undefined;
    const seen = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    seen.observe(box.current);
    return () => seen.disconnect();
  }, []);
  return [box, width];
}

export function Chart(props: ChartProps) {
  const shown = props.series.filter((one) => props.points.some((point) => point.values[one.key]));
  if (shown.length === 0 && !props.marks?.length) return <div class="chart-empty">{props.empty ?? texts.history.none}</div>;
  return <Figure {...props} series={shown} />;
}

function Figure(props: ChartProps) {
  const { points, nameOf, format, moreOf, isTable, isBare } = props;
  const marked = (props.markKinds ?? []).filter((one) => props.marks?.some((mark) => mark.kind === one.key));
  const shown = props.line ? [...props.series, props.line] : props.series;
  const marks = marksByPoint(points, props.marks ?? []);
  const [box, width] = useWidth();
  const [at, setAt] = useState<number | null>(null);
  const point = at === null ? undefined : points[at];
  if (isTable) return <ChartTable {...props} shown={shown} marked={marked} />;
  return (
    <figure class="chart">
      {(!isBare || shown.length + marked.length > 1) && (
        <ul class="legend">
          {shown.map((one) => (
            <li key={one.key}>
              <i class={`swatch ${one.tone}`} /> {one.name}
            </li>
          ))}
          {marked.map((one) => (
            <li key={one.key}>
              <svg class={`chart-mark ${one.tone}`} width={12} height={12} aria-hidden="true">
                <path d={markPath(one.key, 6, 6)} />
              </svg>{" "}
              {one.name}
            </li>
          ))}
          {!isBare && <ZoneName />}
        </ul>
      )}
      <div ref={box} class="chart-box">
        {width > 0 && <Drawing {...props} width={width} at={at} onAt={setAt} />}
        {point && at !== null && (
          <div class="chart-tip" role="status" style={{ left: `${Math.min(Math.max(middle(at, points.length, width), 90), width - 90)}px` }}>
            <b>
              {nameOf(point.at)}
              {props.isOpen && at === points.length - 1 && texts.history.soFar}
            </b>
            {shown.map((one) => (
              <span key={one.key}>
                <i class={`swatch ${one.tone}`} /> {one.name} <em>{shownValue(point.values[one.key], format, moreOf?.(point.at, one.key))}</em>
              </span>
            ))}
            {marked.map((one) => {
              const text = marksText(marks[at] ?? [], one.key, format);
              return (
                text && (
                  <span key={one.key}>
                    <i class={`swatch ${one.tone}`} /> {one.name} <em>{text}</em>
                  </span>
                )
              );
            })}
          </div>
        )}
      </div>
      {isTable === undefined && (
        <details class="chart-table">
          <summary>{texts.history.asTable}</summary>
          <ChartTable {...props} shown={shown} marked={marked} />
        </details>
      )}
    </figure>
  );
}

const ZoneName = () => <li class="legend-zone">{texts.shell.times(useZoneName())}</li>;

function ChartTable({ label, points, nameOf, format, moreOf, shown, marked, marks: all = [] }: ChartProps & { shown: Series[]; marked: Series[] }) {
  const marks = marksByPoint(points, all);
  const rows = points.map((point, index) => ({ point, own: marks[index] ?? [] }));
  return (
    <div class="scroll-x" tabIndex={0} role="region" aria-label={label}>
      <table>
        <caption class="offscreen">{label}</caption>
        <thead>
          <tr>
            <th scope="col">{texts.history.period}</th>
            {[...shown, ...marked].map((one) => (
              <th key={one.key} scope="col" class="num">
                {one.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows
            .filter(({ point, own }) => own.length > 0 || shown.some((line) => point.values[line.key] !== null && point.values[line.key] !== undefined))
            .map(({ point: one, own }) => (
              <tr key={one.at}>
                <th scope="row">{nameOf(one.at)}</th>
                {shown.map((line) => (
                  <td key={line.key} class="num">
                    {shownValue(one.values[line.key], format, moreOf?.(one.at, line.key))}
                  </td>
                ))}
                {marked.map(({ key }) => (
                  <td key={key} class="num">
                    {marksText(own, key, format) || "–"}
                  </td>
                ))}
              </tr>
            ))}
        </tbody>
      </table>
    </div>
  );
}

/** The marks in each period, in the order of the points. */
function marksByPoint(points: readonly Point[], marks: readonly Mark[]): Mark[][] {
  const found: Mark[][] = points.map(() => []);
  for (const mark of marks) {
    let index = points.length - 1;
    while (index >= 0 && points[index]!.at > mark.at) index -= 1;
    found[index]?.push(mark);
  }
  return found;
}

const LISTED = 3;

/** The values of one kind of marks: "1m 31s, 2m 4s", or of many "12: 1m 31s – 9m". */
function marksText(marks: readonly Mark[], kind: string, format: (value: number) => string): string {
  const values = marks.filter((one) => one.kind === kind).map((one) => one.value);
  if (values.length <= LISTED) return values.map(format).join(", ");
  return `${count(values.length)}: ${format(Math.min(...values))} – ${format(Math.max(...values))}`;
}

/** A diamond for what failed, a triangle for what did so in part: they differ without colour too. */
function markPath(kind: string, x: number, y: number): string {
  const size = 5;
  return kind === "failed" ? `M${x} ${y - size}l${size} ${size}l${-size} ${size}l${-size} ${-size}z` : `M${x} ${y - size}l${size} ${2 * size - 1}h${-2 * size}z`;
}

const shownValue = (value: number | null | undefined, format: (value: number) => string, more = ""): string => (value === null || value === undefined ? "–" : `${format(value)}${more}`);

const middle = (at: number, count: number, width: number): number => LEFT + ((at + 0.5) * (width - LEFT)) / count;

interface DrawingProps extends ChartProps {
  width: number;
  at: number | null;
  onAt: (at: number | null) => void;
}

function Drawing({ label, kind, series, line, marks = [], markKinds = [], points, nameOf, format, hrefOf, width, height = 180, scale = niceScale, labelEvery = 1, isOpen, isBroken, at, onAt }: DrawingProps) {
  const total = (point: Point): number => series.reduce((all, one) => all + (point.values[one.key] ?? 0), 0);
  const most = points.reduce((found, point) => Math.max(found, kind === "columns" ? total(point) : Math.max(...series.map((one) => point.values[one.key] ?? 0)), line ? (point.values[line.key] ?? 0) : 0), marks.reduce((found, one) => Math.max(found, one.value), 0));
  const ticks = scale(most);
  const top = ticks.at(-1)!;
  const bottom = height - BOTTOM;
  // Leave room above the tallest column for its label.
  const above = isOpen ? LABELLED : TOP;
  const y = (value: number): number => bottom - (value / top) * (bottom - above);
  const place = (width - LEFT) / points.length;
  const every = Math.max(1, Math.ceil(LABEL_WIDTH / place / labelEvery)) * labelEvery;
  // The newest point has a label, unless only full hours do.
  const last = labelEvery === 1 ? (points.length - 1) % every : 0;
  function moved(event: PointerEvent & { currentTarget: SVGSVGElement }): void {
    const x = event.clientX - event.currentTarget.getBoundingClientRect().left;
    onAt(x < LEFT ? null : Math.min(points.length - 1, Math.floor((x - LEFT) / place)));
  }
  function pressed(event: KeyboardEvent): void {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape" && at !== null) {
      event.stopPropagation();
      onAt(null);
    }
    const href = event.key === "Enter" && at !== null ? hrefOf?.(points[at]!.at) : undefined;
    if (href) go(href);
    if (by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    onAt(Math.min(points.length - 1, Math.max(0, (at ?? (by > 0 ? -1 : points.length)) + by)));
  }
  return (
    <svg
      width={width}
      height={height}
      role="img"
      aria-label={label}
      tabIndex={0}
      onPointerMove={moved}
      onPointerLeave={() => onAt(null)}
      onBlur={() => onAt(null)}
      onKeyDown={pressed}
    >
      {ticks.map((tick) => (
        <g key={tick} class="chart-line">
          <line x1={LEFT} x2={width} y1={y(tick)} y2={y(tick)} />
          <text x={LEFT - 8} y={y(tick) + 4} text-anchor="end">
            {format(tick)}
          </text>
        </g>
      ))}
      {at !== null && <rect class="chart-at" x={LEFT + at * place} y={TOP} width={place} height={bottom - TOP} />}
      {kind === "columns"
        ? points.map((point, index) => <Column key={point.at} point={point} series={series} x={LEFT + index * place} width={place} y={y} hrefOf={hrefOf} />)
        : series.map((one) => <Line key={one.key} one={one} points={points} x={(index) => LEFT + (index + 0.5) * place} y={y} isBroken={isBroken} />)}
      {marks.length > 0 &&
        marksByPoint(points, marks).map((own, index) =>
          own.map((mark) => (
            <path key={mark.href} class={`chart-mark is-link ${markKinds.find((one) => one.key === mark.kind)?.tone ?? ""}`} d={markPath(mark.kind, LEFT + (index + 0.5) * place, y(mark.value))} onClick={() => go(mark.href)}>
              <title>{`${mark.name}: ${format(mark.value)}`}</title>
            </path>
          )),
        )}
      {isOpen && kind === "columns" && points.length > 0 && (
        <text class="chart-so-far" x={width} y={y(total(points.at(-1)!)) - 4} text-anchor="end">
          {texts.history.soFarLabel}
        </text>
      )}
      {line && <Steps one={line} points={points} x={(index) => LEFT + index * place} y={y} />}
      {points.map(
        (point, index) =>
          index % every === last && (
            <text key={point.at} class="chart-when" x={labelEvery === 1 ? Math.min(LEFT + (index + 0.5) * place, width - LABEL_HALF) : LEFT + index * place} y={height - 6} text-anchor={labelEvery === 1 ? "middle" : "start"}>
              {labelEvery === 1 || index * place + LABEL_WIDTH - 8 <= width - LEFT ? nameOf(point.at) : ""}
            </text>
          ),
      )}
    </svg>
  );
}

function Column({ point, series, x, width, y, hrefOf }: { point: Point; series: Series[]; x: number; width: number; y: (value: number) => number; hrefOf?: ChartProps["hrefOf"] }) {
  const gap = width > WIDEST_COLUMN + 4 ? width - WIDEST_COLUMN : width > 6 ? Math.min(4, width * 0.2) : width > 3 ? 1 : 0;
  let below = 0;
  const parts = series.map((one) => {
    const value = point.values[one.key] ?? 0;
    const from = y(below);
    below += value;
    const to = y(below);
    if (value <= 0) return null;
    // With the keyboard, a column is opened from the chart itself.
    const open = hrefOf && (() => go(hrefOf(point.at, one.key)));
    return <rect key={one.key} class={open ? `${one.tone} is-link` : one.tone} onClick={open} x={x + gap / 2} y={to} width={Math.max(1, width - gap)} height={Math.max(1, from - to)} />;
  });
  return <g>{parts}</g>;
}

function Line({ one, points, x, y, isBroken }: { one: Series; points: Point[]; x: (index: number) => number; y: (value: number) => number; isBroken?: boolean }) {
  let path = "";
  let isDrawn = false;
  points.forEach((point, index) => {
    const value = point.values[one.key];
    if (value === null || value === undefined) {
      if (isBroken) isDrawn = false;
      return;
    }
    path += `${isDrawn ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    isDrawn = true;
  });
  return (
    <g class={`chart-path ${one.tone}`}>
      <path d={path} />
      {points.map((point, index) => {
        const value = point.values[one.key];
        return value === null || value === undefined ? null : <circle key={point.at} cx={x(index)} cy={y(value)} r={points.length > 60 ? 1.5 : 2.5} />;
      })}
    </g>
  );
}

/** A line that is level during each period. */
function Steps({ one, points, x, y }: { one: Series; points: Point[]; x: (index: number) => number; y: (value: number) => number }) {
  let path = "";
  points.forEach((point, index) => {
    const value = point.values[one.key];
    if (value === null || value === undefined) return;
    path += `${path === "" ? "M" : "L"}${x(index).toFixed(1)} ${y(value).toFixed(1)}H${x(index + 1).toFixed(1)}`;
  });
  return (
    <g class={`chart-path ${one.tone}`}>
      <path d={path} />
    </g>
  );
}

export type Step = 1 | 6 | 24;

/** The key of a period in the user's time zone: "2026-11-26 12". */
const clockKey = (at: number, hours: Step): string => {
  const text = local(new Date(at).toISOString());
  return hours === 24 ? text.slice(0, 10) : `${text.slice(0, 10)} ${Math.floor(Number(text.slice(11, 13)) / hours) * hours}`;
};

/** Return all periods between two times with their data; periods without data are empty. */
export function periods<T>(from: number, to: number, hours: Step, found: readonly T[], startOf: (one: T) => number): { at: number; found: T[] }[] {
  const all = new Map<string, { at: number; found: T[] }>();
  for (let at = Math.floor(from / HOUR_MS) * HOUR_MS; at < to; at += HOUR_MS) {
    const key = clockKey(at, hours);
    if (!all.has(key)) all.set(key, { at, found: [] });
  }
  for (const one of found) all.get(clockKey(startOf(one), hours))?.found.push(one);
  return [...all.values()];
}

const DAY = new Intl.DateTimeFormat("en", { month: "short", day: "numeric", timeZone: "UTC" });

/** The axis label of a period: its hour, or its day. */
export const periodName = (hours: Step) => (at: number): string => {
  const text = local(new Date(at).toISOString());
  return hours === 1 ? text.slice(11, 16) : hours === 24 ? DAY.format(new Date(`${text.slice(0, 10)}T00:00Z`)) : `${text.slice(8, 10)} ${text.slice(11, 13)}h`;
};
