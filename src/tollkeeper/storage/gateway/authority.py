"""Authority to change a PayGate, judged in the commit of the change (contract 3.2, 3.3).

A request may wait for a name, a body or the disk behind its first judgement. By its commit its login may be over, or
its gate somebody else's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tollkeeper.core.keys.tokens import invalid_token
from tollkeeper.storage.auth import is_in_force
from tollkeeper.storage.engine.database import unit_of_work

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.paygates.model import PayGate
    from tollkeeper.storage.engine.database import Steps


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
