"""Masking of secrets in output and errors, by value, wherever the value came from.

Besides the secret text itself, its forms in JSON, ``repr``, URLs and base64 are masked. In a text
with several lines, each long line is masked, too.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

from aioflow.model.dag import ValueKind

__all__ = (
    "LEAST",
    "LINK_PREFIX",
    "MASK",
    "Masks",
    "Stream",
    "is_secret_name",
    "masked_url",
    "masked_urls",
    "secret_texts",
)

MASK = b"***"

LEAST = 5
"""Minimum length of a text to mask, in characters; a shorter one would mask half of every log."""

LINK_PREFIX = "aiolink_"
"""Prefix of the tokens of signed links.

They are always masked, because everyone who reads such a token can answer with it.
"""

_LINK_HEAD = LINK_PREFIX.encode()
_LINK = re.compile(_LINK_HEAD + rb"[A-Za-z0-9_.-]*")

_LEAST_HEAD = 4
"""Minimum length at which an incomplete ``LINK_PREFIX`` at the end of output is held back."""

_LINK_BYTES = 1_000
"""Maximum length of a token."""

_LINE_ENDS = frozenset((b"", b"\n", b"\r"))

_LEAST_LINE = 12

_SECRET_NAMES = ("passw", "secret", "token", "key", "credential", "auth", "private")
"""Parts of names that suggest a secret: of variables, and of connection extras.

The values of such names are masked. Other values are often words like ``prod``. Masking these would
mask half of every log.
"""


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s\"'<>]*")
_CONTAINER_SCHEMES = ("abfs", "abfss", "wasb", "wasbs")
"""URL schemes in which the part before ``@`` is a container, unless it includes a password."""


class Masks:
    """The texts to mask in one process. Each secret that is read adds some; none is removed.

    The tokens of signed links are masked by their form, because there are too many to remember.
    """

    __slots__ = ("_heads", "_known", "_pattern")

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._pattern: re.Pattern[bytes] | None = None
        self._heads: dict[int, list[bytes]] = {}

    def hide(self, texts: Iterable[str]) -> None:
        """Mask these texts from now on."""
        new = {form for text in texts for form in _forms(text)} - self._known
        if not new:
            return
        self._known |= new
        # Longest first: if one text is the beginning of another, the longer one is masked whole.
        longest_first = sorted(self._known, key=lambda known: (-len(known), known))
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first)))
        self._heads = {}
        for known in longest_first:
            self._heads.setdefault(known[0], []).append(known)

    def masked(self, data: bytes) -> bytes:
        """Return the data with secrets masked."""
        if self._pattern is not None:
            data = self._pattern.sub(MASK, data)
        return _without_links(data)

    def masked_text(self, text: str) -> str:
        """Return the text with secrets masked."""
        if self._pattern is None and LINK_PREFIX not in text:
            return text
        return self.masked(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the part that can be shown, masked, and the rest, which may begin a secret."""
        held = _link_from(data)
        if self._pattern is None:
            return _without_links(data[:held]), data[held:]
        held = min(held, self._pending_from(data))
        shown, at = [], 0
        for found in self._pattern.finditer(data):
            if found.start() >= held:
                break
            shown += [data[at : found.start()], MASK]
            at = found.end()
            held = max(held, at)
        shown.append(data[at:held])
        return _without_links(b"".join(shown)), data[held:]

    def is_certainly_public(self, held: bytes) -> bool:
        """Return whether held data can be shown: a few letters that at most begin a link."""
        return len(held) < _LEAST_HEAD and (
            self._pattern is None or self._pending_from(held) == len(held)
        )

    def _pending_from(self, data: bytes) -> int:
        """Return the start of the longest suffix that may begin a secret; else the length."""
        longest = max(map(len, self._known))
        for at in range(max(0, len(data) - longest + 1), len(data)):
            heads = self._heads.get(data[at])
            if heads is not None:
                tail = data[at:]
                if any(len(head) > len(tail) and head.startswith(tail) for head in heads):
                    return at
        return len(data)


def _without_links(data: bytes) -> bytes:
    """Return the data with the tokens of links masked."""
    return _LINK.sub(MASK, data) if _LINK_HEAD in data else data


