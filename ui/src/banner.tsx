// The banner: a problem that affects every view.

import { useRef } from "preact/hooks";

import { goneSince, useActiveNode, useMode } from "./live";
import { texts } from "./texts";
import { At } from "./time";
import type { Overview } from "./types";

export function Banner({ overview }: { overview: Overview | undefined }) {
  const mode = useMode();
  const active = useActiveNode();
  const first = useRef<string | undefined>(undefined);
  first.current ??= overview?.version;
  const since = goneSince();
  if (mode === "away" && since !== null) {
    const at = new Date(since).toISOString();
    return (
      <p class="banner bad" role="alert">
        <b>{texts.shell.away}</b> {texts.shell.since} <At at={at} />. {texts.shell.awayText}
      </p>
    );
  }
  if (active === "silent" || active === "missing") {
    return (
      <p class="banner warn" role="status">
        {texts.shell.takeover}
      </p>
    );
  }
  if (overview?.is_store_away || active === "unknown") {
    return (
      <p class="banner bad" role="alert">
        <b>{texts.shell.storeAway}</b> {texts.shell.storeAwayText}
      </p>
    );
  }
  if (overview && first.current !== overview.version) {
    return (
      <p class="banner">
        {texts.shell.newVersion(overview.version)}{" "}
        <button type="button" class="small" onClick={() => window.location.reload()}>
          {texts.shell.reload}
        </button>
      </p>
    );
  }
  return null;
}
