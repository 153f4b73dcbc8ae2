"""The program as it is run: `serve`, and gateway and hub apart, each on a chain of its own, with something bought."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.cli.processes import configured, running
from tests.interop.local_server import Reply, serving
from tests.node_thread import run_in_thread
from tests.ports import free_port
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.evm.node import USDC_ADDRESS, EvmNode
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets

WALLETS: Final = derive_wallets()
CREDITS: Final = 1_000_000


@dataclass(frozen=True)
class Program:
    """Where its parts are, and what was bought there."""

    gateway_url: str
    hub_url: str
    known: dict[str, Any]

    def url(self, part: str) -> str:
        return {"gateway": self.gateway_url, "hub": self.hub_url}[part]


@contextmanager
def served(folder: Path) -> Iterator[Program]:
    """`tollkeeper serve`, on a network of each family."""
    url = f"http://127.0.0.1:{free_port()}"
    with run_in_thread(EvmNode()) as node, run_in_thread(SolanaNode()) as solana, ExitStack() as stack:
        environ = {
            **_of_gateway(url),
            "TOLLKEEPER_SIGNER_KEY": WALLETS.relayer.private_key_hex,
            "TOLLKEEPER_RPC_URL_SOLANA_DEVNET": solana.url,
            "TOLLKEEPER_ANONYMOUS_PAYGATES": "manage",
        }
        _start(stack, "serve", folder, node.url, environ)
        abroad = {"network": "solana-devnet", "paymentAddress": derive_solana_wallets().owner.address}
        with _target() as target:
            known = asyncio.run(_bought(url, f"{url}/hub", target))
            yield Program(url, f"{url}/hub", {**known, "accepts": [abroad]})


@contextmanager
def apart(folder: Path) -> Iterator[Program]:
    """`tollkeeper hub` and `tollkeeper gateway`."""
    hub_url, gateway_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    with run_in_thread(EvmNode()) as node, ExitStack() as stack:
        of_hub = {
            "TOLLKEEPER_PORT": hub_url.rpartition(":")[2],
            "TOLLKEEPER_PUBLIC_URL": hub_url,
            "TOLLKEEPER_TRUSTED_ISSUERS": gateway_url,
            "TOLLKEEPER_SIGNER_KEY": WALLETS.relayer.private_key_hex,
        }
        _start(stack, "hub", folder, node.url, of_hub)
        of_gateway = {"TOLLKEEPER_HUB_URL": hub_url, "TOLLKEEPER_TRUSTED_ISSUERS": hub_url}
        _start(stack, "gateway", folder, node.url, {**_of_gateway(gateway_url), **of_gateway})
        with _target() as target:
            yield Program(gateway_url, hub_url, asyncio.run(_bought(gateway_url, hub_url, target)))


def _of_gateway(url: str) -> dict[str, str]:
    return {
        "TOLLKEEPER_PORT": url.rpartition(":")[2],
        "TOLLKEEPER_PUBLIC_URL": url,
        "TOLLKEEPER_DEFAULT_PAYMENT_ADDRESS": WALLETS.owner.address,
        "TOLLKEEPER_ALLOW_PRIVATE_TARGETS": "true",
        # Whoever is tried out asks more often than anybody may.
        "TOLLKEEPER_API_REQUESTS_PER_MINUTE": "0",
        "TOLLKEEPER_UNPAID_REQUESTS_PER_MINUTE": "0",
        "TOLLKEEPER_LOGIN_REQUESTS_PER_MINUTE": "0",
    }


def _start(stack: ExitStack, name: str, folder: Path, rpc_url: str, environ: dict[str, str]) -> None:
    directory = folder / name
    configured(directory, rpc_url)
    config = directory / "tollkeeper.toml"
    stack.enter_context(running(name, "--config", config, environ=environ)).wait_for_event("serving")


@contextmanager
def _target() -> Iterator[str]:
    with serving(lambda request: Reply(200, {"path": request.path})) as target:
        yield f"{target.url}/data"


async def _bought(gateway_url: str, hub_url: str, target_url: str) -> dict[str, Any]:
    """A call and a file, each bought; what `hooks` tells schemathesis."""
    async with Buyer(WALLETS.buyer) as buyer:
        bearer = {"Authorization": f"Bearer {await buyer.login(gateway_url)}"}
        paygates = f"{gateway_url}/api/v1/paygates"
        methods = "GET,HEAD,POST,PUT,PATCH,DELETE,OPTIONS"
        body = {"targetUrl": target_url, "price": "0.01", "credits": CREDITS, "method": methods}
        gate = (await buyer.ask("POST", paygates, body=body, headers=bearer)).json()
        payment, answer = await _buy(buyer, gate)
        form = aiohttp.FormData(default_to_multipart=True)
        form.add_field("price", "0.01")
        form.add_field("resourceType", "file")
        form.add_field("file", b"sold", filename="sold.bin")
        sold = (await buyer.ask("POST", paygates, form=form, headers=bearer)).json()
        _, link = await _buy(buyer, sold)
        path, _, query = link.json()["downloadUrl"].partition("/files/")[2].partition("?")
        listed = await buyer.ask(
            "GET",
            f"{hub_url}/api/v1/history?limit=1",
            headers={"Authorization": f"Bearer {await buyer.login(hub_url)}"},
        )
        return {
            "key": WALLETS.buyer.private_key_hex,
            "token": checksum_address(USDC_ADDRESS),
            "payTo": checksum_address(WALLETS.owner.address),
            "targetUrl": target_url,
            "accepts": [],
            "slug": gate["slug"],
            "payment": payment,
            "creditToken": answer.headers["x-credit-token"],
            "download": {"file_id": path, **dict(pair.split("=", 1) for pair in query.split("&"))},
            "paid": listed.json()["history"][0]["x402Data"],
        }


async def _buy(buyer: Buyer, gate: dict[str, Any]) -> tuple[str, Answer]:
    payment = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
    answer = await buyer.call(gate["accessUrl"], payment)
    assert answer.status == 200, answer.body
    return payment, answer


async def peers(url: str) -> dict[str, Any]:
    """Two wallets that are logged in, as schemathesis reads them (Web Fuzzing Commons)."""
    found = []
    for name, wallet in (("buyer", WALLETS.buyer), ("other", WALLETS.second_buyer)):
        async with Buyer(wallet) as caller:
            token = await caller.login(url)
        found.append({"name": name, "fixedHeaders": [{"name": "Authorization", "value": f"Bearer {token}"}]})
    return {"auth": found}


def write(path: Path, told: dict[str, Any]) -> Path:
    """JSON into a file."""
    path.write_text(json.dumps(told))
    return path
