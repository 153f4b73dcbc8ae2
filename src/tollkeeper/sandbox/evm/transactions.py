"""Signed EVM transactions as they come over the wire: legacy ones (EIP-155) and fee-market ones (EIP-1559)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.evm.encoding import SECP256K1_ORDER, keccak256, recover_unchecked, rlp_decode, rlp_encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.evm.encoding import RlpItem, RlpTree

_LEGACY: Final = 0
_FEE_MARKET: Final = 2
_LIST_PREFIX: Final = 0xC0
_HALF_ORDER: Final = SECP256K1_ORDER // 2
_LEGACY_FIELDS: Final = 9
_FEE_MARKET_FIELDS: Final = 12
_EIP155_OFFSET: Final = 35


@dataclass(frozen=True, slots=True)
class CheckedTransaction:
    """A transaction whose signature has been checked. Hex is lower case, fees are wei per gas, `value` is wei.

    `to` is None for a contract's creation; `chain_id` is None in a legacy transaction without one (before EIP-155).
    A legacy gas price is both fees. `parity` is 0 or 1.
    """

    hash: str
    type: int
    sender: str
    chain_id: int | None
    nonce: int
    max_priority_fee_per_gas: int
    max_fee_per_gas: int
    gas: int
    to: str | None
    value: int
    data: bytes
    parity: int
    r: int
    s: int

    def price_per_gas(self, base_fee_per_gas: int) -> int:
        """Return the price of one gas for the sender in a block with that base fee."""
        return min(self.max_fee_per_gas, base_fee_per_gas + self.max_priority_fee_per_gas)

    @property
    def max_cost(self) -> int:
        """The most that this transaction can take from its sender, in wei."""
        return self.gas * self.max_fee_per_gas + self.value


def decode_transaction(raw: bytes) -> CheckedTransaction:
    """Raises: ValueError where the bytes are no signed transaction of a known type, or the signature is none."""
    if not raw:
        raise ValueError("empty transaction")
    if raw[0] >= _LIST_PREFIX:
        return _decode_legacy(raw)
    if raw[0] == _FEE_MARKET:
        return _decode_fee_market(raw)
    raise ValueError("transaction type not supported")


def _decode_fee_market(raw: bytes) -> CheckedTransaction:
    fields = _fields(raw[1:], _FEE_MARKET_FIELDS)
    if fields[8] != []:
        raise ValueError("access lists are not supported here")
    digest = keccak256(b"\x02" + rlp_encode(_unsigned(fields[:9])))
    chain_id, *numbers = map(_number, fields[:5])
    return _checked(raw, digest, chain_id, numbers, fields[5:8], [_number(field) for field in fields[9:]])


def _decode_legacy(raw: bytes) -> CheckedTransaction:
    fields = _fields(raw, _LEGACY_FIELDS)
    nonce, gas_price, gas = map(_number, fields[:3])
    v, *rest = map(_number, fields[6:])
    signed = _unsigned(fields[:6])
    chain_id = None
    parity = v - 27
    if v >= _EIP155_OFFSET:
        chain_id, parity = divmod(v - _EIP155_OFFSET, 2)
        signed += [chain_id, 0, 0]
    digest = keccak256(rlp_encode(signed))
    return _checked(raw, digest, chain_id, (nonce, gas_price, gas_price, gas), fields[3:6], [parity, *rest])


def _checked(
    raw: bytes,
    digest: bytes,
    chain_id: int | None,
    numbers: Sequence[int],
    called: Sequence[RlpTree],
    signature: Sequence[int],
) -> CheckedTransaction:
    """Check the signature of a digest. `numbers`: nonce, fees and gas; `called`: recipient, value and data."""
    nonce, priority_fee, max_fee, gas = numbers
    to, value, data = called
    parity, r, s = signature
    return CheckedTransaction(
        hash="0x" + keccak256(raw).hex(),
        type=_FEE_MARKET if raw[0] == _FEE_MARKET else _LEGACY,
        sender=_sender(digest, parity, r, s),
        chain_id=chain_id,
        nonce=nonce,
        max_priority_fee_per_gas=priority_fee,
        max_fee_per_gas=max_fee,
        gas=gas,
        to=_recipient(to),
        value=_number(value),
        data=_bytes(data),
        parity=parity,
        r=r,
        s=s,
    )


def _fields(encoded: bytes, count: int) -> list[RlpTree]:
    fields = rlp_decode(encoded)
    if not isinstance(fields, list) or len(fields) != count:
        raise ValueError("a transaction has other fields")
    return fields


def _unsigned(fields: list[RlpTree]) -> list[RlpItem]:
    return list(fields)


def _bytes(field: RlpTree) -> bytes:
    if not isinstance(field, bytes):
        raise ValueError("expected bytes")  # noqa: TRY004 - one exception for all undecodable bytes
    return field


def _number(field: RlpTree) -> int:
    digits = _bytes(field)
    if digits[:1] == b"\0" or len(digits) > 32:
        raise ValueError("not a canonical number")
    return int.from_bytes(digits, "big")


def _recipient(field: RlpTree) -> str | None:
    address = _bytes(field)
    if len(address) not in {0, 20}:
        raise ValueError("a recipient has 20 bytes")
    return "0x" + address.hex() if address else None


def _sender(digest: bytes, parity: int, r: int, s: int) -> str:
    if parity not in {0, 1} or not 0 < r < SECP256K1_ORDER or not 0 < s <= _HALF_ORDER:
        raise ValueError("invalid sender")
    return "0x" + recover_unchecked(digest, r.to_bytes(32, "big") + s.to_bytes(32, "big"), parity).hex()
