"""`/verify?explain=true`: every check of a payment, in its order, with what was expected and what was found."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.solana_node import WALLETS
from tests.core.solana_payments import encoded
from tests.hub.hub_under_test import HubUnderTest, new_payment
from tests.hub.solana_hub import NETWORK as SOLANA
from tests.hub.solana_hub import SolanaHub, body_of, run_solana_hub
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.evm.node import USDC_ADDRESS

Checks: TypeAlias = dict[str, tuple[Any, Any]]

# What every request of version 1 shows first.
VERSIONS: Final[Checks] = {"request.x402Version": (1, 1), "x402Version": (1, 1), "scheme": ("exact", "exact")}
BAD_SIGNATURE: Final = bytes(64) + b"\x1b"


def good_on_evm(chain: ChainUnderTest, body: dict[str, Any]) -> Checks:
    """A good payment's, but for the times, which a clock decides."""
    signed = body["paymentPayload"]["payload"]["authorization"]
    domain = {"name": chain.token_name, "version": "2"}
    payer, owner = chain.wallets.buyer.address.lower(), chain.wallets.owner.address.lower()
    return {
        **VERSIONS,
        "network": (["base-sepolia"], "base-sepolia"),
        "payload": ("authorization", "authorization"),
        "requirements.scheme": ("exact", "exact"),
        "requirements.network": ("base-sepolia", "base-sepolia"),
        "requirements.asset": (USDC_ADDRESS, USDC_ADDRESS),
        "recipient": (owner, owner),
        "value": ("10000", signed["value"]),
        "validBefore": (">= ", signed["validBefore"]),
        "validAfter": ("< ", signed["validAfter"]),
        "deployed": ("deployed", "deployed"),
        "assetCode": (True, True),
        "signature": ({"signer": payer, "domain": domain}, payer),
        "nonceUnused": ("unused", "unused"),
        "balance": (signed["value"], str(chain.balance(payer))),
        "simulation": (None, None),
    }


def assert_told(answer: Any, good: Checks, wrong: Checks) -> None:
    """All of the good payment's checks, in their order, and each that is wrong as it is."""
    assert answer.status == 200
    wanted = {**good, **wrong}
    told = {check["name"]: (check["expected"], check["actual"]) for check in answer.body["checks"]}
    for name, word in (("validBefore", ">= "), ("validAfter", "< ")):
        if name in told:
            expected, actual = told[name]
            assert expected.startswith(word)
            assert expected.removeprefix(word).isdecimal()
            told[name] = (word, actual)
    assert list(told.items()) == list(wanted.items())
    assert len(told) == len(answer.body["checks"])
    assert [check["name"] for check in answer.body["checks"] if not check["ok"]] == list(wrong)
    assert answer.body["isValid"] is (not wrong)


@pytest.mark.parametrize("case", ["good", "too little", "another payee", "another's signature", "asset", "no money"])
async def test_every_check_of_an_evm_payment_is_told_in_order(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, case: str
) -> None:
    chain = embedded_chain
    owner, elsewhere, other = chain.wallets.owner.address.lower(), "0x" + "55" * 20, "0x" + "66" * 20
    plain = new_payment(chain)
    balance = str(chain.balance(chain.wallets.buyer.address))
    much = str(10**15)
    bodies: dict[str, tuple[dict[str, Any], Checks]] = {
        "good": (plain.body, {}),
        "too little": (new_payment(chain, value=9_999).body, {"value": ("10000", "9999")}),
        "another payee": (plain.requiring(payTo=elsewhere), {"recipient": (elsewhere, owner)}),
        "another's signature": (
            new_payment(chain, signature=BAD_SIGNATURE).body,
            {
                "signature": (
                    good_on_evm(chain, plain.body)["signature"][0],
                    "no key could have made this signature",
                ),
            },
        ),
        "asset": (plain.requiring(asset=other), {"requirements.asset": (USDC_ADDRESS, other)}),
        "no money": (
            new_payment(chain, value=10**15).body,
            {"balance": (much, balance), "simulation": (None, "ERC20: transfer amount exceeds balance")},
        ),
    }
    body, wrong = bodies[case]
    good = good_on_evm(chain, body)
    if "signature" in wrong:  # of what nobody signed no node is asked
        names = list(good)
        good = {name: good[name] for name in (*names[: names.index("assetCode")], "signature")}
    assert_told(await hub.post("/verify?explain=true", body), good, wrong)


