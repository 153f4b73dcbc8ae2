"""The payment rules, in order: what must hold before a payment may be settled (specification 4.4, 7; contract 5.1).

Cheap rules come first and the recovery of the signer last; what only the chain knows is judged from facts that were
read there. `require` raises the first rule that fails; the hub's `explain` lists them all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

import msgspec

from tollkeeper.core.api.errors import ApiError, Code, failed_check, payment_error
from tollkeeper.core.evm.counterfactual import unwrap
from tollkeeper.core.evm.encoding import (
    SIGNATURE_LENGTH,
    authorization_digest,
    domain_separator,
    is_counterfactual_signature,
    recover_address,
)
from tollkeeper.core.json_types import JsonMapping
from tollkeeper.core.limits import VALID_BEFORE_MARGIN_SECONDS
from tollkeeper.core.networks import ALIASES, Family, Network
from tollkeeper.core.x402 import version2
from tollkeeper.core.x402.version1 import SCHEME, X402_VERSION, EvmPayload, Payment, PaymentKey, Requirements

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class Reason(StrEnum):
    """`invalidReason` and `errorReason`: the reference implementations' strings."""

    X402_VERSION = "invalid_x402_version"
    SCHEME = "unsupported_scheme"
    NETWORK = "invalid_network"
    PAYLOAD = "invalid_payload"
    REQUIREMENTS = "invalid_payment_requirements"
    RECIPIENT = "invalid_exact_evm_payload_recipient_mismatch"
    VALUE = "invalid_exact_evm_payload_authorization_value"
    VALUE_MISMATCH = "invalid_exact_evm_payload_authorization_value_mismatch"  # version 2's, which takes no more either
    VALID_BEFORE = "invalid_exact_evm_payload_authorization_valid_before"
    VALID_AFTER = "invalid_exact_evm_payload_authorization_valid_after"
    SIGNATURE = "invalid_exact_evm_payload_signature"
    COUNTERFACTUAL = "eip6492_factory_not_allowed"
    UNDEPLOYED = "invalid_exact_evm_payload_undeployed_smart_wallet"
    ASSET_CODE = "asset_not_deployed_contract"
    NONCE_USED = "invalid_exact_evm_nonce_already_used"
    FUNDS = "insufficient_funds"
    SIMULATION = "invalid_exact_evm_transaction_simulation_failed"
    TRANSACTION_FAILED = "invalid_exact_evm_transaction_failed"
    DUPLICATE = "duplicate_settlement"
    STATE = "invalid_transaction_state"
    NOT_STARTED = "unexpected_settle_error"
    SVM_TRANSACTION = "invalid_exact_svm_payload_transaction"
    SVM_LENGTH = "invalid_exact_svm_payload_transaction_instructions_length"
    SVM_INSTRUCTIONS = "invalid_exact_svm_payload_transaction_instructions"
    SVM_FEE_PAYER = "fee_payer_not_managed_by_facilitator"
    SVM_FEE_PAYER_MISMATCH = "invalid_exact_svm_fee_payer_mismatch"
    SVM_FEE_PAYER_USED = "invalid_exact_svm_payload_transaction_fee_payer_included_in_instruction_accounts"
    SVM_COMPUTE_LIMIT = "invalid_exact_svm_payload_transaction_instructions_compute_limit_instruction"
    SVM_COMPUTE_LIMIT_HIGH = "invalid_exact_svm_payload_transaction_instructions_compute_limit_instruction_too_high"
    SVM_COMPUTE_PRICE = "invalid_exact_svm_payload_transaction_instructions_compute_price_instruction"
    SVM_COMPUTE_PRICE_HIGH = "invalid_exact_svm_payload_transaction_instructions_compute_price_instruction_too_high"
    SVM_NOT_TRANSFER = "invalid_exact_svm_payload_transaction_not_a_transfer_instruction"
    SVM_NOT_SPL_TRANSFER = "invalid_exact_svm_payload_transaction_instruction_not_spl_token_transfer_checked"
    SVM_NOT_2022_TRANSFER = "invalid_exact_svm_payload_transaction_instruction_not_token_2022_transfer_checked"
    SVM_SIGNERS = "invalid_exact_svm_payload_excessive_signers"
    SVM_SIGNATURE = "invalid_exact_svm_payload_signature_invalid"
    SVM_MINT = "invalid_exact_svm_payload_mint_mismatch"
    SVM_RECIPIENT = "invalid_exact_svm_payload_transaction_transfer_to_incorrect_ata"
    SVM_AMOUNT = "invalid_exact_svm_payload_transaction_amount_mismatch"
    SVM_AMOUNT_LOW = "invalid_exact_svm_payload_amount_insufficient"
    SVM_MEMO_COUNT = "invalid_exact_svm_payload_memo_count"
    SVM_MEMO = "invalid_exact_svm_payload_memo_mismatch"
    SVM_NO_RECIPIENT = "invalid_exact_svm_payload_transaction_receiver_ata_not_found"
    SVM_NO_SENDER = "invalid_exact_svm_payload_transaction_sender_ata_not_found"
    SVM_EXPIRED = "settle_exact_svm_block_height_exceeded"
    SVM_SIMULATION = "invalid_exact_svm_payload_transaction_simulation_failed"
    SVM_TRANSACTION_FAILED = "invalid_exact_svm_transaction_failed"


