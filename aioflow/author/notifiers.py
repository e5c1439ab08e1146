"""Callbacks that tell people, or another service: a webhook, and e-mail."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

import msgspec

from aioflow.author.named_values import connection as connection_at_hand
from aioflow.author.named_values import secret
from aioflow.author.source_location import wrong

__all__ = ("EmailNotifier", "Notification", "WebhookNotifier", "outbound", "summary")


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """One message to the world outside.

    Attributes:
        kind: ``webhook`` or ``email``.
        to: A URL, or addresses. Of a URL that is a secret its name.
        subject: Of an e-mail.
        body: Of a webhook the JSON, of an e-mail its text.
        key: The same where it is sent again.
    """

    kind: str
    to: str
    body: str
    key: str
    subject: str = ""


outbound: ContextVar[Callable[[Notification], None]] = ContextVar("outbound")
"""Set by the test kit: takes what would be sent."""


def summary(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a notification says of a context, as JSON takes it.

    ``text`` is one line for people; chat services show it.
    """
    names = ("event", "state", "dag_id", "run_id", "task_id", "map_index", "try_number", "error")
    said = {name: context.get(name) for name in names}
    at = context.get("at")
    said["at"] = None if at is None else at.isoformat()
    said["key"] = context.get("idempotency_key")
    said["text"] = context["text"] if "text" in context else _line(said)
    return said


def _line(said: Mapping[str, Any]) -> str:
    index = said["map_index"]
    of_child = f"[{index}]" if isinstance(index, int) and index >= 0 else ""
    what = f"task {said['task_id']}{of_child} of " if said["task_id"] else ""
    error = said["error"]
    why = "" if not error else f": {error['type']}: {error['message']}"
    verb = "misses its deadline" if said["event"] == "deadline" else f"is {said['state']}"
    return f"{what}run {said['run_id']} of {said['dag_id']} {verb}{why}"


class WebhookNotifier:
    """Posts JSON to a URL: ``on_failure=WebhookNotifier("https://...")``.

    What fails in a way that may pass (no connection, 429, a status from 500 on) is tried again,
    here a few times, later by the daemon. It carries ``Idempotency-Key``, which is the same each
    time, and with a secret the headers of Standard Webhooks: ``webhook-id``,
    ``webhook-timestamp`` and ``webhook-signature``, an HMAC-SHA256 over ``id.timestamp.body``.

    Args:
        url: Where to. Everybody who reads the DAG file reads it, too.
        url_secret: Instead: the name of a secret that is the URL.
        signing_secret: The name of a secret to sign with.
        headers: Further ones.
        payload: Makes what is posted of the context, instead of ``summary``.
        timeout_seconds: Of one attempt.
        tries: How many attempts in a row.
    """

    def __init__(
        self,
        url: str = "",
        *,
        url_secret: str = "",
        signing_secret: str = "",
        headers: Mapping[str, str] | None = None,
        payload: Callable[[Mapping[str, Any]], Any] = summary,
        timeout_seconds: float = 10.0,
        tries: int = 3,
    ) -> None:
        if bool(url) == bool(url_secret):
            raise wrong("WebhookNotifier takes either a url or a url_secret")
        if url:
            _check_url(url)
        self.secrets = tuple(name for name in (url_secret, signing_secret) if name)
        self._url = url
        self._url_secret = url_secret
        self._signing_secret = signing_secret
        self._headers = dict(headers or {})
        self._payload = payload
        self._timeout_seconds = timeout_seconds
        self._tries = max(1, tries)

    def __call__(self, context: Mapping[str, Any]) -> None:
        """Post it.

        Raises:
            NotificationFailed: If it was not taken.
        """
        body = json.dumps(self._payload(context), default=str)
        key = str(context.get("idempotency_key") or "")
        taker = outbound.get(None)
        if taker is not None:
            to = self._url or f"secret {self._url_secret}"
            taker(Notification(kind="webhook", to=to, body=body, key=key))
            return
        from aioflow.author.transports import post

        url = self._url or secret(self._url_secret)
        _check_url(url)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "aioflow",
            "Idempotency-Key": key,
            **self._headers,
        }
        post(
            url,
            body.encode(),
            headers,
            key=key,
            signing_secret=secret(self._signing_secret) if self._signing_secret else "",
            timeout_seconds=self._timeout_seconds,
            tries=self._tries,
        )


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise wrong("the url of a WebhookNotifier begins with https:// or http://")


def _are_addresses(texts: Sequence[str]) -> bool:
    """Whether they can stand in a mail: a comma in a name would make it two, a newline a header."""
    from email.utils import getaddresses

    found = [address for _, address in getaddresses(texts)]
    return all(text.isprintable() for text in texts) and all("@" in one for one in found)


class EmailNotifier:
    """Sends a mail over SMTP: ``on_failure=EmailNotifier("oncall@example.org")``.

    Its Message-ID is the same where it is sent again.

    Args:
        to: Addresses.
        connection: The name of a connection, ``smtp://user:password@host:587``; ``smtps`` speaks
            TLS from the beginning, ``smtp`` begins it if the server can, unless its
            ``starttls=no``; with ``starttls=yes`` it sends nothing to one that cannot. Without a
            login it does not log in.
        sender: The address it comes from; else the ``sender`` of the connection, else its login.
        subject: Makes the subject of the context, instead of the line that ``summary`` has.
        timeout_seconds: Of each step.
    """

    def __init__(
        self,
        to: str | Sequence[str],
        *,
        connection: str = "smtp",
        sender: str = "",
        subject: Callable[[Mapping[str, Any]], str] | None = None,
        timeout_seconds: float = 20.0,
    ) -> None:
        self._to = (to,) if isinstance(to, str) else tuple(to)
        if not self._to or not _are_addresses(self._to):
            raise wrong(f"EmailNotifier takes addresses, got {to!r}")
        if not sender.isprintable():
            raise wrong(f"EmailNotifier takes an address as its sender, got {sender!r}")
        self.connections = (connection,)
        self._sender = sender
        self._subject = subject
        self._timeout_seconds = timeout_seconds

    def __call__(self, context: Mapping[str, Any]) -> None:
        """Send it.

        Raises:
            NotificationFailed: If it was not taken.
        """
        said = summary(context)
        subject = said["text"] if self._subject is None else self._subject(context)
        lines = [f"{name}: {value}" for name, value in said.items() if value or value == 0]
        key, text = str(said["key"] or ""), "\n".join([said["text"], "", *lines])
        taker = outbound.get(None)
        if taker is not None:
            to = ", ".join(self._to)
            taker(Notification(kind="email", to=to, subject=subject, body=text, key=key))
            return
        from aioflow.author.transports import mail

        mail(
            connection_at_hand(self.connections[0]),
            self._to,
            sender=self._sender,
            subject=subject,
            text=text,
            key=key,
            timeout_seconds=self._timeout_seconds,
        )
