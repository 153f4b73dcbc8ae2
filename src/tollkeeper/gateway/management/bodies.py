"""Bodies of PayGates, of what they ask for and of what they did (specification 2.1, 2.2; contract 2, 3.1, 4)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field

from tollkeeper.core.api.bodies import (
    AnswerBody,
    AnyObject,
    AuthorizationBody,
    BaseUnits,
    Body,
    Count,
    EvmSignature,
    HeaderText,
    Pagination,
    Price,
    PriceAsked,
    RefusalShown,
    Schema,
    ShownAddress,
    Time,
    WalletAddress,
)
from tollkeeper.core.api.errors import Code
from tollkeeper.core.limits import (
    ACCEPTS_MAX,
    CREDITS_EXPIRE_AFTER_MAX_SECONDS,
    CREDITS_MAX,
    DESCRIPTION_LENGTH,
    TARGET_HEADERS_MAX,
    TARGET_URL_LENGTH,
    TITLE_LENGTH,
)
from tollkeeper.core.networks import NetworkAsked, NetworkName
from tollkeeper.core.paygates.fields import METHODS, CreditBinding, HeaderAuthMode, OnFailure
from tollkeeper.core.paygates.statistics import RequestOutcome
from tollkeeper.core.x402.version2 import HEADER_LENGTH_MAX, PAYMENT_REQUIRED_HEADER

_METHOD: Final = "(" + "|".join("".join(f"[{one}{one.lower()}]" for one in name) for name in METHODS) + ")"
_LINES: Final = r"^[^\x00-\x08\x0b-\x1f\x7f]*$"
_PART: Final = "[A-Za-z0-9!#$&^_.+-]{1,127}"
Slug: TypeAlias = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{2,63}$")]
RequiredHeader: TypeAlias = Annotated[
    HeaderText,
    Meta(
        description="What to pay, for clients of x402 version 2: base64 of JSON with x402Version, error, resource and "
        f"accepts; at most {HEADER_LENGTH_MAX} characters."
    ),
]
REQUIRED_IN_HEADER: Final = {PAYMENT_REQUIRED_HEADER: RequiredHeader}
ReceiptOfVersion2: TypeAlias = Annotated[
    HeaderText,
    Meta(
        description="Of a payment of x402 version 2: base64 of JSON with success, payer, transaction, network "
        "(CAIP-2); amount 0 where held credits were spent, errorReason where success is false."
    ),
]
Method: TypeAlias = Annotated[str, Meta(pattern=f"^ *{_METHOD} *(, *{_METHOD} *)*$")]
_PriceOrNumber: TypeAlias = PriceAsked | Annotated[float, Meta(gt=0, le=999_999_999_999)]
_Seconds: TypeAlias = Annotated[int, Meta(ge=1, le=CREDITS_EXPIRE_AFTER_MAX_SECONDS, description="seconds")]
_TargetHeader: TypeAlias = Annotated[str, Meta(pattern=r"^([!-~]([\t -~]*[!-~])?)?$")]
TargetHeaders: TypeAlias = Annotated[
    dict[str, _TargetHeader],
    Meta(max_length=TARGET_HEADERS_MAX, description="Sent to the target; the values are never shown again."),
]
TargetUrl: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=TARGET_URL_LENGTH, extra_json_schema={"format": "uri"})
]
_FileContent: TypeAlias = Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/octet-stream"})]


class RecipientAsked(Body, forbid_unknown_fields=True):
    """A further network that a gate is paid on."""

    network: NetworkAsked
    payment_address: WalletAddress


class Settable(Struct, rename="camel", forbid_unknown_fields=True):
    """The fields of every gate that its owner sets. A field that is not known is refused, never ignored."""

    credits: Annotated[int, Meta(ge=1, le=CREDITS_MAX, description="Calls of one purchase")] | UnsetType = UNSET
    title: Annotated[str, Meta(max_length=TITLE_LENGTH, pattern=_LINES)] | UnsetType = UNSET
    description: Annotated[str, Meta(max_length=DESCRIPTION_LENGTH, pattern=_LINES)] | UnsetType = UNSET
    method: Method | UnsetType = UNSET
    network: NetworkAsked | UnsetType = UNSET
    accepts: Annotated[list[RecipientAsked], Meta(max_length=ACCEPTS_MAX)] | UnsetType = UNSET
    mime_type: Annotated[str, Meta(pattern=f"^{_PART}/{_PART}$")] | UnsetType = UNSET
    assume_valid: bool | UnsetType = UNSET
    require_auth: bool | UnsetType = UNSET
    is_enabled: bool | UnsetType = UNSET
    credit_binding: CreditBinding | UnsetType = UNSET
    payer_proof: bool | UnsetType = UNSET


class UrlFields(Settable):
    """The fields of a gate that sells calls of a target."""

    credits_expire_after: _Seconds | UnsetType | None = UNSET
    header_auth_mode: HeaderAuthMode | UnsetType = UNSET
    allow_subpaths: bool | UnsetType = UNSET
    stream: bool | UnsetType = UNSET
    on_failure: OnFailure | UnsetType = UNSET
    target_headers: TargetHeaders | UnsetType = UNSET


class CreatePayGate(UrlFields, kw_only=True):
    """A gate to make; a price is taken as a number where its text is such a decimal."""

    price: _PriceOrNumber
    target_url: TargetUrl
    slug: Slug | UnsetType | None = UNSET
    payment_address: WalletAddress | UnsetType | None = UNSET
    resource_type: Literal["url"] | UnsetType = UNSET


class UpdatePayGate(UrlFields):
    """A change of a gate: any of its fields."""

    more: ClassVar[Schema] = {"minProperties": 1}

    price: _PriceOrNumber | UnsetType = UNSET
    target_url: TargetUrl | UnsetType = UNSET
    payment_address: WalletAddress | UnsetType = UNSET
    resource_type: Literal["url", "file"] | UnsetType = UNSET


class CreateFilePayGate(Settable, kw_only=True):
    """A gate to make that sells a file, as a form: it has no null."""

    price: PriceAsked
    file: _FileContent
    resource_type: Literal["file"]
    slug: Slug | UnsetType = UNSET
    payment_address: WalletAddress | UnsetType = UNSET
    credits_expire_after: _Seconds | UnsetType = UNSET


class UpdateFilePayGate(Settable):
    """The same for a change."""

    more: ClassVar[Schema] = {"minProperties": 1}

    price: PriceAsked | UnsetType = UNSET
    file: _FileContent | UnsetType = UNSET
    resource_type: Literal["file"] | UnsetType = UNSET
    payment_address: WalletAddress | UnsetType = UNSET
    credits_expire_after: _Seconds | UnsetType = UNSET


class ClaimRequest(Body):
    """A gate's management token, where it has one."""

    management_token: str | UnsetType | None = UNSET


