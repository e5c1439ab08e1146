// The form of a connection: the fields of its type, which may come from a plug-in.

import { useState } from "preact/hooks";

import { Select, Text } from "../actions";
import { texts } from "./texts";

export interface Field {
  name: string;
  label: string;
  kind: "text" | "number" | "secret" | "choice";
  is_required: boolean;
  choices: string[];
  hint: string;
}

export interface Type {
  name: string;
  label: string;
  schemes: string[];
  fields: Field[];
}

export interface Detail {
  name: string;
  conn_type: string;
  host: string;
  port: number | null;
  login: string;
  has_password: boolean;
  schema: string;
  extra: Record<string, unknown>;
}

const URI = "";
const OTHER = "generic";

/** The typed values. Fields of other types are retained, in case the user returns to that type. */
export class Draft {
  name: string;
  type: string;
  scheme: string;
  uri = "";
  values: Record<string, string> = {};

  constructor(
    readonly types: Type[],
    readonly was?: Detail,
  ) {
    this.name = was?.name ?? "";
    const known = types.find((type) => was && type.schemes.includes(was.conn_type));
    this.type = was ? (known?.name ?? (types.some((type) => type.name === OTHER) ? OTHER : URI)) : (types[0]?.name ?? URI);
    this.scheme = was?.conn_type ?? "";
    if (was) for (const field of this.fields()) this.values[field.name] = shown(was, field.name);
  }

  kind(): Type | undefined {
    return this.types.find((type) => type.name === this.type);
  }

  fields(): Field[] {
    return this.kind()?.fields ?? [];
  }

  /** Return the value to set, and whether to retain stored secrets that it lacks. */
  body(): { value: unknown; keep_secrets: boolean } {
    const kind = this.kind();
    if (!kind) return { value: this.uri, keep_secrets: false };
    const scheme = kind.schemes.includes(this.scheme) ? this.scheme : (kind.schemes[0] ?? this.values.conn_type ?? "");
    const value: Record<string, unknown> = { conn_type: scheme };
    // Settings that the form does not show are unchanged. The daemon retains the hidden ones.
    const extra: Record<string, unknown> = Object.fromEntries(Object.entries(this.was?.extra ?? {}).filter(([, one]) => one !== null));
    for (const field of kind.fields) {
      const text = this.values[field.name] ?? "";
      const [part, name] = field.name.split(/\.(.*)/);
      if (part === "extra" && name) {
        if (text) extra[name] = text;
        else delete extra[name];
      } else if (text) value[field.name] = field.kind === "number" ? Number(text) : text;
    }
    if (Object.keys(extra).length > 0) value.extra = extra;
    return { value, keep_secrets: this.was !== undefined };
  }
}

function shown(was: Detail, name: string): string {
  const value = name.startsWith("extra.") ? was.extra[name.slice("extra.".length)] : (was as unknown as Record<string, unknown>)[name];
  return value === null || value === undefined ? "" : String(value);
}

export function ConnectionForm({ draft }: { draft: Draft }) {
  const [type, setType] = useState(draft.type);
  const kind = draft.kind();
  function choose(name: string): void {
    draft.type = name;
    setType(name);
  }
  return (
    <>
      <p>{texts.note}</p>
      {!draft.was && <Text label={texts.name} isRequired onValue={(text) => (draft.name = text)} />}
      <Select label={texts.type} value={type} options={[...draft.types.map((one): [string, string] => [one.name, one.label]), [URI, texts.uri]]} onValue={choose} />
      {kind ? <Fields key={type} kind={kind} draft={draft} /> : <Text label={texts.value} hint={texts.uriHint} isRequired isSecret onValue={(text) => (draft.uri = text)} />}
    </>
  );
}

function Fields({ kind, draft }: { kind: Type; draft: Draft }) {
  return (
    <>
      {kind.schemes.length > 1 && (
        <Select
          label={texts.scheme}
          value={kind.schemes.includes(draft.scheme) ? draft.scheme : kind.schemes[0]!}
          options={kind.schemes.map((one): [string, string] => [one, one])}
          onValue={(scheme) => (draft.scheme = scheme)}
        />
      )}
      {kind.fields.map((field) => (
        <Entry key={field.name} field={field} draft={draft} />
      ))}
    </>
  );
}

function Entry({ field, draft }: { field: Field; draft: Draft }) {
  const value = draft.values[field.name] ?? "";
  const isSecret = field.kind === "secret";
  function change(text: string): void {
    draft.values[field.name] = text;
  }
  if (field.kind === "choice") return <Select label={field.label} value={value} options={field.choices.map((one): [string, string] => [one, one || "default"])} onValue={change} />;
  return (
    <Text
      label={field.label}
      hint={isSecret && draft.was?.has_password ? texts.keeps : field.hint}
      value={isSecret ? "" : value}
      isRequired={field.is_required && !isSecret}
      isSecret={isSecret}
      isNumber={field.kind === "number"}
      onValue={change}
    />
  );
}
