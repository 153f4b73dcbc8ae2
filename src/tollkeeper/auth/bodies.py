"""Bodies of the login endpoints' requests and answers (specification 4.2, contract 2)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from tollkeeper.core.api.bodies import AnswerBody, Body, Count, Schema, ShownAddress, Time, Word


class LoginRequest(Body):
    """A message and its signature."""

    message: Word
    signature: Word


class HandoverRequest(Body):
    """A code of the dashboard, and what shows that the program that asked for it shows it."""

    code: Word
    verifier: Word
    port: Annotated[int, Meta(ge=1, le=65_535)]


class RefreshRequest(Body):
    """A refresh token."""

    refresh_token: Word


class IntrospectionRequest(Body):
    """An access token."""

    token: Word


class LoggedInUser(Body):
    """A user: one wallet."""

    id: Count
    wallet_address: ShownAddress
    created_at: Time
    updated_at: Time


class LoginText(AnswerBody):
    """The EIP-4361 text to sign."""

    message: str


class Tokens(AnswerBody):
    """A pair of tokens."""

    access_token: str
    refresh_token: str


class LoggedIn(AnswerBody):
    """A pair of tokens, and the user."""

    access_token: str
    refresh_token: str
    user: LoggedInUser


class CurrentUser(LoggedInUser):
    """The user's fields at the top, and again under `user`."""

    more: ClassVar[Schema] = AnswerBody.more

    user: LoggedInUser


class Done(AnswerBody):
    """A success that has nothing else to say."""

    success: Literal[True]
    message: str


class Introspection(AnswerBody):
    """The state of an access token (RFC 7662)."""

    active: bool
    sub: str | UnsetType = UNSET
    exp: Count | UnsetType = UNSET


class PublicKey(Body):
    """A public key (RFC 7517)."""

    kty: str
    crv: str
    x: str
    kid: str
    use: str
    alg: str


class PublicKeys(AnswerBody):
    """Every key that may have signed a token in force."""

    keys: list[PublicKey]
