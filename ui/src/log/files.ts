// Files of DAG versions in tracebacks. Their long paths are of no use to readers.

const CODE = /File "((?:[^"]*\/)?code\/([0-9a-f]{12,64})\/)([^"]+)", line (\d+)/;

export interface CodeFile {
  /** The path on the machine that ran the task. */
  path: string;
  version: string;
  file: string;
  line: string;
  /** The text that the log shows, without the folder. */
  shown: string;
}

/** Return the file of a version that a line of a traceback names. */
export function codeFileOf(text: string): CodeFile | null {
  const found = CODE.exec(text);
  if (!found) return null;
  const [, folder, version, file, line] = found as unknown as [string, string, string, string, string];
  return { path: `${folder}${file}`, version, file, line, shown: `File "${file}", line ${line}` };
}

/** Return the text with only the name of the file. */
export const withShortPath = (text: string): string => (text.includes('code/') ? text.replace(CODE, 'File "$3", line $4') : text);
