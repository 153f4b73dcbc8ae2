"""Who may spend a pack's credits: whoever shows the payment, its token, or its payer (contract 4.3, security A-02)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.gateway.chain_watcher import layouts_of, newest_settlement
from tests.gateway.hostile_hub import HostileHub, lose_answer
from tests.gateway.market import Market
from tests.gateway.test_unknown_outcomes import Apart, apart
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets

__all__ = ["apart"]  # a fixture


async def rebuilt(rpc_url: str, transaction: str, payment: str) -> list[str]:
    """The payment as a watcher of the chain rebuilds it in at least 50 layouts, the buyer's own bytes among them."""
    layouts = await layouts_of(rpc_url, transaction)
    assert len(set(layouts)) == len(layouts) >= 50
    assert payment in layouts
    return layouts


async def layouts(market: Market, payment: str, bought: Answer) -> list[str]:
    """The same of a payment that the sandbox's hub settled."""
    receipt = bought.receipt
    assert receipt is not None
    return await rebuilt(market.stack.rpc_url, receipt["transaction"], payment)


async def bearer(market: Market, person: Buyer | None = None) -> dict[str, str]:
    return {"Authorization": f"Bearer {await (person or market.buyer).login(market.stack.gateway_url)}"}


@pytest.fixture
async def stranger() -> AsyncIterator[Buyer]:
    async with Buyer(derive_wallets().second_buyer) as other:
        yield other


async def call(market: Market, gate: dict[str, Any], **headers: str) -> Answer:
    return await market.ask("GET", gate["accessUrl"], headers={k.replace("_", "-"): v for k, v in headers.items()})


def refused(answer: Answer) -> tuple[int, str | None]:
    return answer.status, answer.error_code


async def watch(
    market: Market, gate: dict[str, Any], headers: list[str], **more: str
) -> dict[str, tuple[int, str | None]]:
    """What a watcher is answered to each header."""
    before = len(market.target.requests)
    answers = {header: await call(market, gate, X_Payment=header, **more) for header in headers}
    served = [answer for answer in answers.values() if answer.status == 200]
    assert len(market.target.requests) - before == len(served)
    return {header: (200, None) if answer.status == 200 else refused(answer) for header, answer in answers.items()}


# payment


async def test_bound_to_the_payment_only_its_bytes_spend_and_none_after_the_token_was_used(market: Market) -> None:
    gate = await market.gate(credits=5)
    payment, answer = await market.buy(gate)
    found = await layouts(market, payment, answer)
    watched = await watch(market, gate, found)
    assert watched.pop(payment) == (200, None)
    assert set(watched.values()) == {(403, "CREDIT_TOKEN_REQUIRED")}
    assert (await call(market, gate, X_Credit_Token=answer.headers["x-credit-token"])).status == 200
    assert set((await watch(market, gate, found)).values()) == {(403, "CREDIT_TOKEN_REQUIRED")}


# token


async def test_bound_to_the_token_no_rebuilt_payment_spends(market: Market) -> None:
    gate = await market.gate(credits=5, creditBinding="token")
    challenge = await market.challenge(gate)
    assert challenge["resource"]["creditBinding"] == "token"
    payment, answer = await market.buy(gate)
    assert answer.status == 200
    found = await layouts(market, payment, answer)
    assert set((await watch(market, gate, found)).values()) == {(403, "CREDIT_TOKEN_REQUIRED")}
    token = answer.headers["x-credit-token"]
    for left in (3, 2, 1, 0):
        paid = await call(market, gate, X_Credit_Token=token)
        assert (paid.status, paid.headers["x-credits-remaining"]) == (200, str(left))
        assert "x-credit-token" not in paid.headers
    assert refused(await call(market, gate, X_Credit_Token=token)) == (402, "CREDITS_EXHAUSTED")
    assert refused(await call(market, gate, X_Payment=payment)) == (402, "CREDITS_EXHAUSTED")


async def test_bound_to_the_token_the_payer_may_show_the_payment_and_nobody_else(
    market: Market, stranger: Buyer
) -> None:
    gate = await market.gate(credits=3, creditBinding="token")
    payment, bought = await market.buy(gate)
    theirs = await bearer(market, stranger)
    found = await layouts(market, payment, bought)
    assert set((await watch(market, gate, found, **theirs)).values()) == {(403, "CREDIT_TOKEN_REQUIRED")}
    mine = await bearer(market)
    assert (await call(market, gate, X_Payment=payment, **mine)).status == 200
    assert (await call(market, gate, X_Payment=found[50], **mine)).status == 200
    assert refused(await call(market, gate, X_Payment=payment, **mine)) == (402, "CREDITS_EXHAUSTED")
    assert (await call(market, gate, **mine)).status == 402  # a bearer alone is no proof here
    broken = await call(market, gate, X_Payment=payment, Authorization="Bearer none")
    assert refused(broken) == (401, "INVALID_TOKEN")


