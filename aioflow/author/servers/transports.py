"""The sending of webhooks and e-mails. Imported on first use, because its imports are slow."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import smtplib
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from email.message import EmailMessage
from email.utils import formatdate, getaddresses
from typing import Any
from urllib.parse import urlsplit

from aioflow.author.client import Connection
from aioflow.errors import NotificationFailed

__all__ = ("mail", "open_smtp", "post", "signature")

_LONGEST_DELAY_SECONDS = 20.0
_TOO_MANY = 429
_FIRST_OWN_BAD = 500
_LOGGED_IN = 235


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    key: str,
    signing_secret: str = "",
    timeout_seconds: float,
    tries: int,
) -> None:
    """Post until the request is accepted, at most ``tries`` times. Blocks.

    Raises:
        NotificationFailed: If it was not accepted.
    """
    for attempt in range(tries):
        signed = {**headers, **signature(key, body, signing_secret)}
        delay = _post_once(url, body, signed, timeout_seconds, is_last=attempt + 1 == tries)
        if delay is None:
            return
        time.sleep(min(delay or 2.0**attempt, _LONGEST_DELAY_SECONDS))


def signature(key: str, body: bytes, signing_secret: str) -> dict[str, str]:
    """Return the headers of Standard Webhooks. There are none without a secret."""
    if not signing_secret:
        return {}
    at = str(int(time.time()))
    content = f"{key}.{at}.".encode() + body
    digest = hmac.new(_key_of(signing_secret), content, hashlib.sha256).digest()
    return {
        "webhook-id": key,
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def _post_once(
    url: str, body: bytes, headers: Mapping[str, str], timeout_seconds: float, *, is_last: bool
) -> float | None:
    """Post once. Return ``None`` if accepted, else the retry delay in seconds (0: default)."""
    request = urllib.request.Request(url, body, dict(headers), method="POST")  # noqa: S310 - checked
    try:
        with _opener.open(request, timeout=timeout_seconds) as answer:
            answer.read(1)
            return None
    except urllib.error.HTTPError as exc:
        with exc:
            may_pass = exc.code == _TOO_MANY or exc.code >= _FIRST_OWN_BAD
            if is_last or not may_pass:
                message = f"{_shown(url)} answered {exc.code}"
                raise NotificationFailed(message, may_pass=may_pass) from None
            return _retry_after(exc.headers.get("Retry-After"))
    except OSError as exc:
        if is_last:
            message = f"{_shown(url)}: {getattr(exc, 'reason', exc)}"
            raise NotificationFailed(message, may_pass=True) from None
        return 0.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Disables redirects: urllib would send a GET without the body, perhaps to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)


def _shown(url: str) -> str:
    """Return the URL without its path, which may be a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}"


def _key_of(text: str) -> bytes:
    """Return the signing key: the text itself, or the decoded base64 text after ``whsec_``."""
    head, _, rest = text.partition("_")
    if head == "whsec":
        try:
            return base64.b64decode(rest, validate=True)
        except binascii.Error:
            pass
    return text.encode()


def _retry_after(said: str | None) -> float:
    return float(said) if said is not None and said.isdecimal() else 0.0


def mail(
    server: Connection,
    to: Sequence[str],
    *,
    sender: str,
    subject: str,
    text: str,
    key: str,
    timeout_seconds: float,
) -> None:
    """Send an e-mail. Blocks.

    Raises:
        NotificationFailed: If it was not accepted, or not for all recipients.
    """
    message = _message(server, to, sender, subject, text, key)
    addresses = [address for _, address in getaddresses(to)]
    try:
        refused = _send(server, message, addresses, timeout_seconds)
    except smtplib.SMTPResponseException as exc:
        may_pass = exc.smtp_code < _FIRST_OWN_BAD  # codes from 500 on are permanent
        raise NotificationFailed(
            f"{server.host} answered {exc.smtp_code}", may_pass=may_pass
        ) from None
    except smtplib.SMTPRecipientsRefused as exc:
        refused = exc.recipients
    except smtplib.SMTPNotSupportedError as exc:
        raise NotificationFailed(f"{server.host}: {exc}", may_pass=False) from None
    except (OSError, smtplib.SMTPException) as exc:
        raise NotificationFailed(f"{server.host}: {exc}", may_pass=True) from None
    if refused:
        names = ", ".join(f"{address} ({code})" for address, (code, _) in refused.items())
        may_pass = any(code < _FIRST_OWN_BAD for code, _ in refused.values())
        raise NotificationFailed(f"{server.host} refused {names}", may_pass=may_pass)


