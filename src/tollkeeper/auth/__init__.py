"""Wallet login, sessions and tokens, mounted by gateway and hub alike.

Promises:
- A wallet proves itself by a signed message that we made, once; nothing else logs anybody in.
- An access token holds for minutes and ends with its login; a refresh token is good for one use, and a second use
  ends the login.
- Each part issues its own tokens and takes the other's only where the settings name it (`trusted`).

States of a login: open, then ended by a logout, by a refresh token's second use, or by time.

Begin with `issuer.Auth`, which issues and judges. `auth_routes` puts it on the paths of contract 2 by the table in
`operations`, with the bodies in `bodies`.
"""

from __future__ import annotations

from tollkeeper.auth.issuer import Auth, Login, TokenPair
from tollkeeper.auth.routes import auth_routes
from tollkeeper.auth.trusted import TrustedIssuers
from tollkeeper.storage.auth import Session, User

__all__ = ["Auth", "Login", "Session", "TokenPair", "TrustedIssuers", "User", "auth_routes"]
