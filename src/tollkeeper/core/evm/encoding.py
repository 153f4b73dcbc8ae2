"""EVM bytes: hashing, addresses, EIP-712 digests, recovery, calldata, RLP, EIP-1559 signing (specification 2.3).

Strict where a chain is strict: what FiatTokenV2_2 would refuse (high s, v outside 27/28, a length other than 65) is
refused here, so that a payment called valid does not revert. Keys, nonces and times are passed in; nothing is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import coincurve

from tollkeeper.core.api.errors import ApiError, Code

if TYPE_CHECKING:
    from collections.abc import Sequence

try:  # the C implementation is four times faster; the other exists wherever Python does
    from sha3 import keccak_256 as _keccak
except ImportError:  # pragma: no cover - the platform decides which of the two is there
    from Crypto.Hash import keccak as _pycryptodome

    def keccak256(data: bytes) -> bytes:
        """Keccak-256 (Ethereum's, not SHA-3)."""
        return _pycryptodome.new(digest_bits=256, data=data).digest()
else:

    def keccak256(data: bytes) -> bytes:
        """Keccak-256 (Ethereum's, not SHA-3)."""
        digest: bytes = _keccak(data).digest()
        return digest


SECP256K1_ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_HALF_ORDER: Final = (SECP256K1_ORDER // 2).to_bytes(32, "big")
ZERO_ADDRESS: Final = "0x" + 40 * "0"
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
SIGNATURE_LENGTH: Final = 65
# The last word of a signature that says how to deploy the wallet that made it (ERC-6492).
COUNTERFACTUAL_MARK: Final = bytes.fromhex("6492" * 16)
_PADDING: Final = "00" * 12  # before an address, which a word holds at its end

TRANSFER_TYPEHASH: Final = keccak256(
    b"TransferWithAuthorization(address from,address to,uint256 value,"
    b"uint256 validAfter,uint256 validBefore,bytes32 nonce)"
)
_DOMAIN_TYPEHASH: Final = keccak256(
    b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
)

TRANSFER_TOPIC: Final = "0x" + keccak256(b"Transfer(address,address,uint256)").hex()
AUTHORIZATION_USED_TOPIC: Final = "0x" + keccak256(b"AuthorizationUsed(address,bytes32)").hex()
AUTHORIZATION_CANCELED_TOPIC: Final = "0x" + keccak256(b"AuthorizationCanceled(address,bytes32)").hex()


def selector(signature: bytes) -> bytes:
    """The 4-byte function selector of `name(type,type)`."""
    return keccak256(signature)[:4]


SELECTOR_TRANSFER: Final = selector(
    b"transferWithAuthorization(address,address,uint256,uint256,uint256,bytes32,uint8,bytes32,bytes32)"
)
SELECTOR_TRANSFER_BYTES: Final = selector(
    b"transferWithAuthorization(address,address,uint256,uint256,uint256,bytes32,bytes)"
)
SELECTOR_AUTHORIZATION_STATE: Final = selector(b"authorizationState(address,bytes32)")
SELECTOR_BALANCE_OF: Final = selector(b"balanceOf(address)")
SELECTOR_DOMAIN_SEPARATOR: Final = selector(b"DOMAIN_SEPARATOR()")
SELECTOR_IS_VALID_SIGNATURE: Final = selector(b"isValidSignature(bytes32,bytes)")
SELECTOR_NAME: Final = selector(b"name()")
SELECTOR_VERSION: Final = selector(b"version()")


@dataclass(frozen=True, slots=True)
class Authorization:
    """EIP-3009 TransferWithAuthorization. Addresses and nonce are lower-case hex.

    The value is in base units, times are Unix seconds. What is payer and pay_to here is from and to on the wire.
    """

    payer: str
    pay_to: str
    value: int
    valid_after: int
    valid_before: int
    nonce: str


@lru_cache(maxsize=4096)
def checksum_address(address: str) -> str:
    """EIP-55 spelling of a 20-byte address given as 0x + 40 hex digits in any case."""
    digits = address[2:].lower()
    digest = keccak256(digits.encode()).hex()
    return "0x" + "".join(
        digit.upper() if int(nibble, 16) >= 8 else digit for digit, nibble in zip(digits, digest, strict=False)
    )


@lru_cache(maxsize=4096)
def _checksum_is_wrong(text: str) -> bool:
    digits = text[2:]
    return digits not in {digits.lower(), digits.upper()} and checksum_address(text) != text


def parse_address(text: object, *, field: str = "address") -> str:
    """Lower-case form of an address. All one case is taken; a mixed case must be the EIP-55 checksum.

    Raises: INVALID_ADDRESS.
    """
    if not isinstance(text, str) or _ADDRESS.fullmatch(text) is None:
        raise ApiError(Code.INVALID_ADDRESS, f"{field} is not an Ethereum address", details={"field": field})
    if _checksum_is_wrong(text):
        raise ApiError(Code.INVALID_ADDRESS, f"{field} has a wrong EIP-55 checksum", details={"field": field})
    return text.lower()


def word(number: int) -> bytes:
    """A number as calldata has it."""
    return number.to_bytes(32, "big")


def address_word(address: str) -> bytes:
    """An address as calldata has it."""
    return bytes(12) + bytes.fromhex(address[2:])


@lru_cache(maxsize=64)
def domain_separator(name: str, version: str, chain_id: int, verifying_contract: str) -> bytes:
    """EIP-712 domain separator (specification 2.3): what the token's DOMAIN_SEPARATOR() answers."""
    return keccak256(
        _DOMAIN_TYPEHASH
        + keccak256(name.encode())
        + keccak256(version.encode())
        + word(chain_id)
        + address_word(verifying_contract)
    )


def authorization_digest(separator: bytes, authorization: Authorization) -> bytes:
    """The 32 bytes that the payer signs: EIP-712 of TransferWithAuthorization under the token's domain."""
    struct_hash = keccak256(TRANSFER_TYPEHASH + _authorization_words(authorization))
    return keccak256(b"\x19\x01" + separator + struct_hash)


def _authorization_words(authorization: Authorization) -> bytes:
    """The six words of an authorization, in the order in which it is hashed and called."""
    return b"".join(
        (
            bytes.fromhex(f"{_PADDING}{authorization.payer[2:]}{_PADDING}{authorization.pay_to[2:]}"),
            authorization.value.to_bytes(32, "big"),
            authorization.valid_after.to_bytes(32, "big"),
            authorization.valid_before.to_bytes(32, "big"),
            bytes.fromhex(authorization.nonce[2:]),
        )
    )


def personal_message_digest(message: bytes) -> bytes:
    """EIP-191 `personal_sign` digest of a message."""
    return keccak256(b"\x19Ethereum Signed Message:\n" + str(len(message)).encode() + message)


def address_of_public_key(public_key: coincurve.PublicKey) -> str:
    """Lower-case address of a secp256k1 public key."""
    return "0x" + keccak256(public_key.format(compressed=False)[1:])[12:].hex()


def address_of_key(private_key: bytes) -> str:
    """Lower-case address of a 32-byte private key."""
    return address_of_public_key(coincurve.PrivateKey(private_key).public_key)


def recover_address(digest: bytes, signature: bytes) -> bytes:
    """The 20-byte address whose key made `signature` (r, s, v) over `digest`.

    Strict as FiatToken is: 65 bytes, low s, v 27 or 28. Raises: ValueError saying which rule failed.
    """
    if len(signature) != SIGNATURE_LENGTH:
        raise ValueError("a signature has 65 bytes")
    recovery = signature[64] - 27
    if recovery not in {0, 1}:
        raise ValueError("v must be 27 or 28")
    if signature[32:64] > _HALF_ORDER:
        raise ValueError("s must be in the lower half of the order")
    return recover_unchecked(digest, signature[:64], recovery)


def recover_unchecked(digest: bytes, r_and_s: bytes, recovery: int) -> bytes:
    """The 20-byte signer of a transaction or message whose parity bit is `recovery`. Raises: ValueError."""
    try:
        key = coincurve.PublicKey.from_signature_and_message(r_and_s + bytes([recovery]), digest, hasher=None)
    except Exception as error:  # coincurve raises a bare Exception where r is no point of the curve
        raise ValueError("no key could have made this signature") from error
    return keccak256(key.format(compressed=False)[1:])[12:]


def sign_digest(digest: bytes, private_key: bytes) -> bytes:
    """r, s, v (27 or 28) over `digest`; low s; deterministic (RFC 6979)."""
    signature = coincurve.PrivateKey(private_key).sign_recoverable(digest, hasher=None)
    return signature[:64] + bytes([27 + signature[64]])


def transfer_calldata(authorization: Authorization, signature: bytes) -> bytes:
    """Calldata of transferWithAuthorization: the (v, r, s) overload for 65 bytes, else the bytes overload."""
    head = _authorization_words(authorization)
    if len(signature) == SIGNATURE_LENGTH:
        return SELECTOR_TRANSFER + head + word(signature[64]) + signature[:64]
    return SELECTOR_TRANSFER_BYTES + head + word(7 * 32) + bytes_tail(signature)


def read_transfer_calldata(data: bytes) -> tuple[Authorization, bytes]:
    """The authorization and its signature in what `transfer_calldata` wrote. Raises: ValueError for any other bytes."""
    payer, pay_to, value, valid_after, valid_before, nonce = (data[at : at + 32] for at in range(4, 4 + 6 * 32, 32))
    authorization = Authorization(
        payer="0x" + payer[12:].hex(),
        pay_to="0x" + pay_to[12:].hex(),
        value=int.from_bytes(value, "big"),
        valid_after=int.from_bytes(valid_after, "big"),
        valid_before=int.from_bytes(valid_before, "big"),
        nonce="0x" + nonce.hex(),
    )
    tail = data[4 + 6 * 32 :]
    signature = tail[32:] + tail[31:32] if data[:4] == SELECTOR_TRANSFER else bytes_at(tail, 32)
    if transfer_calldata(authorization, signature) != data:
        raise ValueError("these bytes are no call of transferWithAuthorization")
    return authorization, signature


def bytes_tail(data: bytes) -> bytes:
    """The last part of calldata that ends with `bytes`: length, content, padding."""
    return word(len(data)) + data + bytes(-len(data) % 32)


def number_at(data: bytes, start: int) -> int:
    """Read the word that begins there as a number."""
    return int.from_bytes(data[start : start + 32], "big")


def bytes_at(data: bytes, start: int) -> bytes:
    """Read the `bytes` whose length stands there."""
    return data[start + 32 : start + 32 + number_at(data, start)]


def is_counterfactual_signature(signature: bytes) -> bool:
    """Is this the signature of a wallet that is not deployed yet (ERC-6492)?"""
    return signature.endswith(COUNTERFACTUAL_MARK)


def wallet_signature_calldata(digest: bytes, signature: bytes) -> bytes:
    """Calldata of isValidSignature(digest, signature), as the token asks a payer that has code (ERC-1271)."""
    return SELECTOR_IS_VALID_SIGNATURE + digest + word(2 * 32) + bytes_tail(signature)


def is_wallet_acceptance(answer: bytes) -> bool:
    """Does what isValidSignature returned mean yes, as the token reads it: a first word that is the selector?"""
    return answer[:32] == SELECTOR_IS_VALID_SIGNATURE + bytes(28)


def authorization_state_calldata(payer: str, nonce: str) -> bytes:
    """Calldata of authorizationState(payer, nonce): true once used or cancelled."""
    return SELECTOR_AUTHORIZATION_STATE + address_word(payer) + bytes.fromhex(nonce[2:])


def balance_of_calldata(holder: str) -> bytes:
    """Calldata of balanceOf(holder)."""
    return SELECTOR_BALANCE_OF + address_word(holder)


def decode_string(data: bytes) -> str:
    """The string that a call such as name() returned. Raises: ValueError where the bytes are not one ABI string."""
    if len(data) < 64 or number_at(data, 0) != 32 or number_at(data, 32) > len(data) - 64:
        raise ValueError("not an ABI string")
    return bytes_at(data, 32).decode("utf-8")


RlpItem: TypeAlias = "bytes | int | Sequence[RlpItem]"


def rlp_encode(item: RlpItem) -> bytes:
    """Recursive length prefix (Ethereum yellow paper, appendix B). An int is its shortest big-endian bytes."""
    if isinstance(item, int):
        item = item.to_bytes((item.bit_length() + 7) // 8, "big")
    if isinstance(item, bytes):
        if len(item) == 1 and item[0] < 0x80:
            return item
        return _rlp_head(0x80, len(item)) + item
    payload = b"".join(rlp_encode(child) for child in item)
    return _rlp_head(0xC0, len(payload)) + payload


def _rlp_head(offset: int, length: int) -> bytes:
    if length < 56:
        return bytes([offset + length])
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([offset + 55 + len(size)]) + size


RlpTree: TypeAlias = "bytes | list[RlpTree]"
_RLP_DEPTH: Final = 64  # a transaction needs four


def rlp_decode(data: bytes) -> RlpTree:
    """The one item that `data` encodes. Raises: ValueError for anything but one whole, canonical item."""
    item, end = _rlp_item(data, 0, _RLP_DEPTH)
    if end != len(data):
        raise ValueError("bytes after the RLP item")
    return item


def _rlp_item(data: bytes, start: int, depth: int) -> tuple[RlpTree, int]:
    if start >= len(data):
        raise ValueError("RLP ends early")
    prefix = data[start]
    if prefix < 0x80:
        return data[start : start + 1], start + 1
    base = 0x80 if prefix < 0xC0 else 0xC0
    size = prefix - base
    begin = start + 1
    if size > 55:
        begin += size - 55
        size = int.from_bytes(data[start + 1 : begin], "big")
        if size < 56 or data[start + 1] == 0:
            raise ValueError("RLP length is not in its shortest form")
    end = begin + size
    if end > len(data):
        raise ValueError("RLP ends early")
    if base == 0x80:
        if size == 1 and data[begin] < 0x80:
            raise ValueError("RLP byte is not in its shortest form")
        return data[begin:end], end
    return _rlp_list(data, begin, end, depth), end


def _rlp_list(data: bytes, begin: int, end: int, depth: int) -> list[RlpTree]:
    if depth == 0:
        raise ValueError("RLP is nested too deeply")
    children: list[RlpTree] = []
    while begin < end:
        child, begin = _rlp_item(data, begin, depth - 1)
        children.append(child)
    if begin != end:
        raise ValueError("RLP list ends early")
    return children


@dataclass(frozen=True, slots=True)
class Transaction:
    """An EIP-1559 call. Fees are wei per gas; `to` is lower-case hex; value is wei."""

    chain_id: int
    nonce: int
    max_priority_fee_per_gas: int
    max_fee_per_gas: int
    gas: int
    to: str
    value: int
    data: bytes

    @property
    def fields(self) -> list[RlpItem]:
        """The fields that are signed, in their order; the access list is empty."""
        return [
            self.chain_id,
            self.nonce,
            self.max_priority_fee_per_gas,
            self.max_fee_per_gas,
            self.gas,
            bytes.fromhex(self.to[2:]),
            self.value,
            self.data,
            [],
        ]


def sign_transaction(transaction: Transaction, private_key: bytes) -> tuple[bytes, str]:
    """The raw signed transaction and its hash (0x hex), as eth_sendRawTransaction takes them."""
    fields = transaction.fields
    signature = sign_digest(keccak256(b"\x02" + rlp_encode(fields)), private_key)
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
    raw = b"\x02" + rlp_encode([*fields, signature[64] - 27, r, s])
    return raw, "0x" + keccak256(raw).hex()
