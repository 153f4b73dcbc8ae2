"""Bodies that gateway and hub have in common, as types, and the types of their fields (specification 2, 4, 7).

`openapi` makes JSON Schemas of them. A body says what is taken and what is answered, no more: a request that fits may
still be refused for what it means. A field that may be left out is `T | UnsetType`, one that may be null `T | None`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field

from tollkeeper.core.api.errors import Code, ErrorType
from tollkeeper.core.json_types import JsonObject

Schema: TypeAlias = JsonObject  # as JSON Schema writes it; types may stand in it

PRICE_PATTERN: Final = r"^(0|[1-9][0-9]{0,11})(\.[0-9]{1,6})?$"
PRICE_ASKED_PATTERN: Final = r"^(?!0(\.0+)?$)(0|[1-9][0-9]{0,11})(\.[0-9]{1,6})?$"  # the same, but above zero
_BASE58_OR_HEX: Final = "^(0x[0-9a-fA-F]{40}|[1-9A-HJ-NP-Za-km-z]{32,44})$"

Count: TypeAlias = Annotated[int, Meta(ge=0)]
Word: TypeAlias = Annotated[str, Meta(min_length=1)]
Time: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Price: TypeAlias = Annotated[str, Meta(pattern=PRICE_PATTERN, description="USDC, decimal")]
PriceAsked: TypeAlias = Annotated[str, Meta(pattern=PRICE_ASKED_PATTERN, description="USDC, decimal")]
BaseUnits: TypeAlias = Annotated[
    str, Meta(pattern="^[0-9]{1,78}$", description="Base units of the asset: 1000000 are 1 USDC")
]
UnixTime: TypeAlias = Annotated[str, Meta(pattern="^[0-9]{1,78}$", description="Unix time")]
EvmAddress: TypeAlias = Annotated[str, Meta(pattern="^0x[0-9a-fA-F]{40}$")]
EvmSignature: TypeAlias = Annotated[str, Meta(pattern="^0x([0-9a-fA-F]{2})+$")]
WalletAddress: TypeAlias = Annotated[
    str, Meta(pattern=_BASE58_OR_HEX, description="0x and 40 hex digits, or base58 of 32 bytes on Solana")
]
ShownAddress: TypeAlias = Annotated[str, Meta(description="EIP-55 or base58")]
HeaderText: TypeAlias = Annotated[str, Meta(pattern="^[!-~]+$")]
NumberText: TypeAlias = Annotated[str, Meta(pattern="^[0-9]+$")]
AnyObject: TypeAlias = JsonObject


class Body(Struct, rename="camel"):
    """A JSON object. Its schema has `more` beside what the fields say."""

    more: ClassVar[Schema] = {}


class AnswerBody(Struct, rename="camel"):
    """A JSON body of ours: `envelope` adds `apiVersion` and `timestamp` (specification 4)."""

    more: ClassVar[Schema] = {
        "properties": {"apiVersion": {"type": "string", "const": "v1"}, "timestamp": Time},
        "required": ["apiVersion", "timestamp"],
    }


_NAMING_A_FIELD: Final[Schema] = {
    "if": {"properties": {"code": {"enum": [Code.INVALID_PARAMETER.value, Code.MISSING_PARAMETER.value]}}},
    "then": {
        "required": ["details"],
        "properties": {"details": {"properties": {"field": {"type": "string"}}, "required": ["field"]}},
    },
}


class RefusalBody(Body, kw_only=True):
    """A reason for which nothing was done."""

    type: ErrorType
    code: Code
    message: str
    details: AnyObject | UnsetType = UNSET
    request_id: str


RefusalShown: TypeAlias = Annotated[RefusalBody, Meta(extra_json_schema=_NAMING_A_FIELD)]


class Error(AnswerBody):
    """A refusal's body."""

    error: RefusalShown


class Pagination(Body):
    """The place of a page in its listing."""

    total_count: Count
    limit: Count
    offset: Count
    has_next: bool
    has_prev: bool


class StatusBody(AnswerBody):
    """The state of a process."""

    status: str


class AuthorizationBody(Body):
    """An authorization of EIP-3009."""

    from_: EvmAddress = field(name="from")
    to: EvmAddress
    value: BaseUnits
    valid_after: UnixTime
    valid_before: UnixTime | Count
    nonce: Annotated[str, Meta(pattern="^0x[0-9a-fA-F]{64}$")]


class EvmProof(Body):
    """A payment on an EVM network."""

    signature: EvmSignature
    authorization: AuthorizationBody


class SolanaProof(Body):
    """A payment on Solana: a transaction in base64."""

    transaction: Annotated[str, Meta(max_length=2048)]


class Settled(AnswerBody):
    """The end of a settlement."""

    success: bool
    status: Literal["success", "failed"]
    transaction: Annotated[str, Meta(description="Empty where there is none.")]
    network: str
    amount: BaseUnits
    payer: ShownAddress | None
    error_reason: str | None
