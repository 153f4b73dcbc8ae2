"""The gateway's store of PayGates: create, read, update, claim, delete, counters (contract 3).

Payment addresses are sealed here on the way in and opened on the way out; a row that does not open is an error, never
another address. Purchases and credits are in `storage.ledger.purchases`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.keys.sealing import place
from tollkeeper.core.keys.tokens import invalid_token
from tollkeeper.core.limits import FORMER_PRICE_SECONDS, SLUG_LENGTH
from tollkeeper.core.paygates.fields import HeaderAuthMode, Recipient, random_slug
from tollkeeper.core.paygates.model import Counters, FormerVersion, NewPayGate, PayGate, Trust, with_former_prices
from tollkeeper.storage.auth import is_in_force
from tollkeeper.storage.engine.database import OURSELVES, gate_to_change, load_queries, next_id, read_page, unit_of_work
from tollkeeper.storage.engine.nodes import note_change
from tollkeeper.storage.gateway.creations import CreationKey, Creations
from tollkeeper.storage.gateway.file_rows import file_of_row, give_up_files, keep_file
from tollkeeper.storage.gateway.secrets import PayGateSecrets
from tollkeeper.storage.ledger.purchase_rows import in_whole

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.keys.sealing import Sealing
    from tollkeeper.core.paygates.target_signing import HmacSecret
    from tollkeeper.storage.engine.database import Database, Row, Steps, Unit


# Authority to change a PayGate, judged in the commit of the change (contract 3.2, 3.3). A request may wait for a name,
# a body or the disk behind its first judgement. By its commit its login may be over, or its gate somebody else's.


@dataclass(frozen=True, slots=True)
class Authority:
    """A caller's right. `session_id`: of a login of this database's, None for every other caller.

    `judge` raises the refusal for a gate as it stands, with the hash of its management token.
    """

    session_id: str | None
    judge: Callable[[PayGate, bytes | None], object]

    @unit_of_work
    def require_login(self) -> Steps[None]:
        """Raises: INVALID_TOKEN once the login was ended."""
        if self.session_id is not None and not (yield from is_in_force(self.session_id)):
            raise invalid_token()


T = TypeVar("T")
_Q = load_queries("gateway.sql")
_ENCODE: Final = msgspec.json.Encoder().encode
_DECODE_ACCEPTS: Final = msgspec.json.Decoder(tuple[Recipient, ...]).decode
_DECODE_HEADERS: Final = msgspec.json.Decoder(tuple[tuple[str, str], ...]).decode
_NOT_PLAIN: Final = {"slug", "methods", "payment_address", "accepts", "target_headers", "file", "former", "secrets"}
_NEVER_CHANGED: Final = {"owner_wallet", "created_ms", "updated_ms"}
_PLAIN_COLUMNS: Final = [one.name for one in fields(PayGate) if one.name not in _NOT_PLAIN | _NEVER_CHANGED]
# An owner who changes the price more often than this within two minutes gives up the oldest of them.
_FORMER_VERSIONS_MAX: Final = 100
VOIDED_AT_ONCE: Final = 500  # purchases of a gate that is deleted: some milliseconds of the writer


@dataclass(frozen=True, slots=True)
class Once:
    """A create that may be sent again: its key, and what makes its answer."""

    key: CreationKey
    answer: Callable[[PayGate], bytes]


@unit_of_work
def _after(first: Unit[None], then: Unit[T]) -> Steps[T]:
    yield from first
    return (yield from then)


async def _nobody() -> None:
    """Nobody else has copies of gates."""


class PayGates:
    """PayGates in one database. `random_bytes` makes slugs."""

    def __init__(self, database: Database, sealing: Sealing, random_bytes: Callable[[int], bytes]) -> None:
        self._database = database
        self._sealing = sealing
        self._random = random_bytes
        self._secrets = PayGateSecrets(sealing)
        self._creations = Creations(sealing)
        self.until_seen: Callable[[], Awaitable[None]] = _nobody  # waits for every other program (`nodes`)
        self._to_void: dict[int, int] = {}  # of gates whose deletion has not ended, the first sale that is not void

    async def create(
        self,
        new: NewPayGate,
        owner_wallet: str | None,
        management_hash: bytes | None,
        now_ms: int,
        secret: HmacSecret | None = None,
        once: Once | None = None,
        *,
        by: Authority | None = None,
    ) -> PayGate:
        """Store a new gate under a slug of its own, with its secret where it signs; and its answer, if it has a key.

        `by`: whose login it needs, None for nobody's. Raises: CONFLICT when the owner's slug was ever taken;
        CreatedBeforeError where the key was used before; INVALID_TOKEN.
        """
        creating = self._create(new, owner_wallet, management_hash, now_ms, secret)
        if by is not None:
            creating = _after(by.require_login(), creating)
        return await self._database.run(creating if once is None else self._create_once(creating, once, now_ms))

    async def created_before(self, key: CreationKey, now_ms: int) -> bytes | None:
        """The answer of the create that came with this key. Raises: CONFLICT where that was another request."""
        return await self._creations.find(self._database, key, now_ms)

    @unit_of_work
    def _create_once(self, creating: Unit[PayGate], once: Once, now_ms: int) -> Steps[PayGate]:
        yield from self._creations.check(once.key, now_ms)
        gate = yield from creating
        yield from self._creations.keep(once.key, once.answer(gate), now_ms)
        return gate

    @unit_of_work
    def _create(
        self,
        new: NewPayGate,
        owner_wallet: str | None,
        management_hash: bytes | None,
        now_ms: int,
        secret: HmacSecret | None,
    ) -> Steps[PayGate]:
        gate_id = yield from next_id("paygates")
        while True:
            slug = new.slug or self._slug()
            gate = PayGate(
                id=gate_id,
                slug=slug,
                version=1,
                owner_wallet=owner_wallet,
                created_ms=now_ms,
                updated_ms=now_ms,
                **new.fields,
            )
            columns = self._columns(gate)
            del columns["version"]
            rows = yield _Q.insert_paygate(
                **columns, slug=slug, owner_wallet=owner_wallet, management_hash=management_hash, now_ms=now_ms
            )
            if rows:
                break
            if new.slug is not None:
                raise ApiError(Code.CONFLICT, "the slug is taken", details={"field": "slug"})
        yield self._version(gate)
        yield _Q.insert_counters(gate_id=gate_id)
        if secret is not None:
            yield from self._secrets.keep_first(gate_id, secret, now_ms)
        if gate.file is not None:
            yield from keep_file(gate_id, gate.file, now_ms)
        return gate

    def _slug(self) -> str:
        slug = ""
        while len(slug) < SLUG_LENGTH:
            slug += random_slug(self._random(SLUG_LENGTH))
        return slug[:SLUG_LENGTH]

    async def by_slug(self, slug: str, now_ms: int) -> PayGate | None:
        """The gate with this slug, unless it is deleted, with the former prices that it still sells at."""
        rows = await self._database.read(_Q.paygate_by_slug(slug=slug))
        if not rows:
            return None
        gate = await self._with_secrets(self._gate(rows[0]), now_ms)
        since_ms = now_ms - FORMER_PRICE_SECONDS * 1000
        if gate.version == 1 or gate.updated_ms <= since_ms:
            return gate
        statement = _Q.former_versions(
            gate_id=gate.id, version=gate.version, since_ms=since_ms, limit=_FORMER_VERSIONS_MAX
        )
        return with_former_prices(gate, [self._former(gate.id, row) for row in await self._database.read(statement)])

    async def deleted_by_slug(self, slug: str, now_ms: int) -> PayGate | None:
        """The deleted gate that had this slug."""
        rows = await self._database.read(_Q.deleted_paygate_by_slug(slug=slug))
        return await self._with_secrets(self._gate(rows[0]), now_ms) if rows else None

    async def _with_secrets(self, gate: PayGate, now_ms: int) -> PayGate:
        if gate.header_auth_mode is not HeaderAuthMode.HMAC:
            return gate
        return replace(gate, secrets=await self._secrets.of_gate(self._database, gate.id, now_ms))

    def _former(self, gate_id: int, row: Row) -> FormerVersion:
        version = f"{gate_id}.{row['version']}"
        pay_to = self._unseal(row["pay_to"], "paygate_versions", version, "pay_to")
        return FormerVersion(
            price_micro=row["price_micro"],
            credits=row["credits"],
            recipients=(
                Recipient(row["network"], pay_to),
                *self._opened(row["accepts"], _DECODE_ACCEPTS, "paygate_versions", version, "accepts"),
            ),
            replaced_ms=row["replaced_ms"],
        )

    def _opened(
        self, sealed: bytes | None, decode: Callable[[str], tuple[T, ...]], table: str, row: str | int, column: str
    ) -> tuple[T, ...]:
        return () if sealed is None else decode(self._unseal(sealed, table, row, column))

    def _sealed(self, values: tuple[object, ...], table: str, row: str | int, column: str) -> bytes | None:
        return self._seal(_ENCODE(values).decode(), table, row, column) if values else None

    def _seal(self, text: str, table: str, row: str | int, column: str) -> bytes:
        return self._sealing.seal(text.encode(), place(table, row, column))

    def _unseal(self, sealed: bytes, table: str, row: str | int, column: str) -> str:
        return self._sealing.unseal(sealed, place(table, row, column)).decode()

    async def by_id(self, gate_id: int) -> tuple[PayGate, bytes | None] | None:
        """The gate with this id and the hash of its management token, unless it is deleted."""
        rows = await self._database.read(_Q.paygate_by_id(id=gate_id))
        return (self._gate(rows[0]), rows[0]["management_hash"]) if rows else None

    async def has_management(self, management_hash: bytes) -> bool:
        """Is this the hash of a gate's management token? Also of a deleted one's, of whose id is said that it ended."""
        return bool(await self._database.read(_Q.management_hash_known(management_hash=management_hash)))

    async def page(self, owner_wallet: str | None, limit: int, offset: int) -> tuple[list[PayGate], int]:
        """An owner's gates, newest first, and how many there are; without an owner the ownerless ones."""
        if owner_wallet is None:
            count, page = _Q.count_ownerless_paygates(), _Q.ownerless_paygates(limit=limit, offset=offset)
        else:
            count = _Q.count_paygates_of_owner(owner_wallet=owner_wallet)
            page = _Q.paygates_of_owner(owner_wallet=owner_wallet, limit=limit, offset=offset)
        rows, total = await read_page(self._database, count, page, owner_wallet or "nobody")
        return [self._gate(row) for row in rows], total

    async def found(
        self, owner_wallet: str, limit: int, offset: int, *, text: str, enabled: bool | None
    ) -> tuple[list[PayGate], int]:
        """Return an owner's gates with the text in title or slug, newest first, and how many there are."""
        plain = text.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_")
        which: dict[str, int | str] = {"pattern": f"%{plain}%", "enabled": -1 if enabled is None else int(enabled)}
        count = _Q.count_found_paygates_of_owner(owner_wallet=owner_wallet, **which)
        page = _Q.found_paygates_of_owner(owner_wallet=owner_wallet, limit=limit, offset=offset, **which)
        rows, total = await read_page(self._database, count, page, owner_wallet)
        return [self._gate(row) for row in rows], total

    async def update(
        self,
        gate_id: int,
        change: Callable[[PayGate], PayGate],
        spare: HmacSecret | None = None,
        *,
        by: Authority | None = None,
    ) -> PayGate:
        """Apply a pure change to the gate as it stands, in one transaction; what `change` raises changes nothing.

        A gate that signs from now on and has no secret gets `spare`, which the result then has. `by`: who asks, as of
        all changes; None for the program itself. Raises: NOT_FOUND, and what `by` refuses.
        """
        gate = await self._database.run(self._behind(gate_id, by, self._update_and_keep(gate_id, change, spare)))
        await self.until_seen()
        return gate

    @unit_of_work
    def _behind(self, gate_id: int, by: Authority | None, changing: Unit[T]) -> Steps[T]:
        """Change the gate where `by` may, as it stands in this very transaction."""
        yield gate_to_change(gate_id)
        if by is not None:
            yield from by.require_login()
            for row in (yield _Q.paygate_by_id(id=gate_id)):  # of none the change says so itself
                by.judge(self._gate(row), row["management_hash"])
        return (yield from changing)

    @unit_of_work
    def _update_and_keep(
        self, gate_id: int, change: Callable[[PayGate], PayGate], spare: HmacSecret | None
    ) -> Steps[PayGate]:
        gate = yield from self._update(gate_id, change)
        if (
            gate.header_auth_mode is HeaderAuthMode.HMAC
            and spare is not None
            and (yield from self._secrets.keep_first(gate_id, spare, gate.updated_ms))
        ):
            return replace(gate, secrets=(spare,))
        return gate

    async def replace_secret(
        self, gate_id: int, secret: HmacSecret, now_ms: int, *, by: Authority | None = None
    ) -> None:
        """Give a signing gate a new secret. Raises: NOT_FOUND; CONFLICT for one that does not sign, or too often."""
        await self._database.run(self._behind(gate_id, by, self._replace_secret(gate_id, secret, now_ms)))
        await self.until_seen()

    @unit_of_work
    def _replace_secret(self, gate_id: int, secret: HmacSecret, now_ms: int) -> Steps[None]:
        def next_version(gate: PayGate) -> PayGate:
            if gate.header_auth_mode is not HeaderAuthMode.HMAC:
                raise ApiError(Code.CONFLICT, "the PayGate signs nothing: set headerAuthMode to hmac first")
            return replace(gate, version=gate.version + 1, updated_ms=max(now_ms, gate.updated_ms))

        yield from self._update(gate_id, next_version)  # so that no copy of the gate signs by the former secrets
        yield from self._secrets.replace(gate_id, secret, now_ms)

    @unit_of_work
    def _update(self, gate_id: int, change: Callable[[PayGate], PayGate]) -> Steps[PayGate]:
        rows = yield _Q.paygate_by_id(id=gate_id)
        if not rows:
            raise ApiError(Code.NOT_FOUND, "there is no such PayGate")
        before = self._gate(rows[0])
        gate = change(before)
        changed = yield _Q.update_paygate(**self._columns(gate), from_version=before.version, now_ms=gate.updated_ms)
        if not changed:
            raise ApiError(Code.CONFLICT, "the PayGate was changed at the same moment; try again")
        if gate.file is not None and gate.file != before.file:
            yield from keep_file(gate_id, gate.file, gate.updated_ms)
        yield self._version(gate)
        yield note_change(gate_id)
        return gate

    async def claim(self, gate_id: int, owner_wallet: str, now_ms: int, *, by: Authority) -> PayGate:
        """Give an ownerless gate to a wallet. Raises: NOT_FOUND, CONFLICT when it has an owner by now."""
        gate = await self._database.run(self._behind(gate_id, by, self._claim(gate_id, owner_wallet, now_ms)))
        await self.until_seen()
        return gate

    @unit_of_work
    def _claim(self, gate_id: int, owner_wallet: str, now_ms: int) -> Steps[PayGate]:
        changed = yield _Q.claim_paygate(id=gate_id, owner_wallet=owner_wallet, now_ms=now_ms)
        rows = yield _Q.paygate_by_id(id=gate_id)
        if not rows:
            raise ApiError(Code.NOT_FOUND, "there is no such PayGate")
        if not changed:
            raise ApiError(Code.CONFLICT, "the PayGate has an owner")
        gate = self._gate(rows[0])
        yield self._version(gate)
        yield note_change(gate_id)
        return gate

    async def delete(
        self, gate_id: int, now_ms: int, deleted: Callable[[], None] | None = None, *, by: Authority | None = None
    ) -> int:
        """Delete a gate softly and void its bought credits; return how many those were. Raises: NOT_FOUND.

        From the first commit on none of them is taken but what is due (`ledger.spends`). Where much is yet to be void
        then, `deleted` is called; where this breaks off, `void_rest` goes on.
        """
        voided, outstanding = await self._database.run(self._behind(gate_id, by, self._delete(gate_id, now_ms)))
        if voided == VOIDED_AT_ONCE:
            if deleted is not None:
                deleted()
            outstanding += await self._void(gate_id, now_ms)
        await self.until_seen()
        return outstanding

    @unit_of_work
    def _delete(self, gate_id: int, now_ms: int) -> Steps[tuple[int, int]]:
        deleted = yield _Q.delete_paygate(id=gate_id, now_ms=now_ms)
        if not deleted:
            raise ApiError(Code.NOT_FOUND, "there is no such PayGate")
        yield note_change(gate_id)
        yield from give_up_files(gate_id, now_ms)
        return (yield from _void_some(gate_id, now_ms))

    async def void_rest(self, now_ms: int) -> None:
        """Void what gates sold whose deletion broke off: it stands where the last look saw it. Raises: StorageError.

        One that goes on would count too few of the credits that were left.
        """
        former, found = self._to_void, await self._database.read(_Q.gates_to_void(), tenant=OURSELVES)
        self._to_void = {row["id"]: row["first"] for row in found}
        for gate_id, first in self._to_void.items():
            if former.get(gate_id) == first:
                await self._void(gate_id, now_ms)

    async def _void(self, gate_id: int, now_ms: int) -> int:
        """All that a deleted gate sold, some in each commit, for spends wait for it; how many credits were left."""
        voided, all_outstanding = VOIDED_AT_ONCE, 0
        while voided == VOIDED_AT_ONCE:
            voided, outstanding = await self._database.run(_void_some(gate_id, now_ms))
            all_outstanding += outstanding
        return all_outstanding

    async def counters(self, gate_id: int) -> Counters:
        """Return the gate's counters, as far as they have been written."""
        rows = await self._database.read(_Q.counters_of_gate(gate_id=gate_id))
        if not rows:
            return Counters()
        counted = dict(rows[0])
        high: int = counted.pop("revenue_high")
        return Counters(**{**counted, "revenue_micro": high * 10**18 + counted["revenue_micro"]})

    async def trust(self, gate: PayGate) -> Trust:
        """Return the gate's sales on trust: those not confirmed, and those that were not paid after all."""
        rows = await self._database.read(_Q.trust_of_gate(gate_id=gate.id), tenant=gate.tenant)
        found = {row["state"]: (row["purchases"], in_whole(row["value_high"], row["value_low"])) for row in rows}
        return Trust(*found.get("LIVE", (0, 0)), *found.get("VOID", (0, 0)))

    def _version(self, gate: PayGate) -> Any:  # noqa: ANN401 - a Statement
        version = f"{gate.id}.{gate.version}"
        return _Q.insert_version(
            gate_id=gate.id,
            version=gate.version,
            price_micro=gate.price_micro,
            credits=gate.credits,
            network=gate.network,
            pay_to=self._seal(gate.payment_address, "paygate_versions", version, "pay_to"),
            accepts=self._sealed(gate.accepts, "paygate_versions", version, "accepts"),
            now_ms=gate.updated_ms,
        )

    def _columns(self, gate: PayGate) -> JsonObject:
        return {
            **{name: _plain(getattr(gate, name)) for name in _PLAIN_COLUMNS},
            "methods": ",".join(gate.methods),
            "payment_address": self._seal(gate.payment_address, "paygates", gate.id, "payment_address"),
            "accepts": self._sealed(gate.accepts, "paygates", gate.id, "accepts"),
            "target_headers": self._sealed(gate.target_headers, "paygates", gate.id, "target_headers"),
            "file_id": None if gate.file is None else gate.file.id,
        }

    def _gate(self, row: Row) -> PayGate:
        headers = self._opened(row["target_headers"], _DECODE_HEADERS, "paygates", row["id"], "target_headers")
        shown = {
            **row,
            "methods": row["methods"].split(","),
            "payment_address": self._unseal(row["payment_address"], "paygates", row["id"], "payment_address"),
            "accepts": self._opened(row["accepts"], _DECODE_ACCEPTS, "paygates", row["id"], "accepts"),
            "target_headers": headers,
            "file": file_of_row(row),
        }
        return msgspec.convert(shown, PayGate, strict=False)  # flags are 0 and 1


def _plain(value: object) -> object:
    """Return a field as a column keeps it."""
    if isinstance(value, Enum):
        return value.value
    return int(value) if isinstance(value, bool) else value


@unit_of_work
def _void_some(gate_id: int, now_ms: int) -> Steps[tuple[int, int]]:
    """Void some of what a deleted gate sold: how many purchases, and how many credits they had left."""
    yield gate_to_change(gate_id)
    rows = yield _Q.void_purchases_of_gate(gate_id=gate_id, now_ms=now_ms, many=VOIDED_AT_ONCE)
    if rows:
        numbers = [row["number"] for row in rows]
        yield _Q.close_credits_of_gate(gate_id=gate_id, first=min(numbers), last=max(numbers))
    return len(rows), sum(row["outstanding"] or 0 for row in rows)
