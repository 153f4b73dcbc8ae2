"""What no first purchase goes without, in as few calls of Python as there can be. Prints {"url": ...}.

    bought relay PORT       each request to 127.0.0.1:PORT, the target, behind two questions to the facilitator there,
                            verify and settle, in which its payment stands; the answer back as it is
    bought signature PORT   the same for those whose payment's signature is its payer's, and nothing else looked at
    bought books PORT FILE  the same behind two durable commits, the claim's and that of grant and first spend, each
                            for all that came in one turn of the loop: a row with what was asked, its nonce unique,
                            in which transaction, credits and call are then written; the leanest books there can be

No head is read but for the payment; nothing is judged, known, limited, logged or counted; a grant tells the caller
nothing; and nobody could find out later what was sold to whom. One read is taken for one message.
"""

from __future__ import annotations

import asyncio
import base64
import sqlite3
import sys
from typing import TYPE_CHECKING, Final, cast

import msgspec

from bench.servers.listening import serve_protocol
from tollkeeper.api import new_request_id
from tollkeeper.core.evm import Authorization, authorization_digest, domain_separator, recover_unchecked
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.genesis import TOKEN_NAME
from tollkeeper.serving.http_server import run, until_signalled

if TYPE_CHECKING:
    from collections.abc import Callable

_NETWORK: Final = "base-sepolia"
_PAYMENT: Final = b"\r\nX-Payment: "
_ASKED: Final = (
    b"POST /v1/%b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
)
# As long as our requirements are.
_BODY: Final = b'{"x402Version":1,"paymentPayload":%b,"paymentRequirements":{"x":"' + b"x" * 500 + b'"}}'
_GET: Final = b"GET /small HTTP/1.1\r\nhost: localhost\r\nx-request-id: %b\r\n\r\n"
_CREDITS: Final = 1


class _Signed(msgspec.Struct, frozen=True):
    """What was signed, as it is on the wire."""

    to: str
    value: str
    nonce: str
    payer: str = msgspec.field(name="from")
    valid_after: str = msgspec.field(name="validAfter")
    valid_before: str = msgspec.field(name="validBefore")


class _Payload(msgspec.Struct, frozen=True):
    signature: str
    authorization: _Signed


class _Payment(msgspec.Struct, frozen=True):
    payload: _Payload


_DECODE: Final = msgspec.json.Decoder(_Payment).decode
_ASSET: Final = NETWORKS[_NETWORK].usdc.address
_DOMAIN: Final = domain_separator(TOKEN_NAME, "2", NETWORKS[_NETWORK].chain_id, _ASSET)


def _require_signature(payment: _Payload) -> None:
    """Raises: ValueError."""
    signed = payment.authorization
    authorization = Authorization(
        payer=signed.payer.lower(),
        pay_to=signed.to.lower(),
        value=int(signed.value),
        valid_after=int(signed.valid_after),
        valid_before=int(signed.valid_before),
        nonce=signed.nonce,
    )
    signature = bytes.fromhex(payment.signature[2:])
    signer = recover_unchecked(authorization_digest(_DOMAIN, authorization), signature[:64], signature[64] - 27)
    if signer.hex() != authorization.payer[2:]:
        msg = "somebody else's signature"
        raise ValueError(msg)


