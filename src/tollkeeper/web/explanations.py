"""Explanations of outcomes and codes for the owner, a sentence each."""

from __future__ import annotations

from typing import Final

OUTCOMES: Final = {
    "served": "Served: your target answered, and the credit is used.",
    "targetError": "Your target answered with an error of its own, which the buyer was passed. The credit is used.",
    "failed": "Your target's answer could not be passed on. The credit is used, unless the PayGate gives it back.",
    "clientGone": "The buyer went away before the answer was complete. The credit is used.",
    "challenged": "Somebody asked without a payment and was told the price. Nobody was charged.",
    "refused": "The request was refused. Nobody was charged.",
}
CODES: Final = {
    "UPSTREAM_TIMEOUT": "Your target did not finish its answer within 600 seconds.",
    "UPSTREAM_TOO_LARGE": "Your target's answer is over 10 MiB. Sell it as a file, or turn stream on.",
    "UPSTREAM_UNREACHABLE": "Your target could not be connected to. Check that it runs and that its address is right.",
    "UPSTREAM_INVALID": "Your target's answer cannot be passed on: it asks for payment itself, or is no valid HTTP.",
    "UPSTREAM_BLOCKED": "Your target's address is not one that the gateway may connect to.",
    "PAYMENT_INVALID": "The payment could not be read, or does not fit what the PayGate asks for.",
    "INVALID_SIGNATURE": "The payment is not signed by the wallet that it names.",
    "INSUFFICIENT_AMOUNT": "The payment is below the price.",
    "INSUFFICIENT_FUNDS": "The buyer's wallet holds too little USDC.",
    "PAYMENT_EXPIRED": "The payment's time was over.",
    "NONCE_ALREADY_USED": "The payment was used before, here or elsewhere.",
    "INVALID_NETWORK": "The payment is on a network that the PayGate is not paid on.",
    "CREDITS_EXHAUSTED": "The payment's credits were used up before.",
    "CREDIT_TOKEN_REQUIRED": "The buyer holds credits, and showed a proof that no longer spends them.",
    "SETTLEMENT_PENDING": "The chain had not decided yet. The buyer was told to send the same payment again.",
    "AUTH_REQUIRED": "The PayGate wants a login, and the request had none.",
    "INVALID_TOKEN": "The login that the request showed is over.",
    "FORBIDDEN": "The wallet that is logged in is not the one that paid.",
    "METHOD_NOT_ALLOWED": "The PayGate does not sell that method.",
    "PAYLOAD_TOO_LARGE": "The request's body is too large.",
    "RATE_LIMITED": "The same address had asked too often without paying.",
    "NOT_FOUND": "The PayGate does not sell at present, or not below that path.",
    "INVALID_PARAMETER": "The request's path or a header of it cannot be passed on.",
    "UNAVAILABLE": "The gateway or the payment hub could not be asked. Nothing was charged that is not honoured.",
    "INTERNAL_ERROR": "The gateway failed. Its operator finds the reason in the log by the request's id.",
}
STATUSES: Final = {
    "paid": "Settled on the chain; the credits were granted.",
    "pending": "Under way: the chain has not decided yet. It is followed until it has.",
    "failed": "Proved not settled. Nobody was charged; the buyer may send the same payment again.",
    "void": "Its credits count no more: the PayGate was deleted, or the payment proved failed after it was served.",
    "parked": "Nobody can tell its outcome. The operator decides.",
}


def explain(outcome: str, code: str | None) -> str:
    """Return what became of a request, in plain words."""
    return CODES.get(code or "", OUTCOMES.get(outcome, ""))
