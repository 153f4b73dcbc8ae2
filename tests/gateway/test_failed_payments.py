"""A sale's payment that failed on the chain and is public: who may try it again, what it buys after all (contract 4.3).

On anvil with Circle's token, in one program and with a hub apart.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.chains.batching import payers
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.forks import take_back
from tests.engines import beside
from tests.faults.aftermath import assert_nothing_lost, authorization_in
from tests.gateway.composed import composed, settings_for
from tests.gateway.foreign_on_evm import PAYEE
from tests.gateway.hostile_hub import Forward, HostileHub, Settling, cut, lose_answer, pass_on, run_hostile_hub, says
from tests.gateway.ordering import honour_payment
from tests.gateway.recording_target import RecordingTarget
from tests.hub.hub_under_test import new_payment
from tollkeeper.api import clock_ms
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.x402.version1 import EvmPayload, decode_payment_header
from tollkeeper.gateway.purchase import recovery
from tollkeeper.hub.app import Hub
from tollkeeper.hub.evm.watch import ReorganisationWatch
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.serving.books.reconciliation import compare_with_chain
from tollkeeper.settings.model import NetworkSettings, Role
from tollkeeper.storage.ledger.purchase_rows import Purchase
from tollkeeper.storage.ledger.purchases import Purchases

NETWORK = "base-sepolia"
CREDITS = 5
DECIDED_SECONDS = 60
USED = "0x98de503528ee59b575ef0c0a2576a82497bfc029a5685b209e9ec333479b10a5"


@dataclass(slots=True)
class Shop:
    """A gate whose buyer's payment is to fail; `hub_url` is where a stranger finds the hub.

    Where it is apart, the gateway finds it behind `between`.
    """

    url: str
    hub_url: str
    chain: ChainUnderTest
    buyer: Buyer
    gate: dict[str, Any]
    challenge: dict[str, Any]
    payment: str
    before: int
    between: HostileHub
    spent: str = ""

    def earned(self) -> int:
        """What the seller has been paid."""
        return self.chain.balance(PAYEE) - self.before

    async def fail_until_taken_back(self) -> None:
        """The buyer is told that nothing was charged; on the other branch nothing was in its way."""
        assert (await self.fail()).status == 402
        self.take_back_the_failure()

    async def sold_once(self) -> None:
        """The next call is served, and is the first."""
        served = await self.call()
        assert (served.status, served.headers["x-credits-remaining"]) == (200, str(CREDITS - 1))
        assert self.earned() == 10_000

    async def call(self, **headers: str) -> Answer:
        return await self.buyer.ask("GET", self.gate["accessUrl"], headers={"X-Payment": self.payment, **headers})

    async def status(self) -> dict[str, Any]:
        """What the hub shows everybody of the payment."""
        signed = authorization_in(self.payment)
        answer = await self.buyer.ask("GET", f"{self.hub_url}/payments/{NETWORK}/{signed.payer}/{signed.nonce}")
        return answer.json() if answer.status == 200 else {"status": "unknown"}

    async def reached(self, wanted: str) -> dict[str, Any]:
        async with asyncio.timeout(DECIDED_SECONDS):
            while (seen := await self.status())["status"] != wanted:  # noqa: ASYNC110 - over HTTP there is nothing else
                await asyncio.sleep(0.1)
        return seen

    async def revenue(self, wanted: str) -> str:
        """What the owner sees that the gate earned, once it is as wanted."""
        async with asyncio.timeout(DECIDED_SECONDS):
            while (earned := str((await self.read())["counters"]["revenue"])) != wanted:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.2)
        return earned

    async def read(self) -> dict[str, Any]:
        return (await self.buyer.ask("GET", f"{self.url}/api/v1/paygates/{self.gate['id']}")).json()

    def take_back_the_failure(self, *raws: str) -> None:
        """The block in which the money went elsewhere, and the payment failed, is gone, and so is what was in it.

        The other branch holds these transactions.
        """
        paid_in = int(self.chain.rpc.call("eth_getTransactionReceipt", self.spent)["blockNumber"], 16)
        take_back(self.chain, int(self.chain.rpc.call("eth_blockNumber"), 16) - paid_in + 1, *raws)

    def pay_elsewhere(self) -> None:
        """On another branch the money of the payment, which was made, went elsewhere before."""
        chain, payer = self.chain, self.buyer.wallet
        used = authorization_in(self.payment)
        (log,) = chain.rpc.call("eth_getLogs", {"fromBlock": "0x0", "topics": [USED, None, used.nonce]})
        value = chain.balance(payer.address) + used.value
        spent = new_payment(chain, signer=payer, value=value, pay_to="0x" + "99" * 20)
        signature = bytes.fromhex(spent.body["paymentPayload"]["payload"]["signature"][2:])
        raw, self.spent = chain.transaction(
            chain.wallets.faucet, USDC_ADDRESS, transfer_calldata(spent.authorization, signature)
        )
        depth = int(chain.rpc.call("eth_blockNumber"), 16) - int(log["blockNumber"], 16) + 1
        take_back(chain, depth, raw)

    async def presented_by_a_stranger(self, path: str = "/settle") -> dict[str, Any]:
        """The hub's answer to who has the payment from the chain, and asks for the very same."""
        payment = json.loads(base64.b64decode(self.payment))
        requirements = self.challenge["accepts"][0]
        body = {"x402Version": 1, "paymentPayload": payment, "paymentRequirements": requirements, "confirm": True}
        if path == "/transfer":
            body = {"network": NETWORK, "payload": payment["payload"], "asset": USDC_ADDRESS, "confirm": True}
        told: dict[str, Any] = (await self.buyer.ask("POST", self.hub_url + path, body=body)).json()
        return told

    async def fail(self, **headers: str) -> Answer:
        """The buyer's money goes elsewhere in the block that was to hold its payment; the answer to its call."""
        rpc = self.chain.rpc
        rpc.call("evm_setAutomine", False)
        called = asyncio.create_task(self.call(**headers))
        try:
            await self.mine_without_money()
        finally:
            rpc.call("evm_setAutomine", True)
        return await called

    async def mine_without_money(self) -> None:
        """Once a payment waits for its block: the one in which the money goes elsewhere before it."""
        chain, payer = self.chain, self.buyer.wallet
        spent = new_payment(chain, signer=payer, value=chain.balance(payer.address), pay_to="0x" + "99" * 20)
        signature = bytes.fromhex(spent.body["paymentPayload"]["payload"]["signature"][2:])
        data = transfer_calldata(spent.authorization, signature)
        async with asyncio.timeout(DECIDED_SECONDS):
            while chain.rpc.call("txpool_status")["pending"] == "0x0":  # noqa: ASYNC110 - a chain is asked
                await asyncio.sleep(0.02)
        raw, self.spent = chain.transaction(chain.wallets.faucet, USDC_ADDRESS, data, max_priority_fee_per_gas=10**8)
        chain.rpc.call("eth_sendRawTransaction", raw)
        chain.rpc.call("evm_mine")


