// The form for a run's parameters, generated from the DAG's schema.

import { texts } from "./texts";
import { useState } from "preact/hooks";

import type { DagDetail, Schema } from "./types";

type Kind = "text" | "number" | "integer" | "boolean" | "choice" | "json";

export interface Field {
  name: string;
  kind: Kind;
  schema: Schema;
  isRequired: boolean;
  hint: string;
}

/** Return the kind of a field, by the type in its schema or else by its default. */
function kindOf(known: { schema: Schema; default?: unknown } | undefined): Kind {
  if (!known) return "json";
  if (known.schema.enum) return "choice";
  const types = ([] as string[]).concat(known.schema.type ?? typeof known.default).filter((type) => type !== "null");
  if (types.length !== 1) return "json";
  const kinds: Record<string, Kind> = { string: "text", number: "number", integer: "integer", boolean: "boolean" };
  return kinds[types[0]!] ?? "json";
}

export interface FormSchema extends Schema {
  properties: Record<string, Schema & { default?: unknown; anyOf?: Schema[] }>;
  required?: string[];
}

/** Return the fields of a form from its JSON Schema. A nullable field has its other type. */
export function fieldsOfForm(form: FormSchema): Field[] {
  return Object.entries(form.properties).map(([name, given]) => {
    const kinds = (given.anyOf ?? []).filter((one) => one.type !== "null");
    const schema: Schema = kinds.length === 1 ? { ...kinds[0], ...given, type: kinds[0]!.type } : given;
    const isRequired = form.required?.includes(name) ?? false;
    const preset = "default" in given && given.default !== null ? JSON.stringify(given.default) : "";
    return { name, kind: kindOf({ schema }), schema, isRequired, hint: hintOf(preset, isRequired) };
  });
}

export function fieldsOf(dag: DagDetail): Field[] {
  return dag.parameters.map((name) => {
    const known = dag.params[name];
    const preset = known && "default" in known ? JSON.stringify(known.default) : "";
    const isRequired = dag.required.includes(name);
    return { name, kind: kindOf(known), schema: known?.schema ?? {}, isRequired, hint: hintOf(preset, isRequired) };
  });
}

const hintOf = (preset: string, isRequired: boolean): string => (preset ? `default ${preset}` : isRequired ? "required" : "optional");

/** Return the value that a typed text stands for; undefined for an empty text. */
function valueOf(field: Field, text: string): unknown {
  if (text === "") return undefined;
  switch (field.kind) {
    case "text":
      return text;
    case "number":
    case "integer": {
      const value = Number(text);
      if (Number.isNaN(value)) throw new Error(`${field.name} is a number, not ${text}`);
      if (field.kind === "integer" && !Number.isInteger(value)) throw new Error(`${field.name} is a whole number, not ${text}`);
      return value;
    }
    case "boolean":
      return text === "true";
    case "choice":
      return JSON.parse(text);
    case "json":
      return parsed(field.name, text);
  }
}

/** Return the values of the fields with a typed text. Throw an error that names an invalid field. */
export function valuesOf(fields: Field[], texts: Record<string, string>): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const field of fields) {
    const value = valueOf(field, texts[field.name] ?? "");
    if (value !== undefined) found[field.name] = value;
  }
  return found;
}

