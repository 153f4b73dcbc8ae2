"""The numbers of a process as Prometheus metrics (contract 2; specification 1.5: metrics are counted).

Every label is bounded: kinds, statuses, networks, states, nodes by their place in the configuration, processes by
name; never a gate, a wallet or an address of a caller. What the database knows (purchases, what is unfinished) is read
when somebody asks, by the one process that answers for it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import structlog
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from tollkeeper.api import envelope, error_envelope, new_request_id, send_refusal
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.serving.http.access_log import BUCKETS, RequestCounts
from tollkeeper.serving.http.server import HttpServer, ListenError, listen
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.gateway.statistics import Statistics
from tollkeeper.storage.hub.settlements import count_unfinished
from tollkeeper.web.operations import HEADERS, is_own_host, ops_page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from litestar.types import HTTPScope
    from litestar.types import Send as LitestarSend
    from prometheus_client import CollectorRegistry, Metric
    from prometheus_client.registry import Collector

    from tollkeeper.chains.nodes import Node
    from tollkeeper.gateway.app import Gateway
    from tollkeeper.hub.app import Hub
    from tollkeeper.serving.http.asgi import Message, Receive, Send
    from tollkeeper.serving.http.traces import Spans
    from tollkeeper.serving.metrics.operator_page import OperatorPage
    from tollkeeper.web.assets import Assets

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_LATENCY_FROM: Final = 6  # 64 microseconds; what is faster is in the first bucket too


class _Collected:
    """Metrics that are there already, in the form that the exposition asks for."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics."""
        return iter(self._metrics)


def exposition(metrics: Iterable[Metric]) -> bytes:
    """The text that Prometheus reads."""
    collected: Collector = _Collected(metrics)
    return generate_latest(collected)


@dataclass(slots=True)
class Measured:
    """Measured parts of a process; they are filled in as they are made."""

    counts: RequestCounts = field(default_factory=RequestCounts)
    gateway: Gateway | None = None
    hub: Hub | None = None
    spans: Spans | None = None  # beside the numbers, where somebody collects them
    books: tuple[CollectorRegistry, ...] = ()  # of the checks of the books that this process makes

    async def text(self) -> bytes:
        """The metrics of now; without those of the database where it does not answer."""
        metrics = [*_of_requests(self.counts), *(metric for one in self.books for metric in one.collect())]
        if self.gateway is not None:
            metrics += [*_of_gateway(self.gateway), *await _of_purchases(self.gateway)]
        if self.hub is not None:
            metrics += [*self.hub.metrics.registry.collect(), _of_nodes(self.hub), *await _of_settlements(self.hub)]
        return exposition(metrics)


def _of_requests(counts: RequestCounts) -> Iterator[Metric]:
    requests = CounterMetricFamily("tollkeeper_requests", "Answers; 0: the caller left", labels=["kind", "status"])
    for kind, counted in counts.kinds():
        for status, count in sorted(counted.requests.items()):
            requests.add_metric([kind, str(status)], count)
    yield requests
    took = HistogramMetricFamily("tollkeeper_request_seconds", "From head to answer", labels=["kind"])
    for kind, counted in counts.kinds():
        total, buckets = 0, []
        for power, count in enumerate(counted.latencies):
            total += count
            if _LATENCY_FROM <= power < BUCKETS - 1:
                buckets.append((str(2**power / 1_000_000), total))
        took.add_metric([kind], [*buckets, ("+Inf", total)], counted.sum_us / 1_000_000)
    yield took


def _of_gateway(gateway: Gateway) -> Iterator[Metric]:
    ledger, pool = gateway.purchases.ledger, gateway.forwarder.pool
    sizes = HistogramMetricFamily("tollkeeper_ledger_batch_spends", "Spends asked for in one commit")
    total, buckets = 0, []
    for power, count in enumerate(ledger.batches):
        total += count
        buckets.append((str(2**power - 1), total))
    sizes.add_metric([], [*buckets, ("+Inf", total)], ledger.spends)
    yield sizes
    yield GaugeMetricFamily("tollkeeper_ledger_queue", "Spends that wait for a commit", value=ledger.waiting_count)
    connections = GaugeMetricFamily("tollkeeper_target_connections", "Connections to targets", labels=["state"])
    connections.add_metric(["idle"], pool.idle_count)
    connections.add_metric(["open"], pool.open_count)
    yield connections
    unlogged = gateway.traffic.not_logged
    yield CounterMetricFamily("tollkeeper_requests_not_logged", "Calls without a row in the log", value=unlogged)
    refused = gateway.traffic.refused_parts
    yield CounterMetricFamily("tollkeeper_request_log_refused", "What the database would not take of it", value=refused)


