"""Hides secrets in what is printed and raised: by value, however they came there.

Besides the text itself it hides how JSON, ``repr``, a URL and base64 write it, and each long
line of one that has several.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

from aioflow.model.dag import ValueKind

__all__ = ("LEAST", "MASK", "Masks", "Stream", "masked_url", "masked_urls", "secret_texts")

MASK = b"***"

LEAST = 5
"""Characters a text needs to be hidden: a shorter one would take half of every log with it."""

_LEAST_LINE = 12

_TELLING = ("passw", "secret", "token", "key", "credential", "auth", "private")
"""What a variable, or an extra of a connection, is called that is hidden as a secret is. Others
are words like ``prod``, and half of every log would go with them."""


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s\"'<>]*")
_CONTAINER_SCHEMES = ("abfs", "abfss", "wasb", "wasbs")
"""What stands before the ``@`` of their URLs is a container, unless a password follows."""


class Masks:
    """What is hidden in one process. It only grows; there are as many as were ever handed out."""

    __slots__ = ("_heads", "_known", "_pattern")

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._pattern: re.Pattern[bytes] | None = None
        self._heads: dict[int, list[bytes]] = {}

    def hide(self, texts: Iterable[str]) -> None:
        """Hide these from now on."""
        new = {form for text in texts for form in _forms(text)} - self._known
        if not new:
            return
        self._known |= new
        # The longest first: of two that begin alike the whole of the longer one is hidden.
        longest_first = sorted(self._known, key=lambda known: (-len(known), known))
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first)))
        self._heads = {}
        for known in longest_first:
            self._heads.setdefault(known[0], []).append(known)

    def masked(self, data: bytes) -> bytes:
        """Return it without what is hidden."""
        return data if self._pattern is None else self._pattern.sub(MASK, data)

    def masked_text(self, text: str) -> str:
        """Return it without what is hidden."""
        if self._pattern is None:
            return text
        return self.masked(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """Return what can be shown, masked, and the end that may be the beginning of a secret."""
        if self._pattern is None:
            return data, b""
        held = self._held_from(data)
        shown, at = [], 0
        for found in self._pattern.finditer(data):
            if found.start() >= held:
                break
            shown += [data[at : found.start()], MASK]
            at = found.end()
            held = max(held, at)
        shown.append(data[at:held])
        return b"".join(shown), data[held:]

    def _held_from(self, data: bytes) -> int:
        """Return where the longest end stands that a secret begins with, else the end."""
        longest = max(map(len, self._known))
        for at in range(max(0, len(data) - longest + 1), len(data)):
            heads = self._heads.get(data[at])
            if heads is not None:
                tail = data[at:]
                if any(len(head) > len(tail) and head.startswith(tail) for head in heads):
                    return at
        return len(data)


class Stream:
    """Masks what comes in pieces; a secret may be cut by the end of one."""

    __slots__ = ("_held", "_masks")

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what can be shown by now."""
        shown, self._held = self._masks.split(self._held + data)
        return shown

    def finish(self) -> bytes:
        """Return what was held back, once nothing more is to be expected."""
        held, self._held = self._held, b""
        return self._masks.masked(held)


def masked_urls(text: str) -> str:
    """Return a text whose URLs are masked; see ``masked_url``."""
    return _URL.sub(lambda found: masked_url(found[0]), text)


def masked_url(url: str) -> str:
    """Return a URL without its user information, fragment and the values of its query."""
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
    """Of a text with several lines those that say something: a key that is printed indented."""
    lines = [line.strip() for line in text.splitlines()]
    if len(lines) < 2:
        return []
    return [line for line in lines if len(line) >= _LEAST_LINE and not line.startswith("-----")]


def secret_texts(kind: ValueKind, name: str, value: Any) -> Iterator[str]:
    """Say which texts of a value nobody is to read, by its plain data."""
    match kind:
        case ValueKind.SECRET:
            yield from _texts(value)
        case ValueKind.CONNECTION:
            yield value.get("password", "")
            for key, extra in value.get("extra", {}).items():
                if _is_telling(key):
                    yield from _texts(extra)
        case ValueKind.VARIABLE:
            if _is_telling(name):
                yield from _texts(value)


def _is_telling(name: str) -> bool:
    return any(part in name.lower() for part in _TELLING)


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
