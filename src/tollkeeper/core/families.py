"""Differences between the families of networks beside their rules, one row each (specification 2.3, 2.5, 4.1, 4.4).

Code that needs one looks in `FAMILIES` by the family of a network or a payload, so that no other module decides by a
family's name. `EvmAsset` and `SolanaAsset` hold the differences between tokens and have the same members. The rules of
a payment are in `verification` and `solana`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias

from tollkeeper.core.evm.encoding import ZERO_ADDRESS, address_of_key, checksum_address
from tollkeeper.core.json_types import JsonMapping, JsonObject
from tollkeeper.core.keys.keyring import fee_payer_seeds
from tollkeeper.core.networks import Family
from tollkeeper.core.solana import rules as solana
from tollkeeper.core.solana.base58 import decode, encode, encode_key
from tollkeeper.core.solana.ed25519 import SIGNATURE_SIZE_BYTES, public_key
from tollkeeper.core.solana.message import decode_transaction
from tollkeeper.core.solana.programs import NOBODYS, TOKEN_2022_PROGRAM, TOKEN_PROGRAM, associated_token_account
from tollkeeper.core.x402.verification import EvmAsset, Reason

if TYPE_CHECKING:
    from tollkeeper.core.x402.version1 import Payment


class Explained(NamedTuple):
    """Explanation of a problem, and advice on what to do."""

    what: str
    advice: str


_UNFUNDED: Final = Explained(
    "the payer's wallet does not hold what the payment moves",
    "fund it, then send the same payment while it is valid, or sign a new one",
)
# The transaction shows the authorization to everybody, and the token takes it from anybody.
_REVERTED: Final = Explained(
    "the transaction that was to make the payment failed on the chain",
    "send the same payment again, or sign a new one once this one is over: until its validBefore anybody can still "
    "carry it out",
)


class EvmRow:
    """The row of EVM.

    `payload_members` make a payload, the last of them says which family it is of; `value_member` names what says the
    amount. `transfer_members` are asked beside the payload by the hub's transfer. `fee_payers_name`, `fee_money` and
    `fee_use` are words for who funds a hub: a sum, and for how many settlements it lasts under the usual caps.
    `has_contracts`: one of ours can carry several settlements. `nonce_form` is how a payment's nonce is kept,
    `nonce_words` says so; `transaction_words` say what names a transaction. `nobodys`
    are addresses that nobody has the key of. `used_advice` is said to whoever presents a payment that was used before.
    `shown_by_used` is what our hub may say of a payment that it carried out and has no record of any more, where it
    finds that out once it is to settle it.
    `shown_by_nodes` is what a node may say of one that was carried out before, or our hub of one whose fee payer it has
    no more. `failed_on_chain`: it was carried out, and failed.
    `not_payable`: what is to be paid is no account.
    `explained` are a facilitator's reasons in a buyer's words.
    """

    asset = EvmAsset
    payload_members = ("signature", "authorization")
    value_member = "authorization.value"
    transfer_members = ()
    fee_payers_name = "signer_key"
    fee_money = "0.01 ether"
    fee_use = "it pays the gas of settlements, and lasts for 1,333 of them at 0.05 gwei per gas"
    has_contracts = True
    nonce_form = re.compile("0x[0-9a-f]{64}")
    nonce_words = "0x and 64 hex digits"
    transaction_words = nonce_words
    nobodys = frozenset({ZERO_ADDRESS})
    used_advice = ""
    shown_by_used = frozenset({Reason.NONCE_USED})  # the token remembers, whatever became of the payer since
    shown_by_nodes = shown_by_used
    failed_on_chain = Reason.TRANSACTION_FAILED
    not_payable = Reason.RECIPIENT

    explained: ClassVar[Mapping[str, Explained]] = MappingProxyType(
        {Reason.FUNDS: _UNFUNDED, Reason.TRANSACTION_FAILED: _REVERTED}
    )

    def fee_accounts(self, signer_key: bytes) -> tuple[str, ...]:
        """Return the accounts whose money a hub with this signing key spends, as people see the addresses."""
        return (checksum_address(address_of_key(signer_key)),)

    def accounts_of(self, wallet: str, token: str) -> frozenset[str]:  # noqa: ARG002 - a wallet holds every token itself
        """Return the accounts that a transfer to the wallet may name, whatever program the token belongs to."""
        return frozenset({wallet})

    def transaction_name(self, text: str) -> str | None:
        """A transaction's name as it is kept; None for what is none here."""
        name = text.lower()
        return name if self.nonce_form.fullmatch(name) else None

    def payer_of(self, payment: Payment) -> str | None:
        """Return the payer's address as people see it; None if it cannot be read."""
        return checksum_address(payment.authorized.authorization.payer)

    def name_of(self, payment: Payment) -> tuple[str, str] | None:
        """Its payer and nonce, as they are kept; None where they cannot be read."""
        return payment.authorized.authorization.payer, payment.authorized.authorization.nonce

    def signed_value(self, payment: Payment) -> int | None:
        """Return how much was signed; None where that cannot be read."""
        return payment.authorized.authorization.value

    def history_terms(self, payload: JsonMapping, nonce: str) -> JsonObject:
        """Return the members of a history item's `x402Data` that only this family's payloads have."""
        authorization = payload["authorization"]
        times = {name: authorization[name] for name in ("validAfter", "validBefore")}
        return {**times, "nonce": nonce}


