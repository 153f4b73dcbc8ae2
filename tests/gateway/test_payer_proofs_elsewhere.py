"""Payers' proofs on Solana, and at gateways whose facilitator is not ours (contract 10.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway.composed import composed, settings_for
from tests.gateway.foreign_on_evm import run_foreign
from tests.gateway.foreign_on_solana import run_foreign_on_solana
from tests.gateway.ordering import honour_payment
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import NETWORK, SolanaMarket
from tests.gateway.test_used_solana_payments import RECENT_SLOTS, Place, place_of
from tests.gateway.version2 import SOLANA, Client, decoded, receipt, shown, signed, transacted, wallet_of
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.x402.version1 import EvmPayload, parse_payload
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets
from tollkeeper.settings.model import NetworkSettings, Role

PAYEE = "0x" + "77" * 20


def left(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return answer.headers["x-credits-remaining"]


async def payer_at(market: SolanaMarket, **fields: object) -> Client:
    return Client(market.buyer, (await market.gate(**fields))["accessUrl"])


async def payment(market: SolanaMarket, payer: Client) -> str:
    offer = await payer.offer(SOLANA)
    return shown(offer, await transacted(market, offer))


@pytest.fixture
async def place(tmp_path: Path, target: RecordingTarget) -> AsyncIterator[Place]:
    async with place_of(tmp_path, target) as running:
        yield running


async def test_on_solana_a_signed_payment_spends_what_its_payer_holds(place: Place) -> None:
    async with place.market() as market:
        payer, before = await payer_at(market, credits=3), await market.balance(market.owner)
        proofs = [await payment(market, payer) for _ in range(7)]
        answers = [await payer.pay(proof) for proof in proofs]
        assert [left(answer) for answer in answers] == [*"2102102"]
        assert [(receipt(answer) or {}).get("amount") for answer in answers[:3]] == [None, "0", "0"]
        assert await market.balance(market.owner) - before == 30_000
        again = await payer.pay(proofs[1])
        assert (again.status, again.error_code) == (403, "CREDIT_TOKEN_REQUIRED")
        assert [left(await payer.pay(await payment(market, payer))) for _ in range(2)] == ["1", "0"]
        late = await payer.pay(proofs[1])
        assert (late.status, late.error_code) == (402, "NONCE_ALREADY_USED")
        kept = b"".join(path.read_bytes() for path in place.directory.iterdir() if path.is_file())
        for proof in (*proofs[1:3], *proofs[4:6]):
            transaction = decoded(proof)["payload"]["transaction"]
            assert transaction.encode() not in kept
            assert proof.encode() not in kept


async def test_on_solana_what_is_old_or_used_spends_nothing(place: Place) -> None:
    async with place.market() as market:
        payer = await payer_at(market, credits=3)
        assert left(await payer.pay(await payment(market, payer))) == "2"
        used, old = await payment(market, payer), await payment(market, payer)
        body = decoded(used)
        asked = {"x402Version": 2, "paymentPayload": body, "paymentRequirements": body["accepted"]}
        settled = await market.buyer.ask("POST", market.url + "/hub/settle", body=asked)
        assert settled.json()["success"] is True
        refused = await payer.pay(used)
        assert (refused.status, refused.error_code) == (402, "NONCE_ALREADY_USED")
        place.node.chain.next_slot(RECENT_SLOTS + 1)
        late = await payer.pay(old)
        assert (late.status, late.error_code) == (402, "PAYMENT_EXPIRED")
        assert left(await payer.pay(await payment(market, payer))) == "1"


async def test_what_was_shown_is_forgotten_once_no_block_can_hold_it(place: Place) -> None:
    async with place.market() as market:
        payer = await payer_at(market, credits=9)

        async def spend() -> int:
            assert (await payer.pay(await payment(market, payer))).status == 200
            with beside(place.directory / "main.db") as database:
                (count,) = database.execute("SELECT count(*) FROM purchases WHERE state = 'SHOWN'").fetchone()
            return int(count)

        assert [await spend() for _ in range(3)] == [0, 1, 2]
        place.node.chain.next_slot(RECENT_SLOTS + 1)
        assert await spend() == 3
        place.node.chain.next_slot(2 * RECENT_SLOTS + FINAL_SLOTS)
        assert await spend() == 1


@asynccontextmanager
async def gateway_of(
    facilitator: str, folder: Path, nodes: tuple[str, ...], name: str = NETWORK
) -> AsyncIterator[tuple[str, Buyer]]:
    network = NETWORKS[name]
    networks = {name: NetworkSettings(network, nodes)} if nodes else {}
    settings: dict[str, Any] = {
        "role": Role.GATEWAY,
        "hub_url": facilitator,
        "networks": networks,
        "default_network": network,
    }
    async with (
        composed("", folder / "gateway.db", **settings) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        yield url, buyer


@pytest.mark.parametrize("sees", [True, False])
async def test_with_another_facilitator_a_node_of_the_gateway_s_own_says_what_is_unused_on_solana(
    place: Place, tmp_path: Path, target: RecordingTarget, *, sees: bool
) -> None:
    node = place.node
    async with (
        run_foreign_on_solana(node) as foreign,
        gateway_of(foreign.url, tmp_path, (node.url,) if sees else ()) as (url, buyer),
    ):
        market = SolanaMarket(url, node.url, derive_solana_wallets(), target, buyer)
        payer, before = await payer_at(market, credits=3, assumeValid=not sees), await market.balance(market.owner)
        answers = [await payer.pay(await payment(market, payer)) for _ in range(3)]
        assert [left(answer) for answer in answers] == (["2", "1", "0"] if sees else ["2"] * 3)
        assert await market.balance(market.owner) - before == (10_000 if sees else 30_000)
        if sees:
            assert left(await payer.pay(await payment(market, payer))) == "2"
            used = await payment(market, payer)
            await foreign.send(foreign.read(decoded(used)["payload"]))
            refused = await payer.pay(used)
            assert (refused.status, refused.error_code) == (402, "NONCE_ALREADY_USED")
            assert left(await payer.pay(await payment(market, payer))) == "1"


async def test_with_another_facilitator_a_node_of_the_gateway_s_own_says_what_is_unused(
    embedded_chain: ChainUnderTest, tmp_path: Path, target: RecordingTarget
) -> None:
    async with (
        run_foreign(embedded_chain) as foreign,
        gateway_of(foreign.url, tmp_path, (embedded_chain.url,), "base-sepolia") as (url, buyer),
    ):
        body = {"price": "0.01", "targetUrl": target.url, "paymentAddress": PAYEE, "credits": 3}
        gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
        payer = Client(buyer, gate["accessUrl"])
        assert [left(await payer.call()) for _ in range(4)] == [*"2102"]
        used = await payer.payment()
        payload = parse_payload(decoded(used)["payload"])
        assert isinstance(payload, EvmPayload)
        await foreign.send(payload)
        refused = await payer.pay(used)
        assert (refused.status, refused.error_code) == (402, "NONCE_ALREADY_USED")
        assert left(await payer.call()) == "1"
        assert embedded_chain.balance(PAYEE) == 30_000


async def test_a_proof_that_somebody_settles_all_the_same_is_honoured_once(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    database = tmp_path / "main.db"
    async with composed(embedded_chain.url, database) as url, Buyer(derive_wallets().buyer) as buyer:
        body = {"price": "0.01", "targetUrl": target.url, "paymentAddress": PAYEE, "credits": 2}
        gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
        payer = Client(buyer, gate["accessUrl"])
        offer, wallet = await payer.offer(), wallet_of(buyer)
        assert left(await payer.pay(signed(offer, wallet))) == "1"
        proof = signed(offer, wallet)
        assert left(await payer.pay(proof)) == "0"
        payload = parse_payload(decoded(proof)["payload"])
        assert isinstance(payload, EvmPayload)
        data = transfer_calldata(payload.authorization, payload.signature)
        made = embedded_chain.send_and_wait(embedded_chain.wallets.faucet, USDC_ADDRESS, data)
        assert (await payer.pay(proof)).status == 402
        order = {"gate": gate["slug"], "transaction": made["transactionHash"], "nonce": None}
        settings = settings_for(embedded_chain.url, database)
        outcomes = [(await honour_payment(settings, order))["done"] for _ in range(2)]
        assert [(one["credits"], one["isRepeated"]) for one in outcomes] == [(2, False), (2, True)]
        answers = [await payer.ask(X_Credit_Token=outcomes[0]["creditToken"]) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 402]
        assert (await payer.pay(proof)).status == 402
