"""PayGates: what one is, what create and update make of it, how it is read (specification 2.1, contract 3).

Single fields are read by `fields`. What needs a name server or a database (is the target's address public, is
the slug taken) is decided by the gateway.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from tollkeeper.core.api.errors import ApiError, Code, invalid, missing
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.limits import FORMER_PRICE_SECONDS
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.paygates.downloads import StoredFile
from tollkeeper.core.paygates.fields import (
    CREATE_DEFAULTS,
    OF_TARGETS,
    CreditBinding,
    HeaderAuthMode,
    OnFailure,
    Recipient,
    parse_fields,
    parse_slug,
    refuse_file_in_json,
    within,
)
from tollkeeper.core.paygates.target_signing import HmacSecret
from tollkeeper.core.wallets import family_of, parse_address_of, parse_wallet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tollkeeper.core.json_types import JsonObject


@dataclass(frozen=True, slots=True)
class FormerPrice:
    """Terms that a buyer may have been shown on a network before an update; good until `until_ms` (contract 3.3)."""

    price_micro: int
    credits: int
    until_ms: int
    network: str


@dataclass(frozen=True, slots=True)
class PayGate:
    """One PayGate. `version` counts its updates; `payment_address` is lower case on EVM, base58 on Solana.

    `accepts` are the further networks that it is paid on.
    One with a `file` sells its content and has no target: `target_url` is empty.
    `former` and `secrets` (newest first, under `hmac` only) are there where a gate is loaded to be called.
    """

    id: int
    slug: str
    version: int
    target_url: str
    price_micro: int
    credits: int
    methods: tuple[str, ...]
    title: str
    description: str
    assume_valid: bool
    require_auth: bool
    network: str
    payment_address: str
    mime_type: str
    is_enabled: bool
    owner_wallet: str | None
    created_ms: int
    updated_ms: int
    header_auth_mode: HeaderAuthMode = HeaderAuthMode.NONE
    credit_binding: CreditBinding = CreditBinding.PAYMENT
    on_failure: OnFailure = OnFailure.CONSUME
    credits_expire_after_seconds: int | None = None
    accepts: tuple[Recipient, ...] = ()
    file: StoredFile | None = None
    allow_subpaths: bool = False
    stream: bool = False
    payer_proof: bool = False
    target_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    former: tuple[FormerPrice, ...] = ()
    secrets: tuple[HmacSecret, ...] = field(default=(), repr=False)

    @property
    def tenant(self) -> str:
        """Key of the share that the gate's calls take (`core.shares`): its owner, or the gate itself if it has none."""
        return self.owner_wallet or f"gate {self.id}"

    @property
    def recipients(self) -> tuple[Recipient, ...]:
        """Recipients of payments, one for each network; the one on the gate's own network is first."""
        return (Recipient(self.network, self.payment_address), *self.accepts)

    @property
    def payees(self) -> frozenset[str]:
        """Whom it pays, wherever."""
        return frozenset(one.payment_address for one in self.recipients)

    def pay_to_on(self, network: str) -> str | None:
        """Return the address that is paid on this network; None if the gate is not paid there."""
        return next((one.payment_address for one in self.recipients if one.network == network), None)

    def allows(self, method: str) -> bool:
        """Tell whether this HTTP method may be called; GET implies HEAD (contract 3.1)."""
        return method in self.methods or (method == "HEAD" and "GET" in self.methods)

    @property
    def allow(self) -> str:
        """The `Allow` header of a 405."""
        implied = ("HEAD",) if "GET" in self.methods and "HEAD" not in self.methods else ()
        return ", ".join((*self.methods, *implied))


@dataclass(frozen=True, slots=True)
class CreateDefaults:
    """Defaults of a create, and the addresses that may never be paid (the tokens, our own signers).

    The creator's wallet is paid before `payment_address`. A create that names a network has no default recipient of
    another family. A create that names no network is paid on one where its recipient can be paid.
    """

    network: str
    payment_address: str | None
    forbidden_addresses: frozenset[str] = frozenset()
    creator_wallet: str | None = None

    def network_of(self, address: object) -> str:
        """Return the network for a create that names none: `network`, or the one like it of the recipient's family.

        `address`: the recipient that the create names; None if it names none.
        """
        payee = address if address is not None else self.creator_wallet or self.payment_address
        default = NETWORKS[self.network]
        try:
            family = family_of(parse_wallet(payee))
        except ApiError:  # whoever checks the address says what is wrong with it
            return self.network
        if family is default.family:
            return self.network
        alike = (one for one in NETWORKS.values() if one.is_test is default.is_test)
        return next(one.name for one in alike if one.family is family)

    def payment_address_on(self, network: str) -> str | None:
        """Return the address that is paid on that network if the create names none."""
        family = NETWORKS[network].family
        candidates = (self.creator_wallet, self.payment_address)
        return next((one for one in candidates if one is not None and family_of(one) is family), None)


