"""Wallet login, sessions and tokens, mounted by gateway and hub alike.

`Auth` issues and judges, `auth_routes` puts it on the paths of contract 2, `TrustedIssuers` lets one part take the
tokens of another.
"""

from __future__ import annotations

from tollkeeper.auth.issuer import Auth, Login, TokenPair
from tollkeeper.auth.routes import auth_routes
from tollkeeper.auth.trusted import TrustedIssuers
from tollkeeper.storage.auth import Session, User

__all__ = ["Auth", "Login", "Session", "TokenPair", "TrustedIssuers", "User", "auth_routes"]