class ShownRecipient(Body):
    """A further network that a gate is paid on."""

    network: NetworkName
    payment_address: ShownAddress


class ShownCounters(Body):
    """Counts of a gate's whole life."""

    challenges: Count
    purchases: Count
    calls: Count
    failures: Count
    revenue: Price


class ListedPayGate(Body, kw_only=True):
    """A gate as it is read. Fields that may be left out are of one that sells a file."""

    id: Count
    slug: Slug
    access_url: str
    target_url: str
    price: Price
    credits: Count
    method: str
    title: str
    description: str
    assume_valid: bool
    require_auth: bool
    payment_address: ShownAddress
    network: NetworkName
    accepts: list[ShownRecipient]
    mime_type: str
    is_enabled: bool
    header_auth_mode: HeaderAuthMode
    credit_binding: CreditBinding
    on_failure: OnFailure
    credits_expire_after: Count | None
    resource_type: Literal["url", "file"]
    file_name: str | UnsetType = UNSET
    file_size: Count | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    sha256: str | UnsetType = UNSET
    allow_subpaths: bool
    stream: bool
    payer_proof: bool
    target_headers: list[str]
    owner_wallet: ShownAddress | None
    created_at: Time
    updated_at: Time
    counters: ShownCounters


class ShownTrust(Body):
    """The purchases that were served before the chain confirmed them."""

    open: Count
    open_amount: Price
    failed: Count
    failed_amount: Price


class SavedWarning(Body, kw_only=True):
    """A thing that the owner of a gate should know."""

    field: str
    network: NetworkName | UnsetType = UNSET
    message: str


class ShownPayGate(ListedPayGate, kw_only=True):
    """A gate, with what is shown once, and what was served on trust."""

    more: ClassVar[Schema] = AnswerBody.more

    secret: str | UnsetType = UNSET
    key_id: str | UnsetType = UNSET
    management_token: str | UnsetType = UNSET
    warnings: list[SavedWarning] | UnsetType = UNSET
    trusted: ShownTrust | UnsetType = UNSET


class PayGatePage(AnswerBody):
    """A page of gates."""

    data: list[ListedPayGate]
    pagination: Pagination


class Deleted(AnswerBody):
    """The end of a gate."""

    success: Literal[True]
    message: str
    outstanding_credits: Count


class SecretBody(AnswerBody):
    """A secret that signs requests to the target."""

    secret: str
    key_id: str


class CallSums(Body):
    """Calls by how they ended."""

    total: Count
    served: Count
    target_error: Count
    failed: Count
    client_gone: Count


class LatencySums(Body):
    """Microseconds of our own share of a call; null where there was none."""

    p50: Count | None
    p95: Count | None
    p99: Count | None


class SumsBody(Body):
    """The sums of a time."""

    revenue: Price
    purchases: Count
    calls: CallSums
    challenges: Count
    refusals: Count
    latency_us: LatencySums