def _link_from(data: bytes) -> int:
    """Return where a link token begins whose end may be missing; the length if there is none.

    The rest of the token may follow. A token longer than ``_LINK_BYTES`` is not held back.
    """
    if data[-1:] in _LINE_ENDS:
        return len(data)
    for found in _LINK.finditer(data, max(0, len(data) - _LINK_BYTES)):
        if found.end() == len(data):
            return found.start()
    for length in range(min(len(_LINK_HEAD) - 1, len(data)), 0, -1):
        if data.endswith(_LINK_HEAD[:length]):
            return len(data) - length
    return len(data)


class Stream:
    """Masks data that comes in pieces, even if a secret is split between two of them."""

    __slots__ = ("_held", "_masks", "_shown")

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self._held = b""
        self._shown = 0  # number of held bytes that have been returned already

    def feed(self, data: bytes) -> bytes:
        """Return the masked data that can be shown so far.

        The first letters of the prefix of a link are shown at once, because words end in them, too.
        They are remembered: if the rest of the link follows, its token is masked.
        """
        before = self._held[: self._shown]
        shown, self._held = self._masks.split(self._held + data)
        if self._masks.is_certainly_public(self._held):
            self._shown = len(self._held)
            return (shown + self._held).removeprefix(before)
        self._shown = 0 if shown else self._shown
        return shown.removeprefix(before)

    def finish(self) -> bytes:
        """Return the masked end of the stream that ``feed`` has not returned."""
        held, self._held = self._held, b""
        before, self._shown = held[: self._shown], 0
        return self._masks.masked(held).removeprefix(before)


def masked_urls(text: str) -> str:
    """Return a text whose URLs are masked; see ``masked_url``."""
    return _URL.sub(lambda found: masked_url(found[0]), text)


def masked_url(url: str) -> str:
    """Return a URL without user information and fragment, and with masked query values."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url
    path, asked, query = rest.partition("#")[0].partition("?")
    host, slash, behind = path.partition("/")
    user, at, host = host.rpartition("@")
    is_container = scheme.lower() in _CONTAINER_SCHEMES and ":" not in user
    shown = f"{scheme}://{user + at if is_container else ''}{host}{slash}{behind}"
    return shown + asked + "&".join(map(_masked_pair, re.split("[&;]", query)))


def _masked_pair(pair: str) -> str:
    name, sign, _ = pair.partition("=")
    return f"{name}=***" if sign else "***" if name else ""


def _forms(text: str) -> Iterable[bytes]:
    for part in {text, text.strip(), *_lines(text)}:
        if len(part) < LEAST:
            continue
        written = {part, json.dumps(part)[1:-1], repr(part)[1:-1]}
        written |= {json.dumps(part, ensure_ascii=False)[1:-1], quote(part, safe="")}
        written |= {quote(part), quote_plus(part)}
        raw = part.encode("utf-8", "surrogatepass")
        yield from (form.encode("utf-8", "surrogatepass") for form in written)
        yield base64.b64encode(raw)
        yield base64.urlsafe_b64encode(raw)


def _lines(text: str) -> Iterable[str]:
    """Return the long lines of a text with several lines, since a key may be printed indented."""
    lines = [line.strip() for line in text.splitlines()]
    if len(lines) < 2:
        return []
    return [line for line in lines if len(line) >= _LEAST_LINE and not line.startswith("-----")]


def secret_texts(kind: ValueKind, name: str, value: Any) -> Iterator[str]:
    """Yield the texts to mask for a secret, connection or variable, from its plain data."""
    match kind:
        case ValueKind.SECRET:
            yield from _texts(value)
        case ValueKind.CONNECTION:
            yield value.get("password", "")
            for key, extra in value.get("extra", {}).items():
                if is_secret_name(key):
                    yield from _texts(extra)
        case ValueKind.VARIABLE:
            if is_secret_name(name):
                yield from _texts(value)


def is_secret_name(name: str) -> bool:
    """Return whether a name suggests that its value is a secret."""
    return any(part in name.lower() for part in _SECRET_NAMES)


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case dict():
            for item in value.values():
                yield from _texts(item)
        case _:
            return
