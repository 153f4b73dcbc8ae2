"""HTTP message signatures and content digests (RFC 9421, RFC 9530): what our parts sign to each other (contract 4.3).

A message is a mapping of component identifiers ("@method", "content-digest", ...) to their values; whoever reads the
request makes it. Only what we send is understood: string and integer parameters, no component parameters; a signature
under another label is somebody else's and left alone. Times are Unix seconds and are passed in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Clocks of two machines differ; a signature from further ahead than this is not ours.
CREATED_AHEAD_MAX_SECONDS: Final = 5
_INPUT: Final = re.compile(
    r'([a-z*][a-z0-9_.*-]*)=(\((?:"[a-z0-9@-]+"(?: "[a-z0-9@-]+")*)?\)'
    r'(?:;[a-z]+=(?:[0-9]{1,15}|"[\x20\x21\x23-\x5b\x5d-\x7e]*"))*)',
    re.ASCII,
)
_COMPONENT: Final = re.compile(r'"([a-z0-9@-]+)"', re.ASCII)
_PARAMETER: Final = re.compile(r';([a-z]+)=(?:([0-9]+)|"([^"]*)")', re.ASCII)
_SIGNATURE: Final = re.compile(r"([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/]+={0,2}):", re.ASCII)
_QUOTABLE: Final = re.compile(r"[\x20\x21\x23-\x5b\x5d-\x7e]*", re.ASCII)

Components: TypeAlias = "Mapping[str, str]"


class Algorithm(StrEnum):
    """`alg`, by RFC 9421's names."""

    ED25519 = "ed25519"
    HMAC_SHA256 = "hmac-sha256"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A secret: an Ed25519 seed of 32 bytes, or an HMAC key. `repr` does not show it."""

    key_id: str
    algorithm: Algorithm
    secret: bytes

    def __repr__(self) -> str:
        return f"SigningKey({self.key_id!r}, {self.algorithm.value})"

    def sign(self, base: bytes) -> bytes:
        """The signature's bytes."""
        if self.algorithm is Algorithm.ED25519:
            return _private_key(self.secret).sign(base)
        return hmac.digest(self.secret, base, hashlib.sha256)

    def verifying_key(self) -> VerifyingKey:
        """Return the key that the other side needs: the public key, or the same secret."""
        if self.algorithm is Algorithm.ED25519:
            public = _private_key(self.secret).public_key().public_bytes_raw()
            return VerifyingKey(self.algorithm, public)
        return VerifyingKey(self.algorithm, self.secret)


@lru_cache(maxsize=16)
def _private_key(seed: bytes) -> Ed25519PrivateKey:
    # To make one costs more than to sign with it.
    return Ed25519PrivateKey.from_private_bytes(seed)


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """An Ed25519 public key of 32 bytes, or an HMAC key. `repr` does not show it."""

    algorithm: Algorithm
    material: bytes

    def __repr__(self) -> str:
        return f"VerifyingKey({self.algorithm.value})"

    def verifies(self, base: bytes, signature: bytes) -> bool:
        """Was `base` signed with this key? An HMAC is compared in constant time."""
        if self.algorithm is Algorithm.HMAC_SHA256:
            return hmac.compare_digest(hmac.digest(self.material, base, hashlib.sha256), signature)
        try:
            Ed25519PublicKey.from_public_bytes(self.material).verify(signature, base)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of a signature. `covered` are the component identifiers in order, times are Unix seconds."""

    covered: tuple[str, ...]
    created: int | None = None
    expires: int | None = None
    nonce: str | None = None
    key_id: str | None = None
    algorithm: str | None = None

    def text(self) -> str:
        """The inner list with its parameters, as header and signature base have it. Raises: ValueError."""
        names = " ".join(_quoted(name) for name in self.covered)
        numbers = (("created", self.created), ("expires", self.expires))
        texts = (("nonce", self.nonce), ("keyid", self.key_id), ("alg", self.algorithm))
        return (
            f"({names})"
            + "".join(f";{name}={number}" for name, number in numbers if number is not None)
            + "".join(f";{name}={_quoted(text)}" for name, text in texts if text is not None)
        )


@dataclass(frozen=True, slots=True)
class HttpSignature:
    """One signature as it came: `parameters_text` is byte for byte what was signed."""

    parameters: Parameters
    parameters_text: str
    signature: bytes


class SignatureRefused(Exception):  # noqa: N818 - a judgement
    """A signature that is not good; the message says which rule it broke and may be shown to the caller."""


def content_digest(body: bytes) -> str:
    """The `Content-Digest` value of a body (RFC 9530, sha-256)."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def require_content_digest(header: str, body: bytes) -> None:
    """A `Content-Digest` value names the sha-256 of this body. Raises: SignatureRefused."""
    if content_digest(body) not in (part.strip() for part in header.split(",")):
        msg = "the content digest does not fit the body"
        raise SignatureRefused(msg)


