"""`tollkeeper payments honour`: what somebody else carried out is granted by hand, once (contract 4.3; A-08, A-09)."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished
from tests.core.solana_payments import (
    Draft,
    account_of,
    compute_limit,
    compute_price,
    instruction,
    readable,
    signer,
    transfer,
    writable,
)
from tests.engines import beside
from tests.faults.shop import Shop, url_of
from tests.gateway import foreign_facilitator as foreign_ways
from tests.gateway.composed import composed, settings_for
from tests.gateway.foreign_on_evm import run_foreign
from tests.gateway.hostile_hub import Forward, pass_on, run_hostile_hub
from tests.gateway.ordering import honour_payment
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import SolanaMarket, mainnet_market
from tests.hub.chaos import run_chaos
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.settlement.reconciliation import Difference
from tollkeeper.core.solana.programs import TOKEN_PROGRAM
from tollkeeper.core.x402.version1 import EvmPayload, decode_payment_header
from tollkeeper.gateway.purchase import recovery
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets, fee_payers_of
from tollkeeper.serving import StartError
from tollkeeper.serving.books.inspection import inspect_books
from tollkeeper.serving.books.reconciliation import compare_with_chain
from tollkeeper.settings.model import DepthSettings, NetworkSettings, Role

PAYEE = "0x" + "77" * 20


def relay(chain: ChainUnderTest, payment: str) -> str:
    """Carried out by a stranger; the hash."""
    payload = decode_payment_header(payment.encode()).payload
    assert isinstance(payload, EvmPayload)
    data = transfer_calldata(payload.authorization, payload.signature)
    receipt = chain.send_and_wait(chain.wallets.faucet, USDC_ADDRESS, data)
    assert receipt["status"] == "0x1"
    transaction: str = receipt["transactionHash"]
    return transaction


@dataclass(slots=True)
class Honour:
    """The program on its settings, and a buyer."""

    url: str
    settings: Any
    chain: ChainUnderTest
    target: RecordingTarget
    buyer: Buyer

    async def gate(self, **fields: object) -> dict[str, Any]:
        body = {"price": "0.01", "targetUrl": self.target.url, "paymentAddress": PAYEE, "credits": 2, **fields}
        answer = await self.buyer.ask("POST", self.url + "/api/v1/paygates", body=body)
        assert answer.status == 201, answer.body
        gate: dict[str, Any] = answer.json()
        return gate

    async def payment(self, gate: dict[str, Any]) -> str:
        return self.buyer.sign((await self.buyer.ask("GET", gate["accessUrl"])).json())

    async def honour(self, gate: dict[str, Any], transaction: str, nonce: str | None = None) -> dict[str, Any]:
        return await honour_payment(self.settings, {"gate": gate["slug"], "transaction": transaction, "nonce": nonce})


@pytest.fixture
async def shop(tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget) -> AsyncIterator[Honour]:
    database = tmp_path / "tollkeeper.db"
    async with composed(embedded_chain.url, database) as url, Buyer(derive_wallets().buyer) as buyer:
        yield Honour(url, settings_for(embedded_chain.url, database), embedded_chain, target, buyer)


async def honoured_once(shop: Honour, gate: dict[str, Any], transaction: str) -> dict[str, Any]:
    """Of five orders to honour it one grants it, and all of them tell its credit token."""
    outcomes = await asyncio.gather(*(shop.honour(gate, transaction) for _ in range(5)))
    told: list[dict[str, Any]] = [outcome["done"] for outcome in outcomes]
    assert sorted(one["isRepeated"] for one in told) == [False, True, True, True, True]
    (granted,) = [one for one in told if not one["isRepeated"]]
    assert all(one == {**granted, "isRepeated": True} for one in told if one["isRepeated"])
    return granted


async def test_a_payment_that_a_stranger_carried_out_buys_nothing_until_it_is_honoured_once(shop: Honour) -> None:
    gate = await shop.gate()
    payment = await shop.payment(gate)
    before = shop.chain.rpc.call("evm_snapshot")
    transaction = relay(shop.chain, payment)
    refused = await shop.buyer.call(gate["accessUrl"], payment)
    assert (refused.status, refused.error_code) == (402, "NONCE_ALREADY_USED")
    assert refused.json()["error"]["details"]["transaction"] == transaction

    done = await honoured_once(shop, gate, transaction)
    assert (done["credits"], done["paid"], done["transaction"]) == (2, "0.01", transaction)

    by_header = await shop.buyer.call(gate["accessUrl"], payment)
    assert (by_header.status, by_header.error_code) == (403, "CREDIT_TOKEN_REQUIRED")  # the header is public
    token = {"X-Credit-Token": done["creditToken"]}
    answers = [await shop.buyer.ask("GET", gate["accessUrl"], headers=token) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 402]
    assert shop.chain.balance(PAYEE) == 10_000
    assert await compare_with_chain(shop.settings) == []
    assert shop.chain.rpc.call("evm_revert", before)
    assert await compare_with_chain(shop.settings) == [
        Difference("honoured_but_not_on_the_chain", done["purchaseId"], transaction)
    ]


async def test_a_payment_that_our_hub_made_for_another_server_and_that_is_honoured_is_no_difference(
    shop: Honour,
) -> None:
    gate = await shop.gate()
    requirements = (await shop.buyer.ask("GET", gate["accessUrl"])).json()["accepts"][0]
    payment = json.loads(base64.b64decode(await shop.payment(gate)))
    body = {"x402Version": 1, "paymentPayload": payment, "paymentRequirements": requirements, "confirm": True}
    settled = (await shop.buyer.ask("POST", f"{shop.url}/hub/settle", body=body)).json()
    assert settled["success"] is True
    assert (await shop.honour(gate, settled["transaction"]))["done"]["credits"] == 2
    assert await compare_with_chain(shop.settings) == []


async def test_only_a_payment_of_the_price_to_the_gate_that_the_chain_shows_is_honoured(shop: Honour) -> None:
    gate, dear, other = await shop.gate(), await shop.gate(price="5"), await shop.gate(paymentAddress="0x" + "66" * 20)
    transaction = relay(shop.chain, await shop.payment(gate))
    for wrong in (dear, other):
        assert "no payment" in (await shop.honour(wrong, transaction))["error"]
    assert "no payment" in (await shop.honour(gate, "0x" + "ab" * 32))["error"]
    assert "no payment" in (await shop.honour(gate, transaction, "0x" + "cd" * 32))["error"]
    assert "no PayGate" in (await shop.honour({"slug": "nothing"}, transaction))["error"]
    for hash_text, nonce in (("0x12", None), (transaction[:-1] + "g", None), (transaction, "7")):
        assert "64 hex digits" in (await shop.honour(gate, hash_text, nonce))["error"]
    assert "done" in await shop.honour(gate, "0x" + transaction[2:].upper())


@pytest.mark.parametrize(("price", "blocks"), [("0.01", 3), ("0.02", 5)], ids=["any amount", "a larger one"])
async def test_a_payment_is_honoured_at_the_depth_that_its_amount_needs_and_not_before(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, price: str, blocks: int
) -> None:
    database, depths = tmp_path / "tollkeeper.db", DepthSettings(3, ((20_000, 5),))
    settings = settings_for(embedded_chain.url, database, depths=depths)
    async with (
        composed(embedded_chain.url, database, depths=depths) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        shop = Honour(url, settings, embedded_chain, target, buyer)
        gate = await shop.gate(price=price)
        transaction = relay(shop.chain, await shop.payment(gate))
        for _ in range(blocks - 1):
            assert "not deep enough yet" in (await shop.honour(gate, transaction))["error"]
            shop.chain.rpc.call("evm_mine")
        assert "done" in await shop.honour(gate, transaction)


async def test_a_payment_on_solana_that_the_hub_made_for_another_server_is_honoured_once(
    tmp_path: Path, target: RecordingTarget
) -> None:
    """A resource server of somebody else's settled it; it reached the gate's wallet, in its price."""
    async with mainnet_market(target, tmp_path) as market:
        gate, dear = await market.gate(credits=2), await market.gate(price="0.02")
        network = NETWORKS[market.network]
        networks = {network.name: NetworkSettings(network, (market.rpc_url,))}
        settings = settings_for("", tmp_path / "main.db", networks=networks, default_network=network)
        draft = await market.draft(await market.requirements(gate))
        transfer = {
            "network": market.network,
            "payload": {"transaction": draft.payload().transaction},
            "asset": network.usdc.address,
            "amount": "10000",
            "recipient": market.owner,
        }
        made = (await market.buyer.ask("POST", f"{market.url}/hub/transfer", body=transfer)).json()
        assert made["success"] is True

        async def honour(slug: str, transaction: str, nonce: str | None = None) -> dict[str, Any]:
            return await honour_payment(settings, {"gate": slug, "transaction": transaction, "nonce": nonce})

        assert "no payment" in (await honour(gate["slug"], made["transaction"]))["error"], "it is not final yet"
        await market.node("sandbox_advance", 40)
        assert "no payment" in (await honour(dear["slug"], made["transaction"]))["error"]
        assert "no payment" in (await honour(gate["slug"], made["transaction"], "ab" * 32))["error"]
        assert "no payment" in (await honour(gate["slug"], "1" * 64))["error"]
        assert "64 hex digits" in (await honour(gate["slug"], made["transaction"], "0x12"))["error"]
        assert "no network" in (await honour(gate["slug"], "0x" + "ab" * 32))["error"]
        done = (await honour(gate["slug"], made["transaction"]))["done"]
        assert (done["payer"], done["credits"], done["paid"]) == (str(market.wallet.pubkey()), 2, "0.01")
        assert (await honour(gate["slug"], made["transaction"]))["done"] == {**done, "isRepeated": True}
        token = {"X-Credit-Token": done["creditToken"]}
        calls = [(await market.buyer.ask("GET", gate["accessUrl"], headers=token)).status for _ in range(3)]
        assert calls == [200, 200, 402]


async def test_a_payment_is_honoured_on_whichever_of_a_gates_networks_it_was_made(
    tmp_path: Path, target: RecordingTarget
) -> None:
    """A transaction's name says which family its network is of, and no more."""
    wallets = replace(derive_solana_wallets(), fee_payers=fee_payers_of(derive_wallets().relayer.private_key))
    first, second = NETWORKS["solana-mainnet"], NETWORKS["solana-devnet"]
    async with (
        SolanaNode(wallets=wallets, network=first, slot_seconds=None) as one,
        SolanaNode(wallets=wallets, network=second, slot_seconds=None) as two,
    ):
        nodes = {network.name: NetworkSettings(network, (node.url,)) for network, node in ((first, one), (second, two))}
        both: dict[str, Any] = {"networks": nodes, "default_network": first}
        settings = settings_for("", tmp_path / "main.db", **both)
        async with (
            composed("", tmp_path / "main.db", **both) as url,
            Buyer(derive_wallets().buyer) as buyer,
        ):
            market = SolanaMarket(url, two.url, wallets, target, buyer, first.name)
            accepts = [{"network": second.name, "paymentAddress": market.owner}]
            gate = await market.gate(credits=2, accepts=accepts)
            wanted = await market.requirements(gate, X_Payment_Network=second.name)
            moved = {
                "network": second.name,
                "payload": {"transaction": (await market.draft(wanted)).payload().transaction},
                "asset": second.usdc.address,
                "amount": "10000",
                "recipient": market.owner,
            }
            made = (await buyer.ask("POST", f"{url}/hub/transfer", body=moved)).json()
            order = {"gate": gate["slug"], "transaction": made["transaction"], "nonce": None}
            assert "no payment" in (await honour_payment(settings, order))["error"], "it is not final yet"
            two.chain.next_slot(40)
            assert (await honour_payment(settings, order))["done"]["credits"] == 2


