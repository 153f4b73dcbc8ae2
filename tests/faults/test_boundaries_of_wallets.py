"""The boundaries of a payment whose payer is a contract, which says itself what it signed (ERC-1271; contract 5.1).

What `test_boundaries` does with a key's payments is done with a wallet's, and what only wallets come by: verify, which
asks the wallet; a wallet that says no; and one that says yes while nobody pays for its gas, and no in the transaction.
All of it again with wallets that their first payment deploys (ERC-6492; decision 0013). Whatever happens there, before
and after, with every fault: one success or one refusal (F1 to F5, F13 to F15; A-21).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.counterfactual import FACTORY, FutureWallet, plant_factory
from tests.faults.aftermath import assert_nothing_lost
from tests.faults.client import PRICE
from tests.faults.counts import came
from tests.faults.striking import Case, Victim, cases, faulty_hub
from tests.faults.test_boundaries import BOUNDARIES, STARTING, Sign, Through, carry_out
from tests.faults.test_recovery_boundaries import ASKING
from tests.hub.faulty_database import Kind, Moment
from tests.hub.hub_under_test import TestPayment, settle_body
from tests.hub.test_contract_wallets import SIGNATURE, YES_WHILE_GAS_IS_FREE, by_wallet
from tests.hub.test_counterfactual_wallets import BURNER, BURNS_IN_TRANSACTIONS
from tollkeeper.core.evm.encoding import ZERO_ADDRESS
from tollkeeper.sandbox.wallets import derive_wallet

# What verify waits for, which asks the payer's code for its word.
VERIFYING: Final = ("eth_call", "eth_getCode", "eth_getBlockByNumber")
# What the refusal of a settle waits for where the wallet says no, before anything is simulated.
REFUSING: Final = ("eth_getCode", "eth_call", "find_key")
# What a failure waits for that is proven by our own transaction, which reverted.
REVERTING: Final = (
    "claim_and_sign",
    "eth_sendRawTransaction",
    "eth_getTransactionReceipt",
    "transactions_of",
    "eth_call",
    "eth_getTransactionCount",
    "move_all",
)


@dataclass(frozen=True)
class Wallets:
    """How payments of contract wallets are made.

    `of` is whose: the buyer's, who signs them, or one's that another key signs for. `fickle`: of the wallet of that
    number, which says yes as long as nobody pays for gas: whoever does so often is suspended. `options`: of the hub.
    """

    of: Callable[[ChainUnderTest, bool], Sign]
    fickle: Callable[[ChainUnderTest, int], TestPayment]
    options: dict[str, Any]


def of_wallet(chain: ChainUnderTest, is_honest: bool) -> Sign:  # noqa: FBT001 - of a protocol
    """Of one wallet with money."""
    owner = chain.wallets.buyer if is_honest else chain.wallets.second_buyer
    wallet = chain.plant_smart_wallet(owner.address)
    chain.mint(wallet, 10_000_000)
    return partial(by_wallet, wallet=wallet)


def of_fickle_wallet(chain: ChainUnderTest, number: int) -> TestPayment:
    """Its code looks at the price of gas."""
    wallet = derive_wallet(f"fickle {number}", seed="boundaries of wallets").address
    chain.rpc.call("anvil_setCode", wallet, YES_WHILE_GAS_IS_FREE)
    chain.mint(wallet, PRICE)
    authorization = chain.authorization(payer=wallet)
    return TestPayment(authorization, settle_body(chain, authorization, chain.sign(authorization)))


def of_future_wallets(chain: ChainUnderTest, is_honest: bool) -> Sign:  # noqa: FBT001 - of a protocol
    """Each of a wallet of its own, which its payment deploys."""
    plant_factory(chain)
    owner = chain.wallets.buyer if is_honest else chain.wallets.second_buyer
    salts = itertools.count()

    def sign(chain: ChainUnderTest) -> TestPayment:
        return _deploying(FutureWallet(chain, salt=next(salts), owner=owner.address))

    return sign


def of_fickle_future_wallet(chain: ChainUnderTest, number: int) -> TestPayment:
    """Its factory is made to burn what gas there is, where gas costs something."""
    plant_factory(chain)
    chain.rpc.call("anvil_setCode", BURNER, BURNS_IN_TRANSACTIONS)
    return _deploying(FutureWallet(chain, salt=number), BURNER)


def _deploying(wallet: FutureWallet, target: str = ZERO_ADDRESS) -> TestPayment:
    wallet.chain.mint(wallet.address, PRICE)
    authorization = wallet.authorization()
    signature = wallet.sign(authorization, wallet.deployment(target))
    return TestPayment(authorization, settle_body(wallet.chain, authorization, signature))


THERE: Final = Wallets(of_wallet, of_fickle_wallet, {})
FUTURE: Final = Wallets(of_future_wallets, of_fickle_future_wallet, {"wallet_factories": [FACTORY]})


async def verify_through(
    directory: Path, chain: ChainUnderTest, chosen: list[Case], *, wallets: Wallets = THERE
) -> Victim:
    """A payment of each kind of wallet for each case: called what it is as soon as anything is said of it."""
    async with faulty_hub(directory, chain.url, **wallets.options) as hub:
        for is_honest in (True, False):
            sign = wallets.of(chain, is_honest)
            for case in chosen:
                payment = sign(chain)
                await hub.url()
                hub.prepare(case)
                async with asyncio.timeout(60):
                    while (said := await _verified(await hub.url(), payment)) is None or not hub.has_come(case):  # noqa: ASYNC110 - over HTTP
                        await asyncio.sleep(0.05)
                came(f"{case.kind.value} at a boundary of a wallet")
                assert (said["isValid"], said["invalidReason"]) == (is_honest, None if is_honest else SIGNATURE), case
                assert not chain.is_used(payment.authorization.payer, payment.authorization.nonce)
        await assert_nothing_lost(directory, chain, paid=[])
    return hub


async def _verified(url: str, payment: TestPayment) -> dict[str, Any] | None:
    """What is said of it; None where that is not known, or got lost."""
    try:
        async with aiohttp.ClientSession() as http, http.post(url + "/verify", json=payment.body) as answer:
            body: dict[str, Any] = await answer.json()
    except (aiohttp.ClientError, TimeoutError):
        return None
    assert answer.status == 200 or body["error"]["code"] == "UNAVAILABLE", body
    return body if answer.status == 200 else None


async def refuse_through(
    directory: Path, chain: ChainUnderTest, chosen: list[Case], *, wallets: Wallets = THERE
) -> Victim:
    """For each case a payment of a wallet that says no: refused, and nothing is signed for it."""
    sign, nonce, refused = wallets.of(chain, False), chain.nonce(chain.wallets.relayer), []
    async with faulty_hub(directory, chain.url, **wallets.options) as hub:
        for number, case in enumerate(chosen):
            payment = sign(chain)
            assert not await carry_out(hub, payment, f"key.{number}", case), case
            refused.append(payment.authorization)
        await assert_nothing_lost(directory, chain, paid=[], refused=refused)
    assert chain.nonce(chain.wallets.relayer) == nonce
    return hub


async def revert_through(
    directory: Path, chain: ChainUnderTest, chosen: list[Case], *, wallets: Wallets = THERE
) -> Victim:
    """For each case a payment of a wallet that changes its mind: one transaction of ours, which reverts."""
    nonce, refused = chain.nonce(chain.wallets.relayer), []
    async with faulty_hub(directory, chain.url, **wallets.options) as hub:
        for number, case in enumerate(chosen):
            payment = wallets.fickle(chain, number)
            assert not await carry_out(hub, payment, f"key.{number}", case), case
            assert chain.balance(payment.authorization.payer) == payment.authorization.value
            refused.append(payment.authorization)
        await assert_nothing_lost(directory, chain, paid=[], refused=refused)
    assert chain.nonce(chain.wallets.relayer) == nonce + len(refused)
    return hub


def through_wallets(through: Through, wallets: Wallets) -> Through:
    """What is done with a key's payments, done with such wallets'."""

    async def done(directory: Path, chain: ChainUnderTest, chosen: list[Case]) -> Victim:
        return await through(directory, chain, chosen, sign=wallets.of(chain, True), **wallets.options)

    return done


def done_with(wallets: Wallets) -> dict[str, tuple[Through, tuple[str, ...]]]:
    """What is done with them, through which boundaries."""
    return {
        "verify": (partial(verify_through, wallets=wallets), VERIFYING),
        "say no": (partial(refuse_through, wallets=wallets), REFUSING),
        "revert": (partial(revert_through, wallets=wallets), REVERTING),
        **{
            through.__name__: (through_wallets(through, wallets), boundaries)
            for through, boundaries in BOUNDARIES.items()
        },
    }


OF_WALLETS: Final = {
    **done_with(THERE),
    **{f"future: {name}": done for name, done in done_with(FUTURE).items()},
}


@pytest.fixture
def chain(name: str, request: pytest.FixtureRequest) -> ChainUnderTest:
    """Embedded; what a transaction pays for gas, anvil alone shows to a wallet."""
    found: ChainUnderTest = request.getfixturevalue("anvil_fiat_token" if name.endswith("revert") else "embedded_chain")
    return found


@pytest.mark.parametrize("name", ["verify", "revert", "future: settle_through"])
async def test_an_error_where_a_wallet_pays_ends_as_it_should_and_nothing_else_is_waited_for(
    tmp_path: Path, chain: ChainUnderTest, name: str
) -> None:
    through, boundaries = OF_WALLETS[name]
    hub = await through(tmp_path, chain, [Case(boundary, Moment.AFTER, Kind.ERROR) for boundary in boundaries[::3]])
    known = {boundary for _, boundaries in OF_WALLETS.values() for boundary in boundaries}
    assert {*boundaries} <= hub.seen <= {*known, *STARTING, ASKING}


async def test_a_hub_killed_where_a_wallet_pays_settles_once(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    chosen = [Case("eth_call", Moment.AFTER, Kind.ERROR), Case("eth_sendRawTransaction", Moment.AFTER, Kind.CRASH)]
    hub = await OF_WALLETS["settle_through"][0](tmp_path, embedded_chain, chosen)
    assert hub.starts == 2


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OF_WALLETS)
@pytest.mark.parametrize("kind", Kind)
async def test_every_kind_of_fault_where_a_wallet_pays_ends_as_it_should(
    tmp_path: Path, chain: ChainUnderTest, name: str, kind: Kind
) -> None:
    through, boundaries = OF_WALLETS[name]
    await through(tmp_path, chain, list(cases(boundaries, kind)))
