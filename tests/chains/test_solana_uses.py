"""Reading the transaction that carried a payment out, and its payer's list of them (contract 4.3, 4.4; A-15)."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from tests.chains.solana_node import BUYER, FEE_PAYER, WALLETS, drafted, paying
from tests.core.solana_payments import account_of
from tests.hub.chaos import run_chaos
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.sightings import Verdict
from tollkeeper.chains.solana.chain import SolanaChain
from tollkeeper.chains.solana.config import SolanaConfig
from tollkeeper.chains.solana.payment_lookup import is_listed, read_use
from tollkeeper.chains.solana.payments import payments_of, read_payments
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.solana.base58 import encode
from tollkeeper.core.solana.rules import SolanaAsset, payment_key, read_transfer
from tollkeeper.sandbox.rpc_server import JsonRpcApp, ServedRpcError
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, EmbeddedSolanaChain
from tollkeeper.sandbox.solana.node import BUYER_MICRO, SolanaNode
from tollkeeper.sandbox.solana.rpc import solana_rpc_app

DEVNET = NETWORKS["solana-devnet"]
ASSET = SolanaAsset(DEVNET, DEVNET.usdc.address)


class KnowsALaterVersion(JsonRpcApp):
    """A node of a cluster that has taken one transaction of a version for which nobody asked."""

    def __init__(self, chain: EmbeddedSolanaChain, later: str) -> None:
        super().__init__({})
        self._honest = solana_rpc_app(chain)
        self._later = later

    def call(self, method: str, params: Any = ()) -> Any:
        if method == "getTransaction" and params[0] == self._later:
            message = "Transaction version (1) is not supported by the requesting client"
            raise ServedRpcError(message, code=-32015)
        return self._honest.call(method, params)


class ShowsOnePage(JsonRpcApp):
    """A node that does not know what `before` is, and has as many transactions as a page."""

    def __init__(self, chain: EmbeddedSolanaChain) -> None:
        super().__init__({})
        self._honest = solana_rpc_app(chain)

    def call(self, method: str, params: object = ()) -> Any:
        if method != "getSignaturesForAddress":
            return self._honest.call(method, params)
        return [{"signature": encode(number.to_bytes(64, "big")), "slot": 7, "err": None} for number in range(1_000)]


class ShowsAnother(JsonRpcApp):
    """A node that shows the same bytes, whichever transaction it is asked for."""

    def __init__(self, chain: EmbeddedSolanaChain, raw: bytes) -> None:
        super().__init__({})
        self._honest = solana_rpc_app(chain)
        self._shown = {"transaction": [base64.b64encode(raw).decode(), "base64"]}

    def call(self, method: str, params: object = ()) -> Any:
        answer = self._honest.call(method, params)
        return answer | self._shown if method == "getTransaction" else answer


class TellsNoHolders(JsonRpcApp):
    """A node that does not say who held the accounts behind a transaction, or not so that it can be read."""

    def __init__(self, chain: EmbeddedSolanaChain) -> None:
        super().__init__({})
        self._honest = solana_rpc_app(chain)
        self._shown = iter(({}, {"postTokenBalances": [{"accountIndex": place, "owner": 7} for place in range(9)]}))

    def call(self, method: str, params: object = ()) -> Any:
        answer = self._honest.call(method, params)
        if method != "getTransaction":
            return answer
        meta = {name: told for name, told in answer["meta"].items() if name != "postTokenBalances"}
        return answer | {"meta": meta | next(self._shown)}


def signed(draft: Any) -> VersionedTransaction:
    """By the fee payer, too."""
    unsigned = draft.transaction()
    ours = FEE_PAYER.sign_message(bytes(unsigned)[1 + 64 * len(unsigned.signatures) :])
    return VersionedTransaction.populate(unsigned.message, [ours, *unsigned.signatures[1:]])


def executed(node: SolanaNode, draft: Any) -> str:
    """Carries it out; its signature."""
    return node.chain.send(bytes(signed(draft)), skips_preflight=True)


async def test_a_payment_is_read_with_what_it_moved_and_how_deep_it_lies(node: SolanaNode, solana: SolanaChain) -> None:
    draft = paying(node, 1_234)
    name = executed(node, draft)
    use = await read_use(solana, name)
    assert use is not None
    assert use.payment.key == payment_key(ASSET, read_transfer(draft.payload()))
    assert (use.payment.value, use.payment.pay_to) == (1_234, str(account_of(WALLETS.owner.address)))
    assert (use.payment.sender, use.payment.transaction_hash) == (str(FEE_PAYER.pubkey()), name)
    assert (use.sighting.verdict, use.sighting.deep) == (Verdict.TRANSFERRED, True)


async def test_what_failed_is_a_use_that_moved_nothing_and_deep_when_it_is_final(
    node: SolanaNode, solana: SolanaChain
) -> None:
    name = executed(node, paying(node, BUYER_MICRO + 1))
    use = await read_use(solana, name)
    assert use is not None
    assert (use.sighting.verdict, use.sighting.deep) == (Verdict.REVERTED, False)
    node.chain.next_slot(FINAL_SLOTS)
    use = await read_use(solana, name)
    assert use is not None
    assert use.sighting.deep


async def test_no_transaction_and_one_that_is_no_payment_are_nothing(node: SolanaNode, solana: SolanaChain) -> None:
    assert await read_use(solana, str(Keypair().sign_message(b"nothing"))) is None
    limit, price, *_ = paying(node, 1).instructions
    other = executed(node, drafted(node, limit, price, buyer=BUYER))
    assert await read_use(solana, other) is None


@pytest.mark.parametrize("is_sent", [True, False], ids=["failed", "never sent"])
async def test_a_transaction_that_one_node_calls_passed_carried_nothing_out(node: SolanaNode, *, is_sent: bool) -> None:
    """Its bytes prove who signed what, and not that the chain took it."""
    draft = paying(node, BUYER_MICRO + 1)
    transaction = signed(draft)
    name = executed(node, draft) if is_sent else str(transaction.signatures[0])
    node.chain.next_slot(FINAL_SLOTS)
    raw = base64.b64encode(bytes(transaction)).decode()
    passed = {"slot": 1, "meta": {"err": None}, "transaction": [raw, "base64"]}

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        return answer | {"result": passed} if call["method"] == "getTransaction" else answer

    async with run_chaos(node.url) as liar:
        liar.falsify = falsify
        solana = SolanaChain(SolanaConfig(DEVNET, (liar.url, node.url)))
        await solana.open()
        assert await payments_of(solana, name) == []
        await solana.close()


@pytest.mark.parametrize("amount", [1_000, BUYER_MICRO + 1], ids=["passed", "failed"])
async def test_what_a_node_shows_under_the_name_of_another_transaction_is_no_use(
    node: SolanaNode, solana: SolanaChain, amount: int
) -> None:
    """That other one was executed, as every node says: only its signature shows what it is."""
    name, draft = executed(node, paying(node, amount)), paying(node, 1_000)
    never = signed(draft)
    forged = VersionedTransaction.populate(never.message, [Signature.from_string(name), *never.signatures[1:]])
    for raw in (bytes(forged), bytes(never)):
        node.rpc = ShowsAnother(node.chain, raw)
        with pytest.raises(RpcUnavailable, match="another transaction"):
            await read_use(solana, name)


async def test_a_transaction_of_a_later_version_hides_no_payment_of_who_is_named_in_it(
    node: SolanaNode, solana: SolanaChain
) -> None:
    """Anybody can name a payer in one, and no payment is one."""
    drafts = [paying(node, 1_000) for _ in range(3)]
    names = [executed(node, draft) for draft in drafts]
    node.rpc = KnowsALaterVersion(node.chain, names[1])
    node.chain.next_slot(FINAL_SLOTS)
    fee_payer = str(FEE_PAYER.pubkey())
    found = await read_payments(solana, [fee_payer], [], [], range(10**6))
    assert {payment.transaction_hash for payment in found} == {names[0], names[2]}


async def test_what_was_paid_to_an_account_that_was_signed_away_is_not_called_its_wallets(
    node: SolanaNode, solana: SolanaChain
) -> None:
    chain, wallet, thief = node.chain, WALLETS.owner.address, str(Keypair().pubkey())
    account, own = chain.open_account(wallet), chain.account(chain.open_account(wallet))
    names = [executed(node, paying(node, 1_000))]
    chain.next_slot()
    theirs = chain.account(chain.open_account(thief))
    assert own is not None
    assert theirs is not None
    chain._put(account, bytes(theirs.data))  # noqa: SLF001 - as its owner's signature leaves it
    names.append(executed(node, paying(node, 1_000)))
    chain._put(account, bytes(own.data))  # noqa: SLF001 - closed and opened anew
    chain.next_slot(FINAL_SLOTS)
    found = await read_payments(solana, [], [wallet], [], range(10**6))
    assert [(one.transaction_hash, one.pay_to, one.holder) for one in found] == [
        (names[0], wallet, wallet),
        (names[1], account, thief),
    ]
    node.rpc = TellsNoHolders(chain)
    assert [one.holder for name in names for one in await payments_of(solana, name)] == ["", ""]


async def test_a_node_that_lists_the_same_page_again_and_again_is_not_listened_to_for_ever(
    node: SolanaNode, solana: SolanaChain
) -> None:
    node.rpc = ShowsOnePage(node.chain)
    key = payment_key(ASSET, read_transfer(paying(node, 1_000).payload()))
    async with asyncio.timeout(60):
        with pytest.raises(RpcUnavailable, match="the same transactions again"):
            await is_listed(solana.reader, key.payer, "5" * 87)
