"""`tollkeeper pay`: one paid call, as a careful buyer makes it (specification 1.2, 2.3; contract 4.1 to 4.6, 10).

It pays in x402 version 2 where the seller speaks that, else in version 1. Only USDC is paid, only up to a limit, and
what is asked is told before it is signed. A payment whose outcome is not known is sent again and never signed anew;
where that does not help, the caller gets it to send it later. Kept credits are the caller's to name: nothing is stored
here.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from tollkeeper.client.offers import Offer, offers_of, read_object
from tollkeeper.client.payments import (
    authorization_for,
    check_terms,
    latest_blockhash,
    payload_for,
    solana_payload_for,
    solana_terms,
)
from tollkeeper.client.requests import RefusedError, open_session, reason_of, require_unheard, why
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.networks import Family, Network, normalise
from tollkeeper.core.printable import printable
from tollkeeper.core.usdc import format_usdc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tollkeeper.core.keys.wallet_keys import WalletKey
    from tollkeeper.core.x402.version1 import EvmPayload, SolanaPayload

_TARGET_SECONDS: Final = 630  # a gateway gives its target 600
_PENDING_SECONDS: Final = 90
_RETRY_SECONDS_MAX: Final = 10
_NONCE_SIZE_BYTES: Final = 32
_CREDITS_IN: Final = "x-credit-token"
_RECEIPTS: Final = ("x-payment-response", "payment-response")
_PAYMENTS: Final = {"payment-signature": "PAYMENT-SIGNATURE", "x-payment": "X-Payment"}
_PROOF: Final = {**_PAYMENTS, _CREDITS_IN: "X-Credit-Token"}
_KEPT: Final = (("credits left", "x-credits-remaining"), ("credit token", _CREDITS_IN))
_MEMO_SIZE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class WantedCall:
    """One call. `rpc_url` is a node of the Solana network; `network` None: the first that one of the keys pays on."""

    url: str
    keys: tuple[WalletKey, ...]
    max_micro: int
    network: Network | None = None
    rpc_url: str | None = None
    method: str = "GET"
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    credit_token: str | None = None


@dataclass(frozen=True, slots=True)
class PaidAnswer:
    """An answer. Header names are lower case. `token` is the credit token that an earlier answer told."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    token: str | None = None

    @property
    def is_pending(self) -> bool:
        """Is the outcome of the payment not known, so that the same one is to be sent again?

        An answer with a receipt is a target's, whatever it says: a credit was used, and would be each time.
        """
        return self.status == 503 and not self.receipt and self.reason.startswith(("SETTLEMENT_PENDING", "UNAVAILABLE"))

    @property
    def reason(self) -> str:
        """Why it was refused; empty where it does not say."""
        return reason_of(read_object(self.body))

    @property
    def receipt(self) -> dict[str, Any]:
        """The decoded `X-Payment-Response`, else version 2's of a success; empty where there is none."""
        told = self._decoded("payment-response")
        return self._decoded("x-payment-response") or (told if told.get("success") is True else {})

    def _decoded(self, name: str) -> dict[str, Any]:
        try:
            return read_object(base64.b64decode(self.headers.get(name, ""), validate=True))
        except ValueError:
            return {}

    @property
    def told(self) -> list[tuple[str, str]]:
        """Facts for the buyer beside the body: what was paid, what is left, how to spend it."""
        receipt = self.receipt
        paid = [(name, str(receipt[name])) for name in ("transaction", "network", "payer") if receipt.get(name)]
        if paid and self._decoded("payment-response").get("amount") == "0":
            paid.append(("paid now", "nothing: it used a credit that the wallet holds"))
        headers = {**({} if self.token is None else {_CREDITS_IN: self.token}), **self.headers}
        kept = [(name, headers[key]) for name, key in _KEPT if key in headers]
        said = [*paid, *kept, *([("refused", self.reason)] if self.reason else [])]
        return [(name, printable(value)) for name, value in said]


