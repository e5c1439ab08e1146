// The code of a task, in the version that its run uses.

import { enc, query } from "./api";
import { useData } from "./data";
import { Shown, dagHref, shortVersion } from "./parts";
import { texts } from "./texts";

interface CodeOf {
  version: string;
  files: { name: string; text: string }[];
}

const AROUND = 400;

/** The number of the line that defines a task; the first one where none is found. */
function lineOf(text: string, task: string): number {
  const name = task.split(".").at(-1)!.replace(/[^\w]/g, "");
  const lines = text.split("\n");
  const at = lines.findIndex((line) => new RegExp(`^\\s*(async\\s+)?def\\s+${name}\\b`).test(line));
  return at === -1 ? 0 : at;
}

export function TaskCode({ dag, version, task }: { dag?: string; version?: string; task: string }) {
  const code = useData<CodeOf>(dag && version ? query(`/dags/${enc(dag)}/code`, { version }) : null, { on: () => false });
  return (
    <Shown of={code}>
      {(data) => {
        const file = data.files.find((one) => lineOf(one.text, task) > 0) ?? data.files[0];
        if (!file || !dag) return <p class="soft">{texts.task.noCode}</p>;
        const lines = file.text.replace(/\n$/, "").split("\n");
        const at = lineOf(file.text, task);
        const first = Math.max(0, at - AROUND);
        const shown = lines.slice(first, at + AROUND);
        return (
          <>
            <p class="soft">
              {file.name}, {texts.task.version} <a href={`${dagHref(dag)}/code?version=${enc(data.version)}`}>{shortVersion(data.version)}</a>
            </p>
            <div class="numbered">
              <pre class="code numbers" aria-hidden="true">
                {shown.map((_, index) => first + index + 1).join("\n")}
              </pre>
              <pre class="code" tabIndex={0} ref={(node) => (node && at > 0 ? scrollTo(node, at - first) : undefined)}>
                {shown.join("\n")}
              </pre>
            </div>
          </>
        );
      }}
    </Shown>
  );
}

/** Bring a line of the text to the top of what scrolls. */
function scrollTo(node: HTMLElement, line: number): void {
  const around = node.closest(".scroll");
  const height = parseFloat(getComputedStyle(node).lineHeight);
  if (around && !around.scrollTop) around.scrollTop = Math.max(0, (line - 3) * height);
}
