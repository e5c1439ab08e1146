"""Export of spans with the OpenTelemetry SDK that the user has installed.

OpenTelemetry's environment variables (``OTEL_...``) select the destination. If no SDK is installed,
the import of this module raises ``SettingsError``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from aioflow.errors import SettingsError
from aioflow.telemetry.tracing import Span, Traces

_HINT = "install aioflow-engine[otel], or set traces.export to false"

try:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator
except ImportError as exc:
    raise SettingsError(f"traces.export needs an SDK of OpenTelemetry: {_HINT}") from exc

__all__ = ("SpanMaker", "open_export")

_CLOSE_MS = 5_000
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class SpanMaker(IdGenerator):
    """Creates spans with given ids, by generating the ids that the SDK requests for each span.

    Used by one thread at a time.

    Args:
        processors: Receive the created spans.
    """

    def __init__(self, processors: Iterable[SpanProcessor]) -> None:
        self._next = (1, 1)
        name = os.environ.get("OTEL_SERVICE_NAME") or "aioflow"
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": name}),
            id_generator=self,
            shutdown_on_exit=False,
        )
        for processor in processors:
            self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("aioflow")

    def generate_trace_id(self) -> int:
        """Return the id of the next trace. The SDK calls this for each span without a parent."""
        return self._next[0]

    def generate_span_id(self) -> int:
        """Return the id of the next span. The SDK calls this for every span."""
        return self._next[1]

    def is_trace_id_random(self) -> bool:
        """Return ``True``: the trace ids are hashes, which are as good as random ids."""
        return True

    def make(self, spans: Sequence[Span]) -> None:
        """Create spans, in order."""
        for span in spans:
            self._next = (span.trace, span.span)
            context = Context()
            if span.parent:
                parent = NonRecordingSpan(_span_context(span.trace, span.parent))
                context = set_span_in_context(parent)
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

    def close(self) -> None:
        """Send the remaining spans. Blocks."""
        self._provider.force_flush(_CLOSE_MS)
        self._provider.shutdown()


def _span_context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=_SAMPLED)


def open_export() -> tuple[Traces, Callable[[], None]]:
    """Return the traces, and a blocking function to call at the end, which sends remaining spans.

    Raises:
        SettingsError: If the selected exporter is not installed.
    """
    maker = SpanMaker([BatchSpanProcessor(exporter) for exporter in _exporters()])
    return Traces(maker.make), maker.close


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