def check_payment_address(value: object, network: str, forbidden: frozenset[str]) -> str:
    """A recipient on this network, in its canonical form.

    Raises: INVALID_ADDRESS (of another family, a wrong checksum, nobody's, a token, one of our signers).
    """
    family = NETWORKS[network].family
    address = parse_address_of(family, value, field="paymentAddress")
    if address in FAMILIES[family].nobodys or address in forbidden:
        raise ApiError(Code.INVALID_ADDRESS, "paymentAddress may not be paid", details={"field": "paymentAddress"})
    return address


def _check_accepts(accepts: tuple[Recipient, ...], network: str, forbidden: frozenset[str]) -> tuple[Recipient, ...]:
    networks = [network, *(recipient.network for recipient in accepts)]
    if len(set(networks)) != len(networks):
        raise invalid("accepts", "accepts names a network twice, or the PayGate's own")
    try:
        return tuple(
            Recipient(one.network, check_payment_address(one.payment_address, one.network, forbidden))
            for one in accepts
        )
    except ApiError as error:
        raise within(error, "accepts") from None


@dataclass(frozen=True, slots=True)
class NewPayGate:
    """A parsed create: everything of a PayGate but what the database gives it."""

    slug: str | None
    fields: dict[str, Any]


def parse_create(body: JsonObject, defaults: CreateDefaults, file: StoredFile | None = None) -> NewPayGate:
    """The fields of a create (contract 3.1); of a file PayGate with its content, which came with them.

    Raises: MISSING_PARAMETER, INVALID_PARAMETER, INVALID_AMOUNT, INVALID_ADDRESS, INVALID_NETWORK.
    """
    if file is None:
        refuse_file_in_json(body)
    _require(body, ("price", "targetUrl") if file is None else ("price", "resourceType"))
    given = parse_fields(body, ("slug",)) if file is None else _file_fields(body, file, ("slug",))
    fields = {"network": defaults.network_of(given.get("payment_address")), **CREATE_DEFAULTS, **given}
    address = fields.get("payment_address")
    if address is None and (address := defaults.payment_address_on(fields["network"])) is None:
        raise ApiError(
            Code.MISSING_PARAMETER,
            f"paymentAddress is required: name the wallet that is paid on {fields['network']}, or log in with one of "
            "that network, which is paid then. An operator can set default_payment_address",
            details={"field": "paymentAddress"},
        )
    fields["payment_address"] = check_payment_address(address, fields["network"], defaults.forbidden_addresses)
    fields["accepts"] = _check_accepts(fields["accepts"], fields["network"], defaults.forbidden_addresses)
    slug = parse_slug(body["slug"]) if body.get("slug") is not None else None
    return NewPayGate(slug, fields)


def _require(body: JsonObject, names: Iterable[str]) -> None:
    """Null is as absent; an empty price is an amount that is none. Raises: MISSING_PARAMETER."""
    for name in names:
        if body.get(name) is None or (body[name] == "" and name != "price"):
            raise missing(name)


def check_fields_before_file(body: JsonObject, forbidden: frozenset[str], *, is_new: bool) -> str | None:
    """Check the fields that came before their file. Others may follow the file, and are not missed.

    Returns the network if it is named. Raises: as `parse_create` and `updated`.
    """
    if is_new:
        _require(body, [name for name in ("price", "resourceType") if name in body])
    if not is_new and "slug" in body:
        raise invalid("slug", "slug cannot change")
    fields = _fields_beside_file(body, ("slug",) if is_new else ())
    if "slug" in body:
        parse_slug(body["slug"])
    network: str | None = fields.get("network")
    if network is not None:
        if "payment_address" in fields:
            check_payment_address(fields["payment_address"], network, forbidden)
        _check_accepts(fields.get("accepts", ()), network, forbidden)
    elif "payment_address" in fields:
        parse_wallet(fields["payment_address"], field="paymentAddress")
    return network


def _file_fields(body: JsonObject, file: StoredFile, also_known: Iterable[str] = ()) -> JsonObject:
    """The fields of a file PayGate with its content."""
    return {"mime_type": file.content_type, **_fields_beside_file(body, also_known), "target_url": "", "file": file}


def _fields_beside_file(body: JsonObject, also_known: Iterable[str]) -> JsonObject:
    """Refuse fields that describe a target: they have no meaning beside a file."""
    if body.get("resourceType", "file") != "file":
        raise invalid("resourceType", "resourceType must be file where a file is sent, and cannot change")
    for name in OF_TARGETS:
        if name in body:
            raise invalid(name, f"{name} has no meaning for a file PayGate")
    return parse_fields({name: value for name, value in body.items() if name != "resourceType"}, also_known)


