"""Reads a verify or settle request in the spelling that programs use, in a fraction of the time (specification 4.4).

Everything else (another shape, escapes, a missing or additional member, a value out of its range) is None, and
`strict_json` and `version1` read it from the start: they alone decide what is refused and why. Where this reader
answers, they would answer the same.

A member that came twice shows in the number of colons: without escapes, those outside the members' own texts are one
for each member.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from tollkeeper.core.evm.encoding import Authorization
from tollkeeper.core.x402.version1 import UINT256_MAX, EvmPayload, Payment, Requirements, SolanaPayload, taking_part

# Of a request, beside those of `extra`.
_EVM_MEMBERS: Final = 25
_SOLANA_MEMBERS: Final = 18
_VALUES: Final = re.compile(
    r"(?:0x[0-9a-fA-F]{40}\n){4}0x[0-9a-fA-F]{64}\n0x(?:[0-9a-fA-F]{2})+(?:\n[0-9]{1,78}){4}", re.ASCII
)
_SOLANA_VALUES: Final = re.compile(r"(?:[1-9A-HJ-NP-Za-km-z]{32,44}\n){2}[0-9]{1,78}", re.ASCII)
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Text = Annotated[str, msgspec.Meta(max_length=2048)]


class _Plain(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """An object that has these members and no others."""


class _Authorization(_Plain):
    payer: str = msgspec.field(name="from")
    to: str
    value: str
    valid_after: str
    valid_before: str
    nonce: str


class _Payload(_Plain):
    signature: str = ""
    authorization: _Authorization | None = None
    transaction: _Text = ""


class _Payment(_Plain):
    x402_version: _Count
    scheme: _Text
    network: _Text
    payload: _Payload


class _Requirements(_Plain):
    scheme: _Text
    network: _Text
    max_amount_required: str
    resource: _Text
    description: _Text
    mime_type: _Text
    pay_to: str
    max_timeout_seconds: _Count
    asset: str
    extra: dict[_Text, _Text]


class _Request(_Plain):
    x402_version: _Count
    payment_payload: _Payment
    payment_requirements: _Requirements


_READ: Final = msgspec.json.Decoder(_Request).decode


def read_plain_request(data: bytes) -> tuple[int, Payment, Requirements] | None:
    """`x402Version`, payment and requirements of a request; None where it has to be read in full."""
    if b"\\" in data:
        return None
    try:
        request = _READ(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    payment, requirements = request.payment_payload, request.payment_requirements
    extra = requirements.extra
    authorization, is_evm = payment.payload.authorization, payment.payload.authorization is not None
    texts = (
        f"{payment.scheme}{payment.network}{payment.payload.transaction}{requirements.scheme}{requirements.network}"
        f"{requirements.resource}{requirements.description}{requirements.mime_type}{''.join(extra)}{''.join(extra.values())}"
    )
    members = _EVM_MEMBERS if is_evm else _SOLANA_MEMBERS
    if data.count(b":") != members + len(extra) + texts.count(":"):
        return None
    payload = _solana(payment.payload, requirements) if authorization is None else _evm(request, authorization)
    amount = int(requirements.max_amount_required) if payload is not None else 0
    if payload is None or amount > UINT256_MAX:
        return None
    return (
        request.x402_version,
        Payment(payment.x402_version, payment.scheme, payment.network, payload),
        Requirements(
            requirements.scheme,
            requirements.network,
            amount,
            requirements.asset.lower() if is_evm else requirements.asset,
            requirements.pay_to.lower() if is_evm else requirements.pay_to,
            requirements.resource,
            max_timeout_seconds=requirements.max_timeout_seconds,
            extra=taking_part(extra),
        ),
    )


def _evm(request: _Request, authorization: _Authorization) -> EvmPayload | None:
    """The payload, where each value of the request is in range, those of the requirements too."""
    signature, requirements = request.payment_payload.payload.signature, request.payment_requirements
    values = (
        f"{authorization.payer}\n{authorization.to}\n{requirements.pay_to}\n{requirements.asset}\n"
        f"{authorization.nonce}\n{signature}\n"
        f"{authorization.value}\n{authorization.valid_after}\n{authorization.valid_before}\n{requirements.max_amount_required}"
    )
    if _VALUES.fullmatch(values) is None:
        return None
    value = int(authorization.value)
    valid_after, valid_before = int(authorization.valid_after), int(authorization.valid_before)
    if max(value, valid_after, valid_before) > UINT256_MAX:
        return None
    signed = Authorization(
        authorization.payer.lower(),
        authorization.to.lower(),
        value,
        valid_after,
        valid_before,
        authorization.nonce.lower(),
    )
    return EvmPayload(signed, bytes.fromhex(signature[2:]))


def _solana(payload: _Payload, requirements: _Requirements) -> SolanaPayload | None:
    """The same of the other family; what the transaction is, `solana.message` says."""
    values = f"{requirements.pay_to}\n{requirements.asset}\n{requirements.max_amount_required}"
    if not payload.transaction or _SOLANA_VALUES.fullmatch(values) is None:
        return None
    return SolanaPayload(payload.transaction)
