"""E-mail through a real SMTP server: what is sent to it, and what each of its replies causes."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from aioflow import DagError, EmailNotifier
from aioflow.author.client import Connection
from aioflow.author.servers.transports import mail
from aioflow.errors import NotificationFailed

HANGS = b"hangs"
"""Stands for a reply that never comes."""


class SmtpServer:
    """An SMTP server that handles one conversation at a time, with the given replies.

    Attributes:
        said: The commands of all conversations.
        mails: The accepted mails: recipients and content.
    """

    def __init__(
        self,
        answers: Mapping[str, bytes],
        offers: tuple[str, ...],
        tls: ssl.SSLContext | None,
        *,
        is_tls: bool,
    ) -> None:
        self._answers = dict(answers)
        self._offers = offers
        self._tls = tls
        self._is_tls = is_tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.said: list[str] = []
        self.mails: list[tuple[list[str], bytes]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                link, _ = self._listener.accept()
                with link:
                    self._talk(link)
            except OSError:
                continue  # it hung up, or we are being closed

    def _talk(self, link: socket.socket) -> None:
        if self._is_tls and self._tls is not None:
            link = self._tls.wrap_socket(link, server_side=True)
        with link, link.makefile("rb") as lines:
            if not self._answer(link, "greeting", b"220 at your service"):
                return
            for line in lines:
                words = line.decode().rstrip("\r\n")
                self.said.append(words)
                verb = words.split(" ")[0].upper()
                if verb == "STARTTLS" and self._tls is not None:
                    self._answer(link, verb, b"220 begin")
                    self._offers = tuple(offer for offer in self._offers if offer != "STARTTLS")
                    with self._tls.wrap_socket(link, server_side=True) as safe:
                        self._go_on(safe)
                    return
                if not self._reply(link, lines, verb, words):
                    return

    def _go_on(self, link: ssl.SSLSocket) -> None:
        with link.makefile("rb") as lines:
            for line in lines:
                words = line.decode().rstrip("\r\n")
                self.said.append(words)
                if not self._reply(link, lines, words.split(" ")[0].upper(), words):
                    return

    def _reply(self, link: socket.socket, lines: Any, verb: str, words: str) -> bool:
        if verb == "EHLO":
            parts = ["here", *self._offers]
            text = "".join(f"250-{part}\r\n" for part in parts[:-1]) + f"250 {parts[-1]}"
            return self._answer(link, verb, text.encode())
        if verb == "MAIL":
            self._to: list[str] = []
        if verb == "RCPT":
            address = words.partition("<")[2].partition(">")[0]
            known = self._answers.get(address, b"250 OK")
            if known.startswith(b"250"):
                self._to.append(address)
            return self._answer(link, address, b"250 OK")
        if verb == "AUTH":
            return self._answer(link, verb, b"235 welcome")
        if verb == "DATA":
            self._answer(link, "DATA", b"354 go on")
            body = b""
            while (line := lines.readline()) not in {b".\r\n", b""}:
                body += line
            self.mails.append((self._to, body))
            return self._answer(link, "taken", b"250 taken")
        if verb == "QUIT":
            self._answer(link, verb, b"221 bye")
            return False
        return self._answer(link, verb, b"250 OK")

    def _answer(self, link: socket.socket, what: str, text: bytes) -> bool:
        answer = self._answers.get(what, text)
        if answer == HANGS:
            self._over.wait(30)
            return False
        link.sendall(answer + b"\r\n")
        return True


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a self-signed certificate for 127.0.0.1, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.fixture
def serve(certificate):
    """Return a function that starts a server. The server is closed at the end of the test."""
    servers: list[SmtpServer] = []

    def start(
        answers: Mapping[str, bytes] | None = None, *offers: str, is_tls: bool = False
    ) -> SmtpServer:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        servers.append(SmtpServer(answers or {}, offers, tls, is_tls=is_tls))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def _trusted(certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))


def send(server: SmtpServer, *to: str, **fields: Any) -> None:
    kind = fields.pop("kind", "smtp")
    login, password = fields.pop("login", ""), fields.pop("password", "")
    connection = Connection(
        conn_type=kind,
        host="127.0.0.1",
        port=server.port,
        login=login,
        password=password,
        extra=fields.pop("extra", {}),
    )
    given = {"sender": "", "subject": "it failed", "text": "so it is", **fields}
    mail(connection, to or ("a@example.org",), key="k", timeout_seconds=5.0, **given)


def failed(server: SmtpServer, *to: str, **fields: Any) -> tuple[str, bool]:
    with pytest.raises(NotificationFailed) as caught:
        send(server, *to, **fields)
    return str(caught.value), caught.value.may_pass


def test_a_mail_is_taken_as_it_was_written(serve):
    server = serve()

    send(server, "a@example.org", "Bob <b@example.org>", subject="é – 失敗" * 9, text="ünï\n.\nend")

    ((to, body),) = server.mails
    got = message_from_bytes(body, policy=policy.default)
    assert to == ["a@example.org", "b@example.org"]
    assert got["Subject"] == "é – 失敗" * 9
    assert got["From"] == "aioflow@127.0.0.1"
    assert got.get_content().splitlines() == ["ünï", "..", "end"]  # a dot is doubled on its way
    assert got["Message-ID"].endswith("@aioflow>")


def test_nothing_in_a_subject_begins_another_header(serve):
    server = serve()

    send(server, subject="x\r\nBcc: evil@example.org\x0b\x85\u2028y\0z" + "w" * 400)

    ((to, body),) = server.mails
    got = message_from_bytes(body, policy=policy.default)
    assert to == ["a@example.org"]
    assert "Bcc" not in got
    assert got["Subject"].startswith("x Bcc: evil@example.org y z")
    assert len(got["Subject"]) == 200


def test_non_text_values_are_written_readably(serve):
    server = serve()

    send(server, subject="file \udcff.csv", text="file \udcff.csv\0")

    ((_, body),) = server.mails
    got = message_from_bytes(body, policy=policy.default)
    assert got["Subject"] == "file .csv"
    assert got.get_content().strip() == "file \\udcff.csv\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"sender": "a@b\r\nBcc: evil@example.org"}, id="sender"),
        pytest.param({"extra": {"sender": "a@b\nBcc: evil@example.org"}}, id="of-connection"),
    ],
)
def test_a_sender_with_a_header_in_it_is_refused_for_good(serve, fields):
    server = serve()

    said, may_pass = failed(server, **fields)

    assert ("is not a valid address" in said, may_pass) == (True, False)
    assert not server.said


@pytest.mark.parametrize(
    ("answer", "may_pass"), [(b"550 no such person", False), (b"450 come again", True)]
)
@pytest.mark.parametrize("others", [(), ("b@example.org",)])
def test_a_recipient_that_is_refused_is_reported(serve, answer, may_pass, others):
    server = serve({"a@example.org": answer})

    said = failed(server, "a@example.org", *others)

    assert said == (f"127.0.0.1 refused a@example.org ({answer[:3].decode()})", may_pass)
    assert [to for to, _ in server.mails] == ([list(others)] if others else [])


@pytest.mark.parametrize(
    ("what", "answer", "may_pass"),
    [
        ("greeting", b"421 too busy", True),
        ("greeting", b"554 go away", False),
        ("MAIL", b"451 later", True),
        ("MAIL", b"553 not you", False),
        ("DATA", b"452 no room", True),
        ("taken", b"554 that is spam", False),
    ],
)
def test_replies_from_500_on_are_permanent_failures(serve, what, answer, may_pass):
    assert failed(serve({what: answer})) == (f"127.0.0.1 answered {answer[:3].decode()}", may_pass)


@pytest.mark.parametrize("answer", [b"421 bye", b"250 bye", b"what", HANGS])
def test_an_accepted_mail_is_delivered_whatever_the_reply_to_quit(serve, answer):
    server = serve({"QUIT": answer})
    connection = Connection(conn_type="smtp", host="127.0.0.1", port=server.port)

    mail(connection, ["a@b.org"], sender="", subject="s", text="t", key="k", timeout_seconds=0.3)

    assert len(server.mails) == 1


@pytest.mark.parametrize("where", ["greeting", "EHLO", "MAIL", "taken"])
def test_a_server_that_hangs_is_left_after_a_while(serve, where):
    server = serve({where: HANGS})
    connection = Connection(conn_type="smtp", host="127.0.0.1", port=server.port)

    with pytest.raises(NotificationFailed, match="timed out") as caught:
        mail(
            connection, ["a@b.org"], sender="", subject="s", text="t", key="k", timeout_seconds=0.3
        )

    assert caught.value.may_pass


# ── TLS and logins ──────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("_trusted")
def test_it_begins_tls_where_the_server_can_before_it_logs_in(serve):
    server = serve({}, "STARTTLS", "AUTH PLAIN")

    send(server, login="flow", password="secret")

    verbs = [words.split(" ")[0] for words in server.said]
    assert verbs[:4] == ["ehlo", "STARTTLS", "ehlo", "AUTH"]
    assert len(server.mails) == 1


@pytest.mark.usefixtures("_trusted")
def test_smtps_is_tls_from_the_beginning(serve):
    server = serve(is_tls=True)

    send(server, kind="smtps")

    assert len(server.mails) == 1


def test_a_certificate_without_a_known_issuer_is_refused(serve):
    server = serve({}, "STARTTLS", "AUTH PLAIN")

    said, _ = failed(server, login="flow", password="secret")

    assert "certificate verify failed" in said
    assert server.said[-1] == "STARTTLS"


def test_with_starttls_yes_nothing_is_said_to_a_server_that_cannot(serve):
    server = serve({}, "AUTH PLAIN")

    said, may_pass = failed(server, login="flow", password="secret", extra={"starttls": "yes"})

    assert ("STARTTLS" in said, may_pass) == (True, False)
    assert not any(words.startswith("AUTH") for words in server.said)


def test_a_wrong_password_is_wrong_for_good(serve):
    server = serve({"AUTH": b"535 no"}, "AUTH PLAIN")

    assert failed(server, login="flow", password="no") == ("127.0.0.1 answered 535", False)


def test_a_login_that_a_server_does_not_take_is_for_good(serve):
    said, may_pass = failed(serve(), login="flow", password="secret")

    assert ("AUTH" in said, may_pass) == (True, False)


def test_a_password_need_not_be_ascii(serve):
    server = serve({}, "AUTH LOGIN PLAIN")

    send(server, login="jürgen", password="pässwort", sender="flow@example.org")

    said = next(words for words in server.said if words.startswith("AUTH PLAIN "))
    assert base64.b64decode(said.split(" ")[2]).decode() == "\0jürgen\0pässwort"


def test_an_address_that_is_not_ascii_needs_a_server_that_takes_it(serve):
    server, able = serve(), serve({}, "SMTPUTF8", "8BITMIME")

    said, may_pass = failed(server, "jürgen@example.org")
    send(able, "jürgen@example.org")

    assert ("SMTPUTF8" in said, may_pass) == (True, False)
    assert [to for to, _ in able.mails] == [["jürgen@example.org"]]


def test_such_a_password_needs_a_server_that_takes_it(serve):
    server = serve({}, "AUTH LOGIN")

    said, may_pass = failed(server, login="jürgen", password="x", sender="flow@example.org")

    assert ("AUTH PLAIN" in said, may_pass) == (True, False)


# ── errors where the notifier is written ────────────────────────────────────────────────


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: EmailNotifier("a@b.org\nBcc: c@d.org"), id="header"),
        pytest.param(lambda: EmailNotifier("Bob, the boss <b@example.org>"), id="comma"),
        pytest.param(lambda: EmailNotifier("a@b.org", sender="a@b.org\r\nX: y"), id="sender"),
    ],
)
def test_addresses_that_are_none_are_refused_where_they_are_written(make):
    with pytest.raises(DagError, match="EmailNotifier takes"):
        make()


def test_addresses_may_have_names_and_stand_in_one_text():
    EmailNotifier('"Bob, the boss" <b@example.org>, a@example.org')