# What a facilitator says before it would send anything. Every other failure may have followed a transaction.
BEFORE_SENDING: Final = frozenset(Reason) - {
    Reason.NONCE_USED,
    Reason.SIMULATION,
    Reason.TRANSACTION_FAILED,
    Reason.DUPLICATE,
    Reason.STATE,
    Reason.NOT_STARTED,  # ours alone: of another facilitator it is any failure
    Reason.SVM_EXPIRED,
    Reason.SVM_SIMULATION,
    Reason.SVM_TRANSACTION_FAILED,
}

# The strings without a Reason are those of the newer reference facilitators.
_CODES: Final[dict[str, Code]] = {
    Reason.NETWORK: Code.INVALID_NETWORK,
    "invalid_exact_evm_network_mismatch": Code.INVALID_NETWORK,
    "invalid_exact_svm_network_mismatch": Code.INVALID_NETWORK,
    "network_mismatch": Code.INVALID_NETWORK,
    Reason.VALUE: Code.INSUFFICIENT_AMOUNT,
    "invalid_exact_evm_authorization_value": Code.INSUFFICIENT_AMOUNT,
    Reason.VALID_BEFORE: Code.PAYMENT_EXPIRED,
    "payment_expired": Code.PAYMENT_EXPIRED,
    Reason.SIGNATURE: Code.INVALID_SIGNATURE,
    "invalid_exact_evm_signature": Code.INVALID_SIGNATURE,
    Reason.FUNDS: Code.INSUFFICIENT_FUNDS,
    "invalid_exact_evm_insufficient_balance": Code.INSUFFICIENT_FUNDS,
    Reason.NONCE_USED: Code.NONCE_ALREADY_USED,
    Reason.DUPLICATE: Code.NONCE_ALREADY_USED,
    Reason.SVM_NO_SENDER: Code.INSUFFICIENT_FUNDS,  # who has no token account holds nothing
    Reason.SVM_AMOUNT_LOW: Code.INSUFFICIENT_AMOUNT,
    Reason.SVM_SIGNATURE: Code.INVALID_SIGNATURE,
    Reason.SVM_EXPIRED: Code.PAYMENT_EXPIRED,
}


def code_of_reason(reason: str | None) -> Code:
    """The specification 7 code that says what a facilitator's reason says; PAYMENT_INVALID for the rest."""
    return _CODES.get(reason or "", Code.PAYMENT_INVALID)


