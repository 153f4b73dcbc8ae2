"""Parts of a body that wait, kept in about as much memory as they have bytes (security A-42).

Whoever sends a body in chunks of two bytes has each of them handed over alone, and in Python an object of two bytes
takes thirty times as much. What is small is therefore added to what is small before it.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias

Part: TypeAlias = "bytes | bytearray | memoryview"

_SMALL_SIZE_BYTES: Final = 1024


class Parts(Protocol):
    """A list or a deque of them, the last of which nobody else holds."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Part: ...

    def append(self, part: Part, /) -> None:
        """Put it behind the others."""


def add_part(parts: Parts, data: bytes | memoryview) -> None:
    """Put `data`, which does not change, behind `parts`."""
    if len(data) >= _SMALL_SIZE_BYTES:
        parts.append(data)
    elif parts and isinstance(last := parts[-1], bytearray):
        last += data
    else:
        parts.append(bytearray(data))
