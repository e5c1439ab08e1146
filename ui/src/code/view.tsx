// The files of a DAG version, highlighted, with a comparison to another version.

import { useEffect, useMemo, useRef } from "preact/hooks";

import { CopyButton } from "../components/copy";
import { enc, query } from "../api";
import { never, useData } from "../data";
import { Choice, Panel, Shown, shortVersion } from "../parts";
import { go, usePlace, withQuery } from "../router";
import { texts as shared } from "../texts";
import { shortTime } from "../time";
import type { DagDetail } from "../types";
import { diffLines, hunksOf, linesOf } from "./diff";
import { pythonLines, type Token } from "./python";

import "../styles/code.css";

const texts = {
  compare: "Compare with",
  nothing: "No comparison",
  newest: "newest",
  same: "The files of both versions are the same.",
  added: "added",
  removed: "removed",
  copy: "Copy file",
  line: (line: number): string => `Line ${line}`,
};

interface CodeFile {
  name: string;
  text: string;
}

export interface CodeOf {
  version: string;
  files: CodeFile[];
  made_at: string | null;
}

interface Version {
  version: string;
  made_at: string | null;
  runs: number;
}

export default function CodePage({ dag, versions }: { dag: DagDetail; versions: Version[] }) {
  const place = usePlace();
  const version = place.query.get("version") ?? dag.version;
  const other = place.query.get("compare") ?? "";
  const code = useData<CodeOf>(query(`/dags/${enc(dag.dag_id)}/code`, { version }), { on: never });
  const before = useData<CodeOf>(other === "" ? null : query(`/dags/${enc(dag.dag_id)}/code`, { version: other }), { on: never });
  const options = versions.map((one): [string, string] => [
    one.version,
    `${shortVersion(one.version)}, ${shortTime(one.made_at)}, ${shared.common.many(one.runs, "run")}${one.version === dag.version ? ` (${texts.newest})` : ""}`,
  ]);
  return (
    <>
      {options.length > 0 && (
        <div class="bar-of-filters">
          <Choice label={shared.run.version} value={version} options={options} onValue={(value) => go(withQuery({ version: value, file: null, line: null }), { replace: true })} />
          {options.length > 1 && (
            <Choice
              label={texts.compare}
              value={other}
              options={[["", texts.nothing], ...options.filter(([one]) => one !== version).map(([one, name]): [string, string] => [one, `${texts.compare} ${name}`])]}
              onValue={(value) => go(withQuery({ compare: value, line: null }), { replace: true })}
            />
          )}
        </div>
      )}
      {other === "" ? (
        <Shown of={code}>{(data) => <Files files={data.files} file={place.query.get("file")} line={Number(place.query.get("line") ?? 0)} />}</Shown>
      ) : (
        <Shown of={before}>{(old) => <Shown of={code}>{(now) => <Difference old={old.files} now={now.files} />}</Shown>}</Shown>
      )}
    </>
  );
}

/** Whether a file is the wanted one, which may be given with more folders before it. */
function isFile(name: string, wanted: string | null): boolean {
  return wanted !== null && (name === wanted || name.endsWith(`/${wanted}`) || wanted.endsWith(`/${name}`));
}

function Files({ files, file, line }: { files: CodeFile[]; file: string | null; line: number }) {
  const wanted = files.find((one) => isFile(one.name, file)) ?? (file === null ? files[0] : undefined);
  return (
    <>
      {files.map((one) => (
        <Panel key={one.name} title={one.name} actions={<CopyButton label={texts.copy} text={one.text} />}>
          <Source file={one} line={one === wanted ? line : 0} hrefOf={(number) => withQuery({ file: one.name, line: number })} />
        </Panel>
      ))}
    </>
  );
}