class Connection(asyncio.Protocol):
    """One connection to the nginx that is facilitator and target; idle ones are in `kept`."""

    def __init__(self, kept: list[Connection]) -> None:
        self._kept = kept
        self._answered: Callable[[bytes], None]
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, data: bytes, answered: Callable[[bytes], None]) -> None:
        """Send these bytes; `answered` is told what comes back."""
        self._answered = answered
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if b"\r\nConnection: close" not in data and not self._transport.is_closing():
            self._kept.append(self)
        self._answered(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc
        if self in self._kept:
            self._kept.remove(self)


class Books:
    """Claims and grants of a turn of the loop, in one commit."""

    def __init__(self, path: str) -> None:
        self._database = database = sqlite3.connect(path, isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute(
            "CREATE TABLE purchases (number INTEGER PRIMARY KEY, nonce TEXT UNIQUE, request BLOB, "
            "hash BLOB, remaining INTEGER, call TEXT)"
        )
        self._count = 0
        self._claims: list[Buyer] = []
        self._grants: list[Buyer] = []
        self._is_due = False

    def claim(self, buyer: Buyer) -> None:
        """With the next commit, after which `claimed` is called."""
        self._count += 1
        buyer.number = self._count
        self._claims.append(buyer)
        self._begin()

    def grant(self, buyer: Buyer) -> None:
        """With the next commit, after which `granted` is called."""
        self._grants.append(buyer)
        self._begin()

    def _begin(self) -> None:
        if not self._is_due:
            self._is_due = True
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._commit)  # behind one more look, as the program's ledger

    def _commit(self) -> None:
        claims, grants = self._claims, self._grants
        self._claims, self._grants, self._is_due = [], [], False
        self._database.execute("BEGIN IMMEDIATE")
        if claims:
            self._database.executemany(
                "INSERT INTO purchases (number, nonce, request) VALUES (?, ?, ?)",
                [(one.number, one.nonce, one.body) for one in claims],
            )
        if grants:
            self._database.executemany(
                "UPDATE purchases SET hash = ?, remaining = ?, call = ? WHERE number = ?",
                [(one.transaction, _CREDITS - 1, one.call_id, one.number) for one in grants],
            )
        self._database.execute("COMMIT")
        for one in claims:
            one.claimed()
        for one in grants:
            one.granted()


class Place:
    """What all share."""

    def __init__(self, port: int, books: Books | None, *, looks: bool) -> None:
        self.books, self.looks = books, looks
        self._port = port
        self._kept: list[Connection] = []
        self._opening: set[asyncio.Task[None]] = set()

    def ask(self, data: bytes, answered: Callable[[bytes], None]) -> None:
        """The facilitator, or the target."""
        if self._kept:
            self._kept.pop().ask(data, answered)
        else:
            task = asyncio.get_running_loop().create_task(self._open(data, answered))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, data: bytes, answered: Callable[[bytes], None]) -> None:
        connection = Connection(self._kept)
        await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", self._port)
        connection.ask(data, answered)


class Buyer(asyncio.Protocol):
    """One caller's connection, and its purchase."""

    body: bytes
    nonce: str
    number: int
    transaction: bytes
    call_id: str

    def __init__(self, place: Place) -> None:
        self._place = place
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. A request."""
        begin = data.index(_PAYMENT) + len(_PAYMENT)
        header = data[begin : data.index(b"\r\n", begin)]
        payment = base64.b64decode(header)
        if self._place.looks:
            payload = _DECODE(payment).payload
            _require_signature(payload)
            self.nonce = payload.authorization.nonce
        self.body = _BODY % payment
        self._place.ask(_ASKED % (b"verify", len(self.body), self.body), self._verified)

    def _verified(self, answer: bytes) -> None:
        if b'"isValid":true' not in answer:
            raise ValueError(answer)
        if self._place.books is None:
            self.claimed()
        else:
            self._place.books.claim(self)

    def claimed(self) -> None:
        """It is ours to settle."""
        self._place.ask(_ASKED % (b"settle", len(self.body), self.body), self._settled)

    def _settled(self, answer: bytes) -> None:
        if b'"success":true' not in answer:
            raise ValueError(answer)
        self.call_id = new_request_id()
        if self._place.books is None:
            self.granted()
        else:
            begin = answer.index(b'"transaction":"') + 15
            self.transaction = answer[begin : begin + 66]
            self._place.books.grant(self)

    def granted(self) -> None:
        """Its first credit is spent."""
        self._place.ask(_GET % self.call_id.encode(), self._answered)

    def _answered(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


async def serve(stop: asyncio.Event) -> None:
    """The server, until `stop` is set."""
    kind, port, *path = sys.argv[1:]
    place = Place(int(port), Books(path[0]) if path else None, looks=kind != "relay")
    await serve_protocol(lambda: Buyer(place), stop)


if __name__ == "__main__":
    run(until_signalled(serve))
