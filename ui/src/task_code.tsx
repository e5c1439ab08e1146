// The code of a task, in the version that its run uses.

import { useEffect, useState } from "preact/hooks";

import { enc, query } from "./api";
import type { CodeOf } from "./code/view";
import { never, useData } from "./data";
import { Shown, dagHref, shortVersion } from "./parts";
import { texts } from "./texts";

const load = () => import("./code/view");

/** Return the number of the line that defines a task; the first line if none is found. */
function lineOf(text: string, task: string): number {
  const name = task.split(".").at(-1)!.replace(/[^\w]/g, "");
  const lines = text.split("\n");
  const at = lines.findIndex((line) => new RegExp(`^\\s*(async\\s+)?def\\s+${name}\\b`).test(line));
  return at === -1 ? 0 : at;
}

export function TaskCode({ dag, version, task }: { dag?: string; version?: string; task: string }) {
  const code = useData<CodeOf>(dag && version ? query(`/dags/${enc(dag)}/code`, { version }) : null, { on: never });
  const [shown, setShown] = useState<Awaited<ReturnType<typeof load>>>();
  useEffect(() => void load().then(setShown), []);
  return (
    <Shown of={code}>
      {(data) => {
        const file = data.files.find((one) => lineOf(one.text, task) > 0) ?? data.files[0];
        if (!file || !dag) return <p class="soft">{texts.task.noCode}</p>;
        const line = lineOf(file.text, task) + 1;
        const base = `${dagHref(dag)}/code?version=${enc(data.version)}`;
        return (
          <>
            <p class="soft">
              {file.name}, {texts.task.version} <a href={base}>{shortVersion(data.version)}</a>
            </p>
            {shown && <shown.Source file={file} line={line > 1 ? line : 0} hrefOf={(number) => `${base}&file=${enc(file.name)}&line=${number}`} />}
          </>
        );
      }}
    </Shown>
  );
}
