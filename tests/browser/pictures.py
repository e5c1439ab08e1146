"""The pictures in README and docs: ``python -m tests.browser.pictures`` takes them again.

They show the data of `scene` at its time, without a daemon, so that they are the same each time
they are taken. `test_pictures` compares the page with them every night. Look at them before they
are committed.
"""

from __future__ import annotations

import io
import json
import mimetypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from PIL import Image, ImageChops
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.scene import NOW, ROOT, VIEWS, answers
from tests.browser.watched import chromium

__all__ = ("FORMS", "IMAGES", "LARGEST", "difference", "replayed", "taken")

IMAGES = ROOT / "docs" / "images"
STATIC = ROOT / "aioflow" / "web" / "static"
LARGEST = 60_000
"""The maximum size of a picture, in bytes."""

FORMS = {
    "light": ("light", 1280, 760),
    "dark": ("dark", 1280, 760),
    "phone": ("light", 390, 844),
}
"""Theme, width and height of each form."""

COLOURS = 180
VIVID = 45
"""A colour whose bands differ by more than this is not grey."""

NEAR = 40
"""Two pixels are the same if no channel differs by more than this: pictures have few colours."""

_BASE = "http://aioflow.example"

# The stream of changes is open, but nothing ever changes.
_STREAM = """
window.EventSource = class extends EventTarget {
  constructor() {
    super();
    this.readyState = 1;
    setTimeout(() => this.dispatchEvent(new Event('open')));
  }
  close() {}
};
"""


@contextmanager
def replayed(
    browser: Browser, theme: str, width: int, height: int, missing: set[str] | None = None
) -> Iterator[Page]:
    """Open a page that is served from the scene. Missing paths are added to ``missing``."""
    context = browser.new_context(
        color_scheme=theme,  # type: ignore[arg-type]
        viewport={"width": width, "height": height},
        reduced_motion="reduce",
        timezone_id="UTC",
        locale="en-GB",
    )
    found = answers()
    lacks = missing if missing is not None else set()
    try:
        context.add_init_script(_STREAM)
        context.route("**/*", lambda route: _serve(route, found, lacks))
        page = context.new_page()
        page.clock.set_fixed_time(NOW)
        yield page
    finally:
        context.close()


def _serve(route: Route, found: dict[str, Any], missing: set[str]) -> None:
    url = urlsplit(route.request.url)
    if url.path.startswith("/api/v1/"):
        path = url.path.removeprefix("/api/v1")
        answer = found.get(f"{path}?{url.query}" if url.query else path, found.get(f"{path}?"))
        if answer is None:
            missing.add(f"{path}?{url.query}")
            route.fulfill(status=404, json={"code": "request.absent", "detail": path})
        else:
            route.fulfill(json=answer)
        return
    is_file = url.path.startswith("/static/")
    file = STATIC / (url.path.removeprefix("/static/") if is_file else "index.html")
    kind = mimetypes.guess_type(file.name)[0] or "font/woff2"
    route.fulfill(body=file.read_bytes(), content_type=kind)


def shown(page: Page, path: str) -> None:
    """Go to a view, and wait until it is completely drawn."""
    page.goto(_BASE + path, wait_until="networkidle")
    page.wait_for_selector("main h1")
    expect(page.locator(".loading, .skeleton")).to_have_count(0)
    page.evaluate("document.fonts.ready")
    page.wait_for_timeout(300)


def taken(page: Page, path: str) -> Image.Image:
    """Return a picture of a view with few colours, as it is stored."""
    shown(page, path)
    return reduced(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))


def reduced(raw: Image.Image) -> Image.Image:
    """Return a picture with few colours. Frequent colours, such as those of states, stay exact."""
    found: Any = raw.getcolors(raw.width * raw.height)
    frequent = [colour for _, colour in sorted(found, reverse=True)]
    # The glyph of a state has few pixels, but its colour is what distinguishes it from others.
    vivid = [colour for colour in frequent if max(colour) - min(colour) > VIVID]
    common = list(dict.fromkeys([*frequent[: COLOURS // 3], *vivid[: COLOURS // 3]]))
    rest = raw.quantize(COLOURS - len(common), dither=Image.Dither.NONE).getpalette() or []
    palette = [band for colour in common for band in colour] + rest
    few = raw.quantize(palette=_palette(palette), dither=Image.Dither.NONE)
    # Pillow finds the nearest colour by 6 bits of each band, so it may miss an exact match.
    for index, colour in enumerate(common):
        few.paste(index, mask=_mask(raw, colour))
    return few


def _palette(bands: list[int]) -> Image.Image:
    image = Image.new("P", (1, 1))
    image.putpalette(bands)
    return image


def _mask(raw: Image.Image, colour: Any) -> Image.Image:
    """Return a mask of the pixels that have exactly this colour."""
    bands = [
        band.point([255 * (value == wanted) for value in range(256)])
        for band, wanted in zip(raw.split(), colour, strict=True)
    ]
    return ImageChops.darker(ImageChops.darker(bands[0], bands[1]), bands[2])


def difference(one: Image.Image, other: Image.Image) -> float:
    """Return the share of the pixels that differ; 1.0 for pictures of different sizes."""
    if one.size != other.size:
        return 1.0
    apart = ImageChops.difference(one.convert("RGB"), other.convert("RGB"))
    most = [band.point(lambda value: 255 * (value > NEAR)) for band in apart.split()]
    differs = ImageChops.lighter(ImageChops.lighter(most[0], most[1]), most[2])
    return differs.histogram()[255] / (one.width * one.height)


def main(views: list[str]) -> None:
    """Take the pictures of the named views, or of all views."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    missing: set[str] = set()
    with chromium() as browser:
        for form, (theme, width, height) in FORMS.items():
            with replayed(browser, theme, width, height, missing) as page:
                for name in views or VIEWS:
                    target = IMAGES / f"{name}-{form}.png"
                    taken(page, VIEWS[name]).save(target, optimize=True)
                    size = target.stat().st_size
                    sys.stdout.write(f"{target.relative_to(ROOT)}: {size / 1000:.0f} kB\n")
                    if size > LARGEST:
                        raise SystemExit(f"{target} is too large")
    if missing:
        raise SystemExit(f"the scene lacks {json.dumps(sorted(missing))}")


if __name__ == "__main__":
    main(sys.argv[1:])
