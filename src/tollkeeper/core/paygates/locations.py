"""Locations in a target's answer, as a gate's caller is told them (contract 3.4).

- A location that the gate sells (its target; with `allowSubpaths` what is below the target) is written as the gate's
  URL, without the parameters of the target's own query, which the gate adds itself.
- Every other location is made absolute: a relative one would lead to another path of the gateway.
- A location that would show the caller the owner's parameters or the values of `targetHeaders` is refused with
  UPSTREAM_INVALID. So is one that leads back to the very URL that was asked: it would sell the same answer for ever.

An example: the target is http://api/items?key=K and answers `Location: /items?page=2&key=K`. The caller is told
{gate}?page=2. Pure; no location is ever followed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, quote, urljoin, urlsplit, urlunsplit

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.forwarding import is_plain_subpath
from tollkeeper.core.http.target_addresses import DEFAULT_PORTS, TargetUrl
from tollkeeper.core.paygates.model import decoded, name_of, names_in, without

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.http.forwarding import Header

LOCATION_NAMES: Final = frozenset({b"content-location", b"location", b"refresh"})
_PRINTABLE: Final = "".join(map(chr, range(0x21, 0x7F)))
_REFRESH: Final = re.compile(r"\s*(\d+)(?:\.\d*)?\s*(?:[;,]\s*(?:url\s*=\s*)?(.*?)\s*)?", re.IGNORECASE | re.DOTALL)
_PARTS: Final = re.compile(rb"[?&;#]")
_SECRET_LENGTH: Final = 8  # a shorter value is no secret, and stands in many a URL by chance


@dataclass(frozen=True, slots=True)
class Locations:
    """Rules of one gate's target. `own_names` and `own_pairs` are of its own query, `secrets` are values to hide."""

    target: TargetUrl
    access_url: str
    allow_subpaths: bool
    own_names: frozenset[str]
    own_pairs: frozenset[tuple[str, bytes]] = field(repr=False)
    secrets: frozenset[bytes] = field(repr=False)

    @staticmethod
    def of(target: TargetUrl, access_url: str, header_values: Sequence[str], *, allow_subpaths: bool) -> Locations:
        """Return the rules of a gate at `access_url`, whose owner sends these header values to its target."""
        own = target.query.encode("ascii")
        pairs = _pairs_in(own)
        values = [value for _, value in pairs]
        values += [part for value in header_values for part in (value.encode(), *value.encode().split())]
        secrets = frozenset(value for value in values if len(value) >= _SECRET_LENGTH)
        return Locations(target, access_url, allow_subpaths, names_in(own), pairs, secrets)

    def told(self, headers: Sequence[Header], method: str, status: int, asked: bytes) -> list[Header]:
        """Return a target's headers as the caller is told them; `asked` is the path and query that it was sent.

        Raises: UPSTREAM_INVALID for one that cannot be told.
        """
        is_redirect = 300 <= status < 400 and (method in {"GET", "HEAD"} or status in {307, 308})
        return [
            (name, self._told(name, value, asked, is_redirect=is_redirect)) if name in LOCATION_NAMES else (name, value)
            for name, value in headers
        ]

    def _told(self, name: bytes, value: bytes, asked: bytes, *, is_redirect: bool) -> bytes:
        text = quote(value, safe=_PRINTABLE + " ").strip()
        if name != b"refresh":
            leads = is_redirect and name == b"location"
            return self._url(name, text, asked, leads=leads).encode("ascii")
        match = _REFRESH.fullmatch(text)
        if match is None:
            raise _not_told(name, "cannot be read")
        url = (match[2] or "").strip("\"'")
        return f"{match[1]};url={self._url(name, url, asked, leads=True)}".encode("ascii")

    def _url(self, name: bytes, text: str, asked: bytes, *, leads: bool) -> str:
        base = f"{self.target.scheme}://{self.target.authority}{asked.decode('ascii')}"
        try:
            parts = urlsplit(urljoin(base, quote(text, safe=_PRINTABLE)) if text else base)
            below = self._below(parts)
        except ValueError:
            raise _not_told(name, "cannot be read") from None
        url = urlunsplit(parts._replace(fragment="")) if below is None else self._named(below, parts.query)
        if leads and url == self._named_as(asked):
            raise _not_told(name, "leads back to the URL that was asked")
        url += f"#{parts.fragment}" if parts.fragment else ""
        if self._holds_secret(url):
            raise _not_told(name, "holds a parameter or a header value of the PayGate's owner")
        return url

    def _below(self, parts: SplitResult) -> str | None:
        """The path below the slug by which the gate sells this URL; None where it does not. Raises: ValueError."""
        origin = (parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme))
        if "@" in parts.netloc or origin not in self._origins:
            return None
        path, own = parts.path or "/", self.target.path
        if path == own:
            return ""
        base = own.rstrip("/")
        below = path[len(base) :]
        is_below = path.startswith(base + "/") and is_plain_subpath(below.encode("ascii"))
        return below if self.allow_subpaths and is_below else None

    @property
    def _origins(self) -> tuple[tuple[str, str | None, int | None], ...]:
        """The target's, and the gateway's own: frameworks take it for theirs, by `X-Forwarded-Host`."""
        gate = urlsplit(self.access_url)
        gateway = (gate.scheme, gate.hostname, gate.port or DEFAULT_PORTS.get(gate.scheme))
        return (self.target.scheme, self.target.host, self.target.port), gateway

    def _named(self, below: str, query: str) -> str:
        """The gate's URL of a path below its slug, without the owner's parameters."""
        callers = without(query.encode("ascii"), self.own_names).decode("ascii")
        return self.access_url + below + (f"?{callers}" if callers else "")

    def _named_as(self, asked: bytes) -> str:
        """The gate's URL by which the target was asked for this path and query."""
        path, _, query = asked.decode("ascii").partition("?")
        own = self.target.path
        return self._named("" if path == own else path[len(own.rstrip("/")) :], query)

    def _holds_secret(self, url: str) -> bool:
        text = decoded(url.encode("ascii"))
        if text is None:
            return True
        return any(secret in text for secret in self.secrets) or not self.own_pairs.isdisjoint(_pairs_in(text))


def _pairs_in(text: bytes) -> frozenset[tuple[str, bytes]]:
    """The names and values of all that looks like a parameter, wherever it stands."""
    parts = [part for part in _PARTS.split(text) if part.partition(b"=")[2]]
    return frozenset((name_of(part) or "", decoded(part.partition(b"=")[2]) or b"") for part in parts)


def _not_told(name: bytes, why: str) -> ApiError:
    what = name.decode("ascii").title()
    return ApiError(Code.UPSTREAM_INVALID, f"the target's {what} {why}, so that its answer cannot be passed on")
