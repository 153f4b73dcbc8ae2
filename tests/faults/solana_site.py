"""A hub on the embedded Solana chain that faults befall, and what is done with its payments through each of them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from solders.keypair import Keypair
from solders.message import to_bytes_versioned
from solders.transaction import VersionedTransaction

from tests.chains.solana_node import FEE_PAYER, WALLETS, paying
from tests.faults.aftermath import assert_nothing_lost_on_solana
from tests.faults.client import PRICE, assert_handed_out_once, leave_pending, pay, public_status
from tests.faults.counts import came
from tests.faults.striking import Case, Victim, faulty_hub
from tests.faults.test_boundaries import carry_out
from tests.faults.test_recovery_boundaries import until_come
from tests.hub.solana_hub import NETWORK, body_of, message_hash
from tollkeeper.chains.solana.blockhashes import LAG_BLOCKS
from tollkeeper.core.solana.rules import read_transfer
from tollkeeper.core.x402.version1 import SolanaPayload
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, RECENT_SLOTS
from tollkeeper.sandbox.solana.node import SolanaNode

FEE_LAMPORTS: Final = 2 * 5_000 + 1
EXPIRED_SLOTS: Final = RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 1


@dataclass(frozen=True)
class SolanaPayment:
    """A signed payment as its server presents it."""

    body: dict[str, Any]

    def asking(self, **fields: Any) -> dict[str, Any]:
        """The body of a settle request."""
        return {**self.body, **fields}

    @property
    def payload(self) -> SolanaPayload:
        """What its payer signed."""
        return SolanaPayload(self.body["paymentPayload"]["payload"]["transaction"])

    @property
    def status_path(self) -> str:
        """Where everybody is shown how it ended."""
        return f"/payments/{NETWORK}/{message_hash(self.body)}"


@dataclass
class SolanaSite:
    """What was paid, what was refused, and of that what the chain carried out with an error, for its fee."""

    node: SolanaNode
    hub: Victim
    paid: list[SolanaPayment] = field(default_factory=list)
    refused: list[SolanaPayment] = field(default_factory=list)
    failed: int = 0
    buyers: int = 0

    def payment(self, **changes: Any) -> SolanaPayment:
        """A new one of the buyer's to the owner."""
        return SolanaPayment(body_of(paying(self.node, PRICE, **changes).payload(), PRICE))

    def buyer(self, money: int) -> Keypair:
        """Of whoever has never paid, with so much money."""
        self.buyers += 1
        buyer = Keypair.from_seed(hashlib.sha256(f"buyer {self.buyers}".encode()).digest())
        self.node.chain.open_account(str(buyer.pubkey()), money)
        return buyer

    async def left_pending(self, key: str, **changes: Any) -> SolanaPayment:
        """A payment that waits to be executed, and whose caller went away."""
        self.node.chain.holds = True
        payment = self.payment(**changes)
        await leave_pending(self.hub, payment, key)
        return payment

    async def come(self, case: Case) -> None:
        """The fault came, whichever process it befell; a crash once another one runs."""
        await until_come(self.hub, case)

    async def end(self, payment: SolanaPayment, case: Case, key: str, *, success: bool = True) -> None:
        """Its caller is told so."""
        assert (await pay(await self.hub.url(), payment, key=key))["success"] is success, case
        (self.paid if success else self.refused).append(payment)


Act: TypeAlias = Callable[[SolanaSite, Case, str], Awaitable[None]]


async def settle(site: SolanaSite, case: Case, key: str) -> None:
    """It is settled."""
    site.paid.append(payment := site.payment())
    assert await carry_out(site.hub, payment, key, case), case


async def refuse(site: SolanaSite, case: Case, key: str) -> None:
    """Its payer has no money: refused, and nothing is signed."""
    site.refused.append(payment := site.payment(buyer=site.buyer(0)))
    assert not await carry_out(site.hub, payment, key, case), case


async def adopt(site: SolanaSite, case: Case, key: str) -> None:
    """We carried it out, and the database forgot it."""
    site.paid.append(payment := site.payment())
    signed = VersionedTransaction.from_bytes(base64.b64decode(payment.payload.transaction))
    signatures = [FEE_PAYER.sign_message(to_bytes_versioned(signed.message)), *signed.signatures[1:]]
    whole = VersionedTransaction.populate(signed.message, signatures)
    site.node.chain.send(bytes(whole), skips_preflight=False)
    assert await carry_out(site.hub, payment, key, case), case


async def finish(site: SolanaSite, case: Case, key: str) -> None:
    """It waits to be executed, and nobody asks for it until the fault came."""
    payment = await site.left_pending(key)
    site.hub.prepare(case)
    await site.come(case)
    site.node.chain.release()
    await site.end(payment, case, key)


async def hand_out(site: SolanaSite, case: Case, key: str) -> None:
    """It became a success when nobody was asking; then somebody does, through the fault."""
    payment = await site.left_pending(key)
    site.node.chain.release()
    async with asyncio.timeout(60):
        while await public_status(await site.hub.url(), payment) != "success":  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.05)
    site.paid.append(payment)
    assert await carry_out(site.hub, payment, key, case), case


async def take_over(site: SolanaSite, case: Case, key: str) -> None:
    """The process that carried it died."""
    payment = await site.left_pending(key)
    await site.hub.ended()
    site.hub.prepare(case)
    await site.come(case)
    site.node.chain.release()
    await site.end(payment, case, key)


