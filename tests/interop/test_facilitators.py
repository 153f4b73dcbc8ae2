"""Unmodified official facilitator clients, as resource servers use them, ask our hub (spec 4.4, contract 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from eth_account import Account

from tests.interop.official import FACILITATOR_CLIENTS, WITHOUT_SUPPORTED, ask_facilitator, sign

if TYPE_CHECKING:
    from tests.interop.stack import Stack

PRICE_MICRO: Final = 10_000


def terms(stack: Stack) -> dict[str, Any]:
    """Requirements as a resource server of somebody else's would write them, paid to an address of their own."""
    gate = stack.create_gate(targetUrl=stack.target_url, price="0.01", paymentAddress=Account.create().address)
    requirements: dict[str, Any] = stack.challenge(gate)["accepts"][0]
    return {**requirements, "resource": "https://elsewhere.example/data", "description": "", "mimeType": ""}


def with_other_value(payload: dict[str, Any]) -> dict[str, Any]:
    """The payment with a value that its signature does not cover, though it would be enough."""
    inner = payload["payload"]
    return {**payload, "payload": {**inner, "authorization": {**inner["authorization"], "value": "10001"}}}


@pytest.mark.parametrize("client", FACILITATOR_CLIENTS)
def test_hub_settles_once_for_an_official_client(client: str, stack: Stack) -> None:
    requirements = terms(stack)
    (payload,) = sign(client, requirements, [stack.buyer_key])
    asked = {"payload": payload, "requirements": requirements}

    results = ask_facilitator(
        client,
        stack.hub_url,
        [{"operation": operation, **asked} for operation in ("verify", "settle", "settle", "verify")],
    )

    assert [result.get("error") for result in results] == [None] * 4
    valid, settled, again, spent = (result["answer"] for result in results)
    assert (valid["isValid"], valid.get("invalidReason"), valid["payer"]) == (True, None, stack.buyer_address)
    assert (settled["success"], settled.get("errorReason")) == (True, None)
    assert (settled["network"], settled["payer"]) == ("base-sepolia", stack.buyer_address)
    assert len(bytes.fromhex(settled["transaction"].removeprefix("0x"))) == 32
    assert (again["success"], again["errorReason"]) == (False, "duplicate_settlement")
    assert again["transaction"] == settled["transaction"]
    assert (spent["isValid"], spent["invalidReason"]) == (False, "invalid_exact_evm_nonce_already_used")
    assert stack.balance_micro(requirements["payTo"]) == PRICE_MICRO


@pytest.mark.parametrize("client", FACILITATOR_CLIENTS)
def test_hub_tells_an_official_client_why_it_refuses(client: str, stack: Stack) -> None:
    requirements = terms(stack)
    poor = "0x" + bytes(Account.create().key).hex()
    good, unfunded = sign(client, requirements, [stack.buyer_key, poor])
    dearer = {**requirements, "maxAmountRequired": "10001"}
    elsewhere = {**requirements, "payTo": Account.create().address}

    results = ask_facilitator(
        client,
        stack.hub_url,
        [
            {"operation": "verify", "payload": with_other_value(good), "requirements": requirements},
            {"operation": "verify", "payload": unfunded, "requirements": requirements},
            {"operation": "verify", "payload": good, "requirements": dearer},
            {"operation": "verify", "payload": good, "requirements": elsewhere},
            {"operation": "settle", "payload": unfunded, "requirements": requirements},
        ],
    )

    assert [result.get("error") for result in results] == [None] * 5
    *refused, unsettled = (result["answer"] for result in results)
    assert [(answer["isValid"], answer["invalidReason"]) for answer in refused] == [
        (False, "invalid_exact_evm_payload_signature"),
        (False, "insufficient_funds"),
        (False, "invalid_exact_evm_payload_authorization_value"),
        (False, "invalid_exact_evm_payload_recipient_mismatch"),
    ]
    assert (unsettled["success"], unsettled["transaction"], unsettled["errorReason"]) == (
        False,
        "",
        "insufficient_funds",
    )
    assert stack.balance_micro(requirements["payTo"]) == 0


@pytest.mark.parametrize("client", [name for name in FACILITATOR_CLIENTS if name != WITHOUT_SUPPORTED])
def test_official_client_finds_the_sandbox_network_supported(client: str, stack: Stack) -> None:
    (result,) = ask_facilitator(client, stack.hub_url, [{"operation": "supported"}])

    kinds = {(kind["x402Version"], kind["scheme"], kind["network"]): kind for kind in result["answer"]["kinds"]}
    assert set(kinds[1, "exact", "base-sepolia"]["extra"]) >= {"name", "version"}
    assert result["answer"]["signers"]
