"""OpenTelemetry by environment: spans of paid calls and settlements reach a collector, and nothing that is a secret."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.program import WAIT_SECONDS, Site, scene

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


class Collector:
    """A receiver of OTLP over HTTP."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.url = ""

    def spans(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Name, trace id and attributes of every span so far."""
        found = []
        for body in list(self.bodies):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                assert ("service.name", "tollkeeper") in {
                    (one.key, one.value.string_value) for one in resource.resource.attributes
                }
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        assert span.end_time_unix_nano >= span.start_time_unix_nano
                        attributes = {one.key: one.value.string_value or one.value.int_value for one in span.attributes}
                        found.append((span.name, span.trace_id.hex(), attributes))
        return found


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_paid_calls_and_settlements_are_told_to_a_collector(
    tmp_path: Path, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector:
        start = Site.__init__

        def traced(self: Site, home: Path, chain: ChainUnderTest) -> None:
            start(self, home, chain)
            self.environ.update({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"})

        monkeypatch.setattr(Site, "__init__", traced)
        async with scene(tmp_path / "home", embedded_chain) as shop:
            gate = await shop.gate(credits=2)
            payment, bought = await shop.buy(gate)
            assert bought.status == 200
            parent = {"X-Payment": payment, "traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}
            assert (await shop.buyer.ask("GET", gate["url"] + "?q=secret-query", headers=parent)).status == 200
            async with asyncio.timeout(WAIT_SECONDS):
                while len(collector.spans()) < 3:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)
        spans = collector.spans()
    assert sorted(name for name, _, _ in spans) == ["paid call", "paid call", "settle"]
    paid = [(trace, attributes) for name, trace, attributes in spans if name == "paid call"]
    assert {attributes["http.response.status_code"] for _, attributes in paid} == {200}
    assert {attributes["tollkeeper.request_id"] for _, attributes in paid} >= {bought.headers["x-request-id"]}
    assert [trace for trace, _ in paid].count(TRACE_ID) == 1
    sent = b"".join(collector.bodies)
    assert payment.encode() not in sent
    assert b"secret-query" not in sent