async def test_a_lost_token_is_told_again_to_the_payer_alone(market: Market, stranger: Buyer) -> None:
    gate = await market.gate(credits=3, creditBinding="token")
    payment, answer = await market.buy(gate)
    purchase = answer.headers["x-purchase-id"]

    async def balances(**headers: str) -> list[dict[str, Any]]:
        found = await market.ask("GET", "/api/v1/credits", headers={k.replace("_", "-"): v for k, v in headers.items()})
        assert found.status == 200
        held: list[dict[str, Any]] = found.json()["data"]
        return [balance for balance in held if balance["purchaseId"] == purchase]

    plain = {
        "slug": gate["slug"],
        "purchaseId": purchase,
        "granted": 3,
        "used": 1,
        "remaining": 2,
        "expiresAt": None,
    }
    assert await balances(X_Payment=payment) == [plain]
    assert await balances(X_Credit_Token=answer.headers["x-credit-token"]) == [plain]
    assert await balances(**(await bearer(market, stranger))) == []
    (mine,) = await balances(**(await bearer(market)))
    assert mine == {**plain, "creditToken": answer.headers["x-credit-token"]}
    assert (await call(market, gate, X_Credit_Token=mine["creditToken"])).status == 200


@pytest.mark.parametrize("binding", ["token", "wallet"])
async def test_a_watcher_gets_nothing_between_a_pending_answer_and_the_buyers_retry(apart: Apart, binding: str) -> None:
    gate = await apart.gate(credits=2, creditBinding=binding)
    payment = await apart.payment(gate)
    mine = {"Authorization": f"Bearer {await apart.buyer.login(apart.gateway_url)}"}
    apart.hub.settling = lose_answer
    pending = await apart.buyer.ask("GET", gate["accessUrl"], headers={"X-Payment": payment, **mine})
    assert refused(pending) == (503, "SETTLEMENT_PENDING")
    apart.hub.settling = HostileHub().settling
    found = await rebuilt(apart.chain.url, await newest_settlement(apart.chain.url), payment)
    watching = [apart.buyer.ask("GET", gate["accessUrl"], headers={"X-Payment": one}) for one in found]
    answers = await asyncio.gather(*watching)
    assert {refused(answer) for answer in answers} == {(403, "CREDIT_TOKEN_REQUIRED")}
    assert apart.target.requests == []
    # The buyer holds what the 503 carried, or its login.
    proof = {"X-Credit-Token": pending.headers["x-credit-token"]} if binding == "token" else {"X-Payment": payment}
    for _ in range(2):
        again = await apart.buyer.ask("GET", gate["accessUrl"], headers={**proof, **mine})
        assert again.status == 200, again.body
    assert len(apart.target.requests) == 2
    assert apart.received_micro() == 10_000


# wallet


async def test_bound_to_the_wallet_the_payers_bearer_spends_the_oldest_purchase_first(
    market: Market, stranger: Buyer
) -> None:
    gate = await market.gate(credits=2, creditBinding="wallet")
    mine, theirs = await bearer(market), await bearer(market, stranger)
    assert (await call(market, gate, **mine)).status == 402  # nothing bought yet
    bought = [await call(market, gate, X_Payment=await market.payment(gate), **mine) for _ in range(2)]
    assert [answer.status for answer in bought] == [200, 200]
    purchases = [answer.headers["x-purchase-id"] for answer in bought]
    assert len(set(purchases)) == 2
    for purchase in purchases:
        paid = await call(market, gate, **mine)
        assert (paid.status, paid.headers["x-purchase-id"]) == (200, purchase)
        assert (await call(market, gate, **theirs)).status == 402
    used_up = await call(market, gate, **mine)
    assert used_up.status == 402
    assert used_up.json()["accepts"]
    assert len(market.target.requests) == 4