def updated(
    gate: PayGate,
    body: JsonObject,
    now_ms: int,
    forbidden: frozenset[str],
    file: StoredFile | None = None,
) -> PayGate:
    """The gate as an update leaves it: any subset of fields, all or nothing (specification 2.1 rules 3 and 4).

    A `file` takes the place of the one that is sold. Whom the gate pays already was allowed, and stays so: an address
    can become a signer of ours later. Raises: as `parse_create`; also when nothing is given.
    """
    if not body and file is None:
        raise invalid("body", "the update names no field")
    if "slug" in body:
        raise invalid("slug", "slug cannot change")
    if gate.file is None and file is not None:
        raise invalid("file", "resourceType cannot change: this PayGate sells calls of its target")
    fields = parse_fields(body) if gate.file is None else _file_fields(body, file or gate.file)
    if file is None and "mimeType" not in body:
        fields.pop("mime_type", None)
    forbidden -= gate.payees
    network = fields.get("network", gate.network)
    address = fields.get("payment_address", gate.payment_address)
    fields["payment_address"] = check_payment_address(address, network, forbidden)
    fields["accepts"] = _check_accepts(fields.get("accepts", gate.accepts), network, forbidden)
    return replace(
        gate, **fields, version=gate.version + 1, updated_ms=max(now_ms, gate.updated_ms), former=(), secrets=()
    )


@dataclass(frozen=True, slots=True)
class FormerVersion:
    """Former version of a gate: what it sold, and when the next one took its place."""

    price_micro: int
    credits: int
    recipients: tuple[Recipient, ...]
    replaced_ms: int


def with_former_prices(gate: PayGate, versions: Iterable[FormerVersion]) -> PayGate:
    """The gate with what its former versions (newest first) still sell (contract 3.3).

    A former price sells for FORMER_PRICE_SECONDS, on a network whose recipient is still the same; the current price
    sells the current terms, however it was before.
    """
    former: dict[tuple[int, str], FormerPrice] = {}
    for version in versions:
        if version.price_micro == gate.price_micro:
            continue
        until_ms = version.replaced_ms + FORMER_PRICE_SECONDS * 1000
        for one in version.recipients:
            if one in gate.recipients:
                sold = FormerPrice(version.price_micro, version.credits, until_ms, one.network)
                former.setdefault((version.price_micro, one.network), sold)
    return replace(gate, former=tuple(former.values()))


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals of a gate so far; revenue in micro-units."""

    challenges: int = 0
    purchases: int = 0
    calls: int = 0
    failures: int = 0
    revenue_micro: int = 0


@dataclass(frozen=True, slots=True)
class Trust:
    """Sales of a gate before they were confirmed (`assumeValid`): not confirmed yet, and proved unpaid after all."""

    open: int = 0
    open_micro: int = 0
    failed: int = 0
    failed_micro: int = 0


# The names of a query's parameters, as the most lenient of readers understands them (contract 3.4). What an owner fixed
# in a target's own query is not for callers to override, and targets differ: some take the last of two parameters with
# one name, split at ";", decode twice, read `plan[]`, `[plan]`, `my.plan` or ` plan` as another name. Pure.

_SEPARATORS: Final = re.compile(rb"[&;]")
_DECODED_MAX: Final = 8  # times; nobody honest needs more than two
_BRACKETS: Final = re.compile(r"[\[\]]")
_READ_AS_UNDERSCORE: Final = str.maketrans(". ", "__")
_NOTHING: Final = frozenset[str]()


def names_in(query: bytes) -> frozenset[str]:
    """Return the names of a query's parameters."""
    return frozenset().union(*(_readings(part) or () for part in _SEPARATORS.split(query) if part))


def without(query: bytes, names: frozenset[str]) -> bytes:
    """Return `query` without the parameters of these names, the rest as it was.

    Raises: INVALID_PARAMETER where a name is percent-encoded so often that nobody can say what it is.
    """
    kept, start = b"", 0
    for end in [*(match.start() for match in _SEPARATORS.finditer(query)), len(query)]:
        part = query[start:end]
        parameter = part.lstrip(b"&;")
        readings = _readings(parameter) if parameter else _NOTHING
        if readings is None:
            raise invalid("query", "the query has a parameter whose name is percent-encoded too many times")
        if readings.isdisjoint(names):
            kept += part
        start = end
    return kept.lstrip(b"&;") if len(kept) < len(query) else kept


def name_of(parameter: bytes) -> str | None:
    """Return the name of `name=value` as most read it; None where it is percent-encoded too often."""
    name = _whole_name(parameter)
    return None if name is None else _without_brackets(name)


def _readings(parameter: bytes) -> frozenset[str] | None:
    """Return the names that somebody reads: PHP takes a bracket that is not closed for an underscore."""
    name = _whole_name(parameter)
    return None if name is None else frozenset({_without_brackets(name), name.replace("[", "_")})


def _whole_name(parameter: bytes) -> str | None:
    text = decoded(parameter.partition(b"=")[0].replace(b"+", b" "))
    if text is None:
        return None
    name = text.decode("utf-8", "replace").casefold().strip()
    return name.partition("\0")[0].translate(_READ_AS_UNDERSCORE)


def _without_brackets(name: str) -> str:
    """Return what stands before `[...]`, or in the first of them where nothing does."""
    return _BRACKETS.split(name.lstrip("[]"), maxsplit=1)[0]


def decoded(text: bytes) -> bytes | None:
    """Return `text` decoded until that changes nothing any more; None where it goes on for too long."""
    for _ in range(_DECODED_MAX):
        once = unquote_to_bytes(text)
        if once == text:
            return text
        text = once
    return None
