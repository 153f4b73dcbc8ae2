"""PayGates: what a create and an update take, their defaults, and how a gate is read (spec 2.1, contract 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.gates import GATE, NOW_MS
from tests.core.payments import BASE_SEPOLIA, PAY_TO
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.api.strict_json import NumberText, parse_json
from tollkeeper.core.evm.encoding import ZERO_ADDRESS, checksum_address
from tollkeeper.core.limits import CREDITS_EXPIRE_AFTER_MAX_SECONDS, CREDITS_MAX, DESCRIPTION_LENGTH, TITLE_LENGTH
from tollkeeper.core.paygates.fields import (
    METHODS,
    RESERVED_SLUGS,
    CreditBinding,
    HeaderAuthMode,
    OnFailure,
    Recipient,
    is_slug,
    parse_methods,
    parse_price,
    parse_slug,
    random_slug,
)
from tollkeeper.core.paygates.model import (
    Counters,
    CreateDefaults,
    FormerPrice,
    FormerVersion,
    PayGate,
    Trust,
    parse_create,
    updated,
    with_former_prices,
)
from tollkeeper.gateway.management.gate_answers import paygate_body, trust_body

SIGNER = "0x" + "5a" * 20
OTHER = "0x" + "ab" * 20
FORBIDDEN = frozenset({BASE_SEPOLIA.address, SIGNER})
FORBIDDEN_MINT = "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU"
SOLANA = "9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin"
DEFAULTS = CreateDefaults(network="base-sepolia", payment_address=PAY_TO, forbidden_addresses=FORBIDDEN)
LEAST = {"price": "0.01", "targetUrl": "https://api.example/v1"}

BAD_FIELDS: list[tuple[str, Any, Code]] = [
    ("price", "0", Code.INVALID_AMOUNT),
    ("price", "0.0000001", Code.INVALID_AMOUNT),
    ("price", "1e2", Code.INVALID_AMOUNT),
    ("price", 0, Code.INVALID_AMOUNT),
    ("price", -1, Code.INVALID_AMOUNT),
    ("price", True, Code.INVALID_AMOUNT),
    ("price", ["0.01"], Code.INVALID_AMOUNT),
    ("price", {"amount": "0.01"}, Code.INVALID_AMOUNT),
    ("price", NumberText("1e2"), Code.INVALID_AMOUNT),
    ("price", NumberText("0.0"), Code.INVALID_AMOUNT),
    ("targetUrl", 1, Code.INVALID_PARAMETER),
    ("targetUrl", ["https://api.example"], Code.INVALID_PARAMETER),
    ("credits", 0, Code.INVALID_PARAMETER),
    ("credits", -1, Code.INVALID_PARAMETER),
    ("credits", CREDITS_MAX + 1, Code.INVALID_PARAMETER),
    ("credits", "5", Code.INVALID_PARAMETER),
    ("credits", True, Code.INVALID_PARAMETER),
    ("credits", NumberText("5.0"), Code.INVALID_PARAMETER),
    ("credits", None, Code.INVALID_PARAMETER),
    ("method", "", Code.INVALID_PARAMETER),
    ("method", "GET,", Code.INVALID_PARAMETER),
    ("method", "GET POST", Code.INVALID_PARAMETER),
    ("method", "TRACE", Code.INVALID_PARAMETER),
    ("method", "CONNECT", Code.INVALID_PARAMETER),
    ("method", ["GET"], Code.INVALID_PARAMETER),
    ("title", "x" * (TITLE_LENGTH + 1), Code.INVALID_PARAMETER),
    ("title", 1, Code.INVALID_PARAMETER),
    ("title", "a\x00b", Code.INVALID_PARAMETER),
    ("title", "a\rb", Code.INVALID_PARAMETER),
    ("title", "a\x7f", Code.INVALID_PARAMETER),
    ("description", "x" * (DESCRIPTION_LENGTH + 1), Code.INVALID_PARAMETER),
    ("description", "\x1b[31m", Code.INVALID_PARAMETER),
    ("assumeValid", "true", Code.INVALID_PARAMETER),
    ("assumeValid", 1, Code.INVALID_PARAMETER),
    ("requireAuth", None, Code.INVALID_PARAMETER),
    ("isEnabled", 0, Code.INVALID_PARAMETER),
    ("mimeType", "json", Code.INVALID_PARAMETER),
    ("mimeType", "text/html\r\nX-Evil: 1", Code.INVALID_PARAMETER),
    ("mimeType", "text/html; charset=utf-8", Code.INVALID_PARAMETER),
    ("mimeType", 1, Code.INVALID_PARAMETER),
    ("network", "polygon", Code.INVALID_NETWORK),
    ("network", None, Code.INVALID_NETWORK),
    ("network", 8453, Code.INVALID_NETWORK),
    ("paymentAddress", "0x12", Code.INVALID_ADDRESS),
    ("paymentAddress", 1, Code.INVALID_ADDRESS),
    ("paymentAddress", "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGk", Code.INVALID_ADDRESS),
    ("paymentAddress", "0x5AAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", Code.INVALID_ADDRESS),
    ("paymentAddress", ZERO_ADDRESS, Code.INVALID_ADDRESS),
    ("paymentAddress", BASE_SEPOLIA.address, Code.INVALID_ADDRESS),
    ("paymentAddress", checksum_address(BASE_SEPOLIA.address), Code.INVALID_ADDRESS),
    ("paymentAddress", SIGNER, Code.INVALID_ADDRESS),
    ("headerAuthMode", "HMAC", Code.INVALID_PARAMETER),
    ("headerAuthMode", None, Code.INVALID_PARAMETER),
    ("headerAuthMode", ["hmac"], Code.INVALID_PARAMETER),
    ("resourceType", "file", Code.INVALID_PARAMETER),
    ("allowSubpaths", 0, Code.INVALID_PARAMETER),
    ("stream", 1, Code.INVALID_PARAMETER),
    ("creditBinding", "bearer", Code.INVALID_PARAMETER),
    ("creditBinding", None, Code.INVALID_PARAMETER),
    ("onFailure", "refund", Code.INVALID_PARAMETER),
    ("onFailure", {}, Code.INVALID_PARAMETER),
    ("accepts", [{"network": "base"}], Code.INVALID_PARAMETER),
    ("accepts", ["base"], Code.INVALID_PARAMETER),
    ("accepts", [{"network": "base", "paymentAddress": OTHER, "price": "1"}], Code.INVALID_PARAMETER),
    ("accepts", [{"network": "base-sepolia", "paymentAddress": OTHER}], Code.INVALID_PARAMETER),
    ("accepts", [{"network": "base", "paymentAddress": OTHER}] * 2, Code.INVALID_PARAMETER),
    ("accepts", [{"network": "base", "paymentAddress": OTHER}] * 9, Code.INVALID_PARAMETER),
    ("accepts", [{"network": "polygon", "paymentAddress": OTHER}], Code.INVALID_NETWORK),
    ("accepts", [{"network": "base", "paymentAddress": SIGNER}], Code.INVALID_ADDRESS),
    ("accepts", {}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"X-Key": 1}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"X-Key": "a\r\nX-Other: b"}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"X-Key": " a"}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"X-Key": "é"}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"X Key": "1"}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"X-K\xe9y": "1"}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"": "1"}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"Authorization": "Bearer x"}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"x_payment": "1"}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"Connection": "close"}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"Host": "other"}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"Content-Length": "0"}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"Signature": "x"}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"X-Key": "1", "x_key": "2"}, Code.INVALID_PARAMETER),
    ("targetHeaders", {f"X-{number}": "1" for number in range(33)}, Code.INVALID_PARAMETER),
    ("targetHeaders", {"X-Key": "x" * 8192}, Code.INVALID_PARAMETER),
    ("targetHeaders", [], Code.INVALID_PARAMETER),
    ("creditsExpireAfter", 0, Code.INVALID_PARAMETER),
    ("creditsExpireAfter", CREDITS_EXPIRE_AFTER_MAX_SECONDS + 1, Code.INVALID_PARAMETER),
    ("creditsExpireAfter", True, Code.INVALID_PARAMETER),
    ("creditsExpireAfter", "60", Code.INVALID_PARAMETER),
    ("creditsExpireAfter", NumberText("1.5"), Code.INVALID_PARAMETER),
    ("file", "x", Code.INVALID_PARAMETER),
    ("id", 1, Code.INVALID_PARAMETER),
    ("ownerWallet", OTHER, Code.INVALID_PARAMETER),
    ("prise", "0.01", Code.INVALID_PARAMETER),
]


def name_of(value: object) -> str:
    return ascii(value)[:24]


def create(**fields: object) -> dict[str, Any]:
    return parse_create({**LEAST, **fields}, DEFAULTS).fields


def change(gate: PayGate = GATE, now_ms: int = NOW_MS, **fields: Any) -> PayGate:
    return updated(gate, fields, now_ms, FORBIDDEN)


def test_a_refusal_names_the_header_that_is_not_the_owners_to_send() -> None:
    with pytest.raises(ApiError, match="'Authorization' is no header name, or the gateway's"):
        create(targetHeaders={"X-Key": "1", "Authorization": "Bearer x"})
    with pytest.raises(ApiError, match="the value of X-Key must be") as refusal:
        create(targetHeaders={"X-Key": 4711})
    assert "4711" not in refusal.value.message


# Create


def test_a_create_with_the_required_fields_takes_the_documented_defaults() -> None:
    new = parse_create(LEAST, DEFAULTS)
    assert new.slug is None
    assert new.fields == {
        "target_url": "https://api.example/v1",
        "price_micro": 10_000,
        "credits": 1,
        "methods": ("GET",),
        "title": "",
        "description": "",
        "assume_valid": False,
        "require_auth": False,
        "is_enabled": True,
        "mime_type": "application/json",
        "header_auth_mode": HeaderAuthMode.NONE,
        "credit_binding": CreditBinding.PAYMENT,
        "on_failure": OnFailure.CONSUME,
        "credits_expire_after_seconds": None,
        "accepts": (),
        "allow_subpaths": False,
        "target_headers": (),
        "stream": False,
        "payer_proof": False,
        "network": "base-sepolia",
        "payment_address": PAY_TO,
    }


def test_every_field_of_a_create_is_taken_and_makes_a_gate() -> None:
    body: dict[str, Any] = {
        **LEAST,
        "price": "2.5",
        "credits": CREDITS_MAX,
        "method": "get, POST ,put",
        "title": "T" * TITLE_LENGTH,
        "description": "two\nlines\tand a tab",
        "assumeValid": True,
        "requireAuth": True,
        "isEnabled": False,
        "mimeType": "image/svg+xml",
        "network": "base-mainnet",
        "paymentAddress": checksum_address(OTHER),
        "slug": "My-gate_1",
        "headerAuthMode": "hmac",
        "resourceType": "url",
        "allowSubpaths": False,
        "stream": False,
        "payerProof": False,
        "creditBinding": "wallet",
        "onFailure": "restore",
        "accepts": [],
        "targetHeaders": {},
        "creditsExpireAfter": CREDITS_EXPIRE_AFTER_MAX_SECONDS,
    }
    new = parse_create(body, DEFAULTS)
    assert new.slug == "My-gate_1"
    assert new.fields == {
        "target_url": LEAST["targetUrl"],
        "price_micro": 2_500_000,
        "credits": CREDITS_MAX,
        "methods": ("GET", "POST", "PUT"),
        "title": "T" * TITLE_LENGTH,
        "description": "two\nlines\tand a tab",
        "assume_valid": True,
        "require_auth": True,
        "is_enabled": False,
        "mime_type": "image/svg+xml",
        "header_auth_mode": HeaderAuthMode.HMAC,
        "credit_binding": CreditBinding.WALLET,
        "on_failure": OnFailure.RESTORE,
        "credits_expire_after_seconds": CREDITS_EXPIRE_AFTER_MAX_SECONDS,
        "accepts": (),
        "allow_subpaths": False,
        "target_headers": (),
        "stream": False,
        "payer_proof": False,
        "network": "base",
        "payment_address": OTHER,
    }
    assert PayGate(id=1, slug="x", version=1, owner_wallet=None, created_ms=0, updated_ms=0, **new.fields).credits


@pytest.mark.parametrize(("field", "absent"), [("price", None), ("targetUrl", None), ("targetUrl", "")])
def test_price_and_target_are_required(field: str, absent: object) -> None:
    for body in ({**LEAST, field: absent}, {name: value for name, value in LEAST.items() if name != field}):
        with pytest.raises(ApiError) as refused:
            parse_create(body, DEFAULTS)
        assert (refused.value.code, refused.value.details) == (Code.MISSING_PARAMETER, {"field": field})


def test_a_payment_address_is_required_where_there_is_no_default() -> None:
    with pytest.raises(ApiError) as refused:
        parse_create(LEAST, replace(DEFAULTS, payment_address=None))
    assert (refused.value.code, refused.value.details) == (Code.MISSING_PARAMETER, {"field": "paymentAddress"})
    assert "default_payment_address" in refused.value.message
    new = parse_create({**LEAST, "paymentAddress": OTHER}, replace(DEFAULTS, payment_address=None))
    assert new.fields["payment_address"] == OTHER


@pytest.mark.parametrize(("field", "value", "code"), BAD_FIELDS, ids=name_of)
def test_a_bad_field_is_refused_with_its_code_on_create(field: str, value: object, code: Code) -> None:
    with pytest.raises(ApiError) as refused:
        create(**{field: value})
    assert refused.value.code is code
    assert refused.value.status == 400
    assert refused.value.details is not None
    assert refused.value.details["field"] == field


def test_a_default_address_that_may_not_be_paid_is_refused_too() -> None:
    with pytest.raises(ApiError) as refused:
        parse_create(LEAST, replace(DEFAULTS, payment_address=SIGNER))
    assert refused.value.code is Code.INVALID_ADDRESS


def test_the_creator_is_paid_unless_the_create_names_somebody() -> None:
    assert parse_create(LEAST, replace(DEFAULTS, creator_wallet=OTHER)).fields["payment_address"] == OTHER
    named = parse_create({**LEAST, "paymentAddress": PAY_TO}, replace(DEFAULTS, creator_wallet=OTHER))
    assert named.fields["payment_address"] == PAY_TO


@pytest.mark.parametrize(
    ("default", "creator", "address", "network"),
    [
        ("base-sepolia", None, None, "base-sepolia"),
        ("base-sepolia", None, SOLANA, "solana-devnet"),
        ("base-sepolia", SOLANA, None, "solana-devnet"),
        ("base-sepolia", SOLANA, PAY_TO, "base-sepolia"),
        ("base", OTHER, SOLANA, "solana-mainnet"),
        ("solana-devnet", SOLANA, None, "solana-devnet"),
        ("solana-devnet", None, None, "base-sepolia"),  # of the default address
        ("solana-mainnet", SOLANA, PAY_TO, "base"),
    ],
)
def test_a_gate_that_names_no_network_is_paid_where_its_payee_can_be(
    default: str, creator: str | None, address: str | None, network: str
) -> None:
    defaults = replace(DEFAULTS, network=default, creator_wallet=creator)
    asked = LEAST if address is None else {**LEAST, "paymentAddress": address}
    fields = parse_create(asked, defaults).fields
    assert (fields["network"], fields["payment_address"]) == (network, address or creator or PAY_TO)


def test_where_a_network_is_named_who_cannot_be_paid_there_is_not() -> None:
    defaults = replace(DEFAULTS, creator_wallet=SOLANA)
    on_base = {**LEAST, "network": "base-sepolia"}
    assert parse_create(on_base, defaults).fields["payment_address"] == PAY_TO
    for nobody in (replace(defaults, payment_address=None), replace(DEFAULTS, payment_address=None)):
        with pytest.raises(ApiError) as caught:
            parse_create(on_base, nobody)
        assert caught.value.code is Code.MISSING_PARAMETER
    with pytest.raises(ApiError) as caught:
        parse_create({**LEAST, "paymentAddress": SOLANA[:-3]}, DEFAULTS)
    assert caught.value.code is Code.INVALID_ADDRESS


def test_a_gate_may_be_paid_on_solana_and_on_both_families() -> None:
    fields = parse_create({**LEAST, "network": "solana-devnet", "paymentAddress": SOLANA}, DEFAULTS).fields
    assert (fields["network"], fields["payment_address"]) == ("solana-devnet", SOLANA)
    accepts = [{"network": "solana", "paymentAddress": SOLANA}]
    gate = change(accepts=accepts)
    assert gate.recipients == (SEPOLIA, Recipient("solana-mainnet", SOLANA))
    assert paygate_body(gate, Counters(), "u", str)["accepts"] == [
        {"network": "solana-mainnet", "paymentAddress": SOLANA}
    ]


@pytest.mark.parametrize(
    "address",
    [PAY_TO, "0x12", 1, "", SOLANA[:-3], SOLANA[:-1] + "l", SOLANA + "1", "1" * 32, FORBIDDEN_MINT],
)
def test_on_solana_the_address_of_a_wallet_is_wanted(address: object) -> None:
    defaults = replace(DEFAULTS, forbidden_addresses=frozenset({FORBIDDEN_MINT}))
    with pytest.raises(ApiError) as refused:
        parse_create({**LEAST, "network": "solana-devnet", "paymentAddress": address}, defaults)
    assert refused.value.code is Code.INVALID_ADDRESS
    assert refused.value.details == {"field": "paymentAddress"}


def test_without_an_address_of_its_family_a_gate_on_solana_asks_for_one() -> None:
    with pytest.raises(ApiError) as refused:
        parse_create({**LEAST, "network": "solana-devnet"}, DEFAULTS)
    assert refused.value.code is Code.MISSING_PARAMETER


@pytest.mark.parametrize(
    ("number", "micro"),
    [("1", 1_000_000), ("0.01", 10_000), ("12.000001", 12_000_001), ("999999999999", 10**18 - 10**6)],
)
def test_a_json_number_is_a_price_where_its_text_is_one(number: str, micro: int) -> None:
    assert parse_price(parse_json(number.encode())) == micro
    assert parse_price(number) == micro


# Methods and slugs


@pytest.mark.parametrize(
    ("text", "methods"),
    [
        ("GET", ("GET",)),
        ("get,post", ("GET", "POST")),
        (" Get ,  pOsT , GET", ("GET", "POST")),
        (",".join(METHODS), METHODS),
    ],
)
def test_methods_are_a_list_in_upper_case_each_once(text: str, methods: tuple[str, ...]) -> None:
    assert parse_methods(text) == methods


def test_get_implies_head_and_no_other_method_implies_anything() -> None:
    for method in METHODS:
        assert GATE.allows(method) is (method in {"GET", "POST", "HEAD"})
    assert GATE.allow == "GET, POST, HEAD"
    posting = replace(GATE, methods=("POST",))
    assert [method for method in METHODS if posting.allows(method)] == ["POST"]
    assert posting.allow == "POST"
    assert replace(GATE, methods=("GET", "HEAD")).allow == "GET, HEAD"
    assert not GATE.allows("get")
    assert not GATE.allows("TRACE")


@pytest.mark.parametrize("slug", ["abc", "A1_", "0-0", "a" * 64, "apis", "hub2"])
def test_an_owner_may_choose_a_slug(slug: str) -> None:
    assert parse_slug(slug) == slug
    assert is_slug(slug)
    assert parse_create({**LEAST, "slug": slug}, DEFAULTS).slug == slug


@pytest.mark.parametrize(
    "slug",
    [
        "",
        "a",
        "ab",
        "a" * 65,
        "-abc",
        "_abc",
        "a.b",
        "a/b",
        "a b",
        "\u00e4bc",
        "abc\n",
        "a%2Fb",
        "..",
        123,
        None,
        ["a"],
    ],
    ids=name_of,
)
def test_a_slug_of_another_form_is_refused(slug: object) -> None:
    with pytest.raises(ApiError) as refused:
        parse_slug(slug)
    assert (refused.value.code, refused.value.details) == (Code.INVALID_PARAMETER, {"field": "slug"})
    assert not is_slug(str(slug)) or not isinstance(slug, str)


@pytest.mark.parametrize("slug", sorted(RESERVED_SLUGS))
def test_a_reserved_slug_is_refused_in_any_case(slug: str) -> None:
    for spelling in (slug, slug.upper(), slug.title()):
        with pytest.raises(ApiError) as refused:
            parse_slug(spelling)
        assert refused.value.code is Code.INVALID_PARAMETER


def test_the_reserved_slugs_are_the_documented_ones() -> None:
    documented = (
        "api hub app ops files docs openapi.json healthz readyz metrics assets favicon.ico robots.txt llms.txt mcp "
        "receipt .well-known verify settle supported transfer payments discovery"
    )
    assert set(documented.split()) == RESERVED_SLUGS


def test_a_slug_of_none_is_left_to_the_program() -> None:
    assert parse_create({**LEAST, "slug": None}, DEFAULTS).slug is None


@given(st.binary(max_size=40))
def test_a_random_slug_has_one_base62_character_per_usable_byte(random: bytes) -> None:
    slug = random_slug(random)
    assert len(slug) == sum(byte < 248 for byte in random)
    assert slug.isalnum() or not slug
    assert slug.isascii()


def test_every_base62_character_is_equally_likely() -> None:
    drawn = random_slug(bytes(range(256)))
    assert {drawn.count(character) for character in drawn} == {4}
    assert len(set(drawn)) == 62


# Update


def test_an_update_changes_the_fields_it_names_and_the_version() -> None:
    gate = change(title="New", credits=9)
    assert gate == replace(GATE, title="New", credits=9, version=4, updated_ms=NOW_MS)


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"targetUrl": "https://b.example"}, {"target_url": "https://b.example"}),
        ({"method": "DELETE"}, {"methods": ("DELETE",)}),
        ({"description": "d"}, {"description": "d"}),
        ({"assumeValid": True}, {"assume_valid": True}),
        ({"requireAuth": True}, {"require_auth": True}),
        ({"isEnabled": False}, {"is_enabled": False}),
        ({"mimeType": "text/plain"}, {"mime_type": "text/plain"}),
        ({"network": "base"}, {"network": "base"}),
        ({"paymentAddress": OTHER}, {"payment_address": OTHER}),
        ({"stream": True}, {"stream": True}),
        ({"allowSubpaths": True}, {"allow_subpaths": True}),
        ({"targetHeaders": {"X-Key": "a b", "x-empty": ""}}, {"target_headers": (("X-Key", "a b"), ("x-empty", ""))}),
        ({"creditBinding": "token"}, {"credit_binding": CreditBinding.TOKEN}),
        ({"onFailure": "restore"}, {"on_failure": OnFailure.RESTORE}),
        ({"creditsExpireAfter": 60}, {"credits_expire_after_seconds": 60}),
        ({"creditsExpireAfter": None}, {"credits_expire_after_seconds": None}),
        ({"headerAuthMode": "hmac"}, {"header_auth_mode": HeaderAuthMode.HMAC}),
    ],
)
def test_each_field_can_be_updated_alone(body: dict[str, Any], fields: dict[str, Any]) -> None:
    assert change(**body) == replace(GATE, **fields, version=4, updated_ms=NOW_MS)


def test_a_create_that_names_nobody_pays_whom_one_pays_that_is_silent_about_it() -> None:
    assert parse_create({**LEAST, "paymentAddress": None}, DEFAULTS).fields["payment_address"] == PAY_TO


def test_whom_a_gate_pays_already_stays_allowed() -> None:
    gate = replace(GATE, payment_address=SIGNER, accepts=(Recipient("base", PAY_TO),))
    forbidden = frozenset({SIGNER, OTHER})
    assert updated(gate, {"title": "new"}, NOW_MS, forbidden).recipients == gate.recipients
    with pytest.raises(ApiError) as refused:
        updated(gate, {"paymentAddress": OTHER}, NOW_MS, forbidden)
    assert refused.value.code is Code.INVALID_ADDRESS


@pytest.mark.parametrize(("field", "value", "code"), BAD_FIELDS, ids=name_of)
def test_one_bad_field_refuses_the_whole_update(field: str, value: object, code: Code) -> None:
    with pytest.raises(ApiError) as refused:
        updated(GATE, {"description": "new", field: value}, NOW_MS, FORBIDDEN)
    assert refused.value.code is code


def test_a_price_or_target_of_null_is_refused_on_update() -> None:
    for field, code in (("price", Code.INVALID_AMOUNT), ("targetUrl", Code.INVALID_PARAMETER)):
        with pytest.raises(ApiError) as refused:
            updated(GATE, {field: None}, NOW_MS, FORBIDDEN)
        assert refused.value.code is code


def test_an_update_of_nothing_and_a_change_of_slug_are_refused() -> None:
    with pytest.raises(ApiError) as refused:
        change()
    assert refused.value.code is Code.INVALID_PARAMETER
    with pytest.raises(ApiError) as refused:
        change(slug="another")
    assert refused.value.details == {"field": "slug"}


def former(**changed: Any) -> FormerVersion:
    fields: dict[str, Any] = {
        "price_micro": 1,
        "credits": 2,
        "recipients": GATE.recipients,
        "replaced_ms": NOW_MS,
    }
    return FormerVersion(**{**fields, **changed})


def test_a_former_price_sells_its_terms_for_two_minutes() -> None:
    assert with_former_prices(GATE, [former()]).former == (FormerPrice(1, 2, NOW_MS + 120_000, GATE.network),)


def test_of_two_former_versions_with_one_price_the_newer_sells() -> None:
    versions = [former(credits=9), former(credits=2), former(price_micro=3)]
    assert [(price.price_micro, price.credits) for price in with_former_prices(GATE, versions).former] == [
        (1, 9),
        (3, 2),
    ]


def test_the_current_price_has_no_former_terms() -> None:
    assert with_former_prices(GATE, [former(price_micro=GATE.price_micro)]).former == ()


SEPOLIA = Recipient("base-sepolia", PAY_TO)
BASE = Recipient("base", OTHER)


@pytest.mark.parametrize(
    ("then", "now", "sells_on"),
    [
        ((Recipient("base-sepolia", OTHER),), (SEPOLIA,), []),
        ((Recipient("base", PAY_TO),), (SEPOLIA,), []),
        ((SEPOLIA, BASE), (SEPOLIA,), ["base-sepolia"]),
        ((SEPOLIA,), (SEPOLIA, BASE), ["base-sepolia"]),
        ((BASE, SEPOLIA), (SEPOLIA, BASE), ["base", "base-sepolia"]),
        ((SEPOLIA, Recipient("base", PAY_TO)), (SEPOLIA, BASE), ["base-sepolia"]),
    ],
)
def test_a_former_price_sells_on_a_network_whose_recipient_is_the_same(
    then: tuple[Recipient, ...], now: tuple[Recipient, ...], sells_on: list[str]
) -> None:
    gate = replace(GATE, network=now[0].network, payment_address=now[0].payment_address, accepts=now[1:])
    assert [price.network for price in with_former_prices(gate, [former(recipients=then)]).former] == sells_on


def test_a_gate_may_be_paid_on_several_networks() -> None:
    accepts = [{"network": "base-mainnet", "paymentAddress": checksum_address(OTHER)}]
    fields = parse_create({**LEAST, "accepts": accepts}, DEFAULTS).fields
    assert fields["accepts"] == (BASE,)
    gate = change(accepts=accepts)
    assert gate.recipients == (SEPOLIA, BASE)
    assert (gate.pay_to_on("base"), gate.pay_to_on("solana-devnet")) == (OTHER, None)
    body = paygate_body(gate, Counters(), "u", str)
    assert body["accepts"] == [{"network": "base", "paymentAddress": checksum_address(OTHER)}]
    with pytest.raises(ApiError) as refused:
        change(gate, network="base")
    assert refused.value.details == {"field": "accepts"}


def test_an_update_never_turns_the_clock_back() -> None:
    assert change(now_ms=GATE.updated_ms - 5, title="x").updated_ms == GATE.updated_ms


# Read


def test_a_gate_is_read_with_every_documented_field() -> None:
    counters = Counters(challenges=9, purchases=2, calls=7, failures=1, revenue_micro=20_000)
    body = paygate_body(GATE, counters, "https://gw.example/abc12345", lambda ms: f"at {ms}")
    assert body == {
        "id": 7,
        "slug": "abc12345",
        "accessUrl": "https://gw.example/abc12345",
        "targetUrl": "https://api.example/v1",
        "price": "0.01",
        "credits": 5,
        "method": "GET,POST",
        "title": "A title",
        "description": "",
        "assumeValid": False,
        "requireAuth": False,
        "paymentAddress": checksum_address(PAY_TO),
        "headerAuthMode": "none",
        "resourceType": "url",
        "network": "base-sepolia",
        "accepts": [],
        "mimeType": "application/json",
        "allowSubpaths": False,
        "stream": False,
        "payerProof": False,
        "creditBinding": "payment",
        "onFailure": "consume",
        "isEnabled": True,
        "targetHeaders": [],
        "creditsExpireAfter": None,
        "ownerWallet": "0x857b06519E91e3A54538791bDbb0E22373e36b66",
        "createdAt": f"at {GATE.created_ms}",
        "updatedAt": f"at {GATE.updated_ms}",
        "counters": {"challenges": 9, "purchases": 2, "calls": 7, "failures": 1, "revenue": "0.02"},
    }


def test_the_values_of_target_headers_are_not_read_back() -> None:
    gate = change(targetHeaders={"X-Key": "hush"})
    assert paygate_body(gate, Counters(), "u", str)["targetHeaders"] == ["X-Key"]
    assert "hush" not in repr(gate)


def test_a_gate_without_an_owner_says_null() -> None:
    body = paygate_body(replace(GATE, owner_wallet=None), Counters(), "u", str)
    assert body["ownerWallet"] is None
    assert body["counters"] == {"challenges": 0, "purchases": 0, "calls": 0, "failures": 0, "revenue": "0"}


def test_an_owner_reads_what_was_sold_on_trust_in_usdc() -> None:
    told = {"open": 2, "openAmount": "0.02", "failed": 1, "failedAmount": "0.000001"}
    assert trust_body(Trust(2, 20_000, 1, 1)) == told


def test_a_gate_takes_its_owner_s_share_or_one_of_its_own() -> None:
    assert GATE.tenant == GATE.owner_wallet
    assert replace(GATE, owner_wallet=None).tenant == "gate 7"
