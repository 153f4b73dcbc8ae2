"""Unmodified official clients and facilitators on Solana: at our gate, at our hub, on our node (spec 2.3, 4.4)."""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from solders.keypair import Keypair

from tests.interop.local_server import LocalServer, Reply, Request, serving
from tests.interop.official import (
    FACILITATOR_CLIENTS_ON_SOLANA,
    PAYING_CLIENTS_ON_SOLANA,
    SIGNS_NOTHING_ON_SOLANA,
    Driver,
    Json,
    ask_facilitator,
    sign,
)
from tests.interop.servers import SOLANA
from tests.interop.stack import Stack, ask, sandbox
from tollkeeper.core.solana.base58 import encode
from tollkeeper.sandbox.wallets import derive_wallets, fee_payers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

NETWORK: Final = "solana-devnet"
PRICE_MICRO: Final = 10_000
OFFICIAL_FACILITATOR: Final = Driver("npm", "facilitator_v1_solana.mjs")
WITHOUT_MEMO: Final = "x402-fetch-1.2.0"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with sandbox(tmp_path_factory.mktemp("sandbox") / "log.txt") as running:
        yield running


def gate_of(stack: Stack, target: LocalServer, **fields: object) -> Json:
    """A gate that is paid on Solana, to the owner's wallet."""
    terms = {"network": NETWORK, "paymentAddress": stack.solana.pay_to, "price": "0.01", **fields}
    return stack.create_gate(targetUrl=f"{target.url}/data", **terms)


def buy(client: str, stack: Stack, gate: Json, **more: object) -> Json:
    """What the client's driver tells of one call."""
    wish = {
        "url": gate["accessUrl"],
        "privateKey": stack.solana.buyer_key,
        "network": NETWORK,
        "rpcUrl": stack.solana.rpc_url,
        **more,
    }
    return PAYING_CLIENTS_ON_SOLANA[client].run(wish)


@pytest.mark.parametrize(("client", "network"), [("x402-2.25.0-httpx", SOLANA), ("x402-fetch-1.2.0", NETWORK)])
def test_official_client_buys_a_call(client: str, network: str, stack: Stack, target: LocalServer) -> None:
    gate = gate_of(stack, target, credits=3)
    chain = stack.solana
    owner_had, buyer_had = chain.balance_micro(chain.pay_to), chain.balance_micro(chain.buyer_address)

    bought = buy(client, stack, gate)

    assert (bought["error"], bought["status"]) == (None, 200), bought
    assert json.loads(bought["body"]) == {"said": "served", "method": "GET", "path": "/data"}
    receipt = bought["receipt"]
    assert (receipt["success"], receipt["network"], receipt["payer"]) == (True, network, chain.buyer_address)
    (status,) = chain.node("getSignatureStatuses", [receipt["transaction"]])["value"]
    assert status["err"] is None
    assert (bought["headers"]["x-credits-total"], bought["headers"]["x-credits-remaining"]) == ("3", "2")
    assert chain.balance_micro(chain.pay_to) - owner_had == PRICE_MICRO
    assert buyer_had - chain.balance_micro(chain.buyer_address) == PRICE_MICRO
    (forwarded,) = target.forwarded
    assert forwarded.headers["x-payer"] == chain.buyer_address
    shown = ask(f"{stack.hub_url}/payments/{NETWORK}/{payer_signature(chain.node, receipt['transaction'])}")
    assert (shown[0], shown[1]["status"], shown[1]["transaction"]) == (200, "success", receipt["transaction"])


def payer_signature(node: Any, transaction: str) -> str:
    """The second signature of a transaction on the chain: the buyer's, by which the public status is asked."""
    raw = base64.b64decode(node("getTransaction", transaction, {"encoding": "base64"})["transaction"][0])
    return encode(raw[65:129])


