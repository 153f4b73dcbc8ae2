"""The same program as a reader of the specification meets it on Solana: transactions are built and signed by solders.

As in `client`, nothing of the program's own reading or signing is used, so that a mistake in it cannot hide itself.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.token import ID as TOKEN_PROGRAM
from solders.token.associated import get_associated_token_address
from solders.transaction import VersionedTransaction

from tests.interop.stack import OnSolana
from tests.specification.client import Answer, Json, header
from tests.specification.program import Program
from tests.specification.world import World

NETWORK: Final = "solana-devnet"
USDC_MINT: Final = "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU"
MEMO_PROGRAM: Final = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")


@dataclass(frozen=True, slots=True)
class SolanaWallet:
    """A key pair, as a login needs it."""

    pair: Keypair

    @property
    def address(self) -> str:
        """Of the public key."""
        return str(self.pair.pubkey())

    def sign_text(self, text: str) -> str:
        """Ed25519 over the text, as a wallet signs a login message."""
        return str(self.pair.sign_message(text.encode()))


@dataclass(frozen=True, slots=True)
class SolanaWorld:
    """The world with its Solana chain, and a buyer with funds there; `owner` is paid."""

    world: World
    chain: OnSolana

    @property
    def buyer(self) -> Keypair:
        """Of the sandbox."""
        return Keypair.from_base58_string(self.chain.buyer_key)

    @property
    def owner(self) -> str:
        """Who is paid unless told otherwise."""
        return self.chain.pay_to

    @property
    def sold_to(self) -> Json:
        """The fields of a gate that is paid there."""
        return {"network": NETWORK, "paymentAddress": self.owner}

    async def node(self, method: str, *params: object) -> Any:
        """What the network's node says."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer: Json = (await self.world.http.send("POST", self.chain.rpc_url, json=request)).body
        return answer["result"]

    async def balance(self, owner: str) -> int:
        """USDC of a wallet in micro-units, as the node says."""
        found = await self.node("getTokenAccountBalance", str(account_of(owner)))
        return int(found["value"]["amount"])

    async def funded(self, value: int = 0) -> Keypair:
        """A fresh wallet whose token account holds so much."""
        wallet = Keypair()
        await self.node("sandbox_openAccount", str(wallet.pubkey()), value)
        return wallet

    async def kind(self) -> Json:
        """The hub's kind of payment on this network."""
        kinds = (await self.world.hub("GET", "/supported")).body["kinds"]
        (found,) = [one for one in kinds if one["network"] == NETWORK]
        kind: Json = found
        return kind

    async def fee_payers(self) -> list[str]:
        """Every account of the hub's that pays fees on this network."""
        told: list[str] = (await self.world.hub("GET", "/supported")).body["signers"]["solana:*"]
        return told

    async def transaction(
        self, value: int, *, recipient: str | None = None, payer: Keypair | None = None, is_signed: bool = True
    ) -> str:
        """Specification 2.3: a pre-signed transaction in base64, whose fee payer is still to co-sign."""
        payer = payer or self.buyer
        fee_payer = Pubkey.from_string((await self.kind())["extra"]["feePayer"])
        latest = (await self.node("getLatestBlockhash"))["value"]["blockhash"]
        used = [
            set_compute_unit_limit(20_000),
            set_compute_unit_price(1),
            transfer_checked(value, payer.pubkey(), recipient or self.owner),
            Instruction(MEMO_PROGRAM, os.urandom(8).hex().encode(), []),
        ]
        message = MessageV0.try_compile(fee_payer, used, [], Hash.from_string(latest))
        own = payer.sign_message(b"\x80" + bytes(message)) if is_signed else Signature.new_unique()
        return base64.b64encode(bytes(VersionedTransaction.populate(message, [Signature.default(), own]))).decode()

    async def gate(self, **fields: object) -> Json:
        """A gate at the target that is paid on Solana: 0.01 USDC for one GET, unless told otherwise."""
        return await self.world.gate(**{**self.sold_to, **fields})

    async def payment(self, gate: Json, **changes: Any) -> str:
        """An `X-Payment` value that the gate takes: what its 402 asks for."""
        asked = (await self.world.asked(gate))["accepts"][0]
        said = {"value": int(asked["maxAmountRequired"]), "recipient": asked["payTo"], **changes}
        return header(payload(await self.transaction(said.pop("value"), **said)))

    async def buy(self, gate: Json) -> tuple[str, Answer]:
        """A payment and the answer to the call that bought with it, which must have been served."""
        paid = await self.payment(gate)
        answer = await self.world.call(gate, paid)
        assert answer.status == 200, answer.content
        return paid, answer

    async def asking(self, value: int = 10_000, **changes: Any) -> Json:
        """A body for verify and settle, as a resource server of somebody else sends it."""
        recipient = changes.get("recipient", self.owner)
        fields = {
            "network": NETWORK,
            "asset": USDC_MINT,
            "extra": {"feePayer": (await self.kind())["extra"]["feePayer"]},
        }
        return {
            "x402Version": 1,
            "paymentPayload": payload(await self.transaction(value, **changes)),
            "paymentRequirements": self.world.requirements(recipient, value, **fields),
        }

    async def moving(self, value: int = 10_000, **changes: Any) -> Json:
        """A body for the hub's transfer."""
        return {
            "payload": {"transaction": await self.transaction(value, **changes)},
            "network": NETWORK,
            "asset": USDC_MINT,
            "amount": str(value),
            "recipient": changes.get("recipient", self.owner),
            "confirm": True,
        }

    async def login(self, wallet: Keypair, base_url: str | None = None) -> Json:
        """Specification 5.3, at the hub unless told otherwise."""
        return await self.world.login(SolanaWallet(wallet), base_url)

    async def history(self, wallet: Keypair, **query: object) -> Json:
        """The wallet's history: the newest 100 items unless told otherwise."""
        return await self.world.history(SolanaWallet(wallet), **query)

    async def item(self, wallet: Keypair) -> Json:
        """The newest item of the wallet's history."""
        item: Json = (await self.history(wallet))["history"][0]
        return item

    async def settled_item(self, value: int = 10_000) -> Json:
        """The history item of a payment that a stranger's server settled with success, of a fresh wallet."""
        payer = await self.funded(value)
        answer = await self.world.settle({**await self.asking(value, payer=payer), "confirm": True})
        assert answer.body["status"] == "success", answer.content
        return await self.item(payer)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """No transaction is carried out within the block; all that wait are at its end."""
        await self.node("sandbox_hold")
        try:
            yield
        finally:
            await self.node("sandbox_release")

    @asynccontextmanager
    async def pending_item(self) -> AsyncIterator[tuple[Json, Keypair]]:
        """The history item of a payment whose transaction waits, and its payer; it is carried out as the block ends."""
        payer = await self.funded(10_000)
        asking = await self.asking(payer=payer)
        async with asyncio.TaskGroup() as settling, self.held():
            settling.create_task(self.world.settle({**asking, "confirm": True}))
            yield (await self._shown(payer, 1))[0], payer

    async def failed_item(self) -> Json:
        """The history item of a payment that failed on the chain: half of the money for two had gone elsewhere."""
        payer = await self.funded(20_000)
        bodies = [{**await self.asking(payer=payer), "confirm": True} for _ in range(2)]
        async with self.held():
            settling = [asyncio.create_task(self.world.settle(body)) for body in bodies]
            await self.sent(2)
            await self.node("sandbox_openAccount", str(payer.pubkey()), -10_000)
        await self.node("sandbox_advance", 40)  # until then another branch may still carry out the other one
        await asyncio.gather(*settling)
        return await self.decided(payer, "failed")

    async def decided(self, payer: Keypair, status: str) -> Json:
        """The first item of the payer with this status, as soon as there is one."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for item in (await self.history(payer))["history"]:
                if item["status"] == status:
                    found: Json = item
                    return found
            await asyncio.sleep(0.1)
        raise AssertionError(status)

    async def sent(self, count: int) -> None:
        """Returns once the node holds so many transactions."""
        async with asyncio.timeout(30):
            while await self.node("sandbox_heldCount") < count:  # noqa: ASYNC110 - a node is asked
                await asyncio.sleep(0.05)

    async def _shown(self, payer: Keypair, count: int) -> list[Json]:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            items: list[Json] = (await self.history(payer))["history"]
            if len(items) == count:
                return items
            await asyncio.sleep(0.05)
        raise AssertionError("the payments were not sent")


@dataclass(frozen=True, slots=True)
class PaidOnSolana(Program):
    """The program as a test asks it that knows no family: gates are paid on Solana, wallets are Solana's."""

    solana: SolanaWorld

    @property
    def network(self) -> str:
        return NETWORK

    @property
    def sold_to(self) -> Json:
        return self.solana.sold_to

    def new_wallet(self) -> SolanaWallet:
        return SolanaWallet(Keypair())

    async def payee(self) -> SolanaWallet:
        return SolanaWallet(await self.solana.funded())

    async def payment(self, gate: Json) -> str:
        return await self.solana.payment(gate)

    async def underpayment(self, gate: Json) -> str:
        return await self.solana.payment(gate, value=1)

    async def sale(self, value: int = 10_000, *, recipient: str | None = None) -> Json:
        return await self.solana.asking(value, recipient=recipient or self.solana.owner)

    async def direct_transfer(self) -> Json:
        return await self.solana.moving()