@asynccontextmanager
async def selling(
    folder: Path, chain: ChainUnderTest, target: RecordingTarget, *, apart: bool, **fields: object
) -> AsyncIterator[Shop]:
    """The programs, a gate, and a payment for it that nobody has seen."""
    (payer,) = payers(chain, 1)
    chain.rpc.call("anvil_mine", "0x8")  # what the buyer has is not among what is taken back
    network = NetworkSettings(NETWORKS[NETWORK], (chain.url,), asset_name=chain.token_name)
    changes: dict[str, Any] = {"networks": {NETWORK: network}, "inspection_seconds": 1}
    async with AsyncExitStack() as stack:
        if apart:
            hub_url = await stack.enter_async_context(composed(chain.url, folder / "hub.db", role=Role.HUB, **changes))
            between = await stack.enter_async_context(run_hostile_hub(hub_url))
            gateway = composed(chain.url, folder / "gateway.db", role=Role.GATEWAY, hub_url=between.url, **changes)
            url = await stack.enter_async_context(gateway)
        else:
            between = HostileHub()
            url = await stack.enter_async_context(composed(chain.url, folder / "books.db", **changes))
            hub_url = url + "/hub"
        buyer = await stack.enter_async_context(Buyer(payer))
        body = {"price": "0.01", "targetUrl": target.url, "paymentAddress": PAYEE, "credits": CREDITS, **fields}
        gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
        challenge = (await buyer.ask("GET", gate["accessUrl"])).json()
        payment, before = buyer.sign(challenge), chain.balance(PAYEE)
        yield Shop(url, hub_url, chain, buyer, gate, challenge, payment, before, between)


async def test_a_stranger_cannot_take_the_next_try_of_a_payment_that_failed_for_a_sale(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget
) -> None:
    """The transaction that failed shows the payment to everybody."""
    chain = anvil_fiat_token
    async with selling(tmp_path, chain, target, apart=False) as shop:
        failed = await shop.fail()
        assert (failed.status, failed.error_code) == (402, "PAYMENT_INVALID")
        before = (await shop.status())["transaction"]
        chain.mint(shop.buyer.wallet.address, 1_000_000)
        for path in ("/settle", "/transfer", "/settle"):
            told = await shop.presented_by_a_stranger(path)
            assert (told["success"], told["errorReason"]) == (False, "invalid_exact_evm_transaction_failed")
            assert told["transaction"] == before
        assert (await shop.status())["status"] == "failed"
        await shop.sold_once()
        await assert_nothing_lost(tmp_path, chain, paid=[authorization_in(shop.payment)])