async def pay(wish: WantedCall, tell: Callable[[str], None]) -> PaidAnswer:
    """Calls, pays where payment is asked, and calls again. Raises: RefusedError.

    `tell` is told what is paid, what it waits for, and how to go on where the outcome is not known.
    """
    require_unheard(wish.url)
    async with open_session(_TARGET_SECONDS) as session:
        if handed := _handed(wish):
            others = {name: value for name, value in wish.headers.items() if name.lower() not in _PROOF}
            return await _until_known(session, replace(wish, headers=others), handed, tell)
        asking = {**wish.headers, **_chosen(wish)}
        if wish.credit_token is not None:
            asking["X-Credit-Token"] = wish.credit_token
        unpaid = await _call(session, wish, asking)
        if unpaid.status != 402:
            return unpaid
        if any(name in unpaid.headers for name in _RECEIPTS):
            tell("the 402 carries a receipt: a payment was taken for it, and no other one is signed")
            return unpaid
        offer, key = choose(offers_of(unpaid.headers, unpaid.body), wish)
        payload, asked = await _sign(session, offer.requirements, key, wish), offer.requirements
        cost = format_usdc(int(asked["maxAmountRequired"]))
        tell(f"paying {cost} USDC on {asked['network']} to {asked['payTo']}")
        return await _until_known(session, wish, offer.shown(payload), tell)


def _handed(wish: WantedCall) -> dict[str, str]:
    """A payment that was signed before, with its credit token: it is sent again, and none is signed beside it."""
    given = {name.lower(): value for name, value in wish.headers.items()}
    if given.keys().isdisjoint(_PAYMENTS):
        return {}
    if wish.credit_token is not None:
        given[_CREDITS_IN] = wish.credit_token
    return {_PROOF[name]: given[name] for name in _PROOF if name in given}


async def _until_known(
    session: aiohttp.ClientSession, wish: WantedCall, proof: dict[str, str], tell: Callable[[str], None]
) -> PaidAnswer:
    """Call as `_call_paid` does. If the payment's outcome is not known then, tell the buyer how to go on.

    Raises: RefusedError.
    """
    try:
        called = await _call_paid(session, wish, proof, tell)
    except RefusedError as error:
        raise RefusedError(f"{error}. {_to_send_again(proof)}") from error
    except asyncio.CancelledError:  # its buyer waits no longer
        tell(_to_send_again(proof))
        raise
    if called.status >= 500 and not called.receipt:  # a proxy's answer, or a fault's
        tell(_to_send_again(proof))
    return called


def _to_send_again(proof: Mapping[str, str]) -> str:
    """Return advice for the buyer of a payment of unknown outcome, with all that proves the payment is his."""
    shown = "\n".join(f"{name}: {value}" for name, value in proof.items())
    return f"Whether it was paid is not known: send this same payment again, do not sign a new one\n{shown}"


async def _call_paid(
    session: aiohttp.ClientSession, wish: WantedCall, proof: dict[str, str], tell: Callable[[str], None]
) -> PaidAnswer:
    """Calls until the outcome is known. A credit token that an answer tells on the way is put into `proof`.

    No later answer tells it again, and where the token counts the payment alone is not served any more.
    """
    deadline, told = time.monotonic() + _PENDING_SECONDS, ""
    while True:
        called = await _call(session, wish, {**wish.headers, **_chosen(wish), **proof})
        if not called.is_pending:
            # Of a payment that was refused it holds nothing; where its next try needs it, the refusal tells it.
            return called if called.status == 402 else replace(called, token=proof.get(_PROOF[_CREDITS_IN]))
        if _CREDITS_IN in called.headers:
            proof[_PROOF[_CREDITS_IN]] = called.headers[_CREDITS_IN]
        if time.monotonic() >= deadline:
            raise RefusedError(f"the gateway says {called.reason}")
        if called.reason != told:
            told = called.reason
            tell(f"{told}; sending the same payment again")
        after = called.headers.get("retry-after", "")
        await asyncio.sleep(min(int(after), _RETRY_SECONDS_MAX) if after.isdecimal() else 1)