def on_solana(solana: SolanaWorld) -> PaidOnSolana:
    """The same program, as a test asks it that knows no family."""
    world = solana.world
    return PaidOnSolana(
        world.gateway_url, world.hub_url, world.target, world.http, world.log, world.database, solana=solana
    )


def payload(transaction: str, network: str = NETWORK) -> Json:
    """The payment payload of specification 2.3."""
    return {"x402Version": 1, "scheme": "exact", "network": network, "payload": {"transaction": transaction}}


def account_of(owner: str) -> Pubkey:
    """The wallet's token account of USDC."""
    return get_associated_token_address(Pubkey.from_string(owner), Pubkey.from_string(USDC_MINT))


def transfer_checked(value: int, payer: Pubkey, recipient: str) -> Instruction:
    """The token program's instruction 12, of the wallet's own USDC."""
    accounts = [
        AccountMeta(account_of(str(payer)), is_signer=False, is_writable=True),
        AccountMeta(Pubkey.from_string(USDC_MINT), is_signer=False, is_writable=False),
        AccountMeta(account_of(recipient), is_signer=False, is_writable=True),
        AccountMeta(payer, is_signer=True, is_writable=False),
    ]
    return Instruction(TOKEN_PROGRAM, b"\x0c" + value.to_bytes(8, "little") + b"\x06", accounts)