@pytest.mark.parametrize("proof", ["token", "bearer"])
async def test_where_the_token_counts_a_payment_that_failed_in_public_is_tried_again_for_its_buyer_alone(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, proof: str
) -> None:
    """Whoever reads the transaction that failed can rebuild the payment, and must not be sold what it buys."""
    chain = anvil_fiat_token
    async with selling(tmp_path, chain, target, apart=False, creditBinding="token") as shop:
        failed = await shop.fail()
        assert (failed.status, failed.error_code) == (402, "PAYMENT_INVALID")
        chain.mint(shop.buyer.wallet.address, 1_000_000)
        async with Buyer(payers(chain, 2)[1]) as stranger:
            theirs = {"Authorization": f"Bearer {await stranger.login(shop.url)}"}
        for shown in ({}, theirs, {"X-Credit-Token": failed.headers["x-credit-token"] + "0"}):
            watched = await shop.call(**shown)
            assert (watched.status, watched.error_code) == (403, "CREDIT_TOKEN_REQUIRED")
            assert "x-credit-token" not in watched.headers
        assert shop.earned() == 0
        if proof == "token":
            served = await shop.call(**{"X-Credit-Token": failed.headers["x-credit-token"]})
        else:
            served = await shop.call(Authorization=f"Bearer {await shop.buyer.login(shop.url)}")
        assert (served.status, served.headers["x-credits-remaining"]) == (200, str(CREDITS - 1)), served.body
        assert shop.earned() == 10_000
        await assert_nothing_lost(tmp_path, chain, paid=[authorization_in(shop.payment)])


@pytest.mark.parametrize("second", ["refused", "not told of"])
async def test_what_failed_in_public_once_is_its_buyer_s_to_try_again_whatever_became_of_later_tries(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, second: str
) -> None:
    """A later try that sends nothing makes the payment no secret again."""
    chain = anvil_fiat_token
    refusal = {"success": False, "status": "failed", "transaction": "", "errorReason": "insufficient_funds"}
    denied = {"error": {"type": "authentication", "code": "INVALID_SIGNATURE", "message": "not now"}}
    async with selling(tmp_path, chain, target, apart=True, creditBinding="token") as shop:
        shop.between.settling = lose_answer if second == "not told of" else pass_on
        failed = await shop.fail()
        token = {"X-Credit-Token": failed.headers["x-credit-token"]}
        if second == "refused":
            assert failed.status == 402
            chain.mint(shop.buyer.wallet.address, 1_000_000)
            shop.between.settling = says(200, json.dumps(refusal))
            assert (await shop.call(**token)).status == 402
        else:
            assert failed.status == 503
            shop.between.settling = says(401, json.dumps(denied))
            await shop.reached("failed")
            assert await becomes(tmp_path, "FAILED") == 1
            chain.mint(shop.buyer.wallet.address, 1_000_000)
        shop.between.settling = pass_on
        watched = await shop.call()
        assert (watched.status, watched.error_code) == (403, "CREDIT_TOKEN_REQUIRED"), watched.headers
        assert shop.earned() == 0
        served = await shop.call(**token)
        assert (served.status, served.headers["x-credits-remaining"]) == (200, str(CREDITS - 1)), served.body


