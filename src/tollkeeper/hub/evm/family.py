"""Settlements on an EVM chain: the verbs of `hub.settlement.family`, in their order (contract 5.2; security A-08, F22).

A payment is an authorization, which the token carries out once, whoever sends it. Which transaction does, with which
nonce and together with whom, is this family's own business: behind `claim` and `send` (`signing`, `batch`), and
behind `find_out` (`findings`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import structlog

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.sightings import FAILURES, Expected, Verdict
from tollkeeper.core.evm.signed_transactions import SignedTransaction, asks_for
from tollkeeper.core.x402.verification import Reason, chain_checks, signature_check, time_checks
from tollkeeper.hub.evm.findings import EvmFindings
from tollkeeper.hub.evm.signing import EvmSigning, FeeTerms
from tollkeeper.hub.settlement.concurrent_payers import UNREAD, balance_beside
from tollkeeper.hub.settlement.orders import PriorOutcome
from tollkeeper.storage.hub.transactions import next_nonce_of, open_lane

if TYPE_CHECKING:
    from tollkeeper.chains.evm.chain import EvmChain
    from tollkeeper.core.x402.version1 import Payment
    from tollkeeper.hub.evm.account import EvmAccount
    from tollkeeper.hub.evm.signing import EvmOrder
    from tollkeeper.hub.settlement.family import Claimed, ProvenTransition, SettlementParts
    from tollkeeper.storage.hub.payers import Overdrawn
    from tollkeeper.storage.hub.settlements import Settlement

_LOG = structlog.get_logger("tollkeeper.hub")


# Terms of a payment that the database does not remember: the transaction of ours that carried it out.
EvmTerms: TypeAlias = "FeeTerms | SignedTransaction"


class EvmFamily:
    """The family's verbs, for all its networks of one process."""

    def __init__(self, parts: SettlementParts) -> None:
        self._parts = parts
        self._signing = EvmSigning(parts)
        self._findings = EvmFindings(parts, self._signing)

    async def open(self, account: EvmAccount) -> None:
        """Let the signers' nonces start where chain and database agree, and find whom a payment may have called."""
        chain, network = account.chain, account.chain.network.name
        for address in account.signers.addresses:
            pending = await chain.authorizations.nonce_of(address, "pending")
            if pending > await next_nonce_of(self._parts.database, network, address):
                pending = await _agreed_nonce(chain, address)
            next_nonce = await self._parts.database.run(open_lane(network, address, pending))
            if next_nonce > pending:
                _LOG.info("nonces_ahead_of_chain", network=network, next_nonce=next_nonce, chain_nonce=pending)
        await account.look_around()

    async def simulate(self, order: EvmOrder, *, with_balance: bool) -> EvmTerms | Reason:
        """Simulate the payment as it is carried out now; say by the chain's state why it would revert."""
        account = order.account
        payload = await account.chain.ready(order.payload)
        if payload.authorization.valid_before <= self._parts.clock_ms() // 1000:
            return Reason.VALID_BEFORE
        simulated = await account.chain.simulate(payload, account.caller, with_balance=with_balance)
        block = simulated.block
        now_seconds = max(block.timestamp_seconds, self._parts.clock_ms() // 1000)
        for check in time_checks(payload, now_seconds):
            if not check.ok:
                return check.reason
        if simulated.revert is not None:
            asset = account.chain.require_asset()  # it may be disabled this moment
            by_key = signature_check(payload, asset)
            facts, block = await account.chain.state(payload, asset, account.caller, is_signed_by_key=by_key.ok)
            for check in chain_checks(payload, by_key, facts):
                if not check.ok:
                    return check.reason
        fees = await account.fees(block.base_fee_wei)
        return FeeTerms(payload, fees, UNREAD if simulated.balance is None else simulated.balance)

    async def claim(self, order: EvmOrder, known: Settlement | None, row_id: str, terms: EvmTerms) -> Claimed:
        """Claim alone or in a batch; or for a transaction that is on the chain already."""
        if isinstance(terms, SignedTransaction):
            return await self._signing.adopt(order, known, row_id, terms)
        return await self._signing.claim(order, known, row_id, terms)

    async def find_out(self, account: EvmAccount, row: Settlement) -> ProvenTransition:
        """Conclude from the authorization's state and the signers' nonces."""
        return await self._findings.find_out(account, row)

    async def prior(self, account: EvmAccount, payment: Payment, reason: Reason) -> PriorOutcome | None:
        """Find the transaction that used the authorization."""
        return PriorOutcome(reason, await account.used_by(payment)) if reason is Reason.NONCE_USED else None

    async def forgotten(self, order: EvmOrder, reason: Reason) -> EvmTerms | PriorOutcome | None:
        """Find the transaction that used the authorization; one of our signers' that made this payment is adopted."""
        if reason is not Reason.NONCE_USED:
            return None
        authorizations = order.account.chain.authorizations
        use = await authorizations.find_use(order.key.payer, order.key.nonce)
        if use is None:
            return None
        found = await authorizations.signed(use.transaction_hash)
        is_ours = found is not None and order.account.signers.holds(found.sender)
        if found is not None and is_ours and await _was_to_make(order, found):
            return found
        return PriorOutcome(reason, use.transaction_hash)

    async def balance_now(self, order: EvmOrder, terms: EvmTerms, overdrawn: Overdrawn) -> EvmTerms:
        """Read the payer's balance, and which authorizations of the payer's under way are used by now."""
        assert isinstance(terms, FeeTerms)  # noqa: S101 - no balance is asked for what is on the chain already
        holding = partial(order.account.chain.authorizations.holding, order.key.payer)
        balance, used = await balance_beside(order, order.payload.authorization.value, overdrawn, holding)
        return replace(terms, balance=balance, used=used)

    def same_payment(self, order: EvmOrder, row: Settlement) -> bool:
        """Compare payee and value: a payer can sign something else under the same nonce.

        Whoever was told of the row was told of its payee and value, so the payment that it names stays the one that
        failed.
        """
        authorization = order.payload.authorization
        return (authorization.pay_to, authorization.value) == (row.pay_to, row.value)


async def _was_to_make(order: EvmOrder, found: SignedTransaction) -> bool:
    """Say whether this transaction of ours, which used the nonce, made the order's transfer. Raises: RpcUnavailable.

    Not where it made another one that was signed under the same nonce. What nodes do not show yet, its own bytes say:
    whatever is adopted wrongly would be told to no buyer.
    """
    chain, authorization = order.account.chain, order.payload.authorization
    wanted = Expected(
        found.hash,
        order.key.asset,
        order.key.payer,
        authorization.pay_to,
        authorization.value,
        order.key.nonce,
        chain.config.depths.of(authorization.value),
    )
    (sighting,) = await chain.look([wanted])
    is_shown = sighting.verdict not in {Verdict.ABSENT, Verdict.DOUBTED}
    if not is_shown and not asks_for(found.transaction, wanted.transfer):
        raise RpcUnavailable("it is not shown yet what our transaction made of the authorization")
    return sighting.verdict not in FAILURES


async def _agreed_nonce(chain: EvmChain, signer: str) -> int:
    """Return the first nonce of a lane of which the database knows nothing, or too little. Raises: RpcUnavailable.

    What nodes have in their pools may differ; what is mined may not.
    """
    for tag in ("pending", "latest"):
        agreed = await chain.agreed_nonce(signer, tag)
        if agreed is not None:
            return agreed
    raise RpcUnavailable(f"the nodes do not show the same nonce of {signer}")