/** A file with line numbers. One line may be marked; it is scrolled into view. */
export function Source({ file, line, hrefOf }: { file: CodeFile; line: number; hrefOf: (line: number) => string }) {
  const lines = useMemo(() => tokensOf(file), [file]);
  const marked = useRef<HTMLDivElement>(null);
  useEffect(() => marked.current?.scrollIntoView({ block: "center" }), [line, lines]);
  return (
    <div class="source" tabIndex={0} role="region" aria-label={file.name}>
      {lines.map((tokens, index) => (
        <div key={index} ref={index + 1 === line ? marked : undefined} class={index + 1 === line ? "source-line marked" : "source-line"}>
          <a class="source-number" href={hrefOf(index + 1)} data-replace="" tabIndex={-1} aria-label={texts.line(index + 1)}>
            {index + 1}
          </a>
          <code>
            <Tokens tokens={tokens} />
          </code>
        </div>
      ))}
    </div>
  );
}

function Tokens({ tokens }: { tokens: Token[] }) {
  return (
    <>
      {tokens.map((token, index) =>
        token.kind === "plain" ? (
          token.text
        ) : (
          <span key={index} class={`k-${token.kind}`}>
            {token.text}
          </span>
        ),
      )}
      {"\n"}
    </>
  );
}

const MOST_COLOURED = 400_000;

function tokensOf(file: CodeFile): Token[][] {
  if (file.name.endsWith(".py") && file.text.length <= MOST_COLOURED) {
    const lines = pythonLines(file.text);
    if (lines.at(-1)?.length === 0) lines.pop();
    return lines;
  }
  return linesOf(file.text).map((text) => (text === "" ? [] : [{ kind: "plain", text }]));
}

const MARKS = { same: " ", added: "+", removed: "−" } as const;

function Difference({ old, now }: { old: CodeFile[]; now: CodeFile[] }) {
  const names = useMemo(() => [...new Set([...now, ...old].map((file) => file.name))], [old, now]);
  const changed = names.filter((name) => textOf(old, name) !== textOf(now, name));
  if (changed.length === 0) return <p class="empty">{texts.same}</p>;
  return (
    <>
      {changed.map((name) => (
        <FileDifference key={name} name={name} before={textOf(old, name)} after={textOf(now, name)} />
      ))}
    </>
  );
}

const textOf = (files: CodeFile[], name: string): string => files.find((file) => file.name === name)?.text ?? "";

function FileDifference({ name, before, after }: { name: string; before: string; after: string }) {
  const [lines, tokens] = useMemo(() => {
    const isPython = name.endsWith(".py") && before.length + after.length <= MOST_COLOURED;
    const [old, now] = isPython ? [pythonLines(before), pythonLines(after)] : [null, null];
    return [diffLines(before, after), { old, now }];
  }, [name, before, after]);
  const added = lines.filter((line) => line.kind === "added").length;
  const removed = lines.filter((line) => line.kind === "removed").length;
  return (
    <Panel
      title={
        <>
          {name} <span class="added">+{added}</span> <span class="removed">−{removed}</span>
        </>
      }
    >
      <div class="source" tabIndex={0} role="region" aria-label={name}>
        {hunksOf(lines).map((line, index) =>
          "skipped" in line ? (
            <div key={index} class="source-skipped">
              {shared.common.many(line.skipped, "unchanged line")}
            </div>
          ) : (
            <div key={index} class={`source-line ${line.kind}`}>
              <span class="source-number">{line.old ?? ""}</span>
              <span class="source-number">{line.new ?? ""}</span>
              <span class="source-mark" title={line.kind === "same" ? undefined : texts[line.kind]}>
                {MARKS[line.kind]}
              </span>
              <code>
                <Tokens tokens={tokensAt(line.kind === "removed" ? tokens.old : tokens.now, line.kind === "removed" ? line.old : line.new) ?? [{ kind: "plain", text: line.text }]} />
              </code>
            </div>
          ),
        )}
      </div>
    </Panel>
  );
}

const tokensAt = (lines: Token[][] | null, number: number | null): Token[] | undefined => (lines === null || number === null ? undefined : lines[number - 1]);
