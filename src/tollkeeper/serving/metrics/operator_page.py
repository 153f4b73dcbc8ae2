"""Facts of `/ops` that are no metrics: what `doctor` finds, how old keys are, and what waits for the operator.

`doctor` looks in a thread and a loop of its own, at most once a minute, however often the page is asked for.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tollkeeper.api import iso
from tollkeeper.settings.model import Role
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.gateway.owner_lists import OwnerRows
from tollkeeper.web.operations import OperatorFacts

if TYPE_CHECKING:
    from pathlib import Path

    from tollkeeper.core.keys.sealing import KeyRing
    from tollkeeper.settings.model import Settings
    from tollkeeper.storage.engine.database import Database, Row

_LOOKS_AGAIN_SECONDS: Final = 60.0
_DAY_SECONDS: Final = 86_400


@dataclass(slots=True)
class OperatorPage:
    """Reader of the facts of one process."""

    settings: Settings
    database: Database
    _found: list[tuple[str, str, str, bool]] = field(default_factory=list)
    _looked: float | None = None
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def facts(self) -> OperatorFacts:
        """Return the facts of now; what `doctor` finds is at most a minute old."""
        return OperatorFacts(await self._findings(), self._keys(), await self._parked())

    async def _findings(self) -> list[tuple[str, str, str, bool]]:
        from tollkeeper.serving.doctor.examination import examine_settings  # noqa: PLC0415 - a page is rarely asked for

        async with self._looking:
            if self._looked is None or time.monotonic() > self._looked + _LOOKS_AGAIN_SECONDS:
                found = await asyncio.to_thread(examine_settings, self.settings)
                self._found = [
                    (one.name, one.problem, one.remedy, kind == "error")
                    for kind, problems in (("error", found.errors), ("warning", found.warnings))
                    for one in problems
                ]
                self._looked = time.monotonic()
            return self._found

    def _keys(self) -> list[tuple[str, str, str]]:
        rings: list[tuple[str, KeyRing | None, tuple[Path, ...]]] = [
            ("logins (auth_keys)", self.settings.auth_keys, self.settings.auth_key_paths)
        ]
        if self.settings.role is not Role.HUB:
            paths = self.settings.encryption_key_paths
            rings.append(("sealed values (encryption_keys)", self.settings.encryption_keys, paths))
        return [(name, ring.current, _age(paths)) for name, ring, paths in rings if ring is not None]

    async def _parked(self) -> list[tuple[str, str, str, str]]:
        if self.settings.role is Role.HUB:
            return []
        try:
            rows = await OwnerRows(self.database).parked()
        except StorageError:
            return []
        return [
            (iso(row["claimed_ms"]), row["id"], f"{row['network']}: {row['failure'] or 'unknown'}", _command(row))
            for row in rows
        ]


def _age(paths: tuple[Path, ...]) -> str:
    """Return how long ago the file of a ring was changed, as a rotation changes it."""
    if not paths:
        return "from the environment"
    try:
        days = int((time.time() - paths[0].stat().st_mtime) // _DAY_SECONDS)
    except OSError:
        return "its file cannot be read"
    return "today" if days < 1 else "yesterday" if days == 1 else f"{days:,} days ago"


def _command(row: Row) -> str:
    transaction = row["transaction_hash"] or "TRANSACTION"
    nonce = "" if row["transaction_hash"] else f" --nonce {row['nonce']}"
    return f"tollkeeper payments honour {transaction} --gate {row['slug']}{nonce}"