def signature_base(components: Components, covered: Sequence[str], parameters_text: str) -> bytes:
    """Return the text to sign (RFC 9421 section 2.5).

    Raises: SignatureRefused for a component that the message lacks.
    """
    lines = []
    for name in covered:
        value = components.get(name)
        if value is None:
            msg = f"the message has no {name}"
            raise SignatureRefused(msg)
        lines.append(f'"{name}": {value.strip()}')
    lines.append(f'"@signature-params": {parameters_text}')
    return "\n".join(lines).encode()


def sign(components: Components, key: SigningKey, *, label: str, parameters: Parameters) -> dict[str, str]:
    """The `Signature-Input` and `Signature` headers of a message. Raises: SignatureRefused, ValueError."""
    text = parameters.text()
    signature = key.sign(signature_base(components, parameters.covered, text))
    return {
        "Signature-Input": f"{label}={text}",
        "Signature": f"{label}=:{base64.b64encode(signature).decode()}:",
    }


def read_signature(signature_input: str, signature: str, *, label: str) -> HttpSignature:
    """The signature of that label. Raises: SignatureRefused where there is not exactly one, or it is unreadable."""
    inputs = [match[2] for match in _members(_INPUT, signature_input) if match[1] == label]
    signatures = [match[2] for match in _members(_SIGNATURE, signature) if match[1] == label]
    if len(inputs) != 1 or len(signatures) != 1:
        msg = f"there is not exactly one signature labelled {label}"
        raise SignatureRefused(msg)
    try:
        raw = base64.b64decode(signatures[0], validate=True)
    except binascii.Error:
        msg = "the signature is not base64"
        raise SignatureRefused(msg) from None
    return HttpSignature(_parameters(inputs[0]), inputs[0], raw)


def _members(pattern: re.Pattern[str], header: str) -> list[re.Match[str]]:
    """The members of a dictionary header, each of which must be one that we understand."""
    found: list[re.Match[str]] = []
    position = 0
    text = header.strip(" \t")
    while True:
        match = pattern.match(text, position)
        if match is None:
            msg = "the signature headers cannot be read"
            raise SignatureRefused(msg)
        found.append(match)
        position = match.end()
        if position == len(text):
            return found
        separator = re.compile(r"[ \t]*,[ \t]*").match(text, position)
        if separator is None:
            msg = "the signature headers cannot be read"
            raise SignatureRefused(msg)
        position = separator.end()


def _parameters(text: str) -> Parameters:
    names, _, rest = text.partition(")")
    covered = tuple(_COMPONENT.findall(names))
    numbers: dict[str, int] = {}
    texts: dict[str, str] = {}
    for name, number, quoted in _PARAMETER.findall(rest):
        if name in numbers or name in texts:
            msg = f"the signature has {name} twice"
            raise SignatureRefused(msg)
        if number:
            numbers[name] = int(number)
        else:
            texts[name] = quoted
    return Parameters(
        covered,
        created=numbers.get("created"),
        expires=numbers.get("expires"),
        nonce=texts.get("nonce"),
        key_id=texts.get("keyid"),
        algorithm=texts.get("alg"),
    )


def require_times(parameters: Parameters, now_seconds: int, *, lifetime_max_seconds: int) -> None:
    """`created` and `expires` are there, at most so far apart, and now lies between. Raises: SignatureRefused."""
    created, expires = parameters.created, parameters.expires
    if created is None or expires is None:
        msg = "the signature does not say when it was created and when it expires"
        raise SignatureRefused(msg)
    if not 0 <= expires - created <= lifetime_max_seconds:
        msg = f"the signature is not one of at most {lifetime_max_seconds} seconds"
        raise SignatureRefused(msg)
    if created > now_seconds + CREATED_AHEAD_MAX_SECONDS:
        msg = "the signature was created in the future"
        raise SignatureRefused(msg)
    if has_expired(parameters, now_seconds):
        msg = "the signature has expired"
        raise SignatureRefused(msg)


def has_expired(parameters: Parameters, now_seconds: int) -> bool:
    """Is `expires` there and not in the future any more?"""
    return parameters.expires is not None and parameters.expires <= now_seconds


def require_signature(
    signed: HttpSignature, components: Components, key: VerifyingKey, *, required: Sequence[str]
) -> None:
    """The signature is this key's, and covers at least `required`. Raises: SignatureRefused."""
    if signed.parameters.algorithm not in {None, key.algorithm.value}:
        msg = "the signature is of another algorithm than its key"
        raise SignatureRefused(msg)
    covered = signed.parameters.covered
    if len(set(covered)) != len(covered):
        msg = "the signature covers a component twice"
        raise SignatureRefused(msg)
    missing = [name for name in required if name not in covered]
    if missing:
        msg = f"the signature does not cover {', '.join(missing)}"
        raise SignatureRefused(msg)
    if not key.verifies(signature_base(components, covered, signed.parameters_text), signed.signature):
        msg = "the signature does not fit the message"
        raise SignatureRefused(msg)


def _quoted(text: str) -> str:
    if _QUOTABLE.fullmatch(text) is None:
        msg = "a signature parameter has only printable ASCII without quotes"
        raise ValueError(msg)
    return f'"{text}"'
