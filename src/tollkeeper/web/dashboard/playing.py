"""The pages of a sandbox's play: log in as the test owner, and pay as the test buyer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tollkeeper.web.play import pay_gate

if TYPE_CHECKING:
    from tollkeeper.auth import Auth
    from tollkeeper.gateway.management.paygates import Management
    from tollkeeper.web.dashboard.visit import PageAnswer, Visit
    from tollkeeper.web.play import Play


@dataclass(frozen=True, slots=True)
class PlayPages:
    """The pages."""

    management: Management
    auth: Auth
    play: Play

    async def log_in(self, visit: Visit) -> PageAnswer:
        """Begin a session of the test owner, whose key everybody knows."""
        message = self.auth.message(self.play.owner, is_for_page=True)
        visit.keep((await self.auth.login(message, self.play.sign(message))).tokens)
        return visit.go("")

    async def pay(self, visit: Visit, gate_id: int) -> PageAnswer:
        """Let the test buyer buy one call, and show what it got. Raises: NOT_FOUND, FORBIDDEN, UNAVAILABLE."""
        await visit.form()
        gate = await self.management.read(visit.bearer, gate_id)
        played = await pay_gate(self.play, gate)
        return visit.page("played.html", gate=gate, played=played)
