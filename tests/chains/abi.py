"""Calldata for the argument types that the tests use.

Addresses, numbers, 32-byte words, bytes, strings and lists of addresses.
"""

from __future__ import annotations

from tollkeeper.core.evm.encoding import selector


def encode_call(signature: str, *arguments: object) -> bytes:
    """Selector and arguments of `name(type,type)`. Addresses are hex strings, words and bytes are `bytes`."""
    kinds = signature[signature.index("(") + 1 : -1].split(",")
    kinds = [kind for kind in kinds if kind]
    head, tail = b"", b""
    for kind, argument in zip(kinds, arguments, strict=True):
        encoded = _encode(kind, argument)
        if kind in {"string", "bytes", "address[]"}:
            head += _word(32 * len(kinds) + len(tail))
            tail += encoded
        else:
            head += encoded
    return selector(signature.encode()) + head + tail


def _encode(kind: str, argument: object) -> bytes:
    match kind, argument:
        case "address", str():
            return bytes(12) + bytes.fromhex(argument[2:])
        case "bytes32", bytes():
            return argument.ljust(32, b"\0")
        case "string", str():
            return _encode("bytes", argument.encode())
        case "bytes", bytes():
            return _word(len(argument)) + argument + bytes(-len(argument) % 32)
        case "address[]", list():
            return _word(len(argument)) + b"".join(_encode("address", item) for item in argument)
        case _, int():
            return _word(argument)
    msg = f"cannot encode {argument!r} as {kind}"
    raise TypeError(msg)


def _word(number: int) -> bytes:
    return number.to_bytes(32, "big")