class BucketSums(SumsBody):
    """The sums of an hour or a day."""

    start: Time


class OutstandingCredits(Body):
    """Credits that were bought and not used."""

    credits: Count
    liability: Price


class StatisticsReport(SumsBody):
    """The sums of a time, and those of each hour or day of it."""

    more: ClassVar[Schema] = AnswerBody.more

    from_: Time = field(name="from")
    to: Time
    bucket: Literal["hour", "day"]
    outstanding: OutstandingCredits
    data: list[BucketSums]


class RequestRow(Body):
    """A request at a gate."""

    request_id: str
    at: Time
    method: str
    status: Count
    outcome: RequestOutcome
    code: Annotated[str, Meta(extra_json_schema={"enum": [code.value for code in Code]})] | None
    duration_us: Count
    purchase_id: str | None


class RequestPage(AnswerBody):
    """A page of requests."""

    data: list[RequestRow]
    pagination: Pagination
    not_logged: Annotated[Count, Meta(description="So many requests of this time were counted and have no row.")]


class CreditBalance(Body):
    """The credits of a purchase."""

    slug: str
    purchase_id: str
    granted: Count
    used: Count
    remaining: Count
    expires_at: Time | None
    credit_token: str | UnsetType = UNSET


class CreditPage(AnswerBody):
    """A page of credits."""

    data: list[CreditBalance]
    pagination: Pagination


class AcceptedPayment(Body):
    """A payment that is taken (x402 version 1)."""

    scheme: Literal["exact"]
    network: str
    max_amount_required: BaseUnits
    resource: str
    description: str
    mime_type: str
    pay_to: ShownAddress
    max_timeout_seconds: Count
    asset: ShownAddress
    extra: AnyObject


class PaymentRequired(Body):
    """Terms of payment in the words of the specification's shape B."""

    amount: Price
    currency: Literal["USDC"]
    network: NetworkName


class X402Summary(Body):
    """Terms of payment in the words of the specification's shape A."""

    token: Literal["USDC"]
    amount: Price
    address: ShownAddress


class ShapeA(Body):
    """A 402 of the specification's shape A."""

    x402: X402Summary


class ShapeB(Body):
    """A 402 of the specification's shape B."""

    error: str
    x402_version: Literal[1]
    accepts: list[str]
    payment_required: PaymentRequired


class AskedFor(AnswerBody):
    """Terms of payment in all shapes."""

    x402_version: Literal[1]
    accepts: list[AcceptedPayment]
    payment_required: PaymentRequired
    x402: X402Summary


class SoldResource(Body):
    """Description of what is sold."""

    title: str
    description: str
    credits: Count
    on_failure: OnFailure
    credit_binding: Literal["token", "wallet"] | UnsetType = UNSET
    credits_expire_after: Count | UnsetType = UNSET


class Exhausted(Body):
    """The reason of a 402 to a payment whose credits are used up."""

    type: Literal["payment"]
    code: Literal["CREDITS_EXHAUSTED"]
    message: str


class PaymentChallenge(AskedFor):
    """A 402."""

    error: str
    resource: SoldResource
    error_detail: Exhausted | UnsetType = UNSET


class RefusedPayment(AskedFor):
    """A 402 to a payment that was refused."""

    error: RefusalShown


class BoughtFile(AnswerBody):
    """A link to a file that was bought."""

    download_url: str
    file_name: str
    size: Count
    content_type: str
    sha256: str
    expires_at: Time


class ReadyChecks(Body):
    """The parts that answer."""

    database: bool
    hub: bool


class Ready(AnswerBody):
    """The state of a gateway."""

    status: str
    checks: ReadyChecks
    problems: list[str]


class UnsignedPaymentAsked(Body):
    """A payment on Solana to make."""

    slug: Slug
    network: NetworkAsked
    payer: WalletAddress


class UnsignedPayment(AnswerBody):
    """A transaction to sign, in base64."""

    network: NetworkName
    transaction: str


class TransferBody(Body):
    """A signed transfer to carry out, of either family of chains."""

    more: ClassVar[Schema] = {
        "oneOf": [
            {"required": ["signature", "authorization"], "not": {"required": ["transaction"]}},
            {"required": ["transaction"], "not": {"required": ["authorization"]}},
        ]
    }

    network: NetworkAsked
    signature: EvmSignature | UnsetType = UNSET
    authorization: AuthorizationBody | UnsetType = UNSET
    transaction: Annotated[str, Meta(description="On Solana, in place of the two; base64")] | UnsetType = UNSET
    recipient: (
        Annotated[WalletAddress, Meta(description="Who is paid, as was signed; on Solana the owner")] | UnsetType
    ) = UNSET
    amount: Annotated[BaseUnits, Meta(description="What is transferred, as it was signed")] | UnsetType = UNSET
    confirm: bool | UnsetType = UNSET
