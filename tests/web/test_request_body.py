"""The limit on the nesting of JSON, which is checked before anything parses the body."""

from __future__ import annotations

import time

import pytest

from aioflow.web.limits import is_json_too_deep


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"[" * 64 + b"]" * 64, False),
        (b"[" * 65 + b"]" * 65, True),
        (b'{"a":' * 64 + b"1" + b"}" * 64, False),
        (b'{"a":' * 65 + b"1" + b"}" * 65, True),
        (b'{"a":[' * 33 + b"]}" * 33, True),
        (b"[" + b"[]," * 10_000 + b"[]]", False),
        (b'"' + b"[" * 1_000 + b'"', False),
        (b'["' + b'\\"[' * 1_000 + b'"]', False),
        (b"[" * 1_000_000, True),
        (b"[[]" * 300_000, True),
        (b'"' + b'\\"[' * 300_000, False),
        (b'"\\' + b'"[' * 300_000, True),
        (b"]" * 1_000_000, False),
    ],
    ids=range(13),
)
def test_depth_is_measured_outside_of_texts_and_in_no_time(body, expected):
    began = time.thread_time()

    assert is_json_too_deep(body) is expected
    assert time.thread_time() - began < 2
