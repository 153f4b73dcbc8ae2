"""The signature under a gateway's settle request (RFC 9421; contract 4.3, 6): who may write `purchaseData`, how long.

Anybody may settle, so an unsigned request and one of a gateway that is not trusted are settled without their
`purchaseData`; so is a trusted one's that names another gateway: whose a sale is decides who may try its payment again.
A trusted gateway's signature that does not fit refuses the request, and so does one that has expired, whoever made it:
its sender has given the call up. It covers the hub that was asked: a hub that is not ours cannot hand on to us what a
gateway asked of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tollkeeper.core.api.errors import ApiError, Code, invalid
from tollkeeper.core.configuration import is_loopback
from tollkeeper.core.http.client_addresses import ClientAddresses, rate_key
from tollkeeper.core.http.signatures import (
    HttpSignature,
    SignatureRefused,
    VerifyingKey,
    has_expired,
    read_signature,
    require_content_digest,
    require_signature,
    require_times,
)
from tollkeeper.core.limits import SETTLE_REQUEST_LIFETIME_SECONDS
from tollkeeper.core.x402.version1 import is_text
from tollkeeper.hub.settlement.requests import Asker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from litestar.types import HTTPScope

LABEL: Final = "tollkeeper"
GATEWAY_IN_PROCESS: Final = "tollkeeper.gateway"  # a scope's state: the URL of the gateway that asks within the process
COVERED: Final = ("@method", "@authority", "@path", "content-digest", "idempotency-key")


_SINGLE_HEADERS: Final = frozenset({b"idempotency-key", b"signature", b"signature-input", b"content-digest"})

Headers = dict[bytes, bytes]


class TrustedKeys(dict[str, "Mapping[str, VerifyingKey]"]):
    """Public keys by key id, of each trusted gateway by its public URL. Two gateways may use one key id."""

    ask: Callable[[object], Awaitable[None]] | None = None  # reads them anew; None where they never change

    async def know(self, headers: Mapping[bytes, bytes], purchase_data: Mapping[str, object] | None = None) -> None:
        """Read them anew where a request says that it is signed by a key which is none of them.

        None of the gateway's that its `purchase_data` names, where we trust that one: another may use the same key id.
        """
        signed = None if self.ask is None else _signed(headers)
        if self.ask is None or signed is None:
            return
        key_id, named = signed.parameters.key_id or "", (purchase_data or {}).get("gateway")
        asked = [self[named]] if isinstance(named, str) and named in self else self.values()
        if not any(key_id in keys for keys in asked):
            await self.ask(named)


@dataclass(frozen=True, slots=True)
class HubAddress:
    """Place of the hub: the parts of its URL that a gateway's signature covers."""

    authority: str
    path: str

    @classmethod
    def of(cls, url: str) -> HubAddress:
        """Read the place from the hub's public URL."""
        return cls(authority_of(url), urlsplit(url).path)

    def authorities(self, host: str) -> tuple[str, ...]:
        """Ours, and where the request came over this machine alone, the one that it names: nobody hands that on."""
        hostname = urlsplit(f"//{host}").hostname or ""
        return (self.authority, host.lower()) if is_loopback(hostname) else (self.authority,)


def authority_of(url: str) -> str:
    """Host and port of a URL as RFC 9421 signs them: in lower case, without the scheme's own port."""
    parts = urlsplit(url.lower())
    usual = ":443" if parts.scheme == "https" else ":80"
    return parts.netloc.rpartition("@")[2].removesuffix(usual)


@dataclass(frozen=True, slots=True)
class GatewaySignature:
    """From `expires_seconds` on nothing is started for it.

    `gateways`: whom we trust and whose key made it. They are several where one shows another's key as its own, which
    takes nothing from the other. One that `is_expired` says no more than whose purchase it was about.
    """

    gateways: frozenset[str] = frozenset()
    expires_seconds: int | None = None
    is_expired: bool = False

    @property
    def is_trusted(self) -> bool:
        """Was it made by a key that we trust, and is it in force?"""
        return bool(self.gateways) and not self.is_expired

    def owner_of(self, purchase_data: Mapping[str, object] | None) -> str | None:
        """Return the gateway whose request it is; None for a stranger's. Of several with one key, the named one."""
        if purchase_data is not None and self.speaks_for(purchase_data):
            return str(purchase_data["gateway"])
        return min(self.gateways, default=None)

    def speaks_for(self, purchase_data: Mapping[str, object]) -> bool:
        """Say whether the gateway that this purchase data names is one of those who signed it."""
        gateway = purchase_data.get("gateway")
        return isinstance(gateway, str) and gateway in self.gateways


def read_headers(scope: HTTPScope) -> Headers:
    """Return the request's headers. Raises: INVALID_PARAMETER where one that must be single came twice."""
    headers: Headers = {}
    for name, value in scope["headers"]:
        if name in headers and name in _SINGLE_HEADERS:
            raise invalid(name.decode("latin-1"), f"{name.decode('latin-1')} came twice")
        headers[name] = value
    return headers


