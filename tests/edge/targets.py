"""A target on a real socket that does what a test tells it: to answer, to lie, to be silent.

A behaviour is a coroutine over one connection; `Target` records every byte that came in and counts connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tollkeeper.core.http.target_addresses import TargetUrl, check_target_url
from tollkeeper.edge.target.addresses import Resolver
from tollkeeper.edge.target.forwarder import Forwarder

OK = b"HTTP/1.1 200 OK\r\n"
HEAD_END = b"\r\n\r\n"


@dataclass
class Target:
    """One listening target and what it has seen."""

    url: str
    port: int
    connections: int = 0
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    def at(self, path: str = "/") -> TargetUrl:
        return check_target_url(self.url + path, allow_private=True)


@dataclass
class Connection:
    """A caller's connection, as a behaviour sees it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    target: Target

    async def head(self) -> bytes:
        """The next request's head."""
        head = await self.reader.readuntil(HEAD_END)
        self.target.heads.append(head)
        return head

    async def body(self, head: bytes) -> bytes:
        """The body that belongs to `head`."""
        lowered = head.lower()
        body = b""
        if b"transfer-encoding: chunked" in lowered:
            while size := int((await self.reader.readline()).split(b";")[0], 16):
                body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
        elif b"content-length: " in lowered:
            size = int(lowered.split(b"content-length: ")[1].split(b"\r\n")[0])
            body = await self.reader.readexactly(size)
        self.target.bodies.append(body)
        return body

    async def request(self) -> tuple[bytes, bytes]:
        """The next request, whole."""
        head = await self.head()
        return head, await self.body(head)

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def wait_closed(self) -> None:
        """Until the caller closes."""
        while await self.reader.read(65536):
            pass

    def reset(self) -> None:
        """Close with a reset."""
        self.writer.transport.abort()


Behaviour = Callable[[Connection], Awaitable[None]]


def answers(*parts: bytes, wait: bool = True) -> Behaviour:
    """Read each request whole, send `parts`; then wait for the caller to close, or close."""

    async def behave(connection: Connection) -> None:
        await connection.request()
        await connection.send(*parts)
        if wait:
            await connection.wait_closed()

    return behave


def serves(response: bytes) -> Behaviour:
    """Answer every request of a connection with `response`."""

    async def behave(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.send(response)

    return behave


def sized(body: bytes, *headers: bytes) -> bytes:
    """A plain response."""
    lines = b"".join(header + b"\r\n" for header in headers)
    return OK + b"Content-Length: %d\r\n" % len(body) + lines + b"\r\n" + body


@contextlib.asynccontextmanager
async def target(
    behave: Behaviour, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Target]:
    """A target that treats every connection with `behave`."""
    tasks: set[asyncio.Task[None]] = set()
    writers: set[asyncio.StreamWriter] = set()

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Both are known from here on: a task that is cancelled before it began closes nothing."""
        writers.add(writer)
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listening.connections += 1
        try:
            await behave(Connection(reader, writer, listening))
        except (OSError, EOFError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            listening.lost.set()
            writer.close()

    server = await asyncio.start_server(take, host, port, ssl=tls, limit=1 << 20)
    port = server.sockets[0].getsockname()[1]
    listening = Target(f"{'https' if tls else 'http'}://{host}:{port}", port)
    try:
        yield listening
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()  # by the loop's end, also where nobody reads what was to be sent


@contextlib.asynccontextmanager
async def forwarder(
    resolver: Resolver | None = None, tls: ssl.SSLContext | None = None, places: int = sys.maxsize
) -> AsyncIterator[Forwarder]:
    """A forwarder that may reach this machine."""
    made = Forwarder(resolver or Resolver(allow_private=True), tls=tls, places=places)
    try:
        yield made
    finally:
        made.close()
        await asyncio.sleep(0)


@contextlib.contextmanager
def nothing_more_can_be_opened(pid: int) -> Iterator[None]:
    """By that process; what is open stays so."""
    are_open = Path(f"/proc/{pid}/fd")
    lowest = next(number for number in count() if not (are_open / str(number)).is_symlink())
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A self-signed certificate for `name`: the context of a server with it, and that of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    certificate_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate_file, key_file)
    server.set_alpn_protocols(["h2", "http/1.1"])
    client = ssl.create_default_context(cafile=str(certificate_file))
    client.set_alpn_protocols(["http/1.1"])
    return server, client