async def expire(site: SolanaSite, case: Case, key: str) -> None:
    """Nobody executes it while it can be: failed by proof."""
    payment = await site.left_pending(key)
    site.hub.prepare(case)
    site.node.chain.next_slot(EXPIRED_SLOTS)
    await site.come(case)
    site.node.chain.release()
    await site.end(payment, case, key, success=False)


async def fail(site: SolanaSite, case: Case, key: str) -> None:
    """Of two whose money for one goes elsewhere, the later one is executed with an error, which is final."""
    buyer = site.buyer(2 * PRICE)
    payments = [await site.left_pending(f"{key}.{number}", buyer=buyer) for number in range(2)]
    site.hub.prepare(case)
    site.node.chain.open_account(str(buyer.pubkey()), -PRICE)
    site.node.chain.release()
    site.node.chain.next_slot(FINAL_SLOTS + 1)
    await site.come(case)
    for number, payment in enumerate(payments):
        await site.end(payment, case, f"{key}.{number}", success=number == 0)
    site.failed += 1


async def reopen(site: SolanaSite, case: Case, key: str) -> None:
    """Its success was told, and then the fork was left that it was in."""
    chain = site.node.chain
    payment = site.payment()
    chain.next_slot(2)
    since = chain.slot
    await site.end(payment, case, key)
    site.hub.prepare(case)
    assert chain.roll_back(chain.slot - since + 1) == 1
    owner = chain.open_account(WALLETS.owner.address)
    before = chain.token_balance(owner)
    chain.next_slot(FINAL_SLOTS)
    await site.come(case)
    async with asyncio.timeout(60):
        while chain.token_balance(owner) == before:
            await site.hub.url()
            await asyncio.sleep(0.05)


# What is done, through which boundaries, in the order in which they come.
SETTLING: Final = (
    "find_key",
    "find_settlement",
    "simulateTransaction",
    "claim_and_sign",
    "sendTransaction",
    "getSignatureStatuses",
    "move_all",
)
ACTS: Final[dict[str, tuple[Act, tuple[str, ...]]]] = {
    "settle": (settle, SETTLING),
    "refuse": (
        refuse,
        (
            "find_key",
            "find_settlement",
            "simulateTransaction",
            "getMultipleAccounts",
            "isBlockhashValid",
        ),
    ),
    "adopt": (
        adopt,
        ("find_settlement", "getSignaturesForAddress", "getSignatureStatuses", "getSlot", "claim_and_sign", "move_all"),
    ),
    "finish": (
        finish,
        (
            "has_orphans",
            "list_unfinished",
            "list_broken",
            "getSignatureStatuses",
            "transactions_of",
            "isBlockhashValid",
            "sendTransaction",
            "count_set_aside",
        ),
    ),
    "hand out": (hand_out, ("find_key", "read_settlement", "hand_out")),
    "take over": (take_over, ("join", "getGenesisHash", "open_lane", "getBalance", "take_lease", "take_over")),
    "expire": (
        expire,
        (
            *("transactions_of", "getSlot", "isBlockhashValid", "getEpochInfo", "getFirstAvailableBlock"),
            *("getBlocks", "getBlock", "move_all"),
        ),
    ),
    "fail": (fail, ("getSignatureStatuses", "transactions_of", "move_all")),
    "reopen": (
        reopen,
        ("list_confirmed", "getSlot", "getSignatureStatuses", "getBlocks", "reopen_all", "sendTransaction"),
    ),
}
# What is asked of the second of two nodes meanwhile; of what the first one does not show it is asked nothing.
SECOND: Final[dict[str, tuple[str, ...]]] = {
    "settle": ("getSignatureStatuses",),
    "adopt": ("getSignatureStatuses", "getEpochInfo", "getSlot"),
    "take over": ("getGenesisHash", "getAccountInfo"),
    "expire": (
        *("getSlot", "isBlockhashValid", "getEpochInfo", "getSignatureStatuses", "getFirstAvailableBlock"),
        *("getBlocks", "getBlock"),
    ),
    "fail": ("getSignatureStatuses",),
    "reopen": ("getSlot", "getSignatureStatuses", "sendTransaction"),
}


async def strike(site: SolanaSite, name: str, chosen: list[Case]) -> None:
    """The act, once for each fault."""
    act, _ = ACTS[name]
    for number, case in enumerate(chosen):
        await site.hub.rested()
        try:
            await act(site, case, f"{name}.{number}".replace(" ", "-"))
        except BaseException as error:
            error.add_note(f"{name}: {case}")
            raise
        came(f"{case.kind.value} at a boundary on Solana")


@asynccontextmanager
async def solana_site(directory: Path, nodes: int = 1) -> AsyncIterator[SolanaSite]:
    """The hub of so many nodes of one chain, to be started.

    Afterwards each payment is settled once, or not at all, and no fee is paid twice.
    """
    async with SolanaNode(wallets=WALLETS) as node:
        chain = node.chain
        owner = chain.open_account(WALLETS.owner.address)
        before, money = chain.token_balance(owner), _money(node)
        async with faulty_hub(directory, *nodes * [node.url], is_solana=True) as hub:
            site = SolanaSite(node, hub)
            yield site
            for payment in site.paid:
                await assert_handed_out_once(await hub.url(), payment)
            paid, refused = ([read_transfer(one.payload) for one in some] for some in (site.paid, site.refused))
            await assert_nothing_lost_on_solana(directory, node, paid=paid, refused=refused)
        assert chain.token_balance(owner) == before + PRICE * len(site.paid)
        assert money - _money(node) == FEE_LAMPORTS * (len(site.paid) + site.failed)


def _money(node: SolanaNode) -> int:
    return sum(node.chain.balance(one.address) for one in WALLETS.fee_payers)
