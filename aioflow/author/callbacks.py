"""Callbacks: user functions that are called on events of a task or a run.

The notifiers are callbacks that send a webhook or an e-mail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec

from aioflow.author.client import connection as connection_at_hand
from aioflow.author.client import declared_names, secret
from aioflow.author.source_location import dag_error
from aioflow.errors import NotificationFailed
from aioflow.model.dag import CallbackSpec, ValueKind

__all__ = (
    "RUN_EVENTS",
    "TASK_EVENTS",
    "Callback",
    "Callbacks",
    "EmailNotifier",
    "Notification",
    "WebhookNotifier",
    "callback_spec",
    "callbacks_of",
    "outbound",
    "summary",
)

Callback: TypeAlias = Callable[[dict[str, Any]], Any]
"""A ``def`` or ``async def`` that takes the context. Its return value is ignored."""

Callbacks: TypeAlias = Callback | Sequence[Callback] | None

TASK_EVENTS = ("success", "failure", "retry", "skip", "ask", "deadline")
RUN_EVENTS = ("success", "failure", "deadline")


def callbacks_of(said: Mapping[str, Any], events: Iterable[str]) -> dict[str, tuple[Callback, ...]]:
    """Return the callbacks from options like ``on_failure``, by event.

    Raises:
        ValueError: If an option contains something that cannot be called.
    """
    found = {}
    for event in events:
        given = said.get(f"on_{event}")
        if given is None:
            continue
        several = given if isinstance(given, Sequence) else (given,)
        for one in several:
            if not callable(one):
                raise ValueError(  # noqa: TRY004 - see settled()
                    f"on_{event} takes what can be called with a context, got {one!r}"
                )
        if several:
            found[event] = tuple(several)
    return found


def callback_spec(
    callbacks: Mapping[str, tuple[Callback, ...]],
    values: tuple[tuple[ValueKind, str], ...] = (),
) -> CallbackSpec | None:
    """Return the description of callbacks; ``None`` if there are none.

    Args:
        callbacks: The callbacks by event.
        values: Secrets, connections and variables that the task declares. Its callbacks may read
            them too.
    """
    if not callbacks:
        return None
    wanted = dict.fromkeys(values)
    for one in (one for several in callbacks.values() for one in several):
        for kind in ValueKind:
            wanted |= dict.fromkeys(declared_names(kind, getattr(one, f"{kind}s", ())))
    return CallbackSpec(events=tuple(callbacks), values=tuple(wanted))


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """One outgoing message.

    Attributes:
        kind: ``webhook`` or ``email``.
        to: A URL, or addresses. If the URL is a secret, the name of the secret.
        subject: The subject of an e-mail.
        body: The JSON of a webhook, or the text of an e-mail.
        key: An idempotency key. It is the same when the message is sent again.
    """

    kind: str
    to: str
    body: str
    key: str
    subject: str = ""


outbound: ContextVar[Callable[[Notification], None]] = ContextVar("outbound")
"""Called with each message instead of sending it. Set only by the test kit."""


def summary(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a notification, from the context of the callback, as JSON types.

    ``text`` is one readable line, which chat services display.
    """
    names = ("event", "state", "dag_id", "run_id", "task_id", "map_index", "try_number", "error")
    said = {name: context.get(name) for name in names}
    at = context.get("at")
    said["at"] = None if at is None else at.isoformat()
    said["key"] = context.get("idempotency_key")
    said["url"] = context.get("url")
    decision = context.get("decision")
    if decision is not None:
        said["decision"] = {
            name: value
            for name, value in decision.items()
            if name not in {"links", "personal", "url"}
        }
        said["url"] = decision["url"] or None
    said["text"] = context["text"] if "text" in context else _summary_line(said)
    return said


def with_link(
    said: dict[str, Any], context: Mapping[str, Any], link_for: str, *, recipients: int | None
) -> dict[str, Any]:
    """Return the content of a notification with the signed link for its recipient, if any.

    Args:
        link_for: The assignee who receives the message. If the message has only one recipient, the
            default is the task's only assignee. With several recipients there is no default,
            because everyone who reads a link can answer with it.
        recipients: How many recipients the message has; ``None`` if that is unknown, as for a
            channel.

    Raises:
        NotificationFailed: If the link of a user would go to several recipients.
    """
    decision = context.get("decision")
    if decision is None:
        return said
    links = decision["links"]
    names = decision["assignees"]
    name = link_for or (names[0] if recipients == 1 and len(names) == 1 else "")
    if name in decision.get("personal", ()) and recipients is not None and recipients > 1:
        raise NotificationFailed(
            f"the signed link of {name} is personal, so it is not sent to {recipients} addresses; "
            "give one address, or a group as link_for",
            may_pass=False,
        )
    return {**said, "url": links.get(name) or said.get("url")}


def _summary_line(said: Mapping[str, Any]) -> str:
    index = said["map_index"]
    of_child = f"[{index}]" if isinstance(index, int) and index >= 0 else ""
    what = f"task {said['task_id']}{of_child} of " if said["task_id"] else ""
    error = said["error"]
    why = "" if not error else f": {error['type']}: {error['message']}"
    if said.get("decision"):
        decision = said["decision"]
        return f"{what}run {said['run_id']} of {said['dag_id']} asks: {decision['question']}"
    verb = "misses its deadline" if said["event"] == "deadline" else f"is {said['state']}"
    return f"{what}run {said['run_id']} of {said['dag_id']} {verb}{why}"