async def test_bound_to_the_wallet_no_rebuilt_payment_and_no_token_spends(market: Market, stranger: Buyer) -> None:
    gate = await market.gate(credits=4, creditBinding="wallet")
    mine, theirs = await bearer(market), await bearer(market, stranger)
    payment = await market.payment(gate)
    assert refused(await call(market, gate, X_Payment=payment)) == (401, "AUTH_REQUIRED")
    assert refused(await call(market, gate, X_Payment=payment, **theirs)) == (403, "FORBIDDEN")
    assert market.target.requests == []
    answer = await call(market, gate, X_Payment=payment, **mine)
    assert answer.status == 200
    found = await layouts(market, payment, answer)
    assert set((await watch(market, gate, found)).values()) == {(403, "CREDIT_TOKEN_REQUIRED")}
    assert set((await watch(market, gate, found, **theirs)).values()) == {(403, "FORBIDDEN")}
    token = answer.headers["x-credit-token"]
    assert refused(await call(market, gate, X_Credit_Token=token)) == (401, "AUTH_REQUIRED")
    not_theirs = await call(market, gate, X_Credit_Token=token, **theirs)
    assert refused(not_theirs) == (403, "FORBIDDEN")
    assert "accepts" not in not_theirs.json()
    assert refused(await call(market, gate, X_Credit_Token=token, X_Payment=payment)) == (403, "CREDIT_TOKEN_REQUIRED")
    assert (await call(market, gate, X_Credit_Token=token, **mine)).status == 200
    assert (await call(market, gate, X_Payment=payment, **mine)).status == 200
    assert (await call(market, gate, X_Payment=found[50], **mine)).status == 200
    assert refused(await call(market, gate, X_Payment=payment, **mine)) == (402, "CREDITS_EXHAUSTED")
    assert (await call(market, gate, X_Credit_Token=token, **theirs)).status == 402  # which holds nothing any more


async def test_bound_to_the_wallet_a_token_that_holds_nothing_here_is_as_none_beside_a_bearer(
    market: Market, stranger: Buyer
) -> None:
    gate, other = await market.gate(creditBinding="wallet"), await market.gate(credits=2)
    _, elsewhere = await market.buy(other)
    mine, theirs = await bearer(market), await bearer(market, stranger)
    for token in ("junk", elsewhere.headers["x-credit-token"]):
        for logged_in in (mine, theirs):
            answer = await call(market, gate, X_Credit_Token=token, **logged_in)
            assert answer.status == 402
            assert answer.json()["accepts"]
    brief = await market.gate(credits=2, creditBinding="wallet", creditsExpireAfter=1)
    bought = await call(market, brief, X_Payment=await market.payment(brief), **mine)
    token = bought.headers["x-credit-token"]
    await asyncio.sleep(1.1)
    assert (await call(market, brief, X_Credit_Token=token, **theirs)).status == 402


@pytest.mark.parametrize("is_told", [False, True])
async def test_bound_to_the_wallet_nobody_is_asked_to_pay_who_shows_the_token_of_a_claim_that_settles(
    apart: Apart,
    stranger: Buyer,
    is_told: bool,  # noqa: FBT001 - a case
) -> None:
    gate = await apart.gate(credits=2, creditBinding="wallet")
    mine = {"Authorization": f"Bearer {await apart.buyer.login(apart.gateway_url)}"}
    theirs = {"Authorization": f"Bearer {await stranger.login(apart.gateway_url)}"}
    apart.hub.settling = lose_answer
    payment = await apart.payment(gate)
    pending = await apart.buyer.ask("GET", gate["accessUrl"], headers={"X-Payment": payment, **mine})
    assert refused(pending) == (503, "SETTLEMENT_PENDING")
    if is_told:
        apart.hub.settling = HostileHub().settling
        assert (await apart.buyer.ask("GET", gate["accessUrl"], headers=mine)).status == 200
    shown = {"X-Credit-Token": pending.headers["x-credit-token"], **theirs}
    assert refused(await apart.buyer.ask("GET", gate["accessUrl"], headers=shown)) == (403, "FORBIDDEN")


async def test_a_wallets_credits_are_spent_once_each_however_many_ask(market: Market) -> None:
    gate = await market.gate(credits=7, creditBinding="wallet")
    mine = await bearer(market)
    for _ in range(2):
        assert (await call(market, gate, X_Payment=await market.payment(gate), **mine)).status == 200
    answers = await asyncio.gather(*(call(market, gate, **mine) for _ in range(30)))
    assert sorted(answer.status for answer in answers) == [200] * 12 + [402] * 18
    assert len(market.target.requests) == 14


async def test_credits_of_one_gate_are_not_spent_at_another(market: Market) -> None:
    first, second = [await market.gate(credits=5, creditBinding="wallet") for _ in range(2)]
    mine = await bearer(market)
    assert (await call(market, first, X_Payment=await market.payment(first), **mine)).status == 200
    assert (await call(market, second, **mine)).status == 402


def told(answer: Answer) -> str:
    assert refused(answer) == (403, "CREDIT_TOKEN_REQUIRED")
    message: str = answer.json()["error"]["message"]
    return message


async def test_bound_to_the_wallet_a_payment_that_cannot_be_read_is_asked_for_its_bearer_first(market: Market) -> None:
    gate = await market.gate(creditBinding="wallet")
    for payment in ("nothing that is one", "e30="):
        assert refused(await call(market, gate, X_Payment=payment)) == (401, "AUTH_REQUIRED")
        assert refused(await call(market, gate, X_Payment=payment, **await bearer(market))) == (402, "PAYMENT_INVALID")


