"""Hosts as network namespaces on one bridge: a host is cut off by taking its link down."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

_NETWORKS: Final = itertools.count()
_CHUNK_BYTES: Final = 1 << 16


def ip(words: str) -> None:
    """Carry out a command of `ip`."""
    done = subprocess.run(["/sbin/ip", *words.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {words}: {done.stderr}"


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace, or no more than an address of this machine. `under` runs a command there."""

    name: str
    address: str
    is_apart: bool = True

    @property
    def under(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name) if self.is_apart else ()

    def cut_off(self) -> None:
        """Nothing reaches it, and nothing of it reaches anybody."""
        ip(f"link set {self.name}h down")

    def join(self) -> None:
        """Its link is there again."""
        ip(f"link set {self.name}h up")


class Network:
    """A bridge of this machine, at whose `address` the test itself is, and hosts."""

    def __init__(self, bridge: str, prefix: str, stack: ExitStack) -> None:
        self._bridge, self._prefix, self._stack = bridge, prefix, stack
        self._hosts = itertools.count(2)
        self.address = f"{prefix}.1"

    def host(self, *, is_apart: bool = True) -> Host:
        """A new one."""
        number = next(self._hosts)
        name, address = f"{self._bridge}x{number}", f"{self._prefix}.{number}"
        if not is_apart:
            ip(f"addr add {address}/24 dev {self._bridge}")
            return Host(name, address, is_apart=False)
        ip(f"netns add {name}")
        self._stack.callback(ip, f"netns del {name}")
        ip(f"link add {name}h type veth peer name eth0 netns {name}")
        ip(f"link set {name}h master {self._bridge} up")
        ip(f"-n {name} link set lo up")
        ip(f"-n {name} addr add {address}/24 dev eth0")
        ip(f"-n {name} link set eth0 up")
        return Host(name, address)


@contextmanager
def network() -> Iterator[Network]:
    """A network of its own, until the block ends."""
    assert os.geteuid() == 0, "these tests make network namespaces: run them as root"
    number = next(_NETWORKS)
    bridge, prefix = f"tk{os.getpid() % 100_000}{number}", f"10.{os.getpid() % 200 + 20}.{number}"
    with ExitStack() as stack:
        ip(f"link add {bridge} type bridge")
        stack.callback(ip, f"link del {bridge}")
        ip(f"addr add {prefix}.1/24 dev {bridge}")
        ip(f"link set {bridge} up")
        yield Network(bridge, prefix, stack)


@asynccontextmanager
async def listening(serve: Callable[..., Awaitable[None]], address: str) -> AsyncIterator[str]:
    """The URL of a listener, each of whose connections is given to `serve`, and ended with the block."""
    running: set[asyncio.Task[Any]] = set()

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.close()
        with suppress(ConnectionError, asyncio.CancelledError):
            await writer.wait_closed()
        running.discard(task)

    server = await asyncio.start_server(tracked, address, 0)
    try:
        yield f"http://{address}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running)


def passing_on(
    address: str, port: int, there: str = "127.0.0.1", goes_on: asyncio.Event | None = None
) -> AbstractAsyncContextManager[str]:
    """The URL at which hosts reach what listens at a port, of this machine's own unless told otherwise.

    While `goes_on` is not set, nothing goes through, and nothing is told of it.
    """

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK_BYTES):
                if goes_on is not None:
                    await goes_on.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = await asyncio.open_connection(there, port)
        try:
            await asyncio.gather(pump(reader, upstream[1]), pump(upstream[0], writer))
        finally:
            upstream[1].close()

    return listening(serve, address)