async def test_an_expired_evm_payment_is_told_its_end_once(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    expired = new_payment(embedded_chain, valid_before=embedded_chain.now() - 60)
    end = expired.body["paymentPayload"]["payload"]["authorization"]["validBefore"]
    answer = await hub.post("/verify?explain=true", expired.body)
    told = [check for check in answer.body["checks"] if check["name"] == "validBefore"]
    assert [(check["ok"], check["actual"]) for check in told] == [(False, end)]
    names = [check["name"] for check in answer.body["checks"]]
    assert names == list(good_on_evm(embedded_chain, expired.body))


async def test_another_version_of_the_request_is_told_beside_every_other_check(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    body = new_payment(embedded_chain).asking(x402Version=3)
    answer = await hub.post("/verify?explain=true", body)
    assert_told(answer, good_on_evm(embedded_chain, body), {"request.x402Version": ([1, 2], 3)})


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("explain=true&explain=true", "explain"),
        ("explain=true&explain=", "explain"),
        ("x=1&explain=false&%65xplain=true", "explain"),
        ("other=1&other=2", "other"),
    ],
)
async def test_a_parameter_that_comes_twice_is_refused(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, query: str, field: str
) -> None:
    answer = await hub.post(f"/verify?{query}", new_payment(embedded_chain).body)
    assert (answer.status, answer.body["error"]["code"]) == (400, "INVALID_PARAMETER")
    assert answer.body["error"]["details"] == {"field": field}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SolanaHub]:
    async with run_solana_hub(tmp_path) as running:
        yield running


def good_on_solana(world: SolanaHub, value: str) -> Checks:
    """A good payment's, of what `paying` makes."""
    token, mint = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA", NETWORKS[SOLANA].usdc.address
    chain, buyer = world.node.chain, WALLETS.buyer.address
    source, owner = chain.open_account(buyer), chain.open_account(WALLETS.owner.address)
    payers = [one.address for one in WALLETS.fee_payers]
    return {
        **VERSIONS,
        "network": ([SOLANA], SOLANA),
        "payload": ("transaction", "transaction"),
        "requirements.scheme": ("exact", "exact"),
        "requirements.network": ([SOLANA, SOLANA], SOLANA),
        "transaction": (None, None),
        "lookupTables": (0, 0),
        "instructionCount": ("3 to 7", 4),
        "feePayer": (payers, payers[0]),
        "feePayerIsolated": ([], []),
        "computeLimit": ("SetComputeUnitLimit", 20_000),
        "computeLimitMax": ("<= 400000", 20_000),
        "computePrice": ("SetComputeUnitPrice", 1),
        "computePriceMax": ("<= 100000", 1),
        "afterTransfer": ("only Memo and Lighthouse", []),
        "moved": ("> 0", value),
        "transfer": (token, token),
        "transferChecked": (f"TransferChecked of {token}", token),
        "signers": (2, 2),
        "authority": ("the second signer", buyer),
        "destination": ("another account than the source", owner),
        "mint": (mint, mint),
        "decimals": (6, 6),
        "feePayerSignature": ("64 zero bytes", "00" * 64),
        "signature": (buyer, True),
        "requirements.asset": (mint, mint),
        "requirements.feePayer": (payers[0], payers[0]),
        "recipient": (owner, owner),
        "value": ("10000", value),
        "unprocessed": ("not yet on the chain", None),
        "blockhash": ("one of the 150 newest blockhashes", True),
        "blocksLeft": ("a blockhash that is taken for 20 more blocks", 150),
        "recipientAccount": (owner, True),
        "payerAccount": (source, True),
        "balance": (value, str(chain.token_balance(source))),
        "simulation": (None, None),
    }


@pytest.mark.parametrize("case", ["good", "too little", "another payee", "another version"])
async def test_every_check_of_a_solana_payment_is_told_in_order(world: SolanaHub, case: str) -> None:
    chain = world.node.chain
    few = world.payment(9_999)
    few["paymentRequirements"]["maxAmountRequired"] = "10000"
    elsewhere = world.payment()
    elsewhere["paymentRequirements"]["payTo"] = WALLETS.buyer.address
    accounts = chain.open_account(WALLETS.buyer.address), chain.open_account(WALLETS.owner.address)
    bodies: dict[str, tuple[dict[str, Any], Checks]] = {
        "good": (world.payment(), {}),
        "too little": (few, {"value": ("10000", "9999")}),
        "another payee": (elsewhere, {"recipient": accounts}),
        "another version": ({**world.payment(), "x402Version": 3}, {"request.x402Version": ([1, 2], 3)}),
    }
    body, wrong = bodies[case]
    value = "9999" if case == "too little" else "10000"
    assert_told(await world.hub.post("/verify?explain=true", body), good_on_solana(world, value), wrong)


async def test_nothing_is_told_of_a_transaction_that_cannot_be_read_but_that(world: SolanaHub) -> None:
    good = good_on_solana(world, "10000")
    readable = {name: good[name] for name in list(good)[: list(good).index("transaction") + 1]}
    answer = await world.hub.post("/verify?explain=true", body_of(encoded(b"x"), 1))
    assert_told(answer, readable, {"transaction": ("a transaction", "the transaction ends early")})
