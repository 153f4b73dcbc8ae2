"""What each official facilitator client makes of the answers that our hub gives (contract 5.1), set down here.

No hub runs: the bodies are written out, so these facts hold whatever our own code does. `test_facilitators.py` then
asks the hub itself.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.interop.local_server import Reply, Request, serving
from tests.interop.official import FACILITATOR_CLIENTS, WITHOUT_SUPPORTED, ask_facilitator

PAYER: Final = "0x857b06519E91e3A54538791bDbb0E22373e36b66"
PAY_TO: Final = "0x209693Bc6afc0C5328bA36FaF03C514EF312287C"
TOKEN: Final = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
TRANSACTION: Final = "0x" + "cd" * 32
ENVELOPE: Final = {"apiVersion": "v1", "timestamp": "2026-01-01T00:00:00.000Z"}

ASSETS: Final = [{"address": TOKEN, "name": "USD Coin", "symbol": "USDC", "decimals": 6}]
EXTRA: Final = {"name": "USD Coin", "version": "2"}
SUPPORTED: Final = {
    "kinds": [
        {"x402Version": 1, "scheme": "exact", "network": network, "assets": ASSETS, "extra": EXTRA}
        for network in ("base", "base-sepolia")
    ],
    "extensions": ["confirm"],
    "signers": {"eip155:*": [PAY_TO]},
    **ENVELOPE,
}
VALID: Final = {"isValid": True, "invalidReason": None, "payer": PAYER, **ENVELOPE}
INVALID: Final = {"isValid": False, "invalidReason": "insufficient_funds", "payer": PAYER, **ENVELOPE}
UNREADABLE_PAYER: Final = {"isValid": False, "invalidReason": "invalid_payload", "payer": None, **ENVELOPE}
SETTLED: Final = {
    "success": True,
    "status": "success",
    "transaction": TRANSACTION,
    "network": "base-sepolia",
    "amount": "10000",
    "payer": PAYER,
    "errorReason": None,
    **ENVELOPE,
}
FAILED: Final = {
    **SETTLED,
    "success": False,
    "status": "failed",
    "transaction": "",
    "errorReason": "invalid_exact_evm_nonce_already_used",
}
DUPLICATE: Final = {**FAILED, "transaction": TRANSACTION, "errorReason": "duplicate_settlement"}
PENDING: Final = {
    "error": {"type": "payment", "code": "SETTLEMENT_PENDING", "message": "ask again", "details": {}},
    **ENVELOPE,
}
ANSWERS: Final = {
    "supported": Reply(200, SUPPORTED),
    "valid": Reply(200, VALID),
    "invalid": Reply(200, INVALID),
    "unreadable-payer": Reply(200, UNREADABLE_PAYER),
    "settled": Reply(200, SETTLED),
    "failed": Reply(200, FAILED),
    "duplicate": Reply(200, DUPLICATE),
    "pending": Reply(503, PENDING, {"Retry-After": "2"}),
}
PAYLOAD: Final = {
    "x402Version": 1,
    "scheme": "exact",
    "network": "base-sepolia",
    "payload": {
        "signature": "0x" + "11" * 64 + "1b",
        "authorization": {
            "from": PAYER,
            "to": PAY_TO,
            "value": "10000",
            "validAfter": "1740672089",
            "validBefore": "1740672154",
            "nonce": "0x" + "22" * 32,
        },
    },
}


def call(operation: str, answer: str) -> dict[str, Any]:
    """A call that the server of this file answers with one of ANSWERS, named at the end of `resource`."""
    requirements = {
        "scheme": "exact",
        "network": "base-sepolia",
        "maxAmountRequired": "10000",
        "resource": f"http://127.0.0.1/{answer}",
        "description": "",
        "mimeType": "",
        "payTo": PAY_TO,
        "maxTimeoutSeconds": 60,
        "asset": TOKEN,
        "extra": EXTRA,
    }
    return {"operation": operation, "payload": PAYLOAD, "requirements": requirements}


def reply_to(request: Request) -> Reply:
    """The answer that the request names."""
    if request.path.endswith("/supported"):
        return ANSWERS["supported"]
    return ANSWERS[request.json()["paymentRequirements"]["resource"].rpartition("/")[2]]


@pytest.mark.parametrize("client", FACILITATOR_CLIENTS)
def test_official_facilitator_client_reads_success_and_failure(client: str) -> None:
    calls = [
        call("verify", "valid"),
        call("verify", "invalid"),
        call("verify", "unreadable-payer"),
        call("settle", "settled"),
        call("settle", "failed"),
        call("settle", "duplicate"),
    ]
    with serving(reply_to) as hub:
        results = ask_facilitator(client, f"{hub.url}/hub", calls)

    assert [result.get("error") for result in results] == [None] * len(calls)
    valid, invalid, unreadable, settled, failed, duplicate = (result["answer"] for result in results)
    assert (valid["isValid"], valid.get("invalidReason"), valid["payer"]) == (True, None, PAYER)
    assert (invalid["isValid"], invalid["invalidReason"], invalid["payer"]) == (False, "insufficient_funds", PAYER)
    assert (unreadable["isValid"], unreadable["invalidReason"], unreadable.get("payer")) == (
        False,
        "invalid_payload",
        None,
    )
    assert (settled["success"], settled["transaction"], settled["network"], settled["payer"]) == (
        True,
        TRANSACTION,
        "base-sepolia",
        PAYER,
    )
    assert (failed["success"], failed["transaction"], failed["errorReason"]) == (
        False,
        "",
        "invalid_exact_evm_nonce_already_used",
    )
    assert (duplicate["success"], duplicate["transaction"], duplicate["errorReason"]) == (
        False,
        TRANSACTION,
        "duplicate_settlement",
    )
    sent = [(request.path, request.json()["paymentPayload"]) for request in hub.received]
    assert sent == [(f"/hub/{asked['operation']}", PAYLOAD) for asked in calls]


@pytest.mark.parametrize("client", FACILITATOR_CLIENTS)
def test_official_facilitator_client_never_takes_a_pending_settlement_for_an_outcome(client: str) -> None:
    with serving(reply_to) as hub:
        (result,) = ask_facilitator(client, hub.url, [call("settle", "pending")])

    assert "answer" not in result
    assert len(hub.received) == 1


@pytest.mark.parametrize("client", [name for name in FACILITATOR_CLIENTS if name != WITHOUT_SUPPORTED])
def test_official_facilitator_client_reads_the_supported_kinds(client: str) -> None:
    with serving(reply_to) as hub:
        (result,) = ask_facilitator(client, hub.url, [{"operation": "supported"}])

    kinds = result["answer"]["kinds"]
    assert [(kind["x402Version"], kind["scheme"], kind["network"], kind["extra"]) for kind in kinds] == [
        (1, "exact", "base", EXTRA),
        (1, "exact", "base-sepolia", EXTRA),
    ]
    assert result["answer"]["signers"] == {"eip155:*": [PAY_TO]}
    assert result["answer"]["extensions"] == ["confirm"]
