"""A direct transfer at a facilitator that has none of its own: a settlement of the transfer's own requirements.

Such a one knows no keys, so that asked again it refuses what it made before, and may say anything of what it is making
(contract 4.4, 8). Where the gateway has a node the chain says what became of the transfer, before the facilitator is
asked and whenever it does not simply say that it made it; a success counts once it is on the chain, unless the caller
asks for less. A refusal is told, and proves nothing: what is charged for the transfer stays charged by it.

On Solana a chain shows that a payment was never made only to who knows since when it can have been: when it was asked
for first is kept, and it is looked for from a while before. Where it is not found there, that it is over is proof only
where its fee was charged, for that is done for a good one; else its payer is told to look himself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.errors import ApiError, Code, payment_error
from tollkeeper.core.verification import Reason, code_of_reason
from tollkeeper.core.wallets import shown_address
from tollkeeper.gateway.chain_proofs import is_before_sending
from tollkeeper.gateway.findings import NOTHING, Owed, Seen
from tollkeeper.gateway.hub_client import Settlement, asked_of, unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.core.tenders import Tender
    from tollkeeper.core.wire import Payment, Requirements
    from tollkeeper.gateway.chain_proofs import ChainProofs
    from tollkeeper.gateway.findings import Finding
    from tollkeeper.gateway.hub_client import HubClient, SettleAnswer, Supported
    from tollkeeper.gateway.transfer_keys import TransferKeys

# A transfer may have been asked for elsewhere, or for another fee, so long before.
_LOOKED_BACK_MS: Final = 900_000
_UNPROVEN: Final = "whether it was made before could not be shown, so look at your wallet's transactions first"
_LOG = structlog.get_logger("tollkeeper.gateway")


class UnprovenRefusal(ApiError):  # noqa: N818 - a refusal
    """A refused transfer that may have been made before, or may be made yet."""

    def __init__(self, refused: ApiError) -> None:
        super().__init__(refused.code, refused.message, details=refused.details)
        self.type, self.status, self.headers = refused.type, refused.status, refused.headers


@dataclass(frozen=True, slots=True)
class Abroad:
    """Asks the facilitator, and the gateway's nodes where it has any."""

    hub: HubClient
    supported: Callable[[], Supported]
    proofs: ChainProofs
    clock_ms: Callable[[], int]
    keys: TransferKeys

    async def make(
        self,
        payment: Payment,
        paid: Tender,
        requirements: Requirements,
        pay_to: str,
        *,
        obstacle: Callable[[], Awaitable[ApiError | None]],
        confirm: bool,
        fee_key: str,
    ) -> dict[str, Any] | str:
        """The body that our hub would answer. `fee_key`: under which its fee was charged, "" where there is none.

        `obstacle`: why it should not be asked for, if a node shows that; where there is a fee, that was asked before.
        Where it is not known what becomes of the transfer: the transaction that the facilitator named, or "".
        Raises: the refusal, UnprovenRefusal where nothing shows that the transfer is never made.
        """
        # Nobody learns what became of a transfer by naming it: who has signed it may.
        if not await self._is_known_signed(payment, paid, pay_to):
            return ""
        first = await (self.keys.first_of(fee_key) if fee_key else self.keys.first_of_free(paid.key, self.hub.place))
        since_ms = None if first is None else first.since_ms
        owed = self._owed(paid, pay_to, since_ms)
        seen, answer = await self._seen(owed), None
        if seen.seen is Seen.NOTHING:
            if not fee_key and (refused := await obstacle()) is not None:
                raise UnprovenRefusal(refused)
            answer = await self._asked(payment, paid, requirements, owed, confirm=confirm)
            if answer.outcome is Settlement.SUCCESS:
                return _told(payment, paid, answer.transaction)
            seen = await self._seen(owed)
        if seen.seen is Seen.PAID:
            return _told(payment, paid, seen.transaction)
        if seen.seen is Seen.FAILED:
            if not _is_proof(seen, paid, since_ms if fee_key else None):
                raise UnprovenRefusal(_refused(seen.reason or "", advice=_UNPROVEN))
            raise _refused(seen.reason or "", seen.transaction)
        if seen.seen is Seen.FOREIGN:
            raise UnprovenRefusal(_refused(Reason.NONCE_USED, seen.transaction))
        if answer is not None and (_is_used(answer) or is_before_sending(answer)):
            raise UnprovenRefusal(_refused(answer.reason, answer.transaction))
        return answer.transaction if answer is not None else ""

    async def require_unmade(self, payment: Payment, paid: Tender, pay_to: str) -> None:
        """Raises: the refusal of a transfer that was made, or can be made no more, before a fee is charged for it.

        The facilitator may call it valid all the same. Without a node nothing is asked, and who did not sign it is told
        nothing by this. UNAVAILABLE while no node answers.
        """
        network = paid.key.network
        if not self.proofs.covers(network):
            return
        try:
            if not (paid.is_signed_by_key or await self.proofs.is_signed(network, payment)):
                return
            use = await self.proofs.use_before(self._owed(paid, pay_to, None), payment)
        except RpcUnavailable as error:
            _LOG.info("chain_not_seen", reason=str(error))
            raise unavailable() from error
        if use.seen is not Seen.NOTHING:
            raise _refused(use.reason or Reason.NONCE_USED, use.transaction)

    async def is_never_made(self, paid: Tender, pay_to: str, since_ms: int | None) -> bool:
        """Does the chain prove that the transfer was not made, and cannot be any more?

        `since_ms`: when it was asked for first, None where that was not kept.
        """
        seen = await self._seen(self._owed(paid, pay_to, since_ms))
        return seen.seen is Seen.FAILED and _is_proof(seen, paid, since_ms)

    def _owed(self, paid: Tender, pay_to: str, since_ms: int | None) -> Owed:
        """What is looked for. Of what a clock ends the token itself remembers whether it was made."""
        asked_ms = self.clock_ms() if since_ms is None else since_ms
        if paid.valid_before is None:
            asked_ms -= _LOOKED_BACK_MS
        return Owed(paid.key, pay_to, paid.value, paid.valid_before, asked_ms)

    async def _asked(
        self, payment: Payment, paid: Tender, requirements: Requirements, owed: Owed, *, confirm: bool
    ) -> SettleAnswer:
        asked = asked_of(payment, requirements)
        asking = self.hub.settle(self.hub.settle_request(asked, key="", confirm=confirm, purchase_data={}))
        supported, network = self.supported(), paid.key.network
        if supported.confirms or not self.proofs.covers(network):
            return await asking
        return await self.proofs.settle(
            owed, asking, supported.senders_on(network), trusted=not confirm, confirms=False
        )

    async def _is_known_signed(self, payment: Payment, paid: Tender, pay_to: str) -> bool:
        """Is it known that its payer signed it, by a key or by what his code says? False while no node says so.

        Without a node nothing is asked, nor told by the chain. Raises: the refusal of what he did not sign.
        """
        network = paid.key.network
        if paid.is_signed_by_key or not self.proofs.covers(network):
            return True
        try:
            is_signed = await self.proofs.is_signed(network, payment)
        except RpcUnavailable as error:
            _LOG.info("chain_not_seen", reason=str(error))
            return False
        if not is_signed:
            if await self.is_never_made(paid, pay_to, None):  # by clocks: keys alone sign where there are none
                raise _refused(Reason.SIGNATURE)
            raise UnprovenRefusal(_refused(Reason.SIGNATURE, advice=_UNPROVEN))
        return True

    async def _seen(self, owed: Owed) -> Finding:
        network = owed.key.network
        if not self.proofs.covers(network):
            return NOTHING
        try:
            return await self.proofs.find(owed, "", self.supported().senders_on(network))
        except RpcUnavailable as error:
            _LOG.info("chain_not_seen", reason=str(error))
            return NOTHING


def _is_used(answer: SettleAnswer) -> bool:
    return answer.outcome is Settlement.FAILED and code_of_reason(answer.reason) is Code.NONCE_ALREADY_USED


def _is_proof(failed: Finding, paid: Tender, since_ms: int | None) -> bool:
    """Can the transfer not have been made before what was looked through? `since_ms` of one that was good then."""
    return bool(failed.transaction) or paid.valid_before is not None or since_ms is not None


def _refused(reason: str, transaction: str = "", advice: str = "") -> ApiError:
    details = {"reason": reason, **({"transaction": transaction} if transaction else {})}
    message = f"the transfer was refused: {reason}" + (f"; {advice}" if advice else "")
    return payment_error(code_of_reason(reason), message, details=details)


def _told(payment: Payment, paid: Tender, transaction: str) -> dict[str, Any]:
    return {
        "success": True,
        "status": "success",
        "transaction": transaction,
        "network": payment.network,
        "amount": str(paid.value),
        "payer": shown_address(paid.key.payer),
        "errorReason": None,
    }