async def test_nobody_has_honoured_what_moved_nothing(tmp_path: Path, target: RecordingTarget) -> None:
    """Whom the seller lets spend names its account as both ends: the chain calls it a success, and nobody was paid.

    Nor was he whose account was signed away to who was paid there, also where that one has closed it since, and it was
    opened anew for its wallet.
    """
    async with mainnet_market(target, tmp_path) as market:
        gate = await market.gate()
        network = NETWORKS[market.network]
        networks = {network.name: NetworkSettings(network, (market.rpc_url,))}
        settings = settings_for("", tmp_path / "main.db", networks=networks, default_network=network)
        seller, stranger, spender = Keypair.from_seed(market.wallets.owner.seed), Keypair(), market.wallet
        account = account_of(market.owner, network.usdc.address)
        await market.node("sandbox_openAccount", market.owner, 10_000)

        async def carried_out(fee_payer: Keypair, *used: Instruction, signers: tuple[Keypair, ...] = ()) -> str:
            await market.node("requestAirdrop", str(fee_payer.pubkey()), 10**9)
            latest = await market.node("getLatestBlockhash")
            blockhash = bytes(Hash.from_string(latest["value"]["blockhash"]))
            draft = Draft(used, fee_payer.pubkey(), (fee_payer, *signers), blockhash)
            text = base64.b64encode(bytes(draft.transaction())).decode()
            name = str(await market.node("sendTransaction", text, {"encoding": "base64"}))
            (status,) = (await market.node("getSignatureStatuses", [name]))["value"]
            assert status["err"] is None
            return name

        approval = b"\x04" + (10_000).to_bytes(8, "little")
        accounts = [writable(account), readable(spender.pubkey()), signer(seller.pubkey())]
        await carried_out(seller, instruction(TOKEN_PROGRAM, approval, accounts))
        moved = transfer(payer=spender.pubkey(), pay_to=market.owner, mint=network.usdc.address, source=account)
        transaction = await carried_out(stranger, compute_limit(), compute_price(), moved, signers=(spender,))
        await market.node("sandbox_advance", 40)
        told = await honour_payment(settings, {"gate": gate["slug"], "transaction": transaction, "nonce": None})
        assert "no payment" in told.get("error", ""), told
        assert await compare_with_chain(settings) == []

        await market.node("sandbox_openAccount", str(stranger.pubkey()))
        given_away = b"\x06\x02\x01" + bytes(stranger.pubkey())
        await carried_out(seller, instruction(TOKEN_PROGRAM, given_away, [writable(account), signer(seller.pubkey())]))
        moved = transfer(payer=spender.pubkey(), pay_to=market.owner, mint=network.usdc.address)
        transaction = await carried_out(stranger, compute_limit(), compute_price(), moved, signers=(spender,))
        await market.node("sandbox_advance", 40)
        order = {"gate": gate["slug"], "transaction": transaction, "nonce": None}
        assert f"belongs to {stranger.pubkey()} then" in (await honour_payment(settings, order)).get("error", "")
        held = int((await market.node("getTokenAccountBalance", str(account)))["value"]["amount"])
        taken = transfer(
            held, payer=stranger.pubkey(), pay_to=str(stranger.pubkey()), mint=network.usdc.address, source=account
        )
        ends = [writable(account), writable(stranger.pubkey()), signer(stranger.pubkey())]
        await carried_out(stranger, taken, instruction(TOKEN_PROGRAM, b"\x09", ends))
        await market.node("sandbox_openAccount", market.owner)
        assert f"belongs to {stranger.pubkey()} then" in (await honour_payment(settings, order)).get("error", "")


