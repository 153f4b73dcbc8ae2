"""The right to manage a PayGate (contract 3.2): owners by bearer, ownerless gates by setting or by their token."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tollkeeper.core.api.errors import ApiError, Code, login_required
from tollkeeper.core.configuration import AnonymousPaygates
from tollkeeper.core.http.client_addresses import rate_key
from tollkeeper.storage.gateway.paygates import Authority

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.auth import Auth, Session
    from tollkeeper.core.paygates.model import PayGate

_TOKEN_PREFIX: Final = "mt_"  # noqa: S105 - marks a management token, is none


def new_management_token(random: bytes) -> str:
    """The bearer of one ownerless gate, from 32 random bytes; shown once."""
    return _TOKEN_PREFIX + base64.urlsafe_b64encode(random).rstrip(b"=").decode()


def management_hash(token: str) -> bytes:
    """Return what is stored of a management token."""
    return hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True, slots=True)
class GateManager:
    """The manager of a gate: a logged-in wallet, the holder of a management token, or nobody in particular.

    `login` is the wallet's session, with the access token that named it. `address`: from where.
    """

    wallet: str | None = None
    token: str | None = None
    login: tuple[Session, str] | None = field(default=None, repr=False)
    address: str = ""

    @property
    def is_nobody(self) -> bool:
        """He shows no bearer."""
        return self.wallet is None and self.token is None

    @property
    def tenant(self) -> str:
        """The tenant whose share this manager's requests take (`core.shares`)."""
        return self.wallet or rate_key(self.address) or "this machine"


class Ownership:
    """Judges management calls under one setting."""

    def __init__(
        self, auth: Auth, anonymous: AnonymousPaygates, has_management: Callable[[bytes], Awaitable[bool]]
    ) -> None:
        """`has_management`: is this the hash of a gate's management token?"""
        self._auth = auth
        self.anonymous = anonymous
        self._has_management = has_management

    async def caller(self, bearer: str | None, address: str = "") -> GateManager:
        """Return who a bearer speaks for. Raises: INVALID_TOKEN for a token that is not in force."""
        if bearer is None:
            return GateManager(address=address)
        if bearer.startswith(_TOKEN_PREFIX):
            if not await self._has_management(management_hash(bearer)):
                raise ApiError(Code.INVALID_TOKEN, "this management token is no PayGate's, or its PayGate has an owner")
            return GateManager(token=bearer, address=address)
        session = await self._auth.authenticate(bearer)
        return GateManager(wallet=session.wallet, login=(session, bearer))

    async def authority(
        self, caller: GateManager, judge: Callable[[PayGate, bytes | None], object] = lambda _gate, _token_hash: None
    ) -> Authority:
        """Make what is judged of the caller in the commit of a change: his login, and `judge` of the gate as it stands.

        A login that began at another issuer is asked about now, because only that issuer knows whether it goes on. The
        age that an access token has behind a long upload says nothing. Raises: INVALID_TOKEN, UNAVAILABLE.
        """
        if caller.login is None:
            return Authority(None, judge)
        session, bearer = caller.login
        if session.issuer is None:
            return Authority(session.session_id, judge)
        await self._auth.check_guest(bearer)
        return Authority(None, judge)

    def require_known(self, caller: GateManager) -> None:
        """For what nobody in particular may do only under "manage". Raises: AUTH_REQUIRED."""
        if caller.is_nobody and self.anonymous is not AnonymousPaygates.MANAGE:
            raise login_required()

    def may_create(self, caller: GateManager) -> None:
        """Raises: AUTH_REQUIRED."""
        if caller.wallet is None and self.anonymous is AnonymousPaygates.OFF:
            raise login_required()

    def may_manage(self, caller: GateManager, gate: PayGate, token_hash: bytes | None) -> None:
        """Raises: AUTH_REQUIRED without any bearer, FORBIDDEN with somebody else's."""
        if gate.owner_wallet is not None:
            if caller.wallet == gate.owner_wallet:
                return
        elif token_hash is not None:
            if caller.token is not None and hmac.compare_digest(management_hash(caller.token), token_hash):
                return
        elif self.anonymous is AnonymousPaygates.MANAGE:
            return
        if caller.is_nobody:
            raise login_required()
        raise ApiError(Code.FORBIDDEN, "this PayGate is not yours")

    def may_claim(self, caller: GateManager, gate: PayGate, token_hash: bytes | None, token: str | None) -> str:
        """The wallet that may take an ownerless gate over. Raises: AUTH_REQUIRED, CONFLICT, FORBIDDEN."""
        if caller.wallet is None:
            raise login_required()
        if gate.owner_wallet is not None:
            raise ApiError(Code.CONFLICT, "the PayGate has an owner")
        if token_hash is None:
            if self.anonymous is not AnonymousPaygates.MANAGE:
                raise ApiError(Code.FORBIDDEN, "this PayGate cannot be claimed here")
        elif token is None or not hmac.compare_digest(management_hash(token), token_hash):
            raise ApiError(Code.FORBIDDEN, "managementToken is missing or is not this PayGate's")
        return caller.wallet
