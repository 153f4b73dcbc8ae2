"""A name server whose answers live for no time: forbidden addresses, aliases, names that turn (security A-41)."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, Self

from tests.ssrf.vectors import ALTERNATING, NAMES, OWN, PUBLIC, TURNING, UNKNOWN_IS_AT

ADDRESS: Final = "127.0.0.53"
PORT: Final = 53
_A, _ALIAS, _AAAA = 1, 5, 28
_POINTER_TO_QUESTION: Final = b"\xc0\x0c"


@dataclass(slots=True)
class NameServer:
    """`with NameServer() as names:`; `has_turned` makes the names of `TURNING` lead inside."""

    has_turned: bool = False
    asked: Counter[str] = field(default_factory=Counter)
    _socket: socket.socket = field(init=False)
    _thread: threading.Thread = field(init=False)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((ADDRESS, PORT))
        self._socket.settimeout(0.2)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                question, asker = self._socket.recvfrom(512)
            except TimeoutError:
                continue
            self._socket.sendto(self._answer(question), asker)

    def _answer(self, question: bytes) -> bytes:
        labels, at = [], 12
        while question[at]:
            labels.append(question[at + 1 : at + 1 + question[at]].decode("latin-1"))
            at += 1 + question[at]
        (kind,) = struct.unpack_from("!H", question, at + 1)
        name = ".".join(labels).lower()
        self.asked[name] += 1
        records = self._records(name, kind, _POINTER_TO_QUESTION)
        head = struct.pack("!2sHHHHH", question[:2], 0x8580, 1, len(records), 0, 0)
        return head + question[12 : at + 5] + b"".join(records)

    def _records(self, name: str, kind: int, owner: bytes) -> list[bytes]:
        records = []
        for text in self._texts(name):
            if text.startswith("="):
                alias = b"".join(bytes([len(label)]) + label.encode() for label in text[1:].split(".")) + b"\0"
                records += [_record(owner, _ALIAS, alias), *self._records(text[1:], kind, alias)]
            else:
                address = ip_address(text)
                if kind == (_A if address.version == 4 else _AAAA):
                    records.append(_record(owner, kind, address.packed))
        return records

    def _texts(self, name: str) -> tuple[str, ...]:
        if name == ALTERNATING:  # each lookup asks twice: for addresses of either family
            return (PUBLIC,) if self.asked[name] % 4 in {1, 2} else ("10.0.0.5", "fd00:ec2::254")
        if name in TURNING:
            return TURNING[name] if self.has_turned else (PUBLIC,)
        if name == "own.test":
            return (OWN,)
        return NAMES.get(name, (UNKNOWN_IS_AT,))


def _record(owner: bytes, kind: int, data: bytes) -> bytes:
    return owner + struct.pack("!HHIH", kind, 1, 0, len(data)) + data  # kept for 0 seconds