Own = TypeVar("Own")


@dataclass(frozen=True, slots=True)
class EvmAsset:
    """An allowed token on an enabled network, with the EIP-712 domain that the token itself signs under."""

    network: Network
    address: str
    name: str
    version: str

    has_accounts: ClassVar[bool] = False  # a wallet holds the token itself
    fee_payers: ClassVar[frozenset[str]] = frozenset()  # a buyer names nobody for it

    @classmethod
    def of_kind(cls, network: Network, shown: JsonMapping, extra: JsonMapping) -> EvmAsset | None:
        """Read the asset that a facilitator's kind says it settles; None if that cannot be read."""
        usdc = network.usdc
        address, name = shown.get("address", usdc.address), extra.get("name", usdc.eip712_name)
        version = extra.get("version", "2")
        if isinstance(address, str) and isinstance(name, str) and isinstance(version, str):
            return cls(network, address.lower(), name, version)
        return None

    @property
    def shown(self) -> dict[str, str]:
        """Members of a facilitator's kind that describe the token, as `of_kind` reads them."""
        return {"address": self.address}

    @property
    def extra(self) -> dict[str, str]:
        """Facts that a client needs to sign: the token's domain."""
        return {"name": self.name, "version": self.version}

    def known_as(self, own: Own) -> Own:
        """The same token by what a node of ours says of it: the names that it signs with."""
        return own

    def charged_to(self, fee_payer: str) -> EvmAsset:  # noqa: ARG002 - there is none to name
        """The same token for a payment whose fee this account pays."""
        return self

    def account_of(self, wallet: str) -> str:
        """Return the account that a transfer to the wallet names."""
        return wallet

    def no_wallet(self, address: str) -> str:  # noqa: ARG002 - every address holds the token itself
        """Why nobody's key can spend what is paid to this address, as far as it shows; empty where it does not."""
        return ""

    def recipient_check(self, account: str, pay_to: str) -> Check:
        """Is it this wallet that is paid?"""
        return Check("recipient", account == pay_to, Reason.RECIPIENT, pay_to, account)

    def price_check(self, value: int, price: int) -> Check:
        """Is at least this price paid?"""
        return Check("value", value >= price, Reason.VALUE, str(price), str(value))

    def exact_check(self, value: int, price: int) -> Check:
        """Is exactly this price paid?"""
        return Check("value", value == price, Reason.VALUE_MISMATCH, str(price), str(value))

    def stated_check(self, value: int, stated: int) -> Check:
        """Is it what was said beside the signed payment?"""
        return Check("amount", value == stated, Reason.PAYLOAD, str(value), str(stated))

    @property
    def separator(self) -> bytes:
        """The domain separator; computed once per distinct domain."""
        chain_id = self.network.chain_id
        assert chain_id is not None  # noqa: S101 - an EVM network has one
        return domain_separator(self.name, self.version, chain_id, self.address)


@dataclass(frozen=True, slots=True)
class ChainFacts:
    """Facts that a node stated about one authorization.

    `wallet_accepts`: the verdict of the payer's own code on the signature (ERC-1271), also of code that the settlement
    would deploy first. It is None if the payer has no code: then its key decides, as in the token. `revert` is the
    reason of a failed simulation, None if it passed.
    """

    asset_has_code: bool
    wallet_accepts: bool | None
    nonce_used: bool
    balance: int
    revert: str | None


class Check(msgspec.Struct, frozen=True):
    """One rule's result. `expected` and `actual` are JSON values for the caller.

    A Struct, because a dozen are made for each payment, and a dataclass costs five times as much.
    """

    name: str
    ok: bool
    reason: Reason
    expected: Any = None
    actual: Any = None


def refusal(check: Check, code: Code | None = None) -> ApiError:
    """The payment error of a failed check; `code` where another one than its reason's says more."""
    return payment_error(
        code or code_of_reason(check.reason),
        f"payment check failed: {check.name}",
        details=failed_check(check.reason.value, check.name, check.expected, check.actual),
    )