class SolanaRow:
    """The row of Solana: the same members, explained there."""

    asset = solana.SolanaAsset
    payload_members = ("transaction",)
    value_member = "transaction"
    transfer_members = ("amount", "recipient")
    fee_payers_name = "solana fee payers"
    fee_money = "0.01 SOL each"
    fee_use = "they pay the fees of settlements, and each lasts for 182 of them at the highest fee that is allowed"
    has_contracts = False
    nonce_form = re.compile("[0-9a-f]{64}")
    nonce_words = "64 hex digits"
    transaction_words = "on Solana a signature in base58"
    nobodys = NOBODYS
    # Clients that add no memo make the very bytes twice, and nothing in the payment shows it.
    used_advice = (
        ". On Solana two payments of one wallet to the same recipient, of the same amount and within the same moment "
        "can be one transaction, which is charged once. The second has cost nothing: to buy again, wait a second and "
        "sign a new payment"
    )

    # The chain's word while the blockhash is recent, then our hub's, who looks for its own signature there. Not what is
    # merely expired or not covered: whoever signs such payments, at no cost, would have each of them written down.
    shown_by_used = frozenset({Reason.DUPLICATE})
    # An account may be closed, or emptied, since.
    shown_by_nodes = frozenset(
        (
            *(Reason.DUPLICATE, Reason.SVM_EXPIRED, Reason.SVM_NO_RECIPIENT, Reason.SVM_NO_SENDER),
            *(Reason.FUNDS, Reason.SVM_SIMULATION, Reason.SVM_FEE_PAYER),
        )
    )
    failed_on_chain = Reason.SVM_TRANSACTION_FAILED
    not_payable = Reason.SVM_NO_RECIPIENT
    explained: ClassVar[Mapping[str, Explained]] = MappingProxyType(
        {
            Reason.SVM_NO_RECIPIENT: Explained(
                "the seller's address has no token account to be paid on",
                "only the seller can mend that: by opening one, or by naming a wallet that has one",
            ),
            Reason.SVM_NO_SENDER: Explained("the payer's wallet has no account of this token", _UNFUNDED.advice),
            Reason.FUNDS: _UNFUNDED,
            Reason.SVM_EXPIRED: Explained(
                "the payment's blockhash is too old to be settled, or newer than the facilitator's node knows",
                "sign a new payment, or, if this one is only seconds old, send it once more",
            ),
            Reason.SVM_SIMULATION: Explained(
                "the chain would not carry the payment out",
                "its word for why is in the details; sign another payment once that is mended",
            ),
            Reason.SVM_FEE_PAYER: Explained(
                "the payment names a fee payer that is none of the facilitator's, or is one no more",
                "sign a new payment of what a new 402 asks for",
            ),
            Reason.SVM_COMPUTE_LIMIT_HIGH: Explained(
                "the payment's compute limit is above the facilitator's", "sign a new payment with a lower one"
            ),
            Reason.SVM_COMPUTE_PRICE_HIGH: Explained(
                "the payment's compute price is above the facilitator's", "sign a new payment with a lower one"
            ),
            Reason.SVM_TRANSACTION_FAILED: Explained(
                "the payment was carried out and failed on the chain", "sign a new payment"
            ),
        }
    )

    def fee_accounts(self, signer_key: bytes) -> tuple[str, ...]:
        """The same on Solana."""
        return tuple(encode_key(public_key(seed)) for seed in fee_payer_seeds(signer_key))

    def accounts_of(self, wallet: str, token: str) -> frozenset[str]:
        """The same on Solana."""
        programs = (TOKEN_PROGRAM, TOKEN_2022_PROGRAM)
        return frozenset(associated_token_account(wallet, token, program) for program in programs)

    def transaction_name(self, text: str) -> str | None:
        """The same on Solana."""
        try:
            decode(text, size_bytes=SIGNATURE_SIZE_BYTES)
        except ValueError:
            return None
        return text

    def payer_of(self, payment: Payment) -> str | None:
        """The same on Solana."""
        return solana.payer_of(payment.transacted)

    def name_of(self, payment: Payment) -> tuple[str, str] | None:
        """The same on Solana."""
        payer = solana.payer_of(payment.transacted)
        return None if payer is None else (payer, decode_transaction(payment.transacted.transaction).message.hash)

    def signed_value(self, payment: Payment) -> int | None:
        """The same on Solana."""
        transfer = solana.transfer_of(payment.transacted)
        return None if transfer is None else transfer.value

    def history_terms(self, payload: JsonMapping, nonce: str) -> JsonObject:
        """The same on Solana."""
        signature = decode_transaction(payload["transaction"]).signatures[1]
        return {"messageHash": nonce, "payerSignature": encode(signature)}


FamilyRow: TypeAlias = EvmRow | SolanaRow
FAMILIES: Final[Mapping[Family, FamilyRow]] = MappingProxyType({Family.EVM: EvmRow(), Family.SOLANA: SolanaRow()})


def row_of(payment: Payment) -> FamilyRow:
    """The row of the family that a payment's payload is of."""
    return FAMILIES[payment.payload.family]
