"""Spans of paid calls and settlements for OpenTelemetry, where its usual environment names a collector (contract 2).

The SDK reads `OTEL_*` itself, and its library is loaded only then. A span says method, path, status and request id,
never a query, a header or an address; a caller's `traceparent` is its parent. What the collector does not take in time
is dropped: nobody waits for it. What this module does not do: decide what is a request.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from tollkeeper.core.x402.version2 import PAYMENT_HEADERS

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.edge.server.call import AnsweredRequest
    from tollkeeper.serving.http.asgi import Application, Message, Receive, Send

_PROOFS: Final = (*PAYMENT_HEADERS, b"x-credit-token", b"authorization")
_SETTLING: Final = frozenset({"/settle", "/api/v1/settle", "/transfer", "/api/v1/transfer"})
_PARENT: Final = b"traceparent"
_CLOSE_MILLISECONDS: Final = 2000


class Spans:
    """Exporter of spans. `aclose` sends what is left."""

    def __init__(self) -> None:
        # Loaded here: it costs every start that does not use it.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.trace import SpanKind  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        named = Resource({"service.name": "tollkeeper"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=named)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("tollkeeper")
        self._parent_of = TraceContextTextMapPropagator().extract
        self._kind = SpanKind.SERVER

    def add(self, name: str, duration_ns: int, parent: bytes, attributes: JsonObject) -> None:
        """A span that ends now. `parent`: the caller's `traceparent`, empty where it sent none."""
        end_ns = time.time_ns()
        context = self._parent_of({"traceparent": parent.decode("latin-1")}) if parent else None
        span = self._tracer.start_span(
            name, context, self._kind, attributes=attributes, start_time=end_ns - duration_ns
        )
        span.end(end_ns)

    def add_call(self, call: AnsweredRequest) -> None:
        """The span of a PayGate's call that showed a payment, a token or a bearer; others have none."""
        header = call.head.header
        if not any(name in header for name in _PROOFS):
            return
        path = call.head.target.partition(b"?")[0].decode("ascii")
        attributes = {
            "http.request.method": call.method,
            "http.response.status_code": call.status,
            "url.path": path,
            "tollkeeper.slug": path[1:].partition("/")[0],
            "tollkeeper.request_id": call.request_id,
        }
        self.add("paid call", call.duration_us * 1000, header.get(_PARENT, b""), attributes)

    async def aclose(self) -> None:
        """Send what is left, as long as that takes little time."""
        await asyncio.to_thread(self._provider.force_flush, _CLOSE_MILLISECONDS)
        await asyncio.to_thread(self._provider.shutdown)


class TracedHub:
    """In front of the hub: a span for each settle and transfer, whoever asks for it."""

    def __init__(self, app: Application, spans: Spans) -> None:
        self._app = app
        self._spans = spans

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if scope["type"] != "http" or scope["path"] not in _SETTLING:
            await self._app(scope, receive, send)
            return
        started_ns, status = time.perf_counter_ns(), 0

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        finally:
            attributes = {
                "http.request.method": scope["method"],
                "http.response.status_code": status,
                "url.path": scope["path"],
                "tollkeeper.request_id": scope.get("state", {}).get("request_id", ""),
            }
            parent = next((value for name, value in scope["headers"] if name == _PARENT), b"")
            name = "settle" if scope["path"].endswith("settle") else "transfer"
            self._spans.add(name, time.perf_counter_ns() - started_ns, parent, attributes)
