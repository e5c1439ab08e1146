"""``aioflow decisions``: list, show and answer the questions that tasks ask people."""

from __future__ import annotations

import argparse
import json
from typing import Any

from aioflow.cli.arguments import Nouns, add_command, add_group, from_zero, json_value, positive
from aioflow.cli.client import connect
from aioflow.cli.daemon_or_database import read
from aioflow.cli.output import hint, print_json, print_table, safe, task_name
from aioflow.errors import SettingsError

__all__ = ("add_parser",)

_WORDS = {"yes": True, "no": False}


def add_parser(nouns: Nouns) -> None:
    """Declare ``aioflow decisions`` and its commands."""
    text = "list and answer the questions that tasks ask people"
    verbs = add_group(nouns, "decisions", text=text, example="aioflow decisions list")
    listing = add_command(
        verbs,
        "list",
        _list,
        text="list open decisions, the newest first",
        example="aioflow decisions list",
    )
    listing.add_argument("--all", action="store_true", help="also those that have ended")
    listing.add_argument("--dag", metavar="DAG", help="only those of this DAG")
    listing.add_argument("--run", dest="run_id", metavar="RUN_ID", help="only those of this run")
    listing.add_argument("--limit", type=positive, default=100, metavar="N", help="default: 100")
    show = add_command(
        verbs, "show", _show, text="show one decision", example="aioflow decisions show 4711"
    )
    show.add_argument("decision_id", type=from_zero, metavar="DECISION")
    answering = add_command(
        verbs,
        "answer",
        _answer,
        text="answer a decision: yes or no, or the fields of its form",
        example="aioflow decisions answer 4711 yes",
    )
    answering.add_argument("decision_id", type=from_zero, metavar="DECISION")
    answering.add_argument("vote", nargs="?", choices=sorted(_WORDS), help="of an approval")
    answering.add_argument(
        "--set", action="append", metavar="FIELD=VALUE", help="a field as text or JSON; repeatable"
    )
    answering.add_argument("--form", type=json_value, metavar="JSON", help="all fields, as JSON")
    answering.add_argument("--comment", default="", metavar="TEXT", help="why; shown with it")


def _list(arguments: argparse.Namespace) -> int:
    found = read(
        arguments,
        lambda source: source.decisions(
            is_open=not arguments.all,
            dag=arguments.dag,
            run=arguments.run_id,
            limit=arguments.limit,
        ),
    )
    if arguments.json:
        print_json(found)
        return 0
    print_table(
        ("DECISION", "QUESTION", "RUN", "TASK", "STATE", "ASKED AT", "UNTIL", "ANSWER"),
        (
            (
                decision["decision_id"],
                decision["question"],
                decision["run_id"],
                task_name(decision),
                decision["waits_for"] or decision["state"],
                decision["asked_at"],
                decision["deadline"],
                _outcome(decision),
            )
            for decision in found
        ),
        empty="no task waits for a decision",
    )
    return 0


def _outcome(decision: dict[str, Any]) -> str:
    """Return the answer with the comments of those who gave it."""
    if decision["answer"] is None:
        return ""
    comments = [vote["comment"] for vote in decision["votes"] if vote.get("comment")]
    return _shown(decision["answer"]) + (f" ({'; '.join(comments)})" if comments else "")


def _shown(answer: Any) -> str:
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    return json.dumps(answer, ensure_ascii=False)


def _show(arguments: argparse.Namespace) -> int:
    found = read(arguments, lambda source: source.decision(arguments.decision_id))
    if arguments.json:
        print_json(found)
        return 0
    for name, value in found.items():
        if name not in {"form", "votes"}:
            print(f"{name}: {safe('-' if value is None else _plain(value))}")
    for name, field in ((found["form"] or {}).get("properties") or {}).items():
        print(f"field {safe(name)}: {safe(_field_text(field))}")
    for vote in found["votes"]:
        why = f": {safe(vote['comment'])}" if vote.get("comment") else ""
        print(f"vote: {safe(vote['vote'])} by {safe(vote['person'])} at {vote['at']}{why}")
    return 0


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _field_text(field: dict[str, Any]) -> str:
    kind = field.get("format") or field.get("type") or ""
    if "enum" in field:
        kind = "one of " + ", ".join(map(str, field["enum"]))
    return " ".join(filter(None, (kind, field.get("description", "")))) or "any JSON"


def _answer(arguments: argparse.Namespace) -> int:
    client = connect(arguments)
    number = str(arguments.decision_id)
    answer = _given(arguments, lambda: client.get("decisions", number)["form"])
    body = {"answer": answer, **({"comment": arguments.comment} if arguments.comment else {})}
    said = client.post("decisions", number, "answer", body=body)
    if arguments.json:
        print_json(said)
        return 0
    where = f"{safe(said['task_id'])} of {safe(said['run_id'])}"
    if said["decided"]:
        hint(f"decision {number} is answered; {where} continues")
    else:
        hint(f"{said['votes']} of {said['approvals']} have approved; {where} waits for more people")
    return 0


def _given(arguments: argparse.Namespace, form: Any) -> Any:
    ways = [arguments.vote is not None, bool(arguments.set), arguments.form is not None]
    if sum(ways) != 1:
        raise SettingsError("say yes or no, or give the fields of the form: --set or --form")
    if arguments.vote is not None:
        return _WORDS[arguments.vote]
    if arguments.form is not None:
        return arguments.form
    fields = ((form() or {}).get("properties")) or {}
    return dict(_field(pair, fields) for pair in arguments.set)


def _field(pair: str, fields: dict[str, Any]) -> tuple[str, Any]:
    """Return the name and value of a field. For a text field, the value is used unchanged."""
    name, has_value, value = pair.partition("=")
    if not has_value:
        raise SettingsError(f"--set takes FIELD=VALUE, got {pair!r}")
    if fields.get(name, {}).get("type") == "string":
        return name, value
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