def test_official_client_is_told_that_the_seller_has_no_token_account(stack: Stack, target: LocalServer) -> None:
    gate = gate_of(stack, target, paymentAddress=str(Keypair().pubkey()))

    bought = buy("x402-2.25.0-httpx", stack, gate)

    assert (bought["error"], bought["status"]) == (None, 402), bought
    error = json.loads(bought["body"])["error"]
    assert error["details"]["reason"] == "invalid_exact_svm_payload_transaction_receiver_ata_not_found"
    assert target.forwarded == []


@contextmanager
def one_moment(stack: Stack) -> Iterator[str]:
    """The chain's node as clients see it who ask within one moment: its blockhash stays the same."""
    known: dict[str, Json] = {}

    def answer(request: Request) -> Reply:
        asked = request.json()
        if asked["method"] != "getLatestBlockhash":
            return Reply(*ask(stack.solana.rpc_url, asked))
        if not known:
            known.update(ask(stack.solana.rpc_url, asked)[1])
        return Reply(200, {**known, "id": asked["id"]})

    with serving(answer) as server:
        yield server.url


def test_two_payments_of_an_official_client_within_one_moment_are_charged_once_and_nothing_is_lost(
    stack: Stack, target: LocalServer
) -> None:
    """This client adds no memo, so that both are the same bytes. The second buyer signs again, and is served."""
    gate, other = gate_of(stack, target), gate_of(stack, target)
    had = stack.solana.balance_micro(stack.solana.pay_to)

    with one_moment(stack) as rpc_url:
        first, same, elsewhere = (buy(WITHOUT_MEMO, stack, bought, rpcUrl=rpc_url) for bought in (gate, gate, other))
    assert [one["status"] for one in (first, same, elsewhere)] == [200, 402, 402]
    told = [json.loads(same["body"])["errorDetail"], json.loads(elsewhere["body"])["error"]]
    assert [one["code"] for one in told] == ["CREDITS_EXHAUSTED", "NONCE_ALREADY_USED"]
    assert all(one["message"].endswith("sign a new payment") for one in told)
    assert stack.solana.balance_micro(stack.solana.pay_to) == had + PRICE_MICRO

    later = [buy(WITHOUT_MEMO, stack, bought) for bought in (gate, other)]
    assert [one["status"] for one in later] == [200, 200], later
    assert stack.solana.balance_micro(stack.solana.pay_to) == had + 3 * PRICE_MICRO
    assert len(target.forwarded) == 3


def terms(stack: Stack, target: LocalServer) -> Json:
    """Requirements as a resource server of somebody else's would write them."""
    requirements: Json = stack.challenge(gate_of(stack, target))["accepts"][0]
    return {**requirements, "resource": "https://elsewhere.example/data", "description": "", "mimeType": ""}


def signed(client: str, stack: Stack, requirements: Json) -> Json:
    """A payment of the client's own, or of another one's where it signs nothing."""
    signer = "npm-x402-1.2.0" if client == SIGNS_NOTHING_ON_SOLANA else client
    driver = FACILITATOR_CLIENTS_ON_SOLANA[signer]
    (payload,) = sign(driver, requirements, [stack.solana.buyer_key], rpcUrl=stack.solana.rpc_url)
    return payload


@pytest.mark.parametrize("client", FACILITATOR_CLIENTS_ON_SOLANA)
def test_hub_settles_once_for_an_official_facilitator_client(client: str, stack: Stack, target: LocalServer) -> None:
    requirements = terms(stack, target)
    asked = {"payload": signed(client, stack, requirements), "requirements": requirements}
    had = stack.solana.balance_micro(stack.solana.pay_to)

    results = ask_facilitator(
        FACILITATOR_CLIENTS_ON_SOLANA[client],
        stack.hub_url,
        [{"operation": operation, **asked} for operation in ("verify", "settle", "settle", "verify")],
    )

    assert [result.get("error") for result in results] == [None] * 4
    valid, settled, again, spent = (result["answer"] for result in results)
    assert (valid["isValid"], valid.get("invalidReason"), valid["payer"]) == (True, None, stack.solana.buyer_address)
    assert (settled["success"], settled.get("errorReason")) == (True, None)
    assert (settled["network"], settled["payer"]) == (NETWORK, stack.solana.buyer_address)
    assert (again["success"], again["errorReason"]) == (False, "duplicate_settlement")
    assert again["transaction"] == settled["transaction"]
    assert (spent["isValid"], spent["invalidReason"]) == (False, "duplicate_settlement")
    assert stack.solana.balance_micro(stack.solana.pay_to) == had + PRICE_MICRO


