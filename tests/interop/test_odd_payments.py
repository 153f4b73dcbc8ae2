"""Odd payments at a gate are answered as the official server answers them (contract 10.1).

Each is shown to the official Express server of today, whose facilitator is our hub, and to a gate. Where the two differ
`docs/specification.md` says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import pytest
from eth_account import Account

from tests.gateway.version2 import authorized, decoded, encoded, in_version_1, shown
from tests.interop.servers import official_server, sale_on_evm
from tests.interop.stack import Stack, sandbox
from tests.specification.client import Answer, Http, Wallet

if TYPE_CHECKING:
    from collections.abc import Iterator

Headers = dict[str, str]
Json = dict[str, Any]
Shape = Callable[[Json, Wallet], Headers]  # of a payment that takes this offer
MISMATCH: Final = "invalid_exact_evm_payload_authorization_value_mismatch"
TOO_LATE: Final = "invalid_exact_evm_payload_authorization_valid_before"
NO_MATCH: Final = "No matching payment requirements"
ECHO_MISMATCH: Final = "extension_echo_mismatch"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with sandbox(tmp_path_factory.mktemp("sandbox") / "log.txt") as running:
        yield running


@pytest.fixture(scope="module")
def server(stack: Stack) -> Iterator[str]:
    sale = sale_on_evm(stack.token, "USD Coin", Account.create().address)
    with official_server("@x402/express-2.27.0", stack.hub_url, sale) as url:
        yield url + "/data"


@pytest.fixture(scope="module")
def gate(stack: Stack) -> str:
    url: str = stack.create_gate(targetUrl=stack.target_url, price="0.01", credits=1)["accessUrl"]
    return url


def paid(**changes: object) -> Shape:
    """A payment that is good but for this of its authorization."""
    return lambda offer, wallet: {"PAYMENT-SIGNATURE": shown(offer, authorized(offer, wallet, **changes))}


def with_members(**others: object) -> Shape:
    """A good payment with more beside it."""
    return lambda offer, wallet: {"PAYMENT-SIGNATURE": shown(offer, authorized(offer, wallet), **others)}


def accepting(change: Callable[[Json], Json]) -> Shape:
    """A good payment that says to take another offer."""
    return lambda offer, wallet: {"PAYMENT-SIGNATURE": shown({**offer, **change(offer)}, authorized(offer, wallet))}


def without_name(offer: Json) -> Json:
    return {"extra": {name: said for name, said in offer["extra"].items() if name != "name"}}


def in_x_payment(offer: Json, wallet: Wallet) -> Headers:
    return {"X-Payment": paid()(offer, wallet)["PAYMENT-SIGNATURE"]}


def former_in_x_payment(offer: Json, wallet: Wallet) -> Headers:
    return {"X-Payment": in_version_1(paid()(offer, wallet)["PAYMENT-SIGNATURE"])}


def text(header: str) -> Shape:
    return lambda _offer, _wallet: {"PAYMENT-SIGNATURE": header}


def soon(_offer: Json, wallet: Wallet) -> Headers:
    return paid(validBefore=str(int(time.time()) + 2))(_offer, wallet)


UNPAID: Final = (402, "Payment required")
SERVED: Final = (200, None)
# What is shown, and what both answer.
ROWS: Final[dict[str, tuple[Shape, tuple[int, str | None]]]] = {
    "malformed base64": (text("???"), UNPAID),
    "another JSON": (text(encoded({})), (402, "Unsupported x402 version: undefined")),
    "another amount": (accepting(lambda _: {"amount": "9999"}), (402, NO_MATCH)),
    "lower-case payTo": (accepting(lambda offer: {"payTo": offer["payTo"].lower()}), (402, NO_MATCH)),
    "another maxTimeoutSeconds": (accepting(lambda _: {"maxTimeoutSeconds": 301}), (402, NO_MATCH)),
    "extra without a field": (accepting(without_name), (402, NO_MATCH)),
    "extra with more": (accepting(lambda offer: {"extra": {**offer["extra"], "mine": "too"}}), SERVED),
    "no resource, no extensions": (paid(), SERVED),
    "another resource": (with_members(resource={"url": "https://elsewhere.example/"}), SERVED),
    "extensions null": (with_members(extensions=None), SERVED),
    "unknown extension": (with_members(extensions={"unheard-of": {"of": [1]}}), SERVED),
    "value below": (paid(value="9999"), (402, MISMATCH)),
    "value above": (paid(value="10001"), (402, MISMATCH)),
    "validBefore past": (paid(validBefore="1700000000"), (402, TOO_LATE)),
    "validBefore 2 s ahead": (soon, (402, TOO_LATE)),
}


def said(answer: Answer) -> tuple[int, str | None]:
    """Status, and the reason where there is one."""
    if "payment-required" in answer.headers:
        return answer.status, decoded(answer.headers["payment-required"])["error"]
    receipt = answer.headers.get("payment-response")
    return answer.status, decoded(receipt).get("errorReason") if receipt else None


async def tried(url: str, shape: Shape, wallet: Wallet) -> list[tuple[int, str | None]]:
    """What is said to that payment, and to the same once more."""
    async with aiohttp.ClientSession() as session:
        http = Http(session)
        (offer,) = decoded((await http.send("GET", url)).headers["payment-required"])["accepts"]
        headers = shape(offer, wallet)
        return [said(await http.send("GET", url, headers=headers)) for _ in range(2)]


@pytest.mark.parametrize("row", ROWS)
async def test_an_odd_payment_is_answered_as_the_official_server_answers_it(
    row: str, stack: Stack, server: str, gate: str
) -> None:
    shape, expected = ROWS[row]
    wallet = Wallet(stack.buyer_key)
    answers = [(await tried(url, shape, wallet))[0] for url in (server, gate)]
    assert answers == [expected, expected]


async def test_a_payer_without_funds_is_refused_alike(server: str, gate: str) -> None:
    answers = [(await tried(url, paid(), Wallet()))[0] for url in (server, gate)]
    assert answers == [(402, "insufficient_funds")] * 2


# What is echoed of the extension that the 402 of `/extended` offers, and whether the official server takes it.
ECHOES: Final[dict[str, tuple[Json, tuple[int, str | None]]]] = {
    "as offered": ({"info": {"of": "data", "unit": "C"}}, SERVED),
    "with more": ({"info": {"of": "data", "unit": "C", "mine": "too"}}, SERVED),
    "without a field": ({"info": {"of": "data"}}, (402, ECHO_MISMATCH)),
    "altered": ({"info": {"of": "other", "unit": "C"}}, (402, ECHO_MISMATCH)),
}


@pytest.mark.parametrize("row", ECHOES)
async def test_a_gate_offers_no_extension_and_takes_every_echo_of_one(
    row: str, stack: Stack, server: str, gate: str
) -> None:
    """Whoever echoes one there confuses two servers, and pays all the same."""
    echo, expected = ECHOES[row]
    shape, wallet = with_members(extensions={"offered": echo}), Wallet(stack.buyer_key)
    answers = [(await tried(url, shape, wallet))[0] for url in (server.replace("/data", "/extended"), gate)]
    assert answers == [expected, SERVED]


@pytest.mark.parametrize("shape", [in_x_payment, former_in_x_payment])
async def test_a_gate_takes_in_x_payment_what_the_official_server_takes_for_nothing(
    shape: Shape, stack: Stack, server: str, gate: str
) -> None:
    """Yesterday's clients pay in that header."""
    wallet = Wallet(stack.buyer_key)
    answers = [(await tried(url, shape, wallet))[0] for url in (server, gate)]
    assert answers == [UNPAID, SERVED]


async def test_a_payment_that_was_served_buys_nothing_at_either(stack: Stack, server: str, gate: str) -> None:
    """The gate knows it as its own purchase without a credit left, and asks for a new payment."""
    wallet = Wallet(stack.buyer_key)
    answers = [await tried(url, paid(), wallet) for url in (server, gate)]
    assert answers == [[SERVED, (402, "invalid_exact_evm_nonce_already_used")], [SERVED, UNPAID]]
