"""Parsers of settings: ports, URLs, networks of addresses, choices (contract 1, 3.2, 5.2, 6).

Every parser takes the text of one value. It raises ValueError with what is wrong and what to write instead. No message
quotes the text, which may be a secret in the wrong place. This module knows no setting's name, and reads no
environment, file or clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import SplitResult, urlsplit

from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.networks import NETWORKS, Network, normalise
from tollkeeper.core.usdc import parse_usdc

if TYPE_CHECKING:
    from collections.abc import Callable

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")

_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", re.ASCII)
_DIGITS: Final = re.compile(r"[0-9]{1,30}", re.ASCII)
_TOKEN_TEXT: Final = re.compile(r"[\x20-\x7e]{1,64}", re.ASCII)
_SQLITE: Final = "sqlite:///"
_POSTGRESQL: Final = "postgresql://"
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)


class AnonymousPaygates(StrEnum):
    """Rights of anonymous callers over gates that have no owner (contract 3.2)."""

    MANAGE = "manage"
    CREATE = "create"
    OFF = "off"


class LogFormat(StrEnum):
    """AUTO is text on a terminal and JSON elsewhere."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


class LogLevel(StrEnum):
    """The least serious line that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class PublicUrl:
    """An origin of ours, without a slash at its end."""

    text: str
    host: str

    @property
    def is_loopback(self) -> bool:
        """Can only this machine reach it?"""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Tell whether this is the name or an address of this machine alone."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_boolean(text: str) -> bool:
    """`true` or `false`. Raises: ValueError."""
    if text.lower() not in {"true", "false"}:
        raise ValueError("it is neither true nor false")
    return text.lower() == "true"


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        if _DIGITS.fullmatch(text) is None or not low <= int(text) <= high:
            raise ValueError(f"it is not a whole number from {low} to {high}")
        return int(text)

    return parse


def choice(kind: type[E]) -> Callable[[str], E]:
    """A parser of the values of an enum."""

    def parse(text: str) -> E:
        try:
            return kind(text.lower())
        except ValueError:
            raise ValueError(f"it is none of {', '.join(kind)}") from None

    return parse


def list_of(parse_item: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """A parser of comma-separated values; an empty text is an empty list."""

    def parse(text: str) -> tuple[T, ...]:
        return tuple(parse_item(item.strip()) for item in text.split(",") if item.strip())

    return parse


def parse_host(text: str) -> str:
    """An address or name to listen on. Raises: ValueError."""
    try:
        return str(ip_address(text.strip("[]")))
    except ValueError:
        if _HOST.fullmatch(text) is None:
            raise ValueError("it is not an address or a host name, such as 127.0.0.1") from None
        return text


def parse_address_and_port(text: str) -> tuple[str, int]:
    """`HOST:PORT` to listen on. Raises: ValueError."""
    host, separator, port = text.rpartition(":")
    if not separator:
        raise ValueError("it is not an address and a port, such as 127.0.0.1:8403")
    return parse_host(host), whole_number(0, 65535)(port)


def _web_url(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    good = good and text.isascii() and text.isprintable() and " " not in text and not parts.netloc.endswith(":")
    return parts if good else None


def parse_url(text: str) -> str:
    """An http or https URL without credentials, query and fragment; without a slash at its end. Raises: ValueError."""
    parts = _web_url(text)
    if parts is None:
        raise ValueError("it is not an absolute URL, such as https://pay.example.org")
    if parts.username is not None or "?" in text or "#" in text:  # also the mark of an empty one, which text keeps
        raise ValueError("it has a user name, a query or a fragment: leave them out")
    return text.rstrip("/")


def parse_origin(text: str) -> PublicUrl:
    """A URL of scheme, host and port alone. Raises: ValueError."""
    url = parse_url(text)
    parts = urlsplit(url)
    if parts.path:
        raise ValueError("it has a path: give scheme, host and port alone")
    return PublicUrl(url, parts.hostname or "")


def parse_rpc_url(text: str) -> str:
    """A node's http or https URL, which may carry a key in its path or query, or credentials. Raises: ValueError."""
    if _web_url(text) is None:
        raise ValueError("it is not the http or https URL of a JSON-RPC node")
    return text


def parse_database_url(text: str) -> str:
    """`sqlite:///` and a path, or a PostgreSQL server's URL. Raises: ValueError."""
    if text.startswith(_POSTGRESQL) and len(text) > len(_POSTGRESQL) and text.isprintable():
        return text
    if not text.startswith(_SQLITE) or len(text) == len(_SQLITE) or "\0" in text:
        raise ValueError("it is neither sqlite:/// and a path nor postgresql:// and a server")
    return text


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of an S3-compatible store, and the prefix of our objects in it."""

    name: str
    prefix: str


def parse_files(text: str) -> str | Bucket:
    """Return the place of files: a directory's path, or `s3://`, a bucket and perhaps a prefix. Raises: ValueError."""
    if not text.startswith("s3://"):
        if "://" in text or "\0" in text:
            raise ValueError("it is neither a directory nor s3:// and a bucket")
        return text
    name, _, prefix = text.removeprefix("s3://").partition("/")
    if _BUCKET.fullmatch(name) is None or not prefix.isascii() or not f"{prefix}x".isprintable():
        raise ValueError("it is not s3:// and the name of a bucket, such as s3://files/tollkeeper")
    return Bucket(name, prefix.strip("/"))


def parse_network(text: str) -> Network:
    """A network by its name or alias. Raises: ValueError."""
    try:
        return normalise(text)
    except ApiError:
        raise ValueError(f"it is no network of this version: {', '.join(sorted(NETWORKS))}") from None


def parse_token_text(text: str) -> str:
    """An EIP-712 name or version. Raises: ValueError."""
    if _TOKEN_TEXT.fullmatch(text) is None:
        raise ValueError("it is not 1 to 64 printable ASCII characters")
    return text


def parse_peers(text: str) -> IPv4Network | IPv6Network:
    """One address, or a network such as 10.0.0.0/8. Raises: ValueError."""
    try:
        return ip_network(text)
    except ValueError:
        raise ValueError("it is not an address or a network such as 10.0.0.0/8") from None


def parse_usdc_micro(text: str) -> int:
    """Micro-units of a decimal USDC amount. Raises: ValueError."""
    try:
        return parse_usdc(text)
    except ApiError:
        raise ValueError("it is not a decimal USDC amount such as 0.50") from None


def parse_depth_step(text: str) -> tuple[int, int]:
    """`AMOUNT:BLOCKS`: from how many micro-units of USDC on how many confirmations. Raises: ValueError."""
    amount, separator, blocks = text.partition(":")
    if not separator:
        raise ValueError("it is not an amount and a number of blocks such as 1000:12")
    return parse_usdc_micro(amount.strip()), whole_number(1, 1000)(blocks.strip())


def local_url(host: str, port: int) -> str:
    """The origin of a listener of this machine."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def default_anonymous_paygates(public_url: PublicUrl, *, behind_proxy: bool) -> AnonymousPaygates:
    """Ownerless gates may be created where nobody but this machine can ask for one (contract 3.2)."""
    return AnonymousPaygates.CREATE if public_url.is_loopback and not behind_proxy else AnonymousPaygates.OFF
