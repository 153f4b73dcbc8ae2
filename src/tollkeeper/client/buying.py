"""`tollkeeper pay`: one paid call, as a careful buyer makes it (specification 1.2, 2.3; contract 4.1 to 4.6, 10).

In this order, each step only where the one before did not serve the call:

1. A payment of an earlier command whose outcome is not known is sent again. No other one is signed beside it.
2. Credits that were bought before are spent by their token.
3. The link is called without payment. The wallet logs in where the gate wants it.
4. What the 402 asks is paid, in x402 version 2 where the seller speaks that, else in version 1: USDC only, up to the
   limits of a call and of a day, and never on a 402 that carries a receipt.

A payment is kept on the disk before it is sent, and dropped once its outcome is known and nothing is left of it.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import aiohttp
from yarl import URL

from tollkeeper.client.kept_purchases import DailyLimit, KeptPurchase, PurchaseStore, gate_of
from tollkeeper.client.logins import log_in
from tollkeeper.client.paid_answer import CREDITS_IN, Charge, PaidAnswer, ShownProof
from tollkeeper.client.payments import (
    Offer,
    authorization_for,
    check_terms,
    latest_blockhash,
    offers_of,
    payload_for,
    solana_payload_for,
    solana_terms,
)
from tollkeeper.client.requests import RefusedError, ask, open_session, require_unheard, why
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.networks import Family, Network, normalise
from tollkeeper.core.usdc import format_usdc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tollkeeper.core.json_types import JsonMapping
    from tollkeeper.core.keys.wallet_keys import WalletKey
    from tollkeeper.core.x402.version1 import EvmPayload, SolanaPayload

_TARGET_SECONDS: Final = 630  # a gateway gives its target 600
_PENDING_SECONDS: Final = 90
_RETRY_SECONDS_MAX: Final = 10
_NONCE_SIZE_BYTES: Final = 32
_MEMO_SIZE_BYTES: Final = 16
_TOKEN_HEADER: Final = "X-Credit-Token"  # noqa: S105 - a header's name
_PAGE: Final = 100
PAYMENT_HEADERS: Final = frozenset({"payment-signature", "x-payment"})


@dataclass(frozen=True, slots=True)
class WantedCall:
    """One call. `rpc_url` is a node of the Solana network; `network` None: the first that one of the keys pays on."""

    url: str
    keys: tuple[WalletKey, ...]
    max_micro: int
    day_max_micro: int
    network: Network | None = None
    rpc_url: str | None = None
    method: str = "GET"
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    credit_token: str | None = None


class BuyersCall:
    """A wanted call on its way. `charge` is what is known to be charged so far, also when `run` raises."""

    def __init__(self, wanted: WantedCall, tell: Callable[[str], None]) -> None:
        """`tell` is told what is paid and what it waits for. Raises: RefusedError for a folder that cannot be used."""
        require_unheard(wanted.url)
        self.charge = Charge.NOTHING
        self.amount_micro = 0
        self._wanted = wanted
        self._tell = tell
        self._store = PurchaseStore()
        self._limit = DailyLimit(wanted.day_max_micro)
        self._bearers: dict[str, str] = {}  # access tokens by wallet
        self._bearer: str | None = None

    async def run(self) -> PaidAnswer:
        """Call, pay where payment is asked, and call again. Raises: RefusedError."""
        wanted = self._wanted
        wallets = {key.address for key in wanted.keys}
        async with open_session(_TARGET_SECONDS) as session:
            if (unsettled := self._store.take_unsettled(wanted.url, wallets)) is not None:
                self._tell(f"sending a payment of {format_usdc(unsettled.amount_micro)} USDC again, signed before")
                answer = await self._send_payment(session, unsettled)
                # A gateway that names why it refuses a payment has it in no book of its own: it was not charged there.
                if not (self.charge is Charge.NOTHING and answer.status == 402 and answer.code):
                    return answer
                self._tell(f"that payment was refused, and not charged: {answer.reason}")
                self.amount_micro = 0
            answer = await self._spend(session, wallets) or await self._ask_unpaid(session)
            if answer.status != 402:
                return answer
            if answer.has_receipt:
                self._tell("the 402 carries a receipt: a payment was taken for it, and no other one is signed")
                return answer
            return await self._pay(session, answer)

    async def _spend(self, session: aiohttp.ClientSession, wallets: set[str]) -> PaidAnswer | None:
        """Call by a credit token, the given one or a kept one. Return None if no token is good any more."""
        if self._wanted.credit_token is not None:
            return await self._spend_token(session, self._wanted.credit_token)
        while (kept := self._store.credits_for(self._wanted.url, wallets)) is not None:
            assert kept.token is not None  # noqa: S101 - `credits_for`
            answer = await self._spend_token(session, kept.token)
            if answer is None:
                self._store.forget(kept)
                continue
            if answer.credits_left is not None:
                self._store.settle(kept, kept.token, answer.credits_left)
            return answer
        return None

    async def _spend_token(self, session: aiohttp.ClientSession, token: str) -> PaidAnswer | None:
        """Call by a token. Return None if the gate says that it spends nothing."""
        self.charge = Charge.UNKNOWN
        answer = await self._call(session, {**self._chosen(), _TOKEN_HEADER: token})
        if self._wants_login(answer):
            await self._log_in(session, self._likely_key())
            answer = await self._call(session, {**self._chosen(), _TOKEN_HEADER: token})
        self.charge = answer.charge(ShownProof.CREDITS)
        is_kept = self._wanted.credit_token is None
        is_spent = answer.status == 402 or (is_kept and answer.code == "CREDIT_TOKEN_REQUIRED")
        return None if is_spent and not answer.has_receipt else answer

    async def _ask_unpaid(self, session: aiohttp.ClientSession) -> PaidAnswer:
        """Call without payment; by a login, where the gate wants one. Raises: RefusedError."""
        answer = await self._call(session, self._chosen())
        is_bound = answer.status == 402 and answer.is_bound_to_wallet and self._may_log_in
        if self._wants_login(answer) or is_bound:
            await self._log_in(session, self._likely_key())
            self.charge = Charge.UNKNOWN  # under a wallet's binding the login alone spends a credit
            answer = await self._call(session, self._chosen())
        self.charge = answer.charge(ShownProof.NOTHING if self._bearer is None else ShownProof.CREDITS)
        return answer

    async def _pay(self, session: aiohttp.ClientSession, unpaid: PaidAnswer) -> PaidAnswer:
        """Sign what the 402 asks, keep it, and send it. Raises: RefusedError."""
        offer, key = choose(offers_of(unpaid.headers, unpaid.body), self._wanted)
        asked = offer.requirements
        network, amount_micro = normalise(asked["network"]), int(asked["maxAmountRequired"])
        if self._bearer is not None:  # of the wallet that pays, for a gate may bind its credits to it
            await self._log_in(session, key)
        counted = self._limit.count(key.address, network.name, amount_micro)
        try:
            payload = await _sign(session, asked, key, self._wanted)
            sent = self._store.keep_sent(
                gate=gate_of(self._wanted.url, (offer.resource or {}).get("url") or asked.get("resource")),
                wallet=key.address,
                network=network.name,
                amount_micro=amount_micro,
                counted=counted,
                headers=offer.shown(payload),
            )
        except BaseException:
            self._limit.take_back(counted)
            raise
        self._tell(f"paying {format_usdc(amount_micro)} USDC on {asked['network']} to {asked['payTo']}")
        return await self._send_payment(session, sent)

    async def _send_payment(self, session: aiohttp.ClientSession, sent: KeptPurchase) -> PaidAnswer:
        """Send a kept payment until its outcome is known, and keep what it bought. Raises: RefusedError."""
        self.charge, self.amount_micro = Charge.UNKNOWN, sent.amount_micro
        sent, answer = await self._send_until_known(session, sent)
        self.charge = answer.charge(ShownProof.PAYMENT)
        if answer.code == "CREDIT_TOKEN_REQUIRED" and not answer.receipt:
            return await self._find_token(session, sent)
        if self.charge in {Charge.PAYMENT, Charge.CREDIT}:
            # Under a wallet's binding there is no use for a token, and a proof's purchase is kept already.
            self._store.settle(sent, answer.credit_token, answer.credits_left)
        elif self.charge in {Charge.NOTHING, Charge.ELSEWHERE}:
            self._store.forget(sent)
        if self.charge in {Charge.NOTHING, Charge.CREDIT}:
            self._limit.take_back(sent.counted)
        # Of a payment that was refused a token holds nothing.
        return replace(answer, token=None) if self.charge in {Charge.NOTHING, Charge.ELSEWHERE} else answer

    async def _send_until_known(
        self, session: aiohttp.ClientSession, sent: KeptPurchase
    ) -> tuple[KeptPurchase, PaidAnswer]:
        """Send until the outcome is known. A credit token that an answer tells on the way is kept with the payment.

        No later answer tells it again, and where the token counts the payment alone is not served any more.
        """
        deadline, told = time.monotonic() + _PENDING_SECONDS, ""
        while True:
            proof = {**sent.headers, **({} if sent.token is None else {_TOKEN_HEADER: sent.token})}
            answer = await self._call(session, {**self._chosen(), **proof})
            if self._wants_login(answer):
                await self._log_in(session, next(key for key in self._wanted.keys if key.address == sent.wallet))
                continue
            if not answer.is_pending:
                return sent, replace(answer, token=sent.token)
            if CREDITS_IN in answer.headers:
                sent = replace(sent, token=answer.headers[CREDITS_IN])
                self._store.write(sent)
            if time.monotonic() >= deadline:
                raise RefusedError(f"the gateway says {answer.reason}")
            if answer.reason != told:
                told = answer.reason
                self._tell(f"{told}; sending the same payment again")
            after = answer.headers.get("retry-after", "")
            await asyncio.sleep(min(int(after), _RETRY_SECONDS_MAX) if after.isdecimal() else 1)

    async def _find_token(self, session: aiohttp.ClientSession, sent: KeptPurchase) -> PaidAnswer:
        """Spend a credit of a payment that was carried out and counts no more itself: its payer is told the token.

        Raises: RefusedError.
        """
        self.charge = Charge.PAYMENT
        key = next(key for key in self._wanted.keys if key.address == sent.wallet)
        bearer = await self._log_in(session, key)
        slug = URL(sent.gate).path.strip("/")
        url = f"{URL(self._wanted.url).origin()}/api/v1/credits?limit={_PAGE}"
        held = await ask(session, "GET", url, has="data", headers={"Authorization": f"Bearer {bearer}"})
        for purchase in held["data"]:
            if purchase["slug"] == slug and purchase["remaining"] > 0:
                found = replace(sent, headers={}, token=purchase["creditToken"], left=purchase["remaining"])
                self._store.write(found)
                spent = await self._spend(session, {sent.wallet})
                if spent is not None:
                    return spent
        self._store.forget(sent)
        raise RefusedError(
            "the payment was carried out, and no credits are left of it. Run the command again to buy anew"
        )

    async def _log_in(self, session: aiohttp.ClientSession, key: WalletKey) -> str:
        """Log a wallet in at the link's gateway, once. Raises: RefusedError."""
        if key.address not in self._bearers:
            self._bearers[key.address] = await log_in(session, str(URL(self._wanted.url).origin()), key)
            self._tell(f"logged in as {key.address}")
        self._bearer = self._bearers[key.address]
        return self._bearer

    def _likely_key(self) -> WalletKey:
        """Return the key that will pay, as far as that is known before the gate told its terms."""
        wanted = self._wanted
        family = wanted.network.family if wanted.network else None
        return next((key for key in wanted.keys if key.family is family), wanted.keys[0])

    def _wants_login(self, answer: PaidAnswer) -> bool:
        return self._may_log_in and answer.status == 401 and answer.code in {"AUTH_REQUIRED", "INVALID_TOKEN"}

    @property
    def _may_log_in(self) -> bool:
        """Is there no bearer yet, neither the buyer's own nor one of ours?"""
        return self._bearer is None and all(name.lower() != "authorization" for name in self._wanted.headers)

    def _chosen(self) -> dict[str, str]:
        """Return on which network it is paid, for what is asked there, and also beside a refusal."""
        return {} if self._wanted.network is None else {"X-Payment-Network": self._wanted.network.name}

    async def _call(self, session: aiohttp.ClientSession, headers: Mapping[str, str]) -> PaidAnswer:
        wanted = self._wanted
        bearer = {} if self._bearer is None else {"Authorization": f"Bearer {self._bearer}"}
        every = {**wanted.headers, **bearer, **headers}
        try:
            async with session.request(
                wanted.method, wanted.url, data=wanted.body, headers=every, allow_redirects=False
            ) as answer:
                names = {name.lower(): value for name, value in answer.headers.items()}
                return PaidAnswer(answer.status, names, await answer.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise RefusedError(f"no answer from {wanted.url}: {why(error)}") from error


def choose(offers: Sequence[Offer], wanted: WantedCall) -> tuple[Offer, WalletKey]:
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
        key = next((one for one in wanted.keys if one.family is network.family), None)
        if key is not None and wanted.network in {None, network}:
            if amount > wanted.max_micro:
                limit = format_usdc(wanted.max_micro)
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
    session: aiohttp.ClientSession, requirements: JsonMapping, key: WalletKey, wanted: WantedCall
) -> EvmPayload | SolanaPayload:
    try:
        check_terms(requirements, key.address)
        if key.family is Family.EVM:
            nonce = os.urandom(_NONCE_SIZE_BYTES)
            authorization = authorization_for(requirements, key.address.lower(), nonce, int(time.time()))
            return payload_for(requirements, authorization, key.material)
        terms = solana_terms(requirements)
        blockhash = await latest_blockhash(session, wanted.rpc_url)
        return solana_payload_for(requirements, terms, key.material, blockhash, os.urandom(_MEMO_SIZE_BYTES))
    except (ApiError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"what the 402 asks cannot be signed: {error}") from error