@pytest.mark.parametrize("client", FACILITATOR_CLIENTS_ON_SOLANA)
def test_hub_tells_an_official_facilitator_client_why_it_refuses(
    client: str, stack: Stack, target: LocalServer
) -> None:
    requirements = terms(stack, target)
    good = signed(client, stack, requirements)
    dearer = {**requirements, "maxAmountRequired": "10001"}
    elsewhere = {**requirements, "payTo": str(Keypair().pubkey())}
    had = stack.solana.balance_micro(stack.solana.pay_to)

    results = ask_facilitator(
        FACILITATOR_CLIENTS_ON_SOLANA[client],
        stack.hub_url,
        [
            {"operation": "verify", "payload": good, "requirements": dearer},
            {"operation": "verify", "payload": good, "requirements": elsewhere},
            {"operation": "settle", "payload": good, "requirements": dearer},
        ],
    )

    assert [result.get("error") for result in results] == [None] * 3
    *refused, unsettled = (result["answer"] for result in results)
    assert [(answer["isValid"], answer["invalidReason"]) for answer in refused] == [
        (False, "invalid_exact_svm_payload_amount_insufficient"),
        (False, "invalid_exact_svm_payload_transaction_transfer_to_incorrect_ata"),
    ]
    assert (unsettled["success"], unsettled["transaction"], unsettled["errorReason"]) == (
        False,
        "",
        "invalid_exact_svm_payload_amount_insufficient",
    )
    assert stack.solana.balance_micro(stack.solana.pay_to) == had


@pytest.mark.parametrize("client", FACILITATOR_CLIENTS_ON_SOLANA)
def test_official_facilitator_client_learns_the_fee_payer(client: str, stack: Stack, target: LocalServer) -> None:
    """What a resource server copies into its 402 is one of the hub's own, as what our own 402 says.

    Not always the same one: a gateway asks for the one of before the hour until it asks the hub again.
    """
    ours = {one.address for one in fee_payers_of(derive_wallets().relayer.private_key)}
    (result,) = ask_facilitator(FACILITATOR_CLIENTS_ON_SOLANA[client], stack.hub_url, [{"operation": "supported"}])

    kinds = {(kind["x402Version"], kind["scheme"], kind["network"]): kind for kind in result["answer"]["kinds"]}
    told = {kinds[1, "exact", NETWORK]["extra"]["feePayer"], terms(stack, target)["extra"]["feePayer"]}
    assert told <= ours


def test_official_facilitator_settles_on_our_node(stack: Stack, target: LocalServer) -> None:
    """By the node's methods and by its WebSocket."""
    requirements = terms(stack, target)
    fee_payers = fee_payers_of(derive_wallets().relayer.private_key)
    keys = {one.address: one.secret_key for one in fee_payers}

    answer = OFFICIAL_FACILITATOR.run(
        {
            "privateKey": keys[requirements["extra"]["feePayer"]],
            "requirements": requirements,
            "rpcUrl": stack.solana.rpc_url,
            "payload": signed("npm-x402-1.2.0", stack, requirements),
        }
    )

    assert answer["verified"]["isValid"] is True
    assert (answer["settled"]["success"], answer["settled"]["payer"]) == (True, stack.solana.buyer_address)