async def test_who_shows_what_does_not_count_is_told_what_does(market: Market) -> None:
    gate = await market.gate(credits=9)
    payment, bought = await market.buy(gate)
    token, path = bought.headers["x-credit-token"], f"/api/v1/paygates/{gate['id']}"
    other = (await layouts(market, payment, bought))[50]
    assert "exactly as it was" in told(await call(market, gate, X_Payment=other))
    assert (await call(market, gate, X_Credit_Token=token)).status == 200
    assert "its credit token was used, or" in told(await call(market, gate, X_Payment=payment))
    await market.ask("PUT", path, body={"creditBinding": "token"})
    assert "send X-Credit-Token, or the payment" in told(await call(market, gate, X_Payment=payment))
    await market.ask("PUT", path, body={"creditBinding": "wallet"})
    at_wallets = told(await call(market, gate, X_Payment=payment))
    assert "log in with the wallet that paid" in at_wallets
    assert "no payment or credit token counts" in at_wallets


# requireAuth with each


@pytest.mark.parametrize("binding", ["payment", "token", "wallet"])
async def test_a_required_login_comes_before_any_proof(market: Market, stranger: Buyer, binding: str) -> None:
    gate = await market.gate(credits=4, creditBinding=binding, requireAuth=True)
    mine, theirs = await bearer(market), await bearer(market, stranger)
    nobody = await call(market, gate)
    assert refused(nobody) == (401, "AUTH_REQUIRED")
    assert nobody.headers["www-authenticate"] == "Bearer"
    asked = await call(market, gate, **mine)
    assert asked.status == 402
    payment = market.buyer.sign(asked.json())
    assert refused(await call(market, gate, X_Payment=payment)) == (401, "AUTH_REQUIRED")
    assert market.target.requests == []
    answer = await call(market, gate, X_Payment=payment, **mine)
    assert answer.status == 200
    token = answer.headers["x-credit-token"]
    for proof in ({"X_Payment": payment}, {"X_Credit_Token": token}, {}):
        assert refused(await call(market, gate, **proof)) == (401, "AUTH_REQUIRED")
    by_payment = {"payment": (200, None), "token": (403, "CREDIT_TOKEN_REQUIRED"), "wallet": (403, "FORBIDDEN")}
    found = await call(market, gate, X_Payment=payment, **theirs)
    assert ((200, None) if found.status == 200 else refused(found)) == by_payment[binding]
    assert (await call(market, gate, X_Credit_Token=token, **mine)).status == 200
    by_token = await call(market, gate, X_Credit_Token=token, **theirs)
    assert by_token.status == (403 if binding == "wallet" else 200)
    assert (await call(market, gate, **mine)).status == (200 if binding == "wallet" else 402)


async def test_another_binding_is_in_force_for_credits_that_were_bought_before(market: Market) -> None:
    gate = await market.gate(credits=9)
    payment, answer = await market.buy(gate)
    mine = await bearer(market)

    async def bind(binding: str) -> None:
        changed = await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"creditBinding": binding})
        assert changed.json()["creditBinding"] == binding

    await bind("token")
    assert refused(await call(market, gate, X_Payment=payment)) == (403, "CREDIT_TOKEN_REQUIRED")
    await bind("wallet")
    assert refused(await call(market, gate, X_Payment=payment)) == (403, "CREDIT_TOKEN_REQUIRED")
    await bind("payment")
    assert (await call(market, gate, X_Payment=payment)).status == 200
    await bind("wallet")
    assert (await call(market, gate, **mine)).status == 200
    await bind("token")
    assert (await call(market, gate, X_Payment=payment, **mine)).status == 200
    await bind("payment")  # no credit token was used by now: the header counts as it did
    assert (await call(market, gate, X_Payment=payment)).status == 200
    await bind("token")
    assert (await call(market, gate, X_Credit_Token=answer.headers["x-credit-token"])).status == 200


@pytest.mark.parametrize("binding", ["payment", "token", "wallet"])
@pytest.mark.parametrize("shown", ["Basic dXNlcjpwYXNz", "Bearer", ""])
async def test_what_is_no_bearer_is_as_none(market: Market, binding: str, shown: str) -> None:
    gate = await market.gate(credits=9, creditBinding=binding)
    mine = await bearer(market) if binding == "wallet" else {}
    payment = await market.payment(gate)
    bought = await call(market, gate, X_Payment=payment, **mine)
    assert bought.status == 200
    assert (await call(market, gate, Authorization=shown)).status == 402
    with_token = await call(market, gate, Authorization=shown, X_Credit_Token=bought.headers["x-credit-token"])
    assert with_token.status == (401 if binding == "wallet" else 200)
    fresh = await call(market, gate, Authorization=shown, X_Payment=await market.payment(gate))
    assert fresh.status == (401 if binding == "wallet" else 200)
    await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"isEnabled": False})
    assert (await call(market, gate, Authorization=shown)).status == 404
