// The table component: virtual rows, with columns that can be sorted, hidden and selected.

import type { ComponentChildren } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";

import { VirtualList } from "../list";
import { texts } from "../texts";
import { copyText } from "./copy";
import { Icon } from "./icons";
import { Menu, type MenuItem } from "./menu";
import { tell } from "./toast";
import { ResizeHandle } from "./table_resize";
import { type Columns, NARROWEST, type Widths, columnsOf, density, setDensity, storeColumns, storeWidths, useIsPhone, widthsOf, withWidth } from "./table_settings";

/** The place of a cell on a phone, where rows have two lines. Cells without a place are not shown there. */
export type PhonePlace = "lead" | "title" | "end" | "second" | "second-end";

export interface Column<T> {
  id: string;
  title: string;
  /** The meaning of the title, as its tooltip. */
  meaning?: string;
  cell: (item: T, index: number) => ComponentChildren;
  /** A track of a CSS grid: "minmax(160px, 2fr)" or "96px". */
  width: string;
  /** Numbers are aligned at the right, with digits of one width. */
  isNumber?: boolean;
  /** Ids and code. */
  isMono?: boolean;
  /** Compares loaded rows, to sort them; only for lists that are loaded as a whole. */
  sort?: (one: T, other: T) => number;
  /** Whether the daemon can sort by this column; see `onSort`. */
  isSortable?: boolean;
  /** Not shown until the user chooses it. */
  isOptional?: boolean;
  /** Always shown. */
  isFixed?: boolean;
  /** Hidden if the table is narrower than 840 px. */
  isWideOnly?: boolean;
  phone?: PhonePlace;
  /** Whether cells have their own buttons or links, which lie above the link of the row. */
  isInteractive?: boolean;
}

export interface Sort {
  by: string;
  isDescending: boolean;
}

export interface Selection {
  keys: ReadonlySet<string>;
  onChange: (keys: Set<string>) => void;
}

interface TableProps<T> {
  /** The name by which the user's choices are stored. */
  name: string;
  /** What is listed, for screen readers: "213 runs". */
  label: string;
  columns: Column<T>[];
  items: readonly (T | undefined)[];
  keyOf: (item: T, index: number) => string | number;
  /** The target of a row. The whole row is the link. */
  hrefOf?: (item: T) => string | null;
  /** The name of a row's link, if it is not the text of its first cells. */
  nameOf?: (item: T) => string;
  /** The head of a group, which takes the whole row; false for ordinary rows. */
  groupOf?: (item: T) => ComponentChildren;
  /** Whether a row is shown in the pane beside the table. */
  current?: (item: T) => boolean;
  sort?: Sort;
  onSort?: (sort: Sort) => void;
  selection?: Selection;
  /** Shown above the rows, at the left: filters, or actions on the selected rows. */
  toolbar?: ComponentChildren;
  onEnd?: () => void;
  onRange?: (first: number, end: number) => void;
  empty?: ComponentChildren;
  /** Whether there are only a few rows, which are never scrolled. Other lists fill the room if they need it. */
  isShort?: boolean;
  /** Whether to leave out the menu of columns and density. */
  isPlain?: boolean;
  class?: string;
}

const HEIGHTS = { comfortable: 40, compact: 32 } as const;
const PHONE_HEIGHT = 60;
const HEAD_HEIGHT = 34;
/** The height of the head of a group, which is lower than a row. */
const GROUP_HEIGHT = 32;
/** Pixels for borders, so that a table that fits does not scroll. */
const SPARE = 1;
const CHECK_TRACK = "36px";