async def test_what_failed_in_public_behind_its_gateway_s_back_is_its_buyer_s_to_try_again(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the gateway's clock its request was too late for the hub, and by the hub's it was not."""
    chain = anvil_fiat_token
    look_often(monkeypatch)
    async with selling(tmp_path, chain, target, apart=True, creditBinding="token") as shop:
        shop.between.settling = cut
        token = {"X-Credit-Token": (await shop.call()).headers["x-credit-token"]}
        with beside(tmp_path / "gateway.db") as books:
            books.execute("UPDATE purchases SET attempt_ms = attempt_ms - 100000")
        assert await becomes(tmp_path, "FAILED") == 1
        shop.between.settling = pass_on
        chain.rpc.call("evm_setAutomine", False)
        heard = asyncio.create_task(
            shop.buyer.ask("POST", shop.hub_url + "/settle", body=json.loads(shop.between.settles[0]))
        )
        await shop.mine_without_money()
        chain.rpc.call("evm_setAutomine", True)
        assert (await heard).json()["success"] is False
        look_now(tmp_path)
        await asyncio.sleep(1)
        chain.mint(shop.buyer.wallet.address, 1_000_000)
        watched = await shop.call()
        assert (watched.status, watched.error_code) == (403, "CREDIT_TOKEN_REQUIRED"), watched.headers
        assert (await shop.call(**token)).status == 200


@pytest.mark.parametrize("apart", [False, True])
async def test_a_failed_payment_that_a_stranger_carries_out_is_listed_until_it_is_honoured(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, *, apart: bool
) -> None:
    """Its buyer was told that it failed, and paid anew; then who has it from the chain makes it pay the seller, too."""
    chain = anvil_fiat_token
    async with selling(tmp_path, chain, target, apart=apart) as shop:
        network = NetworkSettings(NETWORKS[NETWORK], (chain.url,), asset_name=chain.token_name)
        books, role = ("gateway.db", Role.GATEWAY) if apart else ("books.db", Role.SERVE)
        settings = settings_for(chain.url, tmp_path / books, role=role, networks={NETWORK: network})
        failed = await shop.fail()
        assert (failed.status, failed.error_code) == (402, "PAYMENT_INVALID")
        assert "anybody can still carry it out" in failed.json()["error"]["message"]
        chain.mint(shop.buyer.wallet.address, 1_000_000)
        first, shop.payment = shop.payment, shop.buyer.sign(shop.challenge)
        await shop.sold_once()
        assert await compare_with_chain(settings) == []

        signed = decode_payment_header(first.encode()).payload
        assert isinstance(signed, EvmPayload)
        data = transfer_calldata(signed.authorization, signed.signature)
        relayed = chain.send_and_wait(chain.wallets.faucet, USDC_ADDRESS, data)
        assert (relayed["status"], shop.earned()) == ("0x1", 20_000)
        (found,) = await compare_with_chain(settings)
        assert (found.rule, relayed["transactionHash"] in found.found) == ("failed_but_carried_out", True)
        order = {"gate": shop.gate["slug"], "transaction": relayed["transactionHash"], "nonce": None}
        assert (await honour_payment(settings, order))["done"]["credits"] == CREDITS
        assert await compare_with_chain(settings) == []


@pytest.mark.parametrize("apart", [False, True])
async def test_a_sale_whose_failure_is_taken_back_is_granted_without_its_buyer(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, *, apart: bool
) -> None:
    """The buyer was told that nothing was charged; on the other branch it was."""
    chain = anvil_fiat_token
    async with selling(tmp_path, chain, target, apart=apart) as shop:
        await shop.fail_until_taken_back()
        await shop.reached("success")
        assert shop.earned() == 10_000
        assert await shop.revenue("0.01") == "0.01"
        await shop.sold_once()
        await assert_nothing_lost(tmp_path, chain, paid=[authorization_in(shop.payment)])


@pytest.mark.parametrize("second", ["refused", "refused by the hub", pytest.param("unheard", marks=pytest.mark.long)])
async def test_a_sale_whose_failure_is_taken_back_behind_a_later_try_that_sent_nothing_is_granted(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, second: str
) -> None:
    poor = says(200, json.dumps({"success": False, "transaction": "", "errorReason": "insufficient_funds"}))
    denied = says(401, json.dumps({"error": {"code": "INVALID_SIGNATURE", "message": "not now"}}))
    async with selling(tmp_path, anvil_fiat_token, target, apart=True) as shop:
        assert (await shop.fail()).status == 402
        if second == "refused by the hub":  # it trusts no gateway, and nobody's key shows it whose next try that is
            shop.between.verifying = says(200, json.dumps({"isValid": True}))
        else:
            anvil_fiat_token.mint(shop.buyer.wallet.address, 1_000_000)
            shop.between.settling = poor if second == "refused" else denied
        assert (await shop.call()).status == (503 if second == "unheard" else 402)
        assert claim_in(tmp_path) == ("FAILED", 2)
        shop.between.settling = shop.between.verifying = pass_on
        shop.take_back_the_failure()
        await shop.reached("success")
        assert await shop.revenue("0.01") == "0.01"
        await shop.sold_once()
        await assert_nothing_lost(tmp_path, anvil_fiat_token, paid=[authorization_in(shop.payment)])


async def test_an_earlier_try_that_its_hub_does_not_tell_of_now_is_asked_for_again(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub refused the next try, and the payment is made after all: for whom, only the earlier one's key tells.

    Before it does, the payment fails again, which is not told by the next one's key either, and is taken back, too.
    """
    look_often(monkeypatch)
    error = json.dumps({"error": {"type": "server", "code": "INTERNAL_ERROR", "message": "not now"}})
    troubles = [says(503, "{}"), says(500, error), says(400, error)]
    left: list[Settling] = [cut] * 1000

    async def troubled(request: web.Request, forward: Forward) -> web.StreamResponse:
        is_earlier = request.headers["Idempotency-Key"].endswith(".1")
        return await (left.pop(0) if is_earlier and left else pass_on)(request, forward)

    async with selling(tmp_path, anvil_fiat_token, target, apart=True) as shop:
        assert (await shop.fail()).status == 402
        shop.between.verifying = says(200, json.dumps({"isValid": True}))
        assert (await shop.call()).status == 402
        assert claim_in(tmp_path) == ("FAILED", 2)
        shop.between.settling, shop.between.verifying = troubled, pass_on
        shop.take_back_the_failure()
        await shop.reached("success")
        look_now(tmp_path)
        assert await becomes(tmp_path, "CLAIMED") == 2
        shop.pay_elsewhere()
        await shop.reached("failed")
        assert await becomes(tmp_path, "FAILED") == 2
        left[:] = troubles
        shop.take_back_the_failure()
        await shop.reached("success")
        look_now(tmp_path)
        async with asyncio.timeout(20):
            while left:
                assert claim_in(tmp_path)[0] in {"FAILED", "CLAIMED"}
                await asyncio.sleep(0.05)
        assert await becomes(tmp_path, "LIVE") == 2
        await shop.sold_once()
        await assert_nothing_lost(tmp_path, anvil_fiat_token, paid=[authorization_in(shop.payment)])


async def test_a_failure_that_is_taken_back_between_two_questions_of_the_gateway_is_granted(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the hub said was so when it said it: that the key failed, and then that the payment is made."""
    look_often(monkeypatch)
    answered: list[str] = []
    async with selling(tmp_path, anvil_fiat_token, target, apart=True) as shop:

        async def settling(_request: web.Request, forward: Forward) -> web.StreamResponse:
            answer = await forward()
            answered.append(str(json.loads(answer.text or "")["success"]))
            return answer

        async def telling(_request: web.Request, forward: Forward) -> web.StreamResponse:
            if answered == ["False"]:
                answered.append("taken back")
                shop.take_back_the_failure()
                await shop.reached("success")
            return await forward()

        await shop.fail_until_taken_back()
        await shop.reached("success")
        shop.between.settling = says(503, "{}")
        look_now(tmp_path)
        assert await becomes(tmp_path, "CLAIMED") == 1
        shop.pay_elsewhere()  # before its key is asked
        await shop.reached("failed")
        shop.between.settling, shop.between.telling = settling, telling
        async with asyncio.timeout(DECIDED_SECONDS):
            while "taken back" not in answered:  # noqa: ASYNC110 - the proxy is another's
                await asyncio.sleep(0.05)
        assert await becomes(tmp_path, "LIVE") == 1
        assert answered == ["False", "taken back", "True"]
        await shop.sold_once()
        await assert_nothing_lost(tmp_path, anvil_fiat_token, paid=[authorization_in(shop.payment)])


async def test_an_earlier_try_that_asked_for_something_else_is_left_to_the_operator_once_its_payment_is_made(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate was changed between the tries, and the hub trusts no gateway: it refuses to tell what it knows."""
    chain = anvil_fiat_token
    look_often(monkeypatch)
    async with selling(tmp_path, chain, target, apart=True) as shop:
        assert (await shop.fail()).status == 402
        gate = f"{shop.url}/api/v1/paygates/{shop.gate['id']}"
        assert (await shop.buyer.ask("PUT", gate, body={"title": "of another name"})).status == 200
        shop.between.verifying = says(200, json.dumps({"isValid": True}))
        assert (await shop.call()).status == 402
        shop.between.verifying = pass_on
        shop.take_back_the_failure()
        await shop.reached("success")
        look_now(tmp_path)
        assert await becomes(tmp_path, "CLAIMED") == 2
        monkeypatch.setattr(recovery, "_NOT_TOLD_MS", 500)
        assert await becomes(tmp_path, "PARKED") == 2
        assert (await shop.call()).error_code == "SETTLEMENT_PENDING"
        network = NetworkSettings(NETWORKS[NETWORK], (chain.url,), asset_name=chain.token_name)
        settings = settings_for(chain.url, tmp_path / "gateway.db", role=Role.GATEWAY, networks={NETWORK: network})
        order = {"gate": shop.gate["slug"], "transaction": (await shop.status())["transaction"], "nonce": None}
        assert (await honour_payment(settings, order))["done"]["credits"] == CREDITS
        await assert_nothing_lost(tmp_path, chain, paid=[authorization_in(shop.payment)])


@pytest.mark.parametrize("apart", [False, True])
async def test_a_buyer_who_comes_back_once_the_failure_is_taken_back_is_not_told_to_pay_again(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, *, apart: bool
) -> None:
    """The hub calls the payment used by then, and so it is: for this sale."""
    chain = anvil_fiat_token
    async with selling(tmp_path, chain, target, apart=apart) as shop:
        await shop.fail_until_taken_back()
        await shop.reached("success")
        answers = await asyncio.gather(*(shop.call() for _ in range(3)))
        assert [answer.status for answer in answers] == [200, 200, 200], [answer.body for answer in answers]
        assert shop.earned() == 10_000
        await assert_nothing_lost(tmp_path, chain, paid=[authorization_in(shop.payment)])


@pytest.mark.parametrize("change", ["address", "price", "disabled", "deleted"])
async def test_a_buyer_who_comes_back_once_his_gate_asks_for_something_else_is_served_what_he_paid_for(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, change: str
) -> None:
    """His failure is taken back, the gateway has yet to look, and what the gate asks for by now is another payment."""
    async with selling(tmp_path, anvil_fiat_token, target, apart=True) as shop:
        assert (await shop.fail()).status == 402
        look_later(tmp_path)
        gate = f"{shop.url}/api/v1/paygates/{shop.gate['id']}"
        fields: dict[str, Any] = {
            "address": {"paymentAddress": "0x" + "55" * 20},
            "price": {"price": "0.02"},
            "disabled": {"isEnabled": False},
        }
        if change == "deleted":
            assert (await shop.buyer.ask("DELETE", gate)).status == 200
        else:
            assert (await shop.buyer.ask("PUT", gate, body=fields[change])).status == 200
        if change == "price":
            await no_former_price(shop, tmp_path)
        refused = await shop.call()
        assert refused.status == (404 if change in {"disabled", "deleted"} else 402), "while it is failed"
        shop.take_back_the_failure()
        await shop.reached("success")
        served = await shop.call()
        assert served.status == 200, served.body
        assert shop.earned() == 10_000
        await assert_nothing_lost(tmp_path, anvil_fiat_token, paid=[authorization_in(shop.payment)])


async def void(shop: Shop, folder: Path, **headers: str) -> None:
    """Its first call was served on trust, its payment failed, and that is not looked at again in this test."""
    assert (await shop.fail(**headers)).status == 200
    assert await becomes(folder, "VOID") == 1
    look_later(folder)


@pytest.mark.parametrize("proof", ["payment", "bearer", "both"])
async def test_a_sale_that_is_void_asks_for_no_payment_while_the_hub_makes_its_own_after_all(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, proof: str
) -> None:
    """The gateway has yet to look at it again."""
    chain = anvil_fiat_token
    binding = "payment" if proof == "payment" else "wallet"
    async with selling(tmp_path, chain, target, apart=True, assumeValid=True, creditBinding=binding) as shop:
        headers = {} if proof == "payment" else {"Authorization": f"Bearer {await shop.buyer.login(shop.url)}"}

        async def call() -> Answer:
            if proof == "bearer":
                return await shop.buyer.ask("GET", shop.gate["accessUrl"], headers=headers)
            return await shop.call(**headers)

        await void(shop, tmp_path, **headers)
        assert (await call()).status == 402
        shop.between.telling = cut
        untold = await call()
        assert (untold.status, untold.error_code) == (503, "SETTLEMENT_PENDING")
        shop.between.telling = pass_on
        chain.rpc.call("evm_setAutomine", False)
        try:
            shop.take_back_the_failure()
            await shop.reached("pending")
            waiting = await call()
            assert (waiting.status, waiting.error_code) == (503, "SETTLEMENT_PENDING"), waiting.body
        finally:
            chain.rpc.call("evm_setAutomine", True)
            chain.rpc.call("evm_mine")
        await shop.reached("success")
        answers = await asyncio.gather(*(call() for _ in range(3)))
        assert [answer.status for answer in answers] == [200] * 3, [answer.body for answer in answers]
        left = {int(answer.headers["x-credits-remaining"]) for answer in answers}
        assert left == {CREDITS - 2, CREDITS - 3, CREDITS - 4}
        assert shop.earned() == 10_000
        assert await shop.revenue("0.01") == "0.01"
        await assert_nothing_lost(tmp_path, chain, paid=[authorization_in(shop.payment)])


async def test_a_wallet_whose_sale_another_call_finds_to_be_paid_at_that_moment_is_not_told_to_pay_again(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpaid_of_payer = Purchases.unpaid_of_payer

    async def behind_another(self: Purchases, payer: str, gate_id: int, limit: int) -> list[Purchase]:
        for purchase in await unpaid_of_payer(self, payer, gate_id, limit):
            await self.revive(purchase, "0x" + "11" * 32, clock_ms())
        return await unpaid_of_payer(self, payer, gate_id, limit)

    chain = anvil_fiat_token
    async with selling(tmp_path, chain, target, apart=True, assumeValid=True, creditBinding="wallet") as shop:
        headers = {"Authorization": f"Bearer {await shop.buyer.login(shop.url)}"}
        await void(shop, tmp_path, **headers)
        shop.take_back_the_failure()
        await shop.reached("success")
        monkeypatch.setattr(Purchases, "unpaid_of_payer", behind_another)
        served = await shop.buyer.ask("GET", shop.gate["accessUrl"], headers=headers)
        assert (served.status, served.headers["x-credits-remaining"]) == (200, str(CREDITS - 2)), served.body


async def test_a_buyer_whose_failure_that_recovery_takes_back_at_that_moment_is_not_told_to_pay_again(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    reopen = Purchases.reopen

    async def behind_recovery(self: Purchases, purchase: Purchase, now_ms: int) -> bool:
        await reopen(self, purchase, now_ms)
        return await reopen(self, purchase, now_ms)

    async with selling(tmp_path, anvil_fiat_token, target, apart=False) as shop:
        await shop.fail_until_taken_back()
        await shop.reached("success")
        with monkeypatch.context() as raced:
            raced.setattr(Purchases, "reopen", behind_recovery)
            answer = await shop.call()
        assert answer.status == 200, answer.body


async def test_a_buyer_who_comes_back_before_the_hub_has_seen_the_other_branch_loses_nothing(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There his payment is made already: the chain calls it used, and the hub failed."""
    look, turn = ReorganisationWatch.look, asyncio.Lock()

    async def look_in_turn(self: ReorganisationWatch, *asked: Any, **named: Any) -> None:
        async with turn:
            await look(self, *asked, **named)

    monkeypatch.setattr(ReorganisationWatch, "look", look_in_turn)
    chain = anvil_fiat_token
    async with selling(tmp_path, chain, target, apart=False) as shop:
        assert (await shop.fail()).status == 402
        failed = (await shop.status())["transaction"]
        with beside(tmp_path / "books.db") as connection:
            ((raw,),) = connection.execute(
                "SELECT raw FROM raw_transactions WHERE hash = :it", {"it": failed}
            ).fetchall()
        async with turn:
            shop.take_back_the_failure("0x" + raw.hex())
            assert shop.earned() == 10_000
            assert (await shop.call()).error_code == "NONCE_ALREADY_USED"
        async with asyncio.timeout(DECIDED_SECONDS):
            while (answer := await shop.call()).status != 200:
                pass
        assert answer.headers["x-credits-remaining"] == str(CREDITS - 1)
        assert shop.earned() == 10_000
        await assert_nothing_lost(tmp_path, chain, paid=[authorization_in(shop.payment)])


async def test_a_claim_that_fails_again_is_granted_once_its_second_failure_is_taken_back_too(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget
) -> None:
    chain = anvil_fiat_token
    async with selling(tmp_path, chain, target, apart=False) as shop:
        for _ in range(3):
            chain.mint(shop.buyer.wallet.address, 1_000_000)
            assert (await shop.fail()).status == 402
        chain.rpc.call("evm_setAutomine", False)
        try:
            shop.take_back_the_failure()
            await shop.reached("pending")
            called = asyncio.create_task(shop.call())
            await asyncio.sleep(1)  # it is a claim again
            await shop.mine_without_money()
        finally:
            chain.rpc.call("evm_setAutomine", True)
        assert (await called).status == 402
        assert (await shop.status())["status"] == "failed"
        shop.take_back_the_failure()
        await shop.reached("success")
        assert await shop.revenue("0.01") == "0.01"
        await shop.sold_once()
        await assert_nothing_lost(tmp_path, chain, paid=[authorization_in(shop.payment)])


async def test_a_buyer_is_not_told_to_sign_another_payment_while_its_last_try_may_be_made_after_all(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget
) -> None:
    chain = anvil_fiat_token
    async with selling(tmp_path, chain, target, apart=False) as shop:
        for _ in range(3):
            chain.mint(shop.buyer.wallet.address, 1_000_000)
            assert (await shop.fail()).status == 402
        exhausted = await shop.call()
        assert exhausted.json()["error"]["details"]["reason"] in {"attempts_exhausted", "insufficient_funds"}
        chain.rpc.call("evm_setAutomine", False)
        try:
            shop.take_back_the_failure()
            await shop.reached("pending")
            called = asyncio.create_task(shop.call())
            await asyncio.sleep(3)
            assert not called.done(), (await called).body
        finally:
            chain.rpc.call("evm_setAutomine", True)
            chain.rpc.call("evm_mine")
        assert (await called).status == 200
        assert shop.earned() == 10_000
        await assert_nothing_lost(tmp_path, chain, paid=[authorization_in(shop.payment)])


async def test_a_buyer_who_comes_back_while_the_failure_is_taken_back_is_served_once(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget
) -> None:
    chain = anvil_fiat_token
    async with selling(tmp_path, chain, target, apart=False) as shop:
        await shop.fail_until_taken_back()
        statuses = []
        async with asyncio.timeout(DECIDED_SECONDS):
            while 200 not in statuses:
                answers = await asyncio.gather(*(shop.call() for _ in range(3)))
                statuses += [answer.status for answer in answers]
        assert set(statuses) <= {200, 402, 503}
        assert shop.earned() == 10_000
        while (await shop.call()).status == 200:
            pass
        assert len(target.requests) == CREDITS
        assert await shop.revenue("0.01") == "0.01"
        await assert_nothing_lost(tmp_path, chain, paid=[authorization_in(shop.payment)])


async def test_a_success_that_was_given_to_somebody_else_is_not_sold_for(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget
) -> None:
    """The hub trusts no gateway here, so a stranger may try again what failed for one: who was told may have served."""
    chain = anvil_fiat_token
    async with selling(tmp_path, chain, target, apart=True) as shop:
        assert (await shop.fail()).status == 402
        chain.mint(shop.buyer.wallet.address, 1_000_000)
        assert (await shop.presented_by_a_stranger())["success"] is True
        await asyncio.sleep(10)  # it is looked at when it is 4 s old
        refused = await shop.call()
        assert (refused.status, refused.error_code) == (402, "NONCE_ALREADY_USED")
        assert target.requests == []
        assert await shop.revenue("0") == "0"


def claim_in(folder: Path) -> tuple[str, int]:
    """State and attempt of the one purchase."""
    with beside(folder / "gateway.db") as books:
        ((state, attempt),) = books.execute("SELECT state, attempt FROM purchases").fetchall()
        return state, attempt


def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateway and hub go over what is under way ten times as often as they do."""
    monkeypatch.setattr(recovery.PurchaseRecovery, "interval_seconds", 0.2)
    defaults = Hub.__init__.__kwdefaults__ or {}
    monkeypatch.setitem(defaults, "recovery_interval_seconds", 0.2)


def look_now(folder: Path) -> None:
    """What became of its payment is looked at in the next pass."""
    with beside(folder / "gateway.db") as books:
        books.execute("UPDATE purchases SET follow_ms = 1 WHERE follow_ms IS NOT NULL")


def look_later(folder: Path) -> None:
    """What became of its payment is not looked at in this test."""
    with beside(folder / "gateway.db") as books:
        books.execute("UPDATE purchases SET follow_ms = follow_ms + 200000 WHERE follow_ms IS NOT NULL")


async def no_former_price(shop: Shop, folder: Path) -> None:
    """The time is over in which the price of before was taken."""
    with beside(folder / "gateway.db") as books:
        books.execute("UPDATE paygate_versions SET created_ms = created_ms - 200000")
    gate = f"{shop.url}/api/v1/paygates/{shop.gate['id']}"
    assert (await shop.buyer.ask("PUT", gate, body={"title": "read anew"})).status == 200


async def becomes(folder: Path, wanted: str) -> int:
    """The purchase's attempt once it is in that state."""
    async with asyncio.timeout(20):
        while (seen := claim_in(folder))[0] != wanted:  # noqa: ASYNC110 - of another connection
            await asyncio.sleep(0.1)
    return seen[1]


async def test_an_attempt_that_failed_and_that_the_hub_does_not_tell_of_again_was_one(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget
) -> None:
    """Its number is bound to what failed at the hub, so the next try needs another one."""
    chain = anvil_fiat_token
    async with selling(tmp_path, chain, target, apart=True) as shop:
        shop.between.settling = lose_answer
        lost = await shop.fail()
        assert (lost.status, lost.error_code) == (503, "SETTLEMENT_PENDING")
        refusal = {"error": {"type": "authentication", "code": "INVALID_SIGNATURE", "message": "not now"}}
        shop.between.settling = says(401, json.dumps(refusal))
        await shop.reached("failed")
        assert await becomes(tmp_path, "FAILED") == 1
        shop.between.settling = pass_on
        chain.mint(shop.buyer.wallet.address, 1_000_000)
        await shop.sold_once()
        assert claim_in(tmp_path) == ("LIVE", 2)
        await assert_nothing_lost(tmp_path, chain, paid=[authorization_in(shop.payment)])


async def test_an_attempt_that_failed_and_whose_name_the_hub_has_for_another_request_is_parked_in_the_end(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with selling(tmp_path, anvil_fiat_token, target, apart=True) as shop:
        shop.between.settling = lose_answer
        assert (await shop.fail()).status == 503
        conflict = {"error": {"type": "validation", "code": "CONFLICT", "message": "used for another request"}}
        shop.between.settling = says(409, json.dumps(conflict))
        await shop.reached("failed")
        await asyncio.sleep(5)  # it is asked for every 2 s
        assert claim_in(tmp_path) == ("CLAIMED", 1)
        monkeypatch.setattr(recovery, "_NOT_TOLD_MS", 1_000)
        assert await becomes(tmp_path, "PARKED") == 1
        told = await shop.call()
        assert (told.status, told.error_code) == (503, "SETTLEMENT_PENDING")
        assert (shop.earned(), target.requests) == (0, [])
