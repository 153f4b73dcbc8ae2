"""Signatures of forwarded requests under `headerAuthMode: hmac`, for targets to check (contract 4.7, RFC 9421).

One signature for each secret that is in force: the current one first, labelled `paygate`, then those that were replaced
less than a day ago, so that a target can change secrets without refusing a call. Random bytes and times are passed in.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tollkeeper.core.http.forwarding import Header, header_lines
from tollkeeper.core.http.signatures import Algorithm, Parameters, SigningKey, content_digest, sign

if TYPE_CHECKING:
    from collections.abc import Iterable

LABEL: Final = "paygate"
SECRET_SIZE_BYTES: Final = 32
KEY_ID_SIZE_BYTES: Final = 9
NONCE_SIZE_BYTES: Final = 12
# A caller's own header of these names would stand beside the gateway's.
SIGNATURE_NAMES: Final = frozenset({b"content-digest", b"signature", b"signature-input"})
_UNSIGNED_BODY: Final = "x-paygate-body"


@dataclass(frozen=True, slots=True)
class HmacSecret:
    """A secret that a gate and its target share. The HMAC's key is the ASCII text of `secret`, whole.

    `until_ms` is when it stops being used, None for the current one.
    """

    key_id: str
    secret: str = field(repr=False)
    until_ms: int | None = None


def new_secret(random: bytes) -> HmacSecret:
    """A secret of SECRET_SIZE_BYTES + KEY_ID_SIZE_BYTES random bytes."""
    secret, key_id = random[:SECRET_SIZE_BYTES], random[SECRET_SIZE_BYTES:]
    return HmacSecret(key_id=f"pgk_{_text(key_id)}", secret=f"pgs_{_text(secret)}")


def _text(random: bytes) -> str:
    return base64.urlsafe_b64encode(random).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class SignedCall:
    """Parts of one request that are signed. `body` is None if it was not read whole; it is then left unsigned."""

    method: str
    target_uri: str
    body: bytes | None
    payer: str
    purchase_id: str
    slug: str


def signature_lines(call: SignedCall, secrets: Iterable[HmacSecret], now_ms: int, nonce: bytes) -> bytes:
    """The header lines that sign the call; `nonce` is NONCE_SIZE_BYTES random bytes, for all signatures the same."""
    digest = (_UNSIGNED_BODY, "unsigned") if call.body is None else ("content-digest", content_digest(call.body))
    components = {
        "@method": call.method,
        "@target-uri": call.target_uri,
        digest[0]: digest[1],
        "x-payer": call.payer,
        "x-purchase-id": call.purchase_id,
        "x-paygate-slug": call.slug,
    }
    inputs: list[str] = []
    signatures: list[str] = []
    for secret in secrets:
        if secret.until_ms is None or now_ms < secret.until_ms:
            parameters = Parameters(
                tuple(components),
                created=now_ms // 1000,
                nonce=_text(nonce),
                key_id=secret.key_id,
                algorithm=Algorithm.HMAC_SHA256.value,
            )
            label = f"{LABEL}-{len(inputs) + 1}" if inputs else LABEL
            key = SigningKey(secret.key_id, Algorithm.HMAC_SHA256, secret.secret.encode())
            made = sign(components, key, label=label, parameters=parameters)
            inputs.append(made["Signature-Input"])
            signatures.append(made["Signature"])
    headers: list[Header] = [
        (digest[0].encode(), digest[1].encode()),
        (b"signature-input", ", ".join(inputs).encode()),
        (b"signature", ", ".join(signatures).encode()),
    ]
    return header_lines(headers)