export function Table<T>(props: TableProps<T>) {
  const { name, label, columns, items, keyOf, selection, toolbar, isPlain } = props;
  const isPhone = useIsPhone();
  const [chosen, setChosen] = useState<Columns>(() => columnsOf(name));
  const [dense, setDense] = useState(density());
  const [widths, setWidths] = useState<Widths>(() => widthsOf(name));
  const [own, setOwn] = useState<Sort | undefined>(undefined);
  const sort = props.onSort ? props.sort : (own ?? props.sort);
  const shown = columns.filter((column) => column.isFixed || (chosen[column.id] ?? !column.isOptional));
  const rows = useMemo(() => sorted(items, columns, props.onSort ? undefined : sort), [items, columns, sort, props.onSort]);
  const height = isPhone ? PHONE_HEIGHT : HEIGHTS[dense];
  const last = useRef<number | null>(null);

  function sortBy(column: Column<T>): void {
    const next = { by: column.id, isDescending: sort?.by === column.id ? !sort.isDescending : false };
    if (props.onSort) props.onSort(next);
    else setOwn(next);
  }
  function toggle(index: number, event: MouseEvent): void {
    const item = rows[index];
    if (!selection || item === undefined) return;
    const keys = new Set(selection.keys);
    const key = String(keyOf(item, index));
    const isOn = !keys.has(key);
    const from = event.shiftKey && last.current !== null ? Math.min(last.current, index) : index;
    const to = event.shiftKey && last.current !== null ? Math.max(last.current, index) : index;
    for (let at = from; at <= to; at += 1) {
      const row = rows[at];
      if (row === undefined) continue;
      if (isOn) keys.add(String(keyOf(row, at)));
      else keys.delete(String(keyOf(row, at)));
    }
    last.current = index;
    selection.onChange(keys);
  }
  const toggling = useRef(toggle);
  toggling.current = toggle;
  const isGroup = (item: T | undefined): boolean => item !== undefined && !!props.groupOf?.(item);
  const groups = props.groupOf ? rows.filter(isGroup).length : 0;
  const tall = (isPhone ? 0 : HEAD_HEIGHT) + rows.length * height - groups * (height - GROUP_HEIGHT) + SPARE;
  // A widened column shrinks again if there is no room.
  const trackOf = (column: Column<T>): string => (widths[column.id] === undefined ? column.width : `minmax(${NARROWEST}px, ${widths[column.id]}px)`);
  const template = [...(selection ? [CHECK_TRACK] : []), ...shown.filter((one) => !one.isWideOnly).map(trackOf)].join(" ");
  const wideTemplate = [...(selection ? [CHECK_TRACK] : []), ...shown.map(trackOf)].join(" ");
  const resize = (column: string, width: number | null): void => setWidths((before) => withWidth(name, before, column, width));

  const settings: (MenuItem | "line")[] = [
    ...columns
      .filter((column) => !column.isFixed && column.title !== "")
      .map((column) => ({
        name: column.title,
        isOn: chosen[column.id] ?? !column.isOptional,
        act: () => setChosen(storeColumns(name, { ...chosen, [column.id]: !(chosen[column.id] ?? !column.isOptional) })),
      })),
    "line",
    {
      name: texts.table.compact,
      isOn: dense === "compact",
      act: () => setDense(setDensity(dense === "compact" ? "comfortable" : "compact")),
    },
    "line",
    ...(Object.keys(widths).length > 0 ? [{ name: texts.table.resetWidths, act: () => setWidths(storeWidths(name, {})) }] : []),
    { name: texts.table.copyCsv, icon: "copy", act: () => void copyCsv(shown, rows) },
  ];

  return (
    <div class={`table-box ${props.isShort ? "is-short" : ""} ${toolbar || isPlain ? "" : "has-bare-tools"} ${props.class ?? ""}`} style={{ "--tall": `${tall}px` }}>
      {(toolbar || !isPlain) && (
        <div class={`table-tools ${toolbar ? "" : "is-bare"}`}>
          <div class="table-tools-left">{toolbar}</div>
          {!isPlain && <Menu label={texts.table.settings} icon="columns-3" isBare items={settings} class="table-settings" />}
        </div>
      )}
      {rows.length === 0 && props.empty ? (
        props.empty
      ) : (
        <VirtualList
          class={`table ${selection ? "has-checks" : ""} ${shown.some((column) => column.phone === "lead") ? "" : "has-no-lead"} ${isPhone ? "is-phone" : `is-${dense}`}`}
          isTable
          items={rows}
          height={height}
          tall={tall}
          low={groups > 0 ? { height: GROUP_HEIGHT, has: isGroup } : undefined}
          label={label}
          variables={{ "--columns": template, "--columns-wide": wideTemplate }}
          keyOf={(item, index) => (item === undefined ? `?${index}` : keyOf(item, index))}
          onEnd={props.onEnd}
          onRange={props.onRange}
          rowClass={(item, index) => (item === undefined ? "" : `${props.current?.(item) ? "is-current" : ""} ${selection?.keys.has(String(keyOf(item, index))) ? "is-selected" : ""}`)}
          head={
            <div class="table-row table-head" role="row">
              {selection && <CheckAll rows={rows} keyOf={keyOf} selection={selection} />}
              {shown.map((column, index) => (
                <Title key={column.id} column={column} sort={sort} sortBy={sortBy} canSort={column.isSortable === true || (column.sort !== undefined && !props.onSort)}>
                  {!isPlain && !isPhone && column.title !== "" && index < shown.length - 1 && <ResizeHandle name={column.title} width={widths[column.id]} onWidth={(width) => resize(column.id, width)} />}
                </Title>
              ))}
            </div>
          }
          row={(item, index) => (
            <Row item={item} index={index} columns={shown} href={item === undefined ? null : (props.hrefOf?.(item) ?? null)} rowName={item === undefined ? undefined : props.nameOf?.(item)} group={item === undefined ? false : props.groupOf?.(item)}>
              {selection && item !== undefined && (
                <Check isOn={selection.keys.has(String(keyOf(item, index)))} name={props.nameOf?.(item) ?? String(keyOf(item, index))} index={index} toggling={toggling} />
              )}
            </Row>
          )}
        />
      )}
    </div>
  );
}

