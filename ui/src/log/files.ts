// Files of DAG versions in tracebacks: their paths are long, and of no use to who reads them.

const CODE = /File "((?:[^"]*\/)?code\/([0-9a-f]{12,64})\/)([^"]+)", line (\d+)/;

export interface CodeFile {
  /** As it is on the machine that ran the task. */
  path: string;
  version: string;
  file: string;
  line: string;
  /** The text that the log shows, without the folder. */
  shown: string;
}

/** The file of a version that a line of a traceback names. */
export function codeFileOf(text: string): CodeFile | null {
  const found = CODE.exec(text);
  if (!found) return null;
  const [, folder, version, file, line] = found as unknown as [string, string, string, string, string];
  return { path: `${folder}${file}`, version, file, line, shown: `File "${file}", line ${line}` };
}

/** The same text with the name of the file only. */
export const withShortPath = (text: string): string => (text.includes('code/') ? text.replace(CODE, 'File "$3", line $4') : text);
