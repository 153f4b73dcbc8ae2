"""The pages of an owner's own account: logins, payment addresses, and the login of a program on the same machine."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.api import iso
from tollkeeper.core.api.errors import ApiError, Code, invalid
from tollkeeper.core.keys.handover import check_asked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tollkeeper.auth import Auth, Session
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.gateway.management.paygates import Management
    from tollkeeper.web.dashboard.visit import PageAnswer, Visit

_GATES_MAX: Final = 100
_SHOWN_CODE: Final = re.compile("[A-Z0-9-]{4,12}")


@dataclass(frozen=True, slots=True)
class AccountPages:
    """The pages."""

    auth: Auth
    management: Management

    async def show(self, visit: Visit) -> PageAnswer:
        """Show logins and payment addresses."""
        session = _session(visit)
        sessions = [
            {
                "handle": _handle(one.session_id),
                "begun": iso(one.created_ms),
                "until": iso(one.expires_ms),
                "isThis": one.session_id == session.session_id,
            }
            for one in await self.auth.sessions(session)
        ]
        body = await self.management.page(visit.bearer, _GATES_MAX, 0)
        addresses: dict[tuple[str, str], list[JsonObject]] = {}
        for gate in body["data"]:
            for paid in ({"network": gate["network"], "paymentAddress": gate["paymentAddress"]}, *gate["accepts"]):
                addresses.setdefault((paid["paymentAddress"], paid["network"]), []).append(gate)
        more = max(0, body["pagination"].total_count - _GATES_MAX)
        return visit.page("settings.html", sessions=sessions, addresses=addresses, more=more)

    async def end(self, visit: Visit) -> PageAnswer:
        """End one of the logins. Raises: NOT_FOUND."""
        handle, session = (await visit.form()).get("session", ""), _session(visit)
        ended = next((one for one in await self.auth.sessions(session) if _handle(one.session_id) == handle), None)
        if ended is None:
            raise ApiError(Code.NOT_FOUND, "there is no such login of yours; it may have ended")
        await self.auth.end(session, ended.session_id)
        return visit.go("/settings")

    async def ask_terminal(self, visit: Visit) -> PageAnswer:
        """Ask whether a program of this machine may log in. Raises: INVALID_PARAMETER."""
        return visit.page("terminal.html", asked=_asked(visit.query))

    async def hand_over(self, visit: Visit) -> PageAnswer:
        """Let the program log in, and lead the browser to where it waits. Raises: INVALID_PARAMETER."""
        asked = _asked(await visit.form())
        code = self.auth.hand_over(_session(visit), int(asked["port"]), asked["challenge"])
        return visit.page("terminal_done.html", link=f"http://127.0.0.1:{asked['port']}/?code={code}")


def _asked(fields: Mapping[str, str]) -> dict[str, str]:
    """Return what a program asks with. Raises: INVALID_PARAMETER."""
    port, code, challenge = (fields.get(name, "") for name in ("port", "code", "challenge"))
    if _SHOWN_CODE.fullmatch(code) is None:
        raise invalid("code", "code must be the one that the terminal shows")
    check_asked(int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0, challenge)
    return {"port": port, "code": code, "challenge": challenge}


def _handle(session_id: str) -> str:
    """Return a name for a login in a page, by which nobody can use it."""
    return hashlib.sha256(f"tollkeeper login/{session_id}".encode()).hexdigest()[:16]


def _session(visit: Visit) -> Session:
    assert visit.session is not None  # noqa: S101 - the page is for somebody who is logged in
    return visit.session
