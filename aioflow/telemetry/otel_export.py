"""Export of spans with the OpenTelemetry API and the SDK that the user has installed.

Environment variables of OpenTelemetry (``OTEL_...``) select the destination.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from aioflow.errors import SettingsError
from aioflow.telemetry.tracing import Span, Traces

__all__ = ("PresetIds", "SpanMaker", "open_export")

_HINT = "install aioflow-engine[otel], or set traces.export to false"
_CLOSE_MS = 5_000
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Ids(Protocol):
    """The source of span ids."""

    def preset(self, trace: int, span: int) -> None:
        """Set the ids of the next span."""


class PresetIds:
    """An id generator of the SDK that returns preset ids. For one thread."""

    def __init__(self) -> None:
        self._next = (1, 1)

    def preset(self, trace: int, span: int) -> None:
        """See ``Ids``."""
        self._next = (trace, span)

    def generate_trace_id(self) -> int:
        """Return the preset trace id. The SDK calls this for a span without a parent."""
        return self._next[0]

    def generate_span_id(self) -> int:
        """Return the preset span id. The SDK calls this for every span."""
        return self._next[1]

    def is_trace_id_random(self) -> bool:
        """Return ``True``: the trace ids are hashes, which are as good as random."""
        return True


class SpanMaker:
    """Creates spans, in one thread at a time.

    Args:
        tracer: A tracer of a provider that takes its ids from ``ids``.
    """

    def __init__(self, tracer: Tracer, ids: Ids) -> None:
        self._tracer = tracer
        self._ids = ids

    def make(self, spans: Sequence[Span]) -> None:
        """Create spans, in order."""
        for span in spans:
            self._ids.preset(span.trace, span.span)
            context = Context()
            if span.parent:
                context = set_span_in_context(
                    NonRecordingSpan(_span_context(span.trace, span.parent))
                )
            made = self._tracer.start_span(
                span.name,
                context,
                attributes=span.attributes,
                links=[Link(_span_context(span.trace, link)) for link in span.links],
                start_time=span.began * 1_000,
            )
            if span.error is not None:
                made.set_status(Status(StatusCode.ERROR, span.error))
            made.end(max(span.ended, span.began) * 1_000)  # the clock may have been set back


def _span_context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=_SAMPLED)


def open_export() -> tuple[Traces, Callable[[], None]]:
    """Return the traces, and a blocking function that sends the remaining spans at the end.

    Raises:
        SettingsError: If the SDK or the selected exporter is not installed.
    """
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import IdGenerator
    except ImportError as exc:
        raise SettingsError(f"traces.export needs an SDK of OpenTelemetry: {_HINT}") from exc

    class TheirIds(PresetIds, IdGenerator):
        """The same ids as a subclass of the SDK's class, which it requires."""

    ids = TheirIds()
    name = os.environ.get("OTEL_SERVICE_NAME") or "aioflow"
    resource = Resource.create({"service.name": name})
    provider = TracerProvider(resource=resource, id_generator=ids, shutdown_on_exit=False)
    for exporter in _exporters():
        provider.add_span_processor(BatchSpanProcessor(exporter))

    def close() -> None:
        provider.force_flush(_CLOSE_MS)
        provider.shutdown()

    return Traces(SpanMaker(provider.get_tracer("aioflow"), ids).make), close


def _exporters() -> list[Any]:
    """Return the exporters named in ``OTEL_TRACES_EXPORTER``; OTLP over HTTP by default."""
    wanted = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp_proto_http"
    names = [name.strip() for name in wanted.split(",")]
    names = ["otlp_proto_http" if name == "otlp" else name for name in names if name != "none"]
    return [_exporter(name) for name in names]


def _exporter(name: str) -> Any:
    for found in entry_points(group="opentelemetry_traces_exporter", name=name):
        try:
            return found.load()()
        except Exception as exc:
            raise SettingsError(f"the exporter {name!r} of traces: {exc}; {_HINT}") from exc
    raise SettingsError(f"there is no exporter {name!r} of traces: {_HINT}")