def _chosen(wish: WantedCall) -> dict[str, str]:
    """On which network it is paid, for what is asked there, and also beside a refusal."""
    return {} if wish.network is None else {"X-Payment-Network": wish.network.name}


def choose(offers: Sequence[Offer], wish: WantedCall) -> tuple[Offer, WalletKey]:
    """The first of a 402's offers that one of the wallets can and may pay. Raises: RefusedError."""
    if not offers:
        raise RefusedError("the answer is a 402 that offers nothing in x402 version 2 or 1")
    seen: dict[str, None] = {}
    for offer in offers:
        entry = offer.requirements
        try:
            network, amount = normalise(entry["network"]), _amount(entry["maxAmountRequired"])
            asset = str(entry["asset"])
            if asset.startswith("0x"):  # else its case says which one it is
                asset = asset.lower()
            if entry["scheme"] != "exact" or asset != network.usdc.address or amount <= 0:
                continue
        except (ApiError, KeyError, TypeError, ValueError):
            continue
        seen[network.name] = None
        key = next((one for one in wish.keys if one.family is network.family), None)
        if key is not None and wish.network in {None, network}:
            if amount > wish.max_micro:
                limit = format_usdc(wish.max_micro)
                raise RefusedError(f"it costs {format_usdc(amount)} USDC, which is more than --max allows ({limit})")
            return offer, key
    if not seen:
        raise RefusedError("the 402 asks for nothing that could be paid in USDC")
    raise RefusedError(
        f"it is to be paid on {', '.join(seen)}, and not by this wallet there: name another wallet, or by --network "
        "another network, for a link may be paid on more than it asks for first"
    )


def _amount(shown: object) -> int:
    """Smallest units, by their decimal text or number. Raises: ValueError for what others may read otherwise."""
    if type(shown) is int:
        return shown
    if not isinstance(shown, str) or not (shown.isascii() and shown.isdecimal()):
        raise ValueError("it is no amount")
    return int(shown)


async def _sign(
    session: aiohttp.ClientSession, requirements: Mapping[str, Any], key: WalletKey, wish: WantedCall
) -> EvmPayload | SolanaPayload:
    try:
        check_terms(requirements, key.address)
        return await _SIGNERS[key.family](session, requirements, key, wish)
    except (ApiError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"what the 402 asks cannot be signed: {error}") from error


async def _sign_on_evm(
    _session: aiohttp.ClientSession, requirements: Mapping[str, Any], key: WalletKey, _wish: WantedCall
) -> EvmPayload | SolanaPayload:
    nonce = os.urandom(_NONCE_SIZE_BYTES)
    authorization = authorization_for(requirements, key.address.lower(), nonce, int(time.time()))
    return payload_for(requirements, authorization, key.material)


async def _sign_on_solana(
    session: aiohttp.ClientSession, requirements: Mapping[str, Any], key: WalletKey, wish: WantedCall
) -> EvmPayload | SolanaPayload:
    terms = solana_terms(requirements)
    if wish.rpc_url is None:
        raise RefusedError("a payment on Solana holds a recent blockhash: name a node that tells it, by --rpc-url")
    blockhash = await latest_blockhash(session, wish.rpc_url)
    return solana_payload_for(requirements, terms, key.material, blockhash, os.urandom(_MEMO_SIZE_BYTES))


_SIGNERS: Final = {Family.EVM: _sign_on_evm, Family.SOLANA: _sign_on_solana}


async def _call(session: aiohttp.ClientSession, wish: WantedCall, headers: Mapping[str, str]) -> PaidAnswer:
    try:
        async with session.request(
            wish.method, wish.url, data=wish.body, headers=headers, allow_redirects=False
        ) as answer:
            names = {name.lower(): value for name, value in answer.headers.items()}
            return PaidAnswer(answer.status, names, await answer.read())
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise RefusedError(f"no answer from {wish.url}: {why(error)}") from error