def _message(
    server: Connection, to: Sequence[str], sender: str, subject: str, text: str, key: str
) -> EmailMessage:
    message = EmailMessage()
    origin = sender or str(server.extra.get("sender", "")) or server.login or "aioflow"
    origin = origin if "@" in origin else f"{origin}@{server.host}"
    try:
        message["From"] = origin
        message["To"] = ", ".join(to)
    except ValueError:
        raise NotificationFailed(
            f"{origin!r} or {', '.join(to)!r} is not a valid address; "
            "check the sender of the connection",
            may_pass=False,
        ) from None
    printable = "".join(char if char.isprintable() else " " for char in subject)
    message["Subject"] = " ".join(printable.split())[:200]
    message["Date"] = formatdate(localtime=False)
    message["Message-ID"] = f"<{hashlib.sha256(key.encode()).hexdigest()[:32]}@aioflow>"
    body = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    message.set_content(body.encode("utf-8", "backslashreplace").decode())
    return message


def _send(
    server: Connection, message: EmailMessage, to: Sequence[str], timeout_seconds: float
) -> Mapping[str, tuple[int, bytes]]:
    """Send the message; return the recipients that were refused while others were accepted."""
    with open_smtp(server, timeout_seconds) as smtp:
        refused = smtp.send_message(message, to_addrs=list(to))
        with contextlib.suppress(OSError, smtplib.SMTPException):
            smtp.quit()  # the mail has been accepted, whatever the server answers now
    return refused


@contextlib.contextmanager
def open_smtp(server: Connection, timeout_seconds: float) -> Iterator[smtplib.SMTP]:
    """Connect and log in, with TLS as configured in the connection. Blocks.

    Raises:
        OSError: If there is no connection, or it is not secure.
        smtplib.SMTPException: If the server refuses.
    """
    context = ssl.create_default_context()
    if server.conn_type == "smtps":
        port = server.port or smtplib.SMTP_SSL_PORT
        smtp: smtplib.SMTP = smtplib.SMTP_SSL(
            server.host, port, timeout=timeout_seconds, context=context
        )
    else:
        smtp = smtplib.SMTP(server.host, server.port or 25, timeout=timeout_seconds)
    try:
        smtp.ehlo()
        if server.conn_type != "smtps":
            _begin_tls(smtp, str(server.extra.get("starttls", "")).lower(), context)
        if server.login:
            _log_in(smtp, server)
        yield smtp
    finally:
        smtp.close()


def _begin_tls(smtp: smtplib.SMTP, wanted: str, context: ssl.SSLContext) -> None:
    if wanted in {"no", "false", "0"}:
        return
    if smtp.has_extn("starttls") or wanted in {"yes", "true", "1"}:
        smtp.starttls(context=context)
        smtp.ehlo()


def _log_in(smtp: smtplib.SMTP, server: Connection) -> None:
    if (server.login + server.password).isascii():
        smtp.login(server.login, server.password)
        return
    # Needed because smtplib itself encodes credentials as ASCII only.
    if "PLAIN" not in smtp.esmtp_features.get("auth", "").upper().split():
        raise smtplib.SMTPNotSupportedError("it takes no login that is not ASCII (AUTH PLAIN)")
    said = base64.b64encode(f"\0{server.login}\0{server.password}".encode()).decode()
    code, answer = smtp.docmd("AUTH", f"PLAIN {said}")
    if code != _LOGGED_IN:
        raise smtplib.SMTPAuthenticationError(code, answer)