class WebhookNotifier:
    """Posts JSON to a URL: ``on_failure=WebhookNotifier("https://...")``.

    Temporary failures (no connection, status 429, or 500 and above) are retried, first a few times
    in this process, later by the daemon. The header ``Idempotency-Key`` is the same in each
    attempt. If there is a signing secret, the request has the headers of Standard Webhooks:
    ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature``, an HMAC-SHA256 over
    ``id.timestamp.body``.

    Args:
        url: The target URL. It is visible to everyone who can read the DAG file.
        url_secret: Instead of ``url``: the name of a secret that contains the URL.
        signing_secret: The name of a secret to sign with.
        headers: Additional headers.
        payload: Builds the JSON body from the context, instead of ``summary``.
        timeout_seconds: The timeout of one attempt.
        tries: The number of attempts before the daemon takes over.
        link_for: For ``on_ask``: the assignee to whom the receiver belongs. The message then
            contains a signed link for that assignee. Everyone who reads the link can answer with
            it.
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
        link_for: str = "",
    ) -> None:
        if bool(url) == bool(url_secret):
            raise dag_error("WebhookNotifier takes either a url or a url_secret")
        if url:
            _check_webhook_url(url)
        self.secrets = tuple(name for name in (url_secret, signing_secret) if name)
        self._url = url
        self._url_secret = url_secret
        self._signing_secret = signing_secret
        self._headers = dict(headers or {})
        self._payload = payload
        self._timeout_seconds = timeout_seconds
        self._tries = max(1, tries)
        self._link_for = link_for

    def __call__(self, context: Mapping[str, Any]) -> None:
        """Post the notification.

        Raises:
            NotificationFailed: If it was not accepted.
        """
        said = self._payload(context)
        if self._payload is summary:
            said = with_link(said, context, self._link_for, recipients=None)
        body = json.dumps(said, default=str)
        key = str(context.get("idempotency_key") or "")
        taker = outbound.get(None)
        if taker is not None:
            to = self._url or f"secret {self._url_secret}"
            taker(Notification(kind="webhook", to=to, body=body, key=key))
            return
        from aioflow.author.servers.transports import post

        url = self._url or secret(self._url_secret)
        _check_webhook_url(url)
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


def _check_webhook_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise dag_error("the url of a WebhookNotifier begins with https:// or http://")


def _are_addresses(texts: Sequence[str]) -> bool:
    """Return whether the texts are valid addresses for a mail header.

    A comma in a name would split it into two addresses, and a newline would start a new header.
    """
    from email.utils import getaddresses

    found = [address for _, address in getaddresses(texts)]
    return all(text.isprintable() for text in texts) and all("@" in one for one in found)


class EmailNotifier:
    """Sends an e-mail over SMTP: ``on_failure=EmailNotifier("oncall@example.org")``.

    If it is sent again, its Message-ID is the same.

    Args:
        to: One or more addresses.
        connection: The name of a connection, ``smtp://user:password@host:587``. ``smtps`` uses
            TLS from the start. ``smtp`` upgrades to TLS if the server supports it. With
            ``starttls=no`` it never upgrades, and with ``starttls=yes`` it sends nothing to a
            server without TLS. If the connection has no user, there is no login.
        sender: The sender's address; by default the ``sender`` of the connection, else its user.
        subject: Makes the subject from the context, instead of the ``text`` of ``summary``.
        timeout_seconds: The timeout of each network operation.
        link_for: See ``WebhookNotifier``. With one address, by default the only assignee. The link
            of a user goes to one address only; the link of a group may go to several.
    """

    def __init__(
        self,
        to: str | Sequence[str],
        *,
        connection: str = "smtp",
        sender: str = "",
        subject: Callable[[Mapping[str, Any]], str] | None = None,
        timeout_seconds: float = 20.0,
        link_for: str = "",
    ) -> None:
        self._to = (to,) if isinstance(to, str) else tuple(to)
        if not self._to or not _are_addresses(self._to):
            raise dag_error(f"EmailNotifier takes addresses, got {to!r}")
        if not sender.isprintable():
            raise dag_error(f"EmailNotifier takes an address as its sender, got {sender!r}")
        self.connections = (connection,)
        self._sender = sender
        self._subject = subject
        self._link_for = link_for
        self._timeout_seconds = timeout_seconds

    def __call__(self, context: Mapping[str, Any]) -> None:
        """Send the notification.

        Raises:
            NotificationFailed: If it was not accepted.
        """
        said = with_link(summary(context), context, self._link_for, recipients=len(self._to))
        subject = said["text"] if self._subject is None else self._subject(context)
        decision = said.pop("decision", None) or {}
        said |= {name: value for name, value in decision.items() if name != "question"}
        lines = [f"{name}: {value}" for name, value in said.items() if value or value == 0]
        key, text = str(said["key"] or ""), "\n".join([said["text"], "", *lines])
        taker = outbound.get(None)
        if taker is not None:
            to = ", ".join(self._to)
            taker(Notification(kind="email", to=to, subject=subject, body=text, key=key))
            return
        from aioflow.author.servers.transports import mail

        mail(
            connection_at_hand(self.connections[0]),
            self._to,
            sender=self._sender,
            subject=subject,
            text=text,
            key=key,
            timeout_seconds=self._timeout_seconds,
        )
