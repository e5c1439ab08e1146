"""Valid and invalid requests to every route, and checks of the responses.

Schemathesis generates the requests from the OpenAPI document; they are passed directly to the
application.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import anyio.from_thread
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.core import NOT_SET

from tests.web.node import Answer, ask

__all__ = ("ask_everything",)

_ENDLESS = frozenset({"stream", "follow_log"})
_KNOWN = {
    "dag_id": "chain",
    "run_id": "r",
    "task_id": "first",
    "name": "tight",
    "trigger_id": "1",
    "event_id": "1",
    "backfill_id": "1",
    "node": "1",
}


def ask_everything(web: Any, described: dict[str, Any], count: int) -> Counter[str]:
    """Send requests in a thread beside the loop. Return the counts of outcomes.

    Args:
        count: Approximate number of requests; there is at least one for each operation.

    Raises:
        AssertionError: If a response is a defect, or does not match its schema.
    """
    schema = schemathesis.openapi.from_dict(described)
    operations = [found.ok() for found in schema.get_all_operations()]
    wanted = [one for one in operations if one.definition.raw["operationId"] not in _ENDLESS]
    ended: Counter[str] = Counter()
    for operation in wanted:
        judge = _judge(operation.definition.raw, described)
        _ask_one(web, operation, judge, math.ceil(count / len(wanted)), ended)
    return ended


def _ask_one(
    web: Any,
    operation: Any,
    judge: Callable[[Answer], None],
    count: int,
    ended: Counter[str],
) -> None:
    cases = st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, is_known=st.integers(0, 2))
    def request(case: Any, is_known: int) -> None:
        target, body, headers = _sent(case, is_known=is_known > 0)
        answer = anyio.from_thread.run(_ask, web, case.method.upper(), target, body, headers)
        ended[f"{answer.status // 100}xx"] += 1
        ended["all"] += 1
        try:
            judge(answer)
        except AssertionError as exc:
            raise AssertionError(f"{case.method} {target} {body!r}: {exc}") from exc

    request()


async def _ask(web: Any, method: str, target: str, body: bytes, headers: Any) -> Answer:
    return await ask(web, method, target, body=body, headers=headers)


def _sent(case: Any, *, is_known: bool) -> tuple[str, bytes, dict[str, str]]:
    path = case.operation.path
    for name, value in (case.path_parameters or {}).items():
        known = _KNOWN.get(name) if is_known else None
        text = value if isinstance(value, str) else json.dumps(value)
        for brackets in (f"{{{name}}}", f"{{{name}:path}}"):
            path = path.replace(brackets, _quoted(known or text))
    query = {} if case.query in (None, NOT_SET) else dict(case.query)
    pairs = urlencode(query, doseq=True, errors="replace") if query else ""
    headers = {
        str(name).encode("latin-1", "replace").decode("latin-1"): str(value)
        .encode("latin-1", "replace")
        .decode("latin-1")
        for name, value in (case.headers or {}).items()
    }
    body = b""
    if case.body is not NOT_SET:
        is_raw = isinstance(case.body, bytes)
        body = case.body if is_raw else json.dumps(case.body, default=str).encode()
        headers.setdefault("content-type", "application/json")
    return f"{path}?{pairs}" if pairs else path, body, headers


def _quoted(text: str) -> str:
    return quote(text.encode(errors="replace"), safe="") or "%20"


def _judge(operation: dict[str, Any], described: dict[str, Any]) -> Callable[[Answer], None]:
    validators = {
        status: Draft202012Validator({**content["schema"], "components": described["components"]})
        for status, answer in operation["responses"].items()
        for kind, content in answer.get("content", {}).items()
        if kind in {"application/json", "application/problem+json"}
    }

    def judge(answer: Answer) -> None:
        kind = answer.headers.get("content-type", "")
        if answer.status >= 400:
            assert answer.status < 500 or answer.json["code"] == "daemon.away", answer
            assert kind == "application/problem+json", answer
            validators["default"].validate(answer.json)
        elif kind == "application/json":
            assert str(answer.status) in validators, answer.status
            validators[str(answer.status)].validate(answer.json)
        else:
            assert kind.startswith("text/plain"), kind

    return judge
