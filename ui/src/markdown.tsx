// A safe subset of Markdown for DAG documentation: no HTML, no images, only web links.

import type { ComponentChildren } from "preact";

import "./styles/markdown.css";

type Block = { kind: "p" | "code" | "quote"; lines: string[] } | { kind: "h"; level: number; text: string } | { kind: "ul" | "ol"; items: string[] } | { kind: "rule" };

const ITEM = /^ {0,3}(?:([-*+])|(\d{1,9})[.)]) +(.*)$/;

function blocksOf(text: string): Block[] {
  const blocks: Block[] = [];
  const lines = text.split(/\r\n|\n|\r/);
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at]!;
    const fence = /^ {0,3}(```+|~~~+)/.exec(line);
    const heading = /^ {0,3}(#{1,6}) +(.*?)(?: +#+)? *$/.exec(line);
    const item = ITEM.exec(line);
    const last = blocks.at(-1);
    const isNew = at === 0 || lines[at - 1]!.trim() === "";
    if (fence) {
      const part: string[] = [];
      for (at += 1; at < lines.length && !lines[at]!.trimStart().startsWith(fence[1]!); at += 1) part.push(lines[at]!);
      blocks.push({ kind: "code", lines: part });
    } else if (line.trim() === "") continue;
    else if (/^ {0,3}([-*_])(?: *\1){2,} *$/.test(line)) blocks.push({ kind: "rule" });
    else if (heading) blocks.push({ kind: "h", level: heading[1]!.length, text: heading[2]! });
    else if (item) {
      const kind = item[1] ? "ul" : "ol";
      if (last?.kind === kind) last.items.push(item[3]!);
      else blocks.push({ kind, items: [item[3]!] });
    } else if (!isNew && (last?.kind === "ul" || last?.kind === "ol")) last.items.push(`${last.items.pop()!} ${line.trim()}`);
    else if (/^ {0,3}> ?/.test(line)) {
      const inner = line.replace(/^ {0,3}> ?/, "");
      if (last?.kind === "quote" && !isNew) last.lines.push(inner);
      else blocks.push({ kind: "quote", lines: [inner] });
    } else if (last?.kind === "p" && !isNew) last.lines.push(line.trim());
    else blocks.push({ kind: "p", lines: [line.trim()] });
  }
  return blocks;
}

// Code, links, addresses, strong and emphasised text. Everything else is plain text.
const INLINE = /(`+)([^`]+?)\1|\[([^\]\n]{1,500})\]\((https?:\/\/[^\s)<>"]{1,2000})\)|(https?:\/\/[^\s<>"'`)\]]{1,2000})|\*\*([^*\n]{1,1000})\*\*|__([^_\n]{1,1000})__|(?<![\w*])\*([^*\s](?:[^*\n]{0,1000}[^*\s])?)\*(?![\w*])|(?<![\w_])_([^_\s](?:[^_\n]{0,1000}[^_\s])?)_(?![\w_])/g;

/** The text of a paragraph. */
export function Inline({ text }: { text: string }) {
  const shown: ComponentChildren[] = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > from) shown.push(text.slice(from, found.index));
    from = found.index + found[0].length;
    const [, , code, name, href, address, strong, other, emphasis, also] = found;
    if (code !== undefined) shown.push(<code key={from}>{code}</code>);
    else if (href !== undefined || address !== undefined) {
      shown.push(
        <a key={from} href={href ?? address} target="_blank" rel="noopener noreferrer">
          {name ?? address}
        </a>,
      );
    } else if ((strong ?? other) !== undefined) shown.push(<strong key={from}>{strong ?? other}</strong>);
    else shown.push(<em key={from}>{emphasis ?? also}</em>);
  }
  shown.push(text.slice(from));
  return <>{shown}</>;
}

/** Return the first paragraph of a text, and the rest. */
export function firstParagraph(text: string): [string, string] {
  const found = /^\s*(?![#>*+-]|\d+[.)]|```)((?:[^\n]*\S[^\n]*\n?)+)/.exec(text);
  return found ? [found[1]!.trim(), text.slice(found[0].length).trim()] : ["", text.trim()];
}

export function Markdown({ text }: { text: string }) {
  return (
    <div class="markdown">
      {blocksOf(text).map((block, index) => {
        switch (block.kind) {
          case "h":
            return (
              <p key={index} class={`markdown-heading level-${Math.min(block.level, 3)}`}>
                <Inline text={block.text} />
              </p>
            );
          case "ul":
          case "ol": {
            const List = block.kind;
            return (
              <List key={index}>
                {block.items.map((item, at) => (
                  <li key={at}>
                    <Inline text={item} />
                  </li>
                ))}
              </List>
            );
          }
          case "code":
            return (
              <pre key={index} class="code" tabIndex={0}>
                {block.lines.join("\n")}
              </pre>
            );
          case "quote":
            return (
              <blockquote key={index}>
                <Inline text={block.lines.join(" ")} />
              </blockquote>
            );
          case "rule":
            return <hr key={index} />;
          default:
            return (
              <p key={index}>
                <Inline text={block.lines.join("\n")} />
              </p>
            );
        }
      })}
    </div>
  );
}