/** Copy the loaded rows as CSV, in their order, with the columns that are shown. */
async function copyCsv<T>(columns: Column<T>[], rows: readonly (T | undefined)[]): Promise<void> {
  try {
    const { csvOf } = await import("./csv");
    const loaded = rows.filter((row) => row !== undefined);
    await copyText(csvOf(columns, loaded));
    tell(texts.table.copied(loaded.length));
  } catch {
    tell(texts.common.notCopied, true);
  }
}

function sorted<T>(items: readonly (T | undefined)[], columns: Column<T>[], sort: Sort | undefined): readonly (T | undefined)[] {
  const compare = columns.find((column) => column.id === sort?.by)?.sort;
  if (!sort || !compare) return items;
  const by = sort.isDescending ? -1 : 1;
  return [...items].sort((one, other) => (one === undefined ? 1 : other === undefined ? -1 : by * compare(one, other)));
}

interface TitleProps<T> {
  column: Column<T>;
  sort: Sort | undefined;
  sortBy: (column: Column<T>) => void;
  canSort: boolean;
  children: ComponentChildren;
}

function Title<T>({ column, sort, sortBy, canSort, children }: TitleProps<T>) {
  const isBy = sort?.by === column.id;
  const way = isBy ? (sort.isDescending ? "descending" : "ascending") : undefined;
  return (
    <span role="columnheader" class={classOf(column)} title={column.meaning} aria-label={column.title || undefined} aria-sort={way ?? (canSort ? "none" : undefined)}>
      {canSort ? (
        <button type="button" class="sort" onClick={() => sortBy(column)}>
          {column.title}
          {isBy && <Icon name={sort.isDescending ? "arrow-down" : "arrow-up"} size={12} />}
        </button>
      ) : column.title === "" ? (
        <span class="offscreen">{texts.table.actions}</span>
      ) : (
        <span class={isBy ? "table-title is-sorted" : "table-title"}>
          {column.title}
          {isBy && <Icon name={sort.isDescending ? "arrow-down" : "arrow-up"} size={12} />}
        </span>
      )}
      {children}
    </span>
  );
}

function classOf<T>({ isNumber, isMono, isWideOnly, phone, isInteractive, id }: Column<T>): string {
  return `cell-of-${id} ${isNumber ? "num" : ""} ${isMono ? "mono" : ""} ${isWideOnly ? "is-wide-only" : ""} ${phone ? `p-${phone}` : "p-none"} ${isInteractive ? "is-interactive" : ""}`;
}

interface RowProps<T> {
  item: T | undefined;
  index: number;
  columns: Column<T>[];
  href: string | null;
  rowName?: string;
  group?: ComponentChildren;
  children?: ComponentChildren;
}

function Row<T>({ item, index, columns, href, rowName, group, children }: RowProps<T>) {
  if (item === undefined) return <div class="table-row is-loading" />;
  if (group)
    return (
      <div class="table-row table-group">
        <span role="cell" class="table-cell" aria-colspan={columns.length}>
          {group}
        </span>
      </div>
    );
  // The title of the row is its link, and the link covers the row.
  const linked = columns.find((column) => column.phone === "title") ?? columns[0];
  return (
    <div class="table-row">
      {children}
      {columns.map((column) => (
        <span key={column.id} role="cell" class={`table-cell ${classOf(column)}`}>
          {column === linked && href !== null ? (
            <a class="row-link" data-row href={href} aria-label={rowName}>
              {column.cell(item, index)}
            </a>
          ) : (
            column.cell(item, index)
          )}
        </span>
      ))}
    </div>
  );
}

interface CheckProps {
  isOn: boolean;
  name: string;
  index: number;
  /** A reference, because the checkbox of a removed row must not keep the old rows in memory. */
  toggling: { current: (index: number, event: MouseEvent) => void };
}

function Check({ isOn, name, index, toggling }: CheckProps) {
  return (
    <span role="cell" class="table-check is-interactive">
      <input type="checkbox" checked={isOn} aria-label={`${texts.table.select} ${name}`} data-check onClick={(event) => toggling.current(index, event)} />
    </span>
  );
}

function CheckAll<T>({ rows, keyOf, selection }: { rows: readonly (T | undefined)[]; keyOf: (item: T, index: number) => string | number; selection: Selection }) {
  const all = useMemo(() => rows.flatMap((row, index) => (row === undefined ? [] : [String(keyOf(row, index))])), [rows]);
  const count = all.reduce((found, key) => found + (selection.keys.has(key) ? 1 : 0), 0);
  const box = (node: HTMLInputElement | null) => {
    if (node) node.indeterminate = count > 0 && count < all.length;
  };
  return (
    <span role="columnheader" class="table-check">
      <input ref={box} type="checkbox" checked={count > 0 && count === all.length} aria-label={texts.table.selectAll} onChange={(event) => selection.onChange(new Set(event.currentTarget.checked ? all : []))} />
    </span>
  );
}