/** Parse JSON. A text without quotes that is not valid JSON counts as a string. */
export function parsed(name: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    if (/^[\[{"]/.test(text.trim())) throw new Error(`${name} is not valid JSON: a bracket or a quote is missing`);
    return text;
  }
}

const isShowable = (field: Field, value: unknown): boolean =>
  field.kind === "text" ? typeof value === "string" && value !== "" : field.kind === "number" || field.kind === "integer" ? typeof value === "number" : field.kind === "boolean" ? typeof value === "boolean" : true;

/** Return a value as a user would type it: the inverse of `valueOf`. */
const textOf = (field: Field, value: unknown): string => (field.kind === "text" ? String(value) : JSON.stringify(value));

export class Conf {
  texts: Record<string, string> = {};
  raw: string | null = null;

  /** Create a form with the values of an earlier run, as JSON if a field cannot show its value. */
  constructor(
    private readonly fields: Field[],
    readonly given: Record<string, unknown> = {},
  ) {
    const names = Object.keys(given);
    const known = new Map(fields.map((field) => [field.name, field]));
    if (names.every((name) => known.has(name) && isShowable(known.get(name)!, given[name]))) this.texts = Object.fromEntries(names.map((name) => [name, textOf(known.get(name)!, given[name])]));
    else this.raw = this.asJson();
  }

  asJson(): string {
    return JSON.stringify(this.given, null, 2);
  }

  /** Return the conf. Throw an error that names an invalid field. */
  value(): Record<string, unknown> | null {
    if (this.raw !== null) {
      const given: unknown = this.raw.trim() === "" ? {} : parsed("the conf", this.raw);
      if (given === null || typeof given !== "object" || Array.isArray(given)) throw new Error("the conf is a JSON object");
      return given as Record<string, unknown>;
    }
    const found = valuesOf(this.fields, this.texts);
    return Object.keys(found).length === 0 ? null : found;
  }
}

export function ConfFields({ fields, conf }: { fields: Field[]; conf: Conf }) {
  const [isRaw, setRaw] = useState(conf.raw !== null);
  function toggle(): void {
    conf.raw = isRaw ? null : conf.asJson();
    setRaw(!isRaw);
  }
  return (
    <fieldset>
      <legend>
        {texts.form.parameters}{" "}
        <button type="button" class="plain" onClick={toggle}>
          {isRaw ? texts.form.asFields : texts.form.asJson}
        </button>
      </legend>
      {isRaw ? (
        <textarea aria-label={texts.form.json} rows={6} spellcheck={false} onInput={(event) => (conf.raw = event.currentTarget.value)}>
          {conf.asJson()}
        </textarea>
      ) : fields.length === 0 ? (
        <p class="soft">{texts.form.none}</p>
      ) : (
        fields.map((field) => (
          <label key={field.name}>
            <span>{field.schema.title ?? field.name}</span>
            <Input field={field} value={conf.texts[field.name]} onValue={(text) => (conf.texts[field.name] = text)} />
            <small class="soft">{field.schema.description ?? (hasPlaceholder(field) ? "" : field.hint)}</small>
          </label>
        ))
      )}
    </fieldset>
  );
}

/** Whether the hint of a field is shown inside it while it is empty. */
const hasPlaceholder = (field: Field): boolean => (field.kind === "choice" || field.kind === "boolean" ? !field.isRequired : field.schema.format !== "date");

interface InputProps {
  field: Field;
  /** The initial text of the field. */
  value?: string;
  onValue: (text: string) => void;
  describedBy?: string;
  isWrong?: boolean;
}

export function Input({ field, value: first, onValue, describedBy, isWrong }: InputProps) {
  const options =
    field.kind === "choice"
      ? (field.schema.enum ?? []).map((value): [string, string] => [JSON.stringify(value), String(value)])
      : [
          ["true", "true"],
          ["false", "false"],
        ];
  if (field.kind === "choice" || field.kind === "boolean") {
    return (
      <select required={field.isRequired} aria-describedby={describedBy} aria-invalid={isWrong || undefined} onChange={(event) => onValue(event.currentTarget.value)}>
        <option value="">{field.isRequired ? texts.form.choose : field.hint}</option>
        {options.map(([value, name]) => (
          <option key={value} value={value} selected={value === first}>
            {name}
          </option>
        ))}
      </select>
    );
  }
  const isNumber = field.kind === "number" || field.kind === "integer";
  return (
    <input
      type={(isNumber ? "number" : field.schema.format === "date" ? "date" : "text") as "number"}
      step={field.kind === "integer" ? 1 : "any"}
      min={isNumber ? field.schema.minimum : undefined}
      max={isNumber ? field.schema.maximum : undefined}
      required={field.isRequired}
      defaultValue={first}
      placeholder={field.hint}
      aria-describedby={describedBy}
      aria-invalid={isWrong || undefined}
      onInput={(event) => onValue(event.currentTarget.value)}
    />
  );
}
