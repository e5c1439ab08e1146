// What everybody has to know who looks at whatever view.

import { useEffect, useRef, useState } from "preact/hooks";

import { type Mode, currentMode, goneSince, onMode } from "./live";
import { At, When } from "./time";
import type { Overview } from "./types";

export function Banner({ overview }: { overview: Overview | undefined }) {
  const [mode, setMode] = useState<Mode>(currentMode());
  const first = useRef<string | undefined>(undefined);
  useEffect(() => onMode(setMode), []);
  first.current ??= overview?.version;
  const since = goneSince();
  if (mode === "away" && since !== null) {
    const at = new Date(since).toISOString();
    return (
      <p class="banner bad" role="alert">
        <b>The daemon has not answered</b> since <At at={at} />, <When at={at} />. The data shown is older. This page resumes by itself
        when the daemon is back; if it does not come back, see its log.
      </p>
    );
  }
  if (overview?.is_store_away) {
    return (
      <p class="banner bad" role="alert">
        <b>The database does not answer:</b> nothing moves until it is back. See the daemon's log, and whether its disk has room.
      </p>
    );
  }
  if (overview && first.current !== overview.version) {
    return (
      <p class="banner">
        The daemon is now version {overview.version}.{" "}
        <button type="button" class="small" onClick={() => window.location.reload()}>
          Load its page
        </button>
      </p>
    );
  }
  return null;
}
