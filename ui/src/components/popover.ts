// Placement of popovers beside the element that opened them.

const GAP = 4;

/** Place a box below an element, or above it if there is no room; never outside the window. */
export function placeBeside(box: HTMLElement, near: Element): void {
  const at = near.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = box;
  const isBelow = at.bottom + GAP + height <= innerHeight || at.top < height;
  const left = at.left + width <= innerWidth - GAP ? at.left : at.right - width;
  box.style.left = `${Math.max(GAP, Math.min(innerWidth - width - GAP, left))}px`;
  box.style.top = `${Math.max(GAP, isBelow ? at.bottom + GAP : at.top - height - GAP)}px`;
}
