"""Logging in with a wallet, by the message that the API gives to sign (contract 6), and logging out.

The session that a login begins is a new one, whatever cookies came with it. Nobody is logged in by a link: the browser
signs first, and sends the signature from this very page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.api import envelope, json_body_of, string_field
from tollkeeper.core.api.errors import missing
from tollkeeper.web.dashboard.visit import ROOT, LoginRequiredError, PageAnswer

if TYPE_CHECKING:
    from tollkeeper.auth import Auth
    from tollkeeper.web.dashboard.visit import Visit

_JSON: Final = "application/json"
_OWN_PATH: Final = re.compile("(/[a-z0-9]+)+([?][A-Za-z0-9_=&-]+)?")


@dataclass(frozen=True, slots=True)
class LoginPage:
    """The pages of logins."""

    auth: Auth

    async def show(self, visit: Visit) -> PageAnswer:
        """Show the wallets of this browser, unless somebody is logged in."""
        onward = _onward(visit.query.get("next", ""))
        try:
            await visit.log_in()
        except LoginRequiredError:
            families = sorted({one.family.value for one in visit.place.networks}) or ["evm", "solana"]
            return visit.page("login.html", given={"families": families, "next": onward})
        return visit.go(onward.removeprefix(ROOT))

    async def message(self, visit: Visit) -> PageAnswer:
        """Give the text that a wallet is to sign. Raises: MISSING_PARAMETER, INVALID_ADDRESS."""
        wallet = visit.query.get("walletAddress")
        if not wallet:
            raise missing("walletAddress")
        return PageAnswer(envelope({"message": self.auth.message(wallet, is_for_page=True)}), media_type=_JSON)

    async def log_in(self, visit: Visit) -> PageAnswer:
        """Begin a session for the wallet that signed. Raises: INVALID_SIGNATURE, UNAVAILABLE."""
        body = await json_body_of(visit.chunks(), visit.scope["headers"])
        done = await self.auth.login(string_field(body, "message"), string_field(body, "signature"))
        visit.keep(done.tokens)
        return PageAnswer(envelope({"success": True}), media_type=_JSON)

    async def log_out(self, visit: Visit) -> PageAnswer:
        """End the session. Raises: FORBIDDEN."""
        await visit.form()
        if visit.session is not None:
            await self.auth.logout(visit.session)
        visit.forget()
        return visit.go("/login")


def _onward(path: str) -> str:
    """Return the page to go to behind a login: one of the dashboard's own, whatever the link said."""
    return ROOT + (path if _OWN_PATH.fullmatch(path) else "")