async def test_what_was_sold_in_the_usual_way_is_not_honoured(shop: Honour) -> None:
    gate = await shop.gate()
    payment = await shop.payment(gate)
    answer = await shop.buyer.call(gate["accessUrl"], payment)
    assert answer.receipt is not None
    assert "LIVE" in (await shop.honour(gate, answer.receipt["transaction"]))["error"]
    elsewhere = await shop.honour(await shop.gate(), answer.receipt["transaction"])
    assert "was claimed at another PayGate, by purchase pur_" in elsewhere["error"]


@pytest.mark.sqlite_only("the socket for orders lies beside the file")
async def test_without_a_server_nothing_is_honoured_and_the_command_says_so(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    database = tmp_path / "tollkeeper.db"
    settings = settings_for(embedded_chain.url, database)
    async with Buyer(derive_wallets().buyer) as buyer:
        async with composed(embedded_chain.url, database) as url:
            shop = Honour(url, settings, embedded_chain, target, buyer)
            gate = await shop.gate()
            payment = await shop.payment(gate)
            assert stat.S_IMODE((tmp_path / "tollkeeper.db.control").stat().st_mode) == 0o600
        assert not (tmp_path / "tollkeeper.db.control").exists()
        transaction = relay(embedded_chain, payment)
        with pytest.raises(StartError, match=r"no server runs on .*, and it carries orders out: start it"):
            await shop.honour(gate, transaction)
        async with composed(embedded_chain.url, database) as url:
            done = (await shop.honour(gate, transaction))["done"]
            token = {"X-Credit-Token": done["creditToken"]}
            assert (await buyer.ask("GET", f"{url}/{gate['slug']}", headers=token)).status == 200


@pytest.mark.sqlite_only("the socket for orders lies beside the file")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "{}",
        '{"order": "nothing"}',
        '{"order": "honour", "gate": 1}',
        '{"order": "revoke"}',
        "9" * 70_000,
    ],
)
async def test_an_order_that_cannot_be_read_does_nothing_and_is_told_so(
    shop: Honour, text: str, tmp_path: Path
) -> None:
    reader, writer = await asyncio.open_unix_connection(tmp_path / "tollkeeper.db.control")
    writer.write(text.encode() + b"\n")
    told = await reader.read()
    writer.close()
    assert told in {b"", b'{"error": "the order cannot be read"}\n'}
    assert (told == b"") == (len(text) > 65_536)
    assert "no PayGate" in (await shop.honour({"slug": "nothing"}, "0x" + "ab" * 32))["error"]