def require(checks: Iterable[Check]) -> None:
    """Run rules until one fails. Raises: the payment error of that rule."""
    for check in checks:
        if not check.ok:
            raise refusal(check)


def payment_key(asset: EvmAsset, payload: EvmPayload) -> PaymentKey:
    """The canonical identity of an EVM payment."""
    authorization = payload.authorization
    return PaymentKey(asset.network.name, asset.address, authorization.payer, authorization.nonce)


class OfNetwork(Protocol):
    """An allowed asset of either family."""

    @property
    def network(self) -> Network:
        """Network of the asset."""


def form_checks(
    payment: Payment,
    assets: Mapping[str, OfNetwork],
    paid_on: Iterable[str] | None = None,
    version: int = X402_VERSION,
) -> Iterator[Check]:
    """Version, scheme, network and its kind of payload: what a payment must be before anything in it has a meaning.

    `paid_on` is what is told to whose payment is on none of these networks: those of the gate that it was sent to.
    `version`: x402's, that the payment is to be of.
    """
    said = payment.x402_version
    yield Check("x402Version", said == version, Reason.X402_VERSION, version, said)
    yield Check("scheme", payment.scheme == SCHEME, Reason.SCHEME, SCHEME, payment.scheme)
    name = ALIASES.get(payment.network, payment.network)
    expected = sorted(assets) if paid_on is None else ", ".join(paid_on)
    yield Check("network", name in assets, Reason.NETWORK, expected, payment.network)
    asset = assets.get(name)
    wanted = _SHAPES[Family.EVM if asset is None else asset.network.family]
    shape = _SHAPES[payment.payload.family]
    yield Check("payload", shape == wanted, Reason.PAYLOAD, wanted, shape)


def requirement_checks(payment: Payment, requirements: Requirements, asset: EvmAsset) -> Iterator[Check]:
    """Does the payment answer these requirements, and are they ones that we settle?"""
    yield Check("requirements.scheme", requirements.scheme == SCHEME, Reason.SCHEME, SCHEME, requirements.scheme)
    network, ours = ALIASES.get(requirements.network, requirements.network), asset.network.name
    yield Check("requirements.network", network == ours, Reason.NETWORK, ours, network)
    asked = requirements.asset
    yield Check("requirements.asset", asked == asset.address, Reason.REQUIREMENTS, asset.address, asked)
    authorization = payment.authorized.authorization
    value, pay_to = authorization.value, authorization.pay_to
    yield Check("recipient", pay_to == requirements.pay_to, Reason.RECIPIENT, requirements.pay_to, pay_to)
    least = max(requirements.amount, 1)  # to move nothing would cost gas all the same, and its payer nothing
    if payment.x402_version == version2.VERSION:
        is_exact = 0 < value == requirements.amount
        yield Check("value", is_exact, Reason.VALUE_MISMATCH, str(least), str(value))
    else:
        yield Check("value", value >= least, Reason.VALUE, str(least), str(value))


def minimum_checks(value: int, least: int, reason: Reason) -> Iterator[Check]:
    """Is the payment worth what it costs to settle, where the operator says how much that is?"""
    if least:
        yield Check("minimum", value >= least, reason, str(least), str(value))


def time_checks(payload: EvmPayload, now_seconds: int) -> Iterator[Check]:
    """Is the authorization valid now, and long enough to be mined (6 s, as the reference facilitators ask)?"""
    after, before = payload.authorization.valid_after, payload.authorization.valid_before
    earliest = now_seconds + VALID_BEFORE_MARGIN_SECONDS
    yield Check("validBefore", before >= earliest, Reason.VALID_BEFORE, f">= {earliest}", str(before))
    # The token asks for a block later than validAfter.
    yield Check("validAfter", after < now_seconds, Reason.VALID_AFTER, f"< {now_seconds}", str(after))


