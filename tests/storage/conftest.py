"""An object store that speaks S3, behind a proxy that fails on demand."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx2
import pytest

from tests.storage.fault_proxy import FaultProxy

SECRET = "canary-of-the-object-store"


@pytest.fixture
def proxy(moto: str) -> Iterator[FaultProxy]:
    """Run the proxy between the driver and the server."""
    with FaultProxy(moto) as proxy:
        yield proxy


@pytest.fixture
def s3_environment(proxy: FaultProxy) -> dict[str, str]:
    """Return the environment variables from which the driver takes its options."""
    return {
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ALLOW_HTTP": "true",
    }


@pytest.fixture
def bucket(moto: str, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Create a bucket. Return its URL."""
    name = f"b{uuid.uuid4().hex}"
    httpx2.put(f"{moto}/{name}", timeout=60).raise_for_status()
    for variable, value in s3_environment.items():
        monkeypatch.setenv(variable, value)
    return f"s3://{name}"