def read_gateway_signature(
    scope: HTTPScope,
    headers: Mapping[bytes, bytes],
    body: bytes,
    trusted_keys: TrustedKeys,
    place: HubAddress,
    now_seconds: int,
) -> GatewaySignature:
    """Judge the request's signature. Raises: INVALID_SIGNATURE."""
    signed = _signed(headers)
    if signed is None:
        return GatewaySignature()
    key_id, expires_seconds = signed.parameters.key_id or "", signed.parameters.expires
    named = {gateway: keys[key_id] for gateway, keys in trusted_keys.items() if key_id in keys}
    if not named:
        return GatewaySignature(expires_seconds=expires_seconds)
    is_expired = has_expired(signed.parameters, now_seconds)
    try:
        require_content_digest(_text(headers, b"content-digest"), body)
        gateways = _require_one_of_urls(signed, scope, headers, named, place)
        if not is_expired:  # an expired one still shows what its idempotency key shows
            require_times(signed.parameters, now_seconds, lifetime_max_seconds=SETTLE_REQUEST_LIFETIME_SECONDS)
    except SignatureRefused as refused:
        raise ApiError(Code.INVALID_SIGNATURE, f"the request's signature is refused: {refused}") from None
    return GatewaySignature(gateways, expires_seconds, is_expired)


def _signed(headers: Mapping[bytes, bytes]) -> HttpSignature | None:
    """Return the signature that was made for us; None where there is none, or somebody else's for somebody else."""
    if b"signature-input" not in headers or b"signature" not in headers:
        return None
    try:
        return read_signature(_text(headers, b"signature-input"), _text(headers, b"signature"), label=LABEL)
    except SignatureRefused:
        return None


def _require_one_of_urls(
    signed: HttpSignature,
    scope: HTTPScope,
    headers: Mapping[bytes, bytes],
    named: Mapping[str, VerifyingKey],
    place: HubAddress,
) -> frozenset[str]:
    """Return the gateways that signed the URL that they called, which must be ours.

    It may have, or lack, what a mount or proxy cut off its path. Raises: SignatureRefused if none of them did.
    """
    local = local_path(scope)
    root = scope.get("root_path", "")
    last: SignatureRefused | None = None
    paths = dict.fromkeys((local, root + local, place.path + local))
    for authority, path in product(place.authorities(_text(headers, b"host")), paths):
        components = {"@method": scope["method"], "@authority": authority, "@path": path}
        for name in (b"content-digest", b"idempotency-key"):
            if name in headers:
                components[name.decode()] = _text(headers, name)
        signers = set()
        for gateway, key in named.items():
            try:
                require_signature(signed, components, key, required=COVERED)
            except SignatureRefused as refused:
                last = refused
            else:
                signers.add(gateway)
        if signers:
            return frozenset(signers)
    assert last is not None  # noqa: S101 - there is at least one URL
    raise SignatureRefused(f"{last}; this hub is {place.authority}, and a gateway's hub_url must name it")


def local_path(scope: HTTPScope) -> str:
    """Return the path below the place where the hub is mounted, however the server writes `path` and `root_path`."""
    path, root = scope["path"], scope.get("root_path", "")
    return path[len(root) :] if root and (path == root or path.startswith(root + "/")) else path


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


# Tenants that ask the hub for something: each takes its share of the hub's gas and of its nodes' answers. A tenant is a
# gate's owner, as the trusted gateway that signed the request says; a trusted gateway that does not say; or the address
# of anybody else. Their shares are `core.shares`'. What a request may do is not decided here.

_TENANT_LENGTH_MAX: Final = 128


class Askers:
    """Reads requests' signatures and senders, for all endpoints of one hub."""

    def __init__(
        self, trusted_keys: TrustedKeys, public_url: str, clients: ClientAddresses, clock_ms: Callable[[], int]
    ) -> None:
        """`public_url`: of the hub, which a gateway's signature covers."""
        self._trusted_keys = trusted_keys
        self._place = HubAddress.of(public_url)
        self._clients = clients
        self._clock_ms = clock_ms

    async def signature(
        self,
        scope: HTTPScope,
        headers: Mapping[bytes, bytes],
        data: bytes,
        purchase_data: Mapping[str, object] | None = None,
    ) -> GatewaySignature:
        """Judge the request's signature; the gateway in this process needs none. Raises: INVALID_SIGNATURE."""
        if b"signature-input" not in headers and (gateway := scope["state"].get(GATEWAY_IN_PROCESS)):
            return GatewaySignature(frozenset((gateway,)))
        await self._trusted_keys.know(headers, purchase_data)
        now_seconds = self._clock_ms() // 1000
        return read_gateway_signature(scope, headers, data, self._trusted_keys, self._place, now_seconds)

    async def of_question(self, scope: HTTPScope, data: bytes) -> Asker:
        """Say for whom a question is asked, which starts nothing: a refused signature is any stranger's."""
        try:
            signature = await self.signature(scope, read_headers(scope), data)
        except ApiError:
            signature = GatewaySignature()
        return self.of(scope, signature, {})

    def of(self, scope: HTTPScope, signature: GatewaySignature, body: Mapping[str, object]) -> Asker:
        """For whom the request is made. `body`: of a signed request, which may name a tenant of its gateway's."""
        if not signature.is_trusted:
            client = scope["client"]
            address = self._clients.of(client[0] if client else "", scope["headers"])
            return Asker(f"address {rate_key(address)}", is_trusted=False)
        named = body.get("tenant")
        data = body.get("purchaseData")
        gateway = signature.owner_of(data if isinstance(data, dict) else None)
        tenant = f" {named[:_TENANT_LENGTH_MAX]}" if is_text(named) else ""
        return Asker(f"gateway {gateway}{tenant}", is_trusted=True)
