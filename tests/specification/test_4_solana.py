"""Specification 4.4 on Solana: the hub of the sandbox verifies, settles and transfers there."""

from __future__ import annotations

from typing import Any

import aiohttp
from solders.hash import Hash
from solders.keypair import Keypair

from tests.core.solana_payments import Draft, compute_limit, compute_price, memo, transfer
from tests.hub.solana_hub import body_of
from tests.specification.rows import row
from tollkeeper.core.wire import SolanaPayload
from tollkeeper.sandbox.stack import Options, Sandbox, open_sandbox


async def ask(http: aiohttp.ClientSession, url: str, body: object) -> dict[str, Any]:
    async with http.post(url, json=body) as response:
        answer: dict[str, Any] = await response.json()
        return answer


async def paid(http: aiohttp.ClientSession, sandbox: Sandbox, fee_payer: str, text: bytes) -> SolanaPayload:
    """A payment of the sandbox's buyer to its owner, as a client that knows only /supported makes it."""
    latest = await ask(http, sandbox.solana_url, {"id": 1, "method": "getLatestBlockhash", "params": []})
    blockhash = Hash.from_string(latest["result"]["value"]["blockhash"])
    wallets = sandbox.solana_wallets
    buyer = Keypair.from_base58_string(wallets.buyer.secret_key)
    moved = transfer(10_000, payer=buyer.pubkey(), pay_to=wallets.owner.address)
    used = (compute_limit(), compute_price(), moved, memo(text))
    payer = Keypair.from_seed(next(one.seed for one in wallets.fee_payers if one.address == fee_payer))
    return Draft(used, payer.pubkey(), (buyer,), bytes(blockhash)).payload()


@row("4.4-solana")
async def test_the_sandboxs_hub_verifies_settles_and_transfers_on_solana() -> None:
    async with open_sandbox(Options()) as sandbox, aiohttp.ClientSession() as http:
        async with http.get(f"{sandbox.hub_url}/supported") as response:
            kinds = (await response.json())["kinds"]
        (kind,) = [one for one in kinds if one["network"] == "solana-devnet"]
        fee_payer = kind["extra"]["feePayer"]
        known = sandbox.as_json()["solana"]
        assert kind["assets"][0]["address"] == known["token"]
        body = body_of(
            await paid(http, sandbox, fee_payer, b"settled"),
            10_000,
            payTo=known["payTo"],
            extra={"feePayer": fee_payer},
        )
        verified = await ask(http, f"{sandbox.hub_url}/verify", body)
        assert (verified["isValid"], verified["invalidReason"]) == (True, None)
        settled = await ask(http, f"{sandbox.hub_url}/settle", {**body, "confirm": True})
        assert (settled["status"], settled["network"], settled["amount"]) == ("success", "solana-devnet", "10000")
        assert settled["payer"] == known["buyerAddress"]
        moving = {
            "payload": {"transaction": (await paid(http, sandbox, fee_payer, b"transferred")).transaction},
            "network": "solana-devnet",
            "asset": known["token"],
            "amount": "10000",
            "recipient": known["payTo"],
            "confirm": True,
        }
        transferred = await ask(http, f"{sandbox.hub_url}/transfer", moving)
        assert (transferred["status"], transferred["amount"]) == ("success", "10000")
        assert transferred["transaction"] != settled["transaction"]
