"""`/metrics` at its own address: what happened, in bounded labels, in every role."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import Running, ask, configured, running
from tests.cli.program import Site, scene
from tests.described_answers import has_no_description
from tests.node_thread import run_in_thread
from tollkeeper.sandbox.evm.node import EvmNode

ANYWHERE = {"TOLLKEEPER_METRICS_ADDRESS": "127.0.0.1:0", "TOLLKEEPER_ALLOW_PRIVATE_TARGETS": "true"}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(process: Running) -> Samples:
    """Every sample by name and labels, as Prometheus reads them."""
    answer = ask(process.wait_for_event("metrics_served")["url"])
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.body.decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    """The sum of the samples of that name with these labels among theirs."""
    wanted = set(labels.items())
    return sum(number for (its, own), number in found.items() if its == name and wanted <= own)


@pytest.fixture(scope="module")
def rpc_url() -> Iterator[str]:
    with run_in_thread(EvmNode()) as node:
        yield node.url


@pytest.fixture
def config(tmp_path: Path, rpc_url: str) -> Path:
    return configured(tmp_path, rpc_url)


def test_requests_nodes_and_the_ledger_are_told_at_an_address_of_their_own(config: Path) -> None:
    with running("serve", "--config", config, "--port", "0", environ=ANYWHERE) as process:
        url = process.wait_for_event("serving")["url"]
        body = {"targetUrl": "http://127.0.0.1:9/", "price": "0.01", "paymentAddress": "0x" + "12" * 20}
        slug = ask(f"{url}/api/v1/paygates", body=body).json()["slug"]
        assert [ask(f"{url}/{slug}").status for _ in range(3)] == [402] * 3
        with closing(HTTPConnection(url.removeprefix("http://"))) as kept:  # all but the first are answered at once
            for _ in range(5):
                kept.request("GET", f"/{slug}")
                assert kept.getresponse().read()
        found = samples(process)
        assert value(found, "tollkeeper_requests_total", kind="gate", status="402") == 8
        assert value(found, "tollkeeper_requests_total", kind="other", status="201") == 1
        assert value(found, "tollkeeper_request_seconds_count", kind="gate") == 8
        assert value(found, "tollkeeper_request_seconds_bucket", kind="gate", le="+Inf") == 8
        assert value(found, "tollkeeper_node_up", network="base-sepolia", node="1") == 1
        assert value(found, "tollkeeper_hub_signer_settlements_left", network="base-sepolia") >= 0
        assert ("tollkeeper_purchases_total", frozenset()) in found
        assert ("tollkeeper_ledger_queue", frozenset()) in found
        assert found["tollkeeper_sales_held", frozenset()] == 0
        assert 0 <= time.time() - found["tollkeeper_books_checked_timestamp_seconds", frozenset()] < 100
        assert not [name for name, labels in found if slug in str(labels)]
        assert ask(f"{url}/metrics").status == 404
        admin = process.wait_for_event("metrics_served")["url"].removesuffix("/metrics")
        has_no_description(admin)
        assert ask(f"{admin}/api/v1/paygates").status == 404


def test_a_hub_alone_tells_its_own(config: Path) -> None:
    with running("hub", "--config", config, "--port", "0", environ=ANYWHERE) as process:
        process.wait_for_event("serving")
        found = samples(process)
        assert value(found, "tollkeeper_node_up", network="base-sepolia") == 1
        assert not [name for name, _ in found if name.startswith("tollkeeper_ledger")]


def test_an_empty_address_is_none_and_one_that_is_taken_stops_nobody(config: Path) -> None:
    with running("serve", "--config", config, "--port", "0", environ={"TOLLKEEPER_METRICS_ADDRESS": ""}) as process:
        process.wait_for_event("serving")
        assert not [line for line in process.lines() if line["event"].startswith("metrics")]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environ = {"TOLLKEEPER_METRICS_ADDRESS": f"127.0.0.1:{taken.getsockname()[1]}"}
        with running("serve", "--config", config, "--port", "0", environ=environ) as process:
            url = process.wait_for_event("serving")["url"]
            told = process.wait_for_event("metrics_not_served")
            assert (told["level"], "another metrics_address" in told["reason"]) == ("error", True)
            assert ask(f"{url}/healthz").status == 200


async def test_what_was_sold_and_settled_is_counted(
    tmp_path: Path, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Site.__init__

    def measured(self: Site, home: Path, chain: ChainUnderTest) -> None:
        start(self, home, chain)
        self.environ.update(ANYWHERE)

    monkeypatch.setattr(Site, "__init__", measured)
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate(credits=4)
        payment, bought = await shop.buy(gate)
        assert bought.status == 200
        for _ in range(3):
            assert (await shop.buyer.call(gate["url"], payment)).status == 200
        found = samples(shop.program.process)
        assert value(found, "tollkeeper_requests_total", kind="gate", status="200") == 4
        assert value(found, "tollkeeper_requests_total", kind="gate", status="402") == 1
        assert value(found, "tollkeeper_purchases_total") == 1
        assert value(found, "tollkeeper_ledger_batch_spends_sum") == 4
        assert value(found, "tollkeeper_hub_settlements_total", state="CONFIRMED") == 1
