"""Bodies of the hub's requests and answers (specification 4.3, 4.4; contract 5, 7)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, UnsetType

from tollkeeper.core.api.bodies import (
    AnswerBody,
    AnyObject,
    BaseUnits,
    Body,
    Count,
    EvmProof,
    Pagination,
    Schema,
    ShownAddress,
    SolanaProof,
    Time,
    WalletAddress,
)
from tollkeeper.core.json_types import JsonValue
from tollkeeper.core.networks import Caip2Network, NetworkAsked, NetworkName
from tollkeeper.core.settlement.states import SettlementKind, Status
from tollkeeper.hub.settlement.orders import SupportedAsset

_Short: TypeAlias = Annotated[str, Meta(max_length=2048)]
_PROOF: Final[Schema] = {"anyOf": [EvmProof, SolanaProof]}
_WITH_PROOF: Final[Schema] = {"properties": {"payload": _PROOF}, "required": ["payload"]}


def _unlike(schema: object) -> Schema:
    return {"not": schema}


class PaymentPayload(Body):
    """A payment of version 1.

    One of a scheme or network that is not ours may look like anything: it is refused by a reason, with a 200.
    """

    more: ClassVar[Schema] = {
        "anyOf": [
            _WITH_PROOF,
            {"properties": {"scheme": _unlike(Literal["exact"])}},
            {"properties": {"network": _unlike(NetworkAsked)}},
        ]
    }

    x402_version: int
    scheme: _Short
    network: _Short


class PaymentRequirements(Body):
    """The requirements that a payment of version 1 answers. What takes no part is never a reason to refuse."""

    scheme: _Short
    network: _Short
    max_amount_required: BaseUnits
    asset: _Short
    pay_to: _Short
    resource: Raw | UnsetType = UNSET
    description: Raw | UnsetType = UNSET
    mime_type: Raw | UnsetType = UNSET
    max_timeout_seconds: Count | UnsetType = UNSET
    extra: Raw | UnsetType = UNSET


class AcceptedKind(Body):
    """The kind of payment that a client of version 2 chose."""

    scheme: _Short
    network: _Short


class PaymentPayloadV2(Body):
    """The same of version 2."""

    more: ClassVar[Schema] = {
        "anyOf": [
            _WITH_PROOF,
            {"properties": {"accepted": {"properties": {"scheme": _unlike(Literal["exact"])}}}},
            {"properties": {"accepted": {"properties": {"network": _unlike(Caip2Network)}}}},
        ]
    }

    x402_version: Literal[2]
    accepted: AcceptedKind


class PaymentRequirementsV2(Body):
    """The requirements that a payment of version 2 answers."""

    scheme: _Short
    network: _Short
    amount: BaseUnits
    asset: _Short
    pay_to: _Short
    max_timeout_seconds: Count | UnsetType | None = UNSET
    extra: Raw | UnsetType = UNSET


class SupportedKind(Body):
    """A kind of payment."""

    x402_version: Literal[1, 2]
    scheme: Literal["exact"]
    network: NetworkAsked | Caip2Network
    assets: list[SupportedAsset]
    extra: AnyObject


class SupportedKinds(AnswerBody):
    """Everything that can be paid here."""

    kinds: list[SupportedKind]
    extensions: list[str]
    signers: dict[str, list[str]]


class ShownCheck(Body):
    """A check of a payment."""

    name: str
    ok: bool
    expected: JsonValue
    actual: JsonValue


class ShownVerdict(AnswerBody):
    """The verdict on a payment."""

    is_valid: bool
    invalid_reason: str | None
    payer: ShownAddress | None
    invalid_message: str | UnsetType = UNSET
    details: AnyObject | UnsetType = UNSET
    checks: list[ShownCheck] | UnsetType = UNSET
    transaction: str | UnsetType = UNSET


class PendingSettlement(AnswerBody):
    """A settlement of version 2 whose outcome is not known yet."""

    success: Literal[False]
    transaction: str
    network: Caip2Network
    amount: BaseUnits
    payer: ShownAddress | None
    error_reason: Literal["settlement_pending"]


class TransferOrdered(Body):
    """A signed transfer to carry out."""

    more: ClassVar[Schema] = _WITH_PROOF

    network: NetworkAsked
    asset: str
    x402_version: Literal[1] | UnsetType = UNSET
    amount: BaseUnits | UnsetType | None = UNSET
    recipient: str | UnsetType | None = UNSET
    confirm: bool | UnsetType | None = UNSET
    use_db_id: bool | UnsetType | None = UNSET


class StandingAsked(Body):
    """The identity of a payment."""

    network: NetworkAsked
    asset: WalletAddress
    payer: WalletAddress
    nonce: str
    blockhash: str | UnsetType = UNSET


class PaymentStanding(AnswerBody):
    """The state of a payment that is not to be settled."""

    is_unused: bool
    moment: Count
    last: Count


class ShownTransaction(Body):
    """A transaction of a wallet."""

    id: str
    created_at: Time
    updated_at: Time
    signer_address: ShownAddress
    amount: BaseUnits
    network: NetworkName
    chain_id: Count | None
    transaction_hash: str | None
    status: Status
    error: str | None
    type: SettlementKind
    x402_data: AnyObject
    purchase_data: AnyObject | UnsetType = UNSET


class OneTransaction(ShownTransaction):
    """The same, alone."""

    more: ClassVar[Schema] = AnswerBody.more


class HistoryPage(AnswerBody):
    """A page of transactions."""

    success: Literal[True]
    history: list[ShownTransaction]
    pagination: Pagination


class PaymentStatusBody(AnswerBody):
    """The public status of a payment."""

    status: Status
    transaction: str
    network: NetworkName
    amount: BaseUnits
    payer: ShownAddress
    pay_to: ShownAddress
    updated_at: Time
    id: str
    error: str | None


class HubReady(AnswerBody):
    """The state of a hub."""

    status: str
    problems: list[str]


def settlement_request(more: Schema) -> Schema:
    """Return the schema of verify and settle. If the versions are not ours, or not one, the rest may have any form."""

    def asked(properties: Schema) -> Schema:
        return {"type": "object", "properties": {**properties, **more}, "required": [*properties]}

    mixed = [
        {
            "properties": {
                "x402Version": Literal[version],
                "paymentPayload": {"properties": {"x402Version": _unlike(Literal[version])}},
            }
        }
        for version in (1, 2)
    ]
    payload = {"type": "object", "properties": {"x402Version": int}, "required": ["x402Version"]}
    return {
        "anyOf": [
            asked(
                {
                    "x402Version": {"type": "integer", "not": {"const": 2}},
                    "paymentPayload": PaymentPayload,
                    "paymentRequirements": PaymentRequirements,
                }
            ),
            asked(
                {
                    "x402Version": Literal[2],
                    "paymentPayload": PaymentPayloadV2,
                    "paymentRequirements": PaymentRequirementsV2,
                }
            ),
            asked({"x402Version": int, "paymentPayload": payload, "paymentRequirements": AnyObject}) | {"anyOf": mixed},
            asked({"x402Version": {"type": "integer", "not": {"enum": [1, 2]}}}),
        ]
    }
