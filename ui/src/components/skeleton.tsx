// Placeholder lines, shown while data is loading.

import { texts } from "../texts";

const WIDTHS = ["82%", "64%", "91%", "57%", "76%", "69%"];

export function Skeleton({ rows = 6, height = 14 }: { rows?: number; height?: number }) {
  return (
    <div class="loading skeleton" role="status" aria-label={texts.common.loading}>
      {Array.from({ length: rows }, (_, index) => (
        <i key={index} aria-hidden="true" style={{ width: WIDTHS[index % WIDTHS.length], height: `${height}px` }} />
      ))}
    </div>
  );
}
