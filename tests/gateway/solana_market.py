"""A market on the embedded Solana chain: gates that are paid there, and payments as clients make them from a 402."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from tests.core.solana_payments import Draft, account_of, compute_limit, compute_price, memo, transfer
from tests.gateway.composed import composed
from tests.gateway.recording_target import RecordingTarget
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.stack import Options, open_sandbox
from tollkeeper.sandbox.wallets import SolanaWallets, derive_solana_wallets, derive_wallets, fee_payers_of
from tollkeeper.settings.model import NetworkSettings

NETWORK: Final = "solana-devnet"
_MEMOS: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class SolanaMarket:
    """A running program, a target, and whoever buys; `buyer` is his client, and his wallet on EVM networks."""

    url: str
    rpc_url: str
    wallets: SolanaWallets
    target: RecordingTarget
    buyer: Buyer
    network: str = NETWORK

    @property
    def wallet(self) -> Keypair:
        """The buyer on Solana."""
        return Keypair.from_seed(self.wallets.buyer.seed)

    @property
    def owner(self) -> str:
        """Who is paid; his token account is there."""
        return self.wallets.owner.address

    async def create(self, **fields: object) -> Answer:
        """Asks for a gate at the target that is paid on Solana."""
        body = {
            "targetUrl": self.target.url,
            "price": "0.01",
            "network": self.network,
            "paymentAddress": self.owner,
            **fields,
        }
        return await self.buyer.ask("POST", f"{self.url}/api/v1/paygates", body=body)

    async def gate(self, **fields: object) -> dict[str, Any]:
        """The gate."""
        answer = await self.create(**fields)
        assert answer.status == 201, answer.body
        return answer.json()

    async def requirements(self, gate: dict[str, Any], **headers: str) -> dict[str, Any]:
        """The one entry of the 402's `accepts`."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.buyer.ask("GET", gate["accessUrl"], headers=names)
        assert answer.status == 402, answer.body
        (entry,) = answer.json()["accepts"]
        return dict(entry)

    async def node(self, method: str, *params: object) -> Any:
        """What the chain's node answers."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        return (await self.buyer.ask("POST", self.rpc_url, body=request)).json()["result"]

    async def balance(self, owner: str) -> int:
        """USDC of a wallet, in micro-units."""
        found = await self.node("getTokenAccountBalance", str(account_of(owner)))
        return int(found["value"]["amount"])

    async def draft(self, wanted: dict[str, Any], *, text: bytes | None = None, **changes: Any) -> Draft:
        """The transaction that a client makes of an entry of `accepts`; `text` b"" leaves the memo out."""
        latest = await self.node("getLatestBlockhash")
        blockhash = bytes(Hash.from_string(latest["value"]["blockhash"]))
        said = {"pay_to": wanted["payTo"], "mint": wanted["asset"], **changes}
        moved = transfer(said.pop("amount", int(wanted["maxAmountRequired"])), payer=self.wallet.pubkey(), **said)
        note = f"payment {next(_MEMOS)}".encode() if text is None else text
        used = (compute_limit(), compute_price(), moved, *((memo(note),) if note else ()))
        return Draft(used, Pubkey.from_string(wanted["extra"]["feePayer"]), (self.wallet,), blockhash)

    async def payment(self, wanted: dict[str, Any], **changes: Any) -> str:
        """The `X-Payment` value."""
        return header_of(await self.draft(wanted, **changes), wanted["network"])

    async def pay(self, gate: dict[str, Any], header: str) -> Answer:
        """A call with it."""
        return await self.buyer.call(gate["accessUrl"], header)


def header_of(draft: Draft, network: str = NETWORK) -> str:
    """The `X-Payment` value of a transaction."""
    payload = {"transaction": draft.payload().transaction}
    body = {"x402Version": 1, "scheme": "exact", "network": network, "payload": payload}
    return base64.b64encode(json.dumps(body).encode()).decode()


@asynccontextmanager
async def solana_market(target: RecordingTarget, options: Options) -> AsyncIterator[SolanaMarket]:
    """The market, until the block ends."""
    async with open_sandbox(options) as sandbox, Buyer(sandbox.wallets.buyer) as buyer:
        yield SolanaMarket(sandbox.gateway_url, sandbox.solana_url, sandbox.solana_wallets, target, buyer)


@asynccontextmanager
async def mainnet_market(target: RecordingTarget, folder: Path) -> AsyncIterator[SolanaMarket]:
    """The same on an embedded chain that says it is Solana's main network, which is the program's only one."""
    evm = derive_wallets()
    network = NETWORKS["solana-mainnet"]
    wallets = replace(derive_solana_wallets(), fee_payers=fee_payers_of(evm.relayer.private_key))
    async with SolanaNode(wallets=wallets, network=network) as node:
        networks = {network.name: NetworkSettings(network, (node.url,))}
        settings: dict[str, Any] = {
            "networks": networks,
            "default_network": network,
            "default_payment_address": wallets.owner.address,
        }
        async with composed("", folder / "main.db", **settings) as url, Buyer(evm.buyer) as buyer:
            yield SolanaMarket(url, node.url, wallets, target, buyer, network.name)
