"""A network namespace in which every address is this machine's own, and a view of every packet in it.

`command` starts a program in new namespaces; the rest is called by that program. Needs root or unprivileged user
namespaces. Uses netlink itself, so that no machine needs iproute2.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final, Self

_LINK, _ROUTE = 16, 24  # RTM_NEWLINK, RTM_NEWROUTE
_ASKED = 0x5  # NLM_F_REQUEST | NLM_F_ACK
_CREATE = 0x400
_DESTINATION, _SOURCE = 1, 7  # RTA_DST, RTA_PREFSRC
_LOOPBACK_INDEX: Final = 1
_EVERY_PROTOCOL: Final = 3
_STATISTICS: Final = 6  # PACKET_STATISTICS
_PACKET_LEVEL: Final = 263
_SYN_ONLY, _SYN_AND_ACK = 0x02, 0x12


def command(*program: str) -> list[str]:
    """The command that runs `program` in network and mount namespaces of its own.

    Raises RuntimeError where this machine permits none: then nothing can be shown here, and nothing may be skipped.
    """
    ways = [["unshare", "--user", "--map-root-user", "--net", "--mount", "--"]]
    if os.geteuid() == 0:
        ways.insert(0, ["unshare", "--net", "--mount", "--"])
    reasons = []
    for way in ways:
        try:
            subprocess.run([*way, "true"], capture_output=True, check=True, text=True)
        except subprocess.CalledProcessError as refused:
            reasons.append(f"{' '.join(way)}: {refused.stderr.strip()}")
        except OSError as missing:
            reasons.append(str(missing))
        else:
            return [*way, *program]
    msg = (
        "These tests need network namespaces, and this machine permits none. In a container give it the capability "
        "SYS_ADMIN (and a seccomp profile that allows unshare); elsewhere allow unprivileged user namespaces. "
    )
    raise RuntimeError(msg + "; ".join(reasons))


def own_every_address() -> None:
    """Take every IPv4 and IPv6 address in the world for one of this machine's. Raises OSError."""
    up = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, _LOOPBACK_INDEX, 1, 1)
    out_of_loopback = struct.pack("=HHi", 8, 4, _LOOPBACK_INDEX)
    _netlink(_LINK, 0, up)
    for family in (socket.AF_INET, socket.AF_INET6):
        local = struct.pack("=BBBBBBBBI", family, 0, 0, 0, 255, 4, 0 if family == socket.AF_INET6 else 254, 2, 0)
        _netlink(_ROUTE, _CREATE, local + out_of_loopback)


def let_be_elsewhere(address: str) -> None:
    """Reach this IPv4 address, though it answers here, as another machine's: from one of our own. Raises OSError."""
    local = struct.pack("=BBBBBBBBI", socket.AF_INET, 32, 0, 0, 255, 4, 254, 2, 0)
    attributes = struct.pack("=HHi", 8, 4, _LOOPBACK_INDEX)
    for kind, value in ((_DESTINATION, address), (_SOURCE, "127.0.0.1")):
        attributes += struct.pack("=HH4s", 8, kind, socket.inet_aton(value))
    _netlink(_ROUTE, _CREATE, local + attributes)


def ask_only(name_server: str, folder: Path) -> None:
    """Let the C library ask this name server and the hosts file, and nobody else."""
    for path, text in (
        (Path("/etc/resolv.conf"), f"nameserver {name_server}\noptions timeout:2 attempts:1\n"),
        (Path("/etc/nsswitch.conf"), "hosts: files dns\n"),
        (Path("/etc/hosts"), "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"),
    ):
        if path.exists():
            ours = folder / path.name
            ours.write_text(text)
            subprocess.run(["mount", "--bind", str(ours), str(path)], check=True)  # noqa: S607 - wherever it is


def _netlink(kind: int, flags: int, body: bytes) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.send(struct.pack("=IHHII", 16 + len(body), kind, _ASKED | flags, 1, 0) + body)
        (code,) = struct.unpack_from("=i", kernel.recv(4096), 16)
    if code:
        raise OSError(-code, os.strerror(-code))


@dataclass(frozen=True, slots=True)
class Packet:
    """What opens a conversation: a TCP connection's first packet, or any packet that is not TCP's."""

    source: str
    address: str
    port: int
    protocol: int


@dataclass(slots=True)
class Watch:
    """Every opening packet in the namespace that is not expected: `with Watch(is_expected) as watch:`.

    `during` names what is going on; it is kept with each packet.
    """

    is_expected: Callable[[Packet], bool]
    during: str = ""
    seen: list[tuple[str, Packet]] = field(default_factory=list)
    _socket: socket.socket = field(init=False)
    _thread: threading.Thread = field(init=False)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_EVERY_PROTOCOL))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
        self._socket.settimeout(0.2)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def lost(self) -> int:
        """How many packets came too fast to be looked at, since it was last asked."""
        _, lost = struct.unpack("II", self._socket.getsockopt(_PACKET_LEVEL, _STATISTICS, 8))
        return int(lost)

    def _read(self) -> None:
        while True:
            try:
                data, (_, _, kind, *_) = self._socket.recvfrom(128)
            except TimeoutError:
                if self._ended.is_set():
                    return
                continue
            if kind == socket.PACKET_OUTGOING:
                continue  # it comes back over the loopback device
            packet = opening_packet(data)
            if packet is not None and not self.is_expected(packet):
                self.seen.append((self.during, packet))


def opening_packet(data: bytes) -> Packet | None:
    """The packet, if it is one that opens a conversation."""
    if data[0] >> 4 == 4:
        protocol, rest = data[9], data[(data[0] & 15) * 4 :]
        source, address = str(IPv4Address(data[12:16])), str(IPv4Address(data[16:20]))
    else:
        protocol, rest = data[6], data[40:]
        source, address = str(IPv6Address(data[8:24])), str(IPv6Address(data[24:40]))
    if protocol == socket.IPPROTO_TCP:
        is_first = rest[13] & _SYN_AND_ACK == _SYN_ONLY
        return Packet(source, address, int.from_bytes(rest[2:4]), protocol) if is_first else None
    port = int.from_bytes(rest[2:4]) if protocol == socket.IPPROTO_UDP else 0
    return Packet(source, address, port, protocol)