def deployed_check(payload: EvmPayload, factories: Mapping[str, str]) -> Check:
    """Is the payer there to be asked, or deployed by one of these factories, as its signature says (ERC-6492)?

    `factories`: those that the operator listed, each with why it cannot be called now ("" where it can).
    """
    if not is_counterfactual_signature(payload.signature):
        return Check("deployed", ok=True, reason=Reason.COUNTERFACTUAL, expected="deployed", actual="deployed")
    usable = sorted(factory for factory, obstacle in factories.items() if not obstacle)
    expected = {"factories": usable} if usable else "deployed"
    try:
        factory = unwrap(payload.signature).factory
    except ValueError as error:
        return Check("deployed", ok=False, reason=Reason.COUNTERFACTUAL, expected=expected, actual=str(error))
    found = f"an ERC-6492 signature that names the factory {factory}"
    obstacle = factories.get(factory)
    if obstacle:
        # It is allowed: whoever deploys the wallet otherwise can pay.
        found += f", which cannot be called: {obstacle}"
        return Check("deployed", ok=False, reason=Reason.UNDEPLOYED, expected=expected, actual=found)
    return Check("deployed", obstacle is not None, Reason.COUNTERFACTUAL, expected, found)


def with_usual_v(payload: EvmPayload) -> EvmPayload:
    """The payload with a `v` of 0 or 1, as some libraries write it, as the 27 or 28 that the token takes."""
    signature = payload.signature
    if len(signature) != SIGNATURE_LENGTH or signature[-1] > 1:
        return payload
    return replace(payload, signature=signature[:-1] + bytes([signature[-1] + 27]))


def signature_check(payload: EvmPayload, asset: EvmAsset) -> Check:
    """Did the payer's key sign this authorization under the token's own domain?

    Says nothing yet of a payer that has code: `judged_signature` does, when a node was asked.
    """
    digest = authorization_digest(asset.separator, payload.authorization)
    try:
        signer = "0x" + recover_address(digest, payload.signature).hex()
    except ValueError as error:
        signer = str(error)
    expected = {"signer": payload.authorization.payer, "domain": {"name": asset.name, "version": asset.version}}
    return Check("signature", signer == payload.authorization.payer, Reason.SIGNATURE, expected, signer)


def judged_signature(by_key: Check, wallet_accepts: bool | None) -> Check:  # noqa: FBT001 - an answer of three values
    """The check of the signature as the token makes it: a payer's code decides where there is any, else its key.

    The payer's code is asked even where its key signed (an EIP-7702 delegation): the token asks it too.
    `wallet_accepts` is that of `ChainFacts`.
    """
    if wallet_accepts is None:
        return by_key
    found = "accepted by the payer's code" if wallet_accepts else "refused by the payer's code (ERC-1271)"
    return Check("signature", wallet_accepts, Reason.SIGNATURE, by_key.expected, found)


def chain_checks(payload: EvmPayload, by_key: Check, facts: ChainFacts) -> Iterator[Check]:
    """Yield the checks of the chain's facts, the most telling first: a failed simulation is then named by its cause.

    `by_key` is `signature_check`'s result, which the chain may overrule.
    """
    yield Check("assetCode", facts.asset_has_code, Reason.ASSET_CODE, expected=True, actual=facts.asset_has_code)
    yield judged_signature(by_key, facts.wallet_accepts)
    nonce = "used" if facts.nonce_used else "unused"
    yield Check("nonceUnused", not facts.nonce_used, Reason.NONCE_USED, "unused", nonce)
    value = payload.authorization.value
    yield Check("balance", facts.balance >= value, Reason.FUNDS, str(value), str(facts.balance))
    yield Check("simulation", facts.revert is None, Reason.SIMULATION, None, facts.revert)


_SHAPES: Final = {Family.EVM: "authorization", Family.SOLANA: "transaction"}
