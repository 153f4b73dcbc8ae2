"""The secrets that a gate shares with its target: made, replaced, read (contract 4.7). Sealed at rest.

Units of work for `paygates`, whose transactions they are part of. Forgets a secret once it is out of force.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.keys.sealing import place
from tollkeeper.core.limits import SECRET_OVERLAP_SECONDS, SECRETS_IN_FORCE_MAX
from tollkeeper.core.paygates.target_signing import HmacSecret
from tollkeeper.storage.engine.database import load_queries, unit_of_work

if TYPE_CHECKING:
    from tollkeeper.core.keys.sealing import Sealing
    from tollkeeper.storage.engine.database import Database, Row, Steps

_Q = load_queries("gateway.sql")
_OVERLAP_MS: Final = SECRET_OVERLAP_SECONDS * 1000


class PayGateSecrets:
    """Secrets of gates in one database."""

    def __init__(self, sealing: Sealing) -> None:
        self._sealing = sealing

    @unit_of_work
    def keep_first(self, gate_id: int, spare: HmacSecret, now_ms: int) -> Steps[bool]:
        """Store `spare` where the gate has no secret yet; was it needed?"""
        if (yield _Q.secrets_of_gate(gate_id=gate_id, since_ms=now_ms - _OVERLAP_MS)):
            return False
        yield self._insert(gate_id, spare, now_ms)
        return True

    @unit_of_work
    def replace(self, gate_id: int, secret: HmacSecret, now_ms: int) -> Steps[None]:
        """Store a new secret; the former one is used beside it for SECRET_OVERLAP_SECONDS. Raises: CONFLICT."""
        in_force = yield _Q.secrets_of_gate(gate_id=gate_id, since_ms=now_ms - _OVERLAP_MS)
        if len(in_force) >= SECRETS_IN_FORCE_MAX:
            message = f"the secret was changed {SECRETS_IN_FORCE_MAX - 1} times within a day; wait until one runs out"
            raise ApiError(Code.CONFLICT, message)
        yield _Q.forget_secrets(gate_id=gate_id, since_ms=now_ms - _OVERLAP_MS)
        yield _Q.replace_secret(gate_id=gate_id, now_ms=now_ms)
        yield self._insert(gate_id, secret, now_ms)

    def _insert(self, gate_id: int, secret: HmacSecret, now_ms: int) -> Any:  # noqa: ANN401 - a Statement
        where = place("paygate_secrets", secret.key_id, "secret")
        sealed = self._sealing.seal(secret.secret.encode(), where)
        return _Q.insert_secret(gate_id=gate_id, key_id=secret.key_id, secret=sealed, now_ms=now_ms)

    async def of_gate(self, database: Database, gate_id: int, now_ms: int) -> tuple[HmacSecret, ...]:
        """The secrets in force, the current one first. Raises: UNAVAILABLE for one that does not open."""
        rows = await database.read(_Q.secrets_of_gate(gate_id=gate_id, since_ms=now_ms - _OVERLAP_MS))
        return tuple(self._secret(row) for row in rows)

    def _secret(self, row: Row) -> HmacSecret:
        opened = self._sealing.unseal(row["secret"], place("paygate_secrets", row["key_id"], "secret"))
        secret = HmacSecret(row["key_id"], opened.decode())
        return secret if row["replaced_ms"] is None else replace(secret, until_ms=row["replaced_ms"] + _OVERLAP_MS)
