"""Logging in with a wallet and staying logged in (specification 4.2, 5; contract 6; security A-47 to A-52).

One `Auth` is one issuer: its public URL, its signing keys, its database. Texts, signatures and tokens are judged in
`core`, races in `storage.auth`; this module puts them in order. A session is looked up for each authenticated request,
so that logout and a stolen refresh token take effect at once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.auth.bodies import Introspection
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.keys import handover, siwe, tokens
from tollkeeper.core.wallets import family_of, parse_wallet, shown_address
from tollkeeper.storage import auth as store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tollkeeper.auth.trusted import TrustedIssuers
    from tollkeeper.core.networks import Network
    from tollkeeper.storage.engine.database import Database

logger = logging.getLogger(__name__)

_ID_SIZE_BYTES: Final = 16
_MESSAGE_PURPOSE: Final = b"tollkeeper login messages"
_HANDOVER_PURPOSE: Final = b"tollkeeper handover codes"
_REFRESH_PURPOSE: Final = b"tollkeeper refresh tokens"


@dataclass(frozen=True, slots=True)
class TokenPair:
    """Tokens that a refresh gives."""

    access_token: str
    refresh_token: str


@dataclass(frozen=True, slots=True)
class Login:
    """Tokens and user that a login gives."""

    tokens: TokenPair
    user: store.User


class Auth:
    """The issuer.

    `keyring` is (kid, 32-byte Ed25519 seed), the signing key first; `public_url` is the one authority for domain, URI
    and `iss`; of `networks` the login message shows one: a login is good for every network. Tokens of the `trusted`
    issuers are taken too, by `authenticate` only. `page_url`: origin of our own pages, which their login messages name,
    because a wallet warns of a message that names another place than the page that asks.
    """

    def __init__(
        self,
        database: Database,
        keyring: Sequence[tuple[str, bytes]],
        public_url: str,
        now_ms: Callable[[], int],
        random_bytes: Callable[[int], bytes],
        *,
        networks: Sequence[Network] = (),
        trusted: TrustedIssuers | None = None,
        page_url: str | None = None,
    ) -> None:
        self._database = database
        self._keys = tokens.SigningKeys(keyring)
        self._message_keys = self._keys.derived(_MESSAGE_PURPOSE)
        self._handover_key = self._keys.derived(_HANDOVER_PURPOSE)[0]
        self._refresh_key = self._keys.derived(_REFRESH_PURPOSE)[0]
        self._public_url = public_url.rstrip("/")
        self._page_url = page_url or self._public_url
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._chains = siwe.login_chains(networks)
        self._trusted = trusted

    def message(self, wallet_address: str, *, is_for_page: bool = False) -> str:
        """The EIP-4361 text for a wallet to sign: once, within five minutes. Raises: INVALID_ADDRESS."""
        place = self._page_url if is_for_page else self._public_url
        wallet = parse_wallet(wallet_address, field="walletAddress")
        random, key = self._random_bytes(siwe.NONCE_SIZE_BYTES), self._message_keys[0]
        return siwe.new_message(place, wallet, self._chains, random, self._now_ms(), key).text()

    async def login(self, message: str, signature: str) -> Login:
        """Begin a session for the wallet that signed a message issued by `message`.

        Raises: INVALID_SIGNATURE, UNAVAILABLE.
        """
        now_ms = self._now_ms()
        signed = self._own_message(message, now_ms)
        if not siwe.is_signed(signed, signature):
            raise siwe.refused_login()
        done = await self._open_session(signed, now_ms)
        if done is None:
            raise siwe.refused_login()
        return done

    async def _open_session(self, message: siwe.LoginMessage, now_ms: int) -> Login | None:
        """Begin a session by a message that was checked; None where it has begun one before."""
        session_id = self._new_id()
        refresh_token = tokens.format_refresh_token(self._random_bytes(tokens.REFRESH_SIZE_BYTES))
        user = await self._database.run(store.log_in(message, session_id, tokens.refresh_digest(refresh_token), now_ms))
        if user is None:
            return None
        session = store.Session(user.id, message.wallet, session_id)
        return Login(TokenPair(self._access_token(session, now_ms), refresh_token), user)

    def hand_over(self, session: store.Session, port: int, challenge: str) -> str:
        """Make a code by which a program on this port of the user's machine begins a session of its own (contract 11).

        It is good for a minute and once, for whoever knows what `challenge` is the hash of. Raises: INVALID_PARAMETER.
        """
        asked = handover.Handover(session.wallet, session.session_id, port, challenge, self._now_ms(), self._new_id())
        return handover.code_of(asked, self._handover_key)

    async def take_over(self, code: str, verifier: str, port: int) -> Login:
        """Begin the session that a code was made for. Raises: INVALID_TOKEN, UNAVAILABLE."""
        now_ms = self._now_ms()
        asked = handover.read_code(code, self._handover_key, now_ms)
        if asked is None or not asked.is_for(verifier, port):
            raise tokens.invalid_token()
        if await store.read_session(self._database, asked.session_id) is None:
            raise tokens.invalid_token()
        message = siwe.LoginMessage(self._public_url, asked.wallet, "", asked.nonce, asked.issued_ms)
        done = await self._open_session(message, now_ms)
        if done is None:
            raise tokens.invalid_token()
        return done

    async def sessions(self, session: store.Session) -> list[store.ListedSession]:
        """Return the logins of a session's user, newest first. Raises: UNAVAILABLE."""
        return await store.read_sessions(self._database, session.user_id, self._now_ms())

    async def end(self, session: store.Session, session_id: str) -> None:
        """End another login of the same user. Raises: NOT_FOUND, UNAVAILABLE."""
        if session_id not in {one.session_id for one in await self.sessions(session)}:
            raise ApiError(Code.NOT_FOUND, "there is no such login of yours; it may have ended")
        await self._database.run(store.end_session(session_id, self._now_ms()))

    async def refresh(self, refresh_token: str) -> TokenPair:
        """A new pair for a refresh token, whose successor follows from it and is thus the same when asked again.

        So it is for some seconds, for an answer may be lost; a later second use ends the login that it descends from.
        Raises: INVALID_TOKEN, UNAVAILABLE.
        """
        now_ms, successor = self._now_ms(), tokens.successor_of(refresh_token, self._refresh_key)
        outcome, session = await self._database.run(
            store.rotate_refresh_token(tokens.refresh_digest(refresh_token), tokens.refresh_digest(successor), now_ms)
        )
        if outcome is store.Refreshed.REUSED:
            logger.warning("a refresh token was used twice: its login has been ended")
        if session is None:
            raise tokens.invalid_token()
        return TokenPair(self._access_token(session, now_ms), successor)

    async def authenticate(self, bearer: str | None) -> store.Session:
        """The session that an access token speaks for. Raises: AUTH_REQUIRED, INVALID_TOKEN, UNAVAILABLE."""
        if bearer is None:
            raise ApiError(Code.AUTH_REQUIRED, "this route requires user authentication")
        if self._trusted is not None:
            issuer = tokens.unverified_issuer(bearer)
            if issuer is not None and issuer != self._public_url and issuer in self._trusted:
                return await self._guest(await self._trusted.claims_in_force(bearer, issuer))
        _, session = await self._in_force(bearer)
        return session

    async def check_guest(self, bearer: str) -> None:
        """Ask a login's own issuer, where that is another one, whether it was ended since it was authenticated.

        Nothing is known of it any more once its token is over: then it holds as it was. Raises: INVALID_TOKEN,
        UNAVAILABLE.
        """
        if not tokens.is_over(bearer, self._now_ms()):
            await self.authenticate(bearer)

    async def user(self, session: store.Session) -> store.User:
        """The user of a session. Raises: INVALID_TOKEN where there is none any more."""
        user = await store.read_user(self._database, session.user_id)
        if user is None:
            raise tokens.invalid_token()
        return user

    async def logout(self, session: store.Session) -> None:
        """End a login: its refresh token and its access tokens.

        Raises: FORBIDDEN where it began elsewhere; UNAVAILABLE.
        """
        if session.issuer is not None:
            raise ApiError(Code.FORBIDDEN, f"this login began at {session.issuer}: end it there")
        await self._database.run(store.end_session(session.session_id, self._now_ms()))

    async def introspect(self, token: str) -> Introspection:
        """Return `active`, and `sub` (the wallet) and `exp` where it is true (RFC 7662). Raises: UNAVAILABLE."""
        try:
            claims, _ = await self._in_force(token)
        except ApiError as error:
            if error.code is not Code.INVALID_TOKEN:
                raise
            return Introspection(active=False)
        return Introspection(active=True, sub=claims.subject, exp=claims.expires_at)

    def jwks(self) -> dict[str, list[dict[str, str]]]:
        """Return the public signing keys, for `/.well-known/jwks.json`."""
        return self._keys.jwks()

    def _own_message(self, text: str, now_ms: int) -> siwe.LoginMessage:
        """The message, which this issuer made less than five minutes ago. Raises: INVALID_SIGNATURE."""
        try:
            message = siwe.read_message(text)
        except ValueError:
            raise siwe.refused_login() from None
        chain = self._chains[family_of(message.wallet)]
        if message.public_url not in {self._public_url, self._page_url} or message.chain != chain:
            raise siwe.refused_login()
        if now_ms >= message.expires_ms:
            raise siwe.refused_login()
        if not siwe.is_issued(message, self._message_keys):
            raise siwe.refused_login()
        return message

    async def _in_force(self, token: str) -> tuple[tokens.AccessClaims, store.Session]:
        claims = tokens.read_access_token(token, self._keys.public_keys, issuer=self._public_url, now_ms=self._now_ms())
        session = await store.read_session(self._database, claims.session_id)
        if session is None or shown_address(session.wallet) != claims.subject:
            raise tokens.invalid_token()
        return claims, session

    async def _guest(self, claims: tokens.AccessClaims) -> store.Session:
        """The session of another issuer's token, its wallet a user here too."""
        try:
            wallet = parse_wallet(claims.subject)
        except ApiError:
            raise tokens.invalid_token() from None
        user = await store.read_user_of(self._database, wallet)
        if user is None:
            user = await self._database.run(store.admit(wallet, self._now_ms()))
        return store.Session(user.id, wallet, claims.session_id, claims.issuer)

    def _access_token(self, session: store.Session, now_ms: int) -> str:
        subject = shown_address(session.wallet)
        claims = tokens.new_claims(self._public_url, subject, session.session_id, self._new_id(), now_ms)
        return tokens.sign_access_token(self._keys, claims)

    def _new_id(self) -> str:
        return self._random_bytes(_ID_SIZE_BYTES).hex()
