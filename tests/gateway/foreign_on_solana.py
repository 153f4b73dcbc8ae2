"""A facilitator on Solana that is not ours: it pays fees with a key of its own, and misbehaves on command."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web
from solders.keypair import Keypair
from solders.transaction import VersionedTransaction

from tests.gateway.foreign_facilitator import facilitating
from tollkeeper.sandbox.solana_chain import LAMPORTS_PER_SOL
from tollkeeper.sandbox.solana_node import SolanaNode

Settling = Callable[["ForeignOnSolana", bytes], Awaitable[web.StreamResponse]]
NOBODYS_SIGNATURE: Final = str(Keypair.from_seed(b"\x31" * 32).sign_message(b"no transaction"))


@dataclass(slots=True)
class ForeignOnSolana:
    """`settling` answers `/settle`; `lists` says whether it advertises its signers beside the fee payer."""

    node: SolanaNode
    fee_payer: Keypair
    settling: Settling
    lists: bool = True
    url: str = ""
    settles: list[dict[str, Any]] = field(default_factory=list)

    def sign(self, raw: bytes, fee_payer: Keypair | None = None) -> VersionedTransaction:
        """The transaction with the fee payer's signature."""
        transaction = VersionedTransaction.from_bytes(raw)
        message = raw[1 + 64 * len(transaction.signatures) :]
        ours = (fee_payer or self.fee_payer).sign_message(message)
        return VersionedTransaction.populate(transaction.message, [ours, *transaction.signatures[1:]])

    async def send(self, raw: bytes) -> str:
        """Carries the payment out; its signature. It may be executed with an error."""
        return self.node.chain.send(bytes(self.sign(raw)), skips_preflight=True)


def success(transaction: str, **changes: object) -> web.Response:
    """What every facilitator says of a settled payment."""
    body = {"success": True, "transaction": transaction, "network": "solana-devnet", "payer": "1" * 32}
    return web.json_response({**body, **changes})


def failure(reason: str) -> web.Response:
    """What it says of one that it did not settle."""
    return web.json_response({"success": False, "errorReason": reason, "transaction": ""})


async def honest(foreign: ForeignOnSolana, raw: bytes) -> web.StreamResponse:
    """Sends, and says so."""
    return success(await foreign.send(raw))


async def says_success_and_sends_nothing(_foreign: ForeignOnSolana, _raw: bytes) -> web.StreamResponse:
    """Never sends."""
    return success(NOBODYS_SIGNATURE)


async def names_no_signature(_foreign: ForeignOnSolana, _raw: bytes) -> web.StreamResponse:
    """Never sends, and names what can be no transaction."""
    return success("0x" + "ab" * 32)


async def names_what_was_paid_before(foreign: ForeignOnSolana, _raw: bytes) -> web.StreamResponse:
    """Sends nothing, and names a transaction of the same payer to the same seller, of the same amount."""
    return success(next(iter(foreign.node.chain.executed)))


async def sends_and_names_another(foreign: ForeignOnSolana, raw: bytes) -> web.StreamResponse:
    """Sends, and names that one all the same."""
    await foreign.send(raw)
    return await names_what_was_paid_before(foreign, raw)


async def answers_late(foreign: ForeignOnSolana, raw: bytes) -> web.StreamResponse:
    """Sends at once, and says so when nobody listens any more."""
    transaction = await foreign.send(raw)
    await asyncio.sleep(6)
    return success(transaction)


async def settles_late(foreign: ForeignOnSolana, raw: bytes) -> web.StreamResponse:
    """Sends after a while."""
    await asyncio.sleep(4)
    return success(await foreign.send(raw))


async def another_shape(foreign: ForeignOnSolana, raw: bytes) -> web.StreamResponse:
    """Sends, and says so in words of its own."""
    return web.json_response({"result": {"ok": True, "signature": await foreign.send(raw)}})


async def success_as_a_string(foreign: ForeignOnSolana, raw: bytes) -> web.StreamResponse:
    """Sends, and says "true"."""
    return success(await foreign.send(raw), success="true")


async def error_after_sending(foreign: ForeignOnSolana, raw: bytes) -> web.StreamResponse:
    """Sends, and breaks."""
    await foreign.send(raw)
    return web.Response(status=500, text="oops")


async def failure_after_sending(foreign: ForeignOnSolana, raw: bytes) -> web.StreamResponse:
    """Sends, and says that it was not confirmed in time."""
    await foreign.send(raw)
    return failure("transaction_failed")


async def expiry_after_sending(foreign: ForeignOnSolana, raw: bytes) -> web.StreamResponse:
    """Sends, and says that the payment is too old."""
    await foreign.send(raw)
    return failure("settle_exact_svm_block_height_exceeded")


async def never(foreign: ForeignOnSolana, raw: bytes) -> web.StreamResponse:
    """Sends, and never says a word."""
    await foreign.send(raw)
    await asyncio.Event().wait()
    raise AssertionError


async def refuses(_foreign: ForeignOnSolana, _raw: bytes) -> web.StreamResponse:
    """Sends nothing, and says why."""
    return failure("insufficient_funds")


@asynccontextmanager
async def run_foreign_on_solana(
    node: SolanaNode, settling: Settling = honest, *, lists: bool = True
) -> AsyncIterator[ForeignOnSolana]:
    """The facilitator on a free port, with a fee payer that has lamports."""
    foreign = ForeignOnSolana(node, Keypair.from_seed(b"\x32" * 32), settling, lists)
    node.chain.airdrop(str(foreign.fee_payer.pubkey()), LAMPORTS_PER_SOL)

    def supported() -> dict[str, Any]:
        fee_payer = str(foreign.fee_payer.pubkey())
        extra = {"feePayer": fee_payer}
        kind = {"x402Version": 1, "scheme": "exact", "network": "solana-devnet", "extra": extra}
        signers = {"solana:*": [fee_payer]} if foreign.lists else {}
        return {"kinds": [kind], "extensions": [], "signers": signers}

    async def settle(request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        foreign.settles.append(asked)
        return await foreign.settling(foreign, base64.b64decode(asked["paymentPayload"]["payload"]["transaction"]))

    async with facilitating(supported, settle) as foreign.url:
        yield foreign