async def _of_purchases(gateway: Gateway) -> list[Metric]:
    try:
        sold = await Statistics(gateway.database).totals()
    except StorageError:
        return []
    unfinished = GaugeMetricFamily("tollkeeper_purchases_unfinished", "Purchases without an outcome", labels=["state"])
    for state, count in sold.unfinished.items():
        unfinished.add_metric([state], count)
    return [CounterMetricFamily("tollkeeper_purchases", "Purchases granted", value=sold.purchases), unfinished]


async def _of_settlements(hub: Hub) -> list[Metric]:
    unfinished = GaugeMetricFamily(
        "tollkeeper_hub_settlements_unfinished", "Settlements without a final outcome", labels=["network", "state"]
    )
    try:
        for (network, state), count in (await count_unfinished(hub.database)).items():
            unfinished.add_metric([network, state], count)
    except StorageError:
        return []
    return [unfinished]


def _of_nodes(hub: Hub) -> Metric:
    up = GaugeMetricFamily("tollkeeper_node_up", "Whether a network's node is asked first", labels=["network", "node"])
    now = asyncio.get_running_loop().time()
    for network, account in hub.accounts.items():
        for node in account.chain.rpc.nodes.all:
            up.add_metric([network, str(node.position)], float(_is_up(node, now)))
    return up


def _is_up(node: Node, now: float) -> bool:
    return not node.barred and not node.is_behind and now >= node.rests_until


# The admin address: `/metrics`, and `/ops` for a person, apart from what the world reaches (contract 2). An address
# that is taken is no reason not to sell: it is logged, and the process goes on without metrics.

_LOG = structlog.get_logger("tollkeeper.serving")
_DRAIN_SECONDS: Final = 1


@asynccontextmanager
async def serving_metrics(
    address: tuple[str, int] | None, text: Callable[[], Awaitable[bytes]], assets: Assets, page: OperatorPage
) -> AsyncIterator[None]:
    """Answer GET /metrics with `text` at this address until the block ends; nothing where there is none."""
    async with AsyncExitStack() as parts:
        if address is not None:
            try:
                listening = listen(*address, "metrics_address")
            except ListenError as error:
                _LOG.error("metrics_not_served", reason=str(error))
            else:
                parts.callback(listening.close)
                server = HttpServer(_app(text, assets, page, address[0]), listening, drain_seconds=_DRAIN_SECONDS)
                await parts.enter_async_context(server)
                _LOG.info("metrics_served", url=server.url + "/metrics")
        yield


def _app(
    text: Callable[[], Awaitable[bytes]], assets: Assets, page: OperatorPage, address: str
) -> Callable[[Message, Receive, Send], Awaitable[None]]:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        del receive
        request_id = new_request_id()
        lines: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),)
        body = b""
        host = next((str(value, "latin-1") for name, value in scope["headers"] if name == b"host"), "")
        is_read, is_own = scope["method"] in {"GET", "HEAD"}, is_own_host(host, address)
        if is_read and is_own and scope["path"].startswith("/assets/"):
            await _serve_asset(assets, scope, send)
            return
        if scope["path"] == "/metrics" and scope["method"] in {"GET", "HEAD"}:
            status, lines, body = 200, ((b"content-type", CONTENT_TYPE),), await text()
        elif scope["path"] == "/ops" and is_read and is_own:
            metrics, role = (await text()).decode(), page.settings.role.value
            status, lines, body = 200, HEADERS, ops_page(metrics, await page.facts(), assets, role)
        elif scope["path"] == "/healthz":
            status, body = 200, envelope({"status": "ok"})
        else:
            error = ApiError(Code.NOT_FOUND, "this address has /metrics, /healthz and /ops, and nothing else")
            status, body = error.status, error_envelope(error, request_id)
        headers = [
            *lines,
            (b"content-length", str(len(body)).encode()),
            (b"x402-version", b"1"),
            (b"x-request-id", request_id.encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return app


async def _serve_asset(assets: Assets, scope: Message, send: Send) -> None:
    try:
        await assets.serve(cast("HTTPScope", scope), cast("LitestarSend", send))
    except ApiError as error:
        await send_refusal(send, error, new_request_id(), scope["headers"])