@asynccontextmanager
async def parking_shop(
    folder: Path, chain: ChainUnderTest, target: RecordingTarget, *also: str
) -> AsyncIterator[Honour]:
    """A gateway whose facilitator carries out what it calls an error, and names no signers.

    `also`: networks that it says it settles on, whose nodes are away.
    """
    database = folder / "gateway.db"
    async with run_foreign(chain) as foreign, Buyer(derive_wallets().buyer) as buyer:
        foreign.signers, foreign.settling, foreign.also = [], foreign_ways.error_after_sending, also
        networks = dict(settings_for(chain.url, database).networks)
        networks |= {network: NetworkSettings(NETWORKS[network], ("http://127.0.0.1:9",)) for network in also}
        changes: dict[str, Any] = {"role": Role.GATEWAY, "hub_url": foreign.url, "networks": networks}
        with pytest.MonkeyPatch.context() as impatient:
            impatient.setattr(recovery, "SETTLE_REQUEST_LIFETIME_SECONDS", 2)
            impatient.setattr(recovery, "_EXPIRY_MARGIN_SECONDS", 1)
            async with composed(chain.url, database, **changes) as url:
                yield Honour(url, settings_for(chain.url, database, **changes), chain, target, buyer)


async def until_parked(shop: Honour) -> None:
    """Until the one claim is the operator's."""
    async with asyncio.timeout(60):
        while "a_claim_has_an_outcome" not in {found.rule for found in inspect_books(shop.settings)}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_a_parked_claim_is_honoured_by_the_terms_that_were_claimed(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with parking_shop(tmp_path, embedded_chain, target) as shop:
        gate = await shop.gate()
        payment = await shop.payment(gate)
        assert (await shop.buyer.call(gate["accessUrl"], payment)).status == 503
        await until_parked(shop)
        changed = await shop.buyer.ask(
            "PUT", f"{shop.url}/api/v1/paygates/{gate['id']}", body={"price": "9", "credits": 7}
        )
        assert changed.status == 200
        embedded_chain.rpc.call("anvil_mine", 6)
        (difference,) = await compare_with_chain(shop.settings)
        assert difference.rule == "carried_out_but_open"
        done = (await shop.honour(gate, difference.found.split(", ")[1].split(" ")[0]))["done"]
        assert done["credits"] == 2
        token = {"X-Credit-Token": done["creditToken"]}
        assert (await shop.buyer.ask("GET", gate["accessUrl"], headers=token)).status == 200
        assert await compare_with_chain(shop.settings) == []


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_parked_claim_is_honoured_on_the_network_that_its_gate_has_left(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, *, is_deleted: bool
) -> None:
    async with parking_shop(tmp_path, embedded_chain, target, "base") as shop:
        gate = await shop.gate()
        payment, unshown = [await shop.payment(gate) for _ in range(2)]
        assert (await shop.buyer.call(gate["accessUrl"], payment)).status == 503
        await until_parked(shop)
        place = f"{shop.url}/api/v1/paygates/{gate['id']}"
        moved = await shop.buyer.ask("PUT", place, body={"network": "base"})
        assert moved.json()["network"] == "base"
        if is_deleted:
            assert (await shop.buyer.ask("DELETE", place)).status == 200
        elsewhere = relay(embedded_chain, unshown)
        embedded_chain.rpc.call("anvil_mine", 6)
        own = {"base-sepolia": shop.settings.networks["base-sepolia"]}
        found = await compare_with_chain(replace(shop.settings, networks=own))
        (difference,) = [one for one in found if one.rule == "carried_out_but_open"]
        assert "error" in await shop.honour(gate, elsewhere)  # nobody has claimed it there
        done = (await shop.honour(gate, difference.found.split(", ")[1].split(" ")[0]))["done"]
        token = {"X-Credit-Token": done["creditToken"]}
        assert (await shop.buyer.ask("GET", gate["accessUrl"], headers=token)).status == 200


async def test_what_was_parked_at_a_gate_that_was_deleted_since_is_honoured_and_served_once(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with parking_shop(tmp_path, embedded_chain, target) as shop:
        gate = await shop.gate()
        payment, unshown = [await shop.payment(gate) for _ in range(2)]
        assert (await shop.buyer.call(gate["accessUrl"], payment)).status == 503
        await until_parked(shop)
        assert (await shop.buyer.ask("DELETE", f"{shop.url}/api/v1/paygates/{gate['id']}")).status == 200
        assert (await shop.buyer.call(gate["accessUrl"], payment)).status == 503
        embedded_chain.rpc.call("anvil_mine", 6)
        (difference,) = await compare_with_chain(shop.settings)
        done = (await shop.honour(gate, difference.found.split(", ")[1].split(" ")[0]))["done"]
        token = {"X-Credit-Token": done["creditToken"]}
        held = (await shop.buyer.ask("GET", shop.url + "/api/v1/credits", headers=token)).json()["data"]
        assert [one["remaining"] for one in held] == [0]  # as of every sale of a deleted gate; one call is due
        served = [(await shop.buyer.ask("GET", gate["accessUrl"], headers=token)).status for _ in range(2)]
        assert served == [200, 404]
        again = (await shop.honour(gate, done["transaction"])).get("done", {})
        assert (again.get("isRepeated"), again.get("creditToken")) == (True, done["creditToken"])
        assert (done["credits"], again["credits"]) == (1, 0)
        elsewhere = relay(embedded_chain, unshown)
        embedded_chain.rpc.call("anvil_mine", 6)
        assert "was deleted" in (await shop.honour(gate, elsewhere))["error"]  # it bought nothing there


async def test_the_command_prints_the_credit_token_beside_a_running_server(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with run_chaos(embedded_chain.url) as chaos, Buyer(derive_wallets().buyer) as buyer:
        program = await asyncio.to_thread(Shop, tmp_path / "home", embedded_chain, chaos.url)
        with program.serving() as running:
            url = await asyncio.to_thread(url_of, running)
            shop = Honour(url, None, embedded_chain, target, buyer)
            gate = await shop.gate()
            gate = {**gate, "accessUrl": f"{url}/{gate['slug']}"}
            transaction = relay(embedded_chain, await shop.payment(gate))
            arguments = ("payments", "honour", transaction, "--gate", gate["slug"], "--config", program.config)
            done = await asyncio.to_thread(finished, *arguments, environ=program.environ, is_forked=False)
            assert done.returncode == 0, done.stderr
            (line,) = [line for line in done.stdout.splitlines() if line.startswith("credit token")]
            token = {"X-Credit-Token": line.split()[-1]}
            assert (await buyer.ask("GET", gate["accessUrl"], headers=token)).status == 200
            again = await asyncio.to_thread(finished, *arguments, environ=program.environ)
            assert again.returncode == 0, again.stderr
            assert again.stdout.splitlines()[0].startswith("This payment was honoured before")
            assert (line in again.stdout.splitlines(), "1 credits of" in again.stdout) == (True, True)


@pytest.mark.parametrize("has_end", [False, True])
async def test_what_is_left_of_a_trusted_sale_whose_payment_a_stranger_carried_out_is_honoured_once(
    shop: Honour, *, has_end: bool
) -> None:
    """Its seller was paid, and not by us: the sale is void, and nothing but the operator's word gives it back.

    What ended before it was void is no credit any more, and is called none.
    """
    chain = shop.chain
    gate = await shop.gate(assumeValid=True, credits=4, creditsExpireAfter=1 if has_end else None)
    payment = await shop.payment(gate)
    chain.rpc.call("evm_setAutomine", False)
    try:
        sold = await shop.buyer.call(gate["accessUrl"], payment)
        assert (sold.status, sold.headers["x-credits-remaining"]) == (200, "3")
        assert sold.receipt is not None
        chain.rpc.call("anvil_dropTransaction", sold.receipt["transaction"])
    finally:
        chain.rpc.call("evm_setAutomine", True)
    transaction = relay(chain, payment)

    async def read() -> dict[str, Any]:
        found: dict[str, Any] = (await shop.buyer.ask("GET", f"{shop.url}/api/v1/paygates/{gate['id']}")).json()
        return found

    async with asyncio.timeout(90):
        while (await read()).get("trusted", {}).get("failed") != 1:  # noqa: ASYNC110 - over HTTP there is nothing to wait on
            await asyncio.sleep(0.2)
    done = await honoured_once(shop, gate, transaction)
    left = 0 if has_end else 3
    assert (done["paid"], done["credits"], done["transaction"]) == ("0.01", left, transaction)
    token = {"X-Credit-Token": done["creditToken"]}
    answers = [await shop.buyer.ask("GET", gate["accessUrl"], headers=token) for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * left + [402] * (4 - left)
    owned = await read()
    assert (owned["counters"]["revenue"], owned["counters"]["purchases"]) == ("0.01", 1)
    assert "trusted" not in owned
    assert await compare_with_chain(shop.settings) == []


async def test_what_was_honoured_is_a_difference_neither_at_its_gateway_nor_at_a_hub_apart(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """The hub keeps no purchases: whether a stranger's payment to a seller bought one, its gateway's command says."""
    chain = embedded_chain
    async with (
        composed(chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        composed(chain.url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=hub_url) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        of_hub = settings_for(chain.url, tmp_path / "hub.db", role=Role.HUB)
        of_gateway = settings_for(chain.url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=hub_url)
        shop = Honour(url, of_gateway, chain, target, buyer)
        gate = await shop.gate()
        assert (await buyer.call(gate["accessUrl"], await shop.payment(gate))).status == 200
        transaction = relay(chain, await shop.payment(gate))
        assert [found.rule for found in await compare_with_chain(of_gateway)] == ["payment_without_purchase"]
        assert "done" in await shop.honour(gate, transaction)
        assert await compare_with_chain(of_gateway) == []
        assert await compare_with_chain(of_hub) == []


async def test_what_a_gateway_refused_for_a_stranger_s_transaction_is_a_payment_without_a_purchase(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """It was verified as good, and a stranger carried it out before the hub did: the books say so, and are right."""
    chain = embedded_chain
    async with (
        composed(chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hub,
        composed(chain.url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=hub.url) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        of_gateway = settings_for(chain.url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=hub_url)
        shop = Honour(url, of_gateway, chain, target, buyer)
        gate = await shop.gate()
        payment = await shop.payment(gate)
        relayed: list[str] = []

        async def overtaken(_request: web.Request, forward: Forward) -> web.StreamResponse:
            relayed.append(await asyncio.to_thread(relay, chain, payment))
            return await forward()

        hub.settling = overtaken
        refused = await buyer.call(gate["accessUrl"], payment)
        assert (refused.status, refused.error_code) == (402, "NONCE_ALREADY_USED")
        hub.settling = pass_on
        (found,) = await compare_with_chain(of_gateway)
        assert (found.rule, relayed[0] in found.found) == ("payment_without_purchase", True)
        with beside(tmp_path / "gateway.db") as books:
            books.execute("UPDATE purchases SET failure = 'never_sent', transaction_hash = NULL")
        assert [found.rule for found in await compare_with_chain(of_gateway)] == ["failed_but_carried_out"]
        assert "done" in await shop.honour(gate, relayed[0])
        assert await compare_with_chain(of_gateway) == []
