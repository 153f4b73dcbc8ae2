"""A host is reached at addresses that were checked, whatever its name server says next (A-41)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Iterator

import pytest

from tests.edge.forwarded import ForwardRequest, forward
from tests.edge.targets import forwarder, nothing_more_can_be_opened, serves, sized, target
from tests.edge.test_calls import until
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.target_addresses import TargetUrl
from tollkeeper.edge.shared.nothing_sent import NothingSentError
from tollkeeper.edge.target.addresses import (
    CACHED_HOSTS_MAX,
    CALL_THREADS,
    CHECK_THREADS,
    Lookup,
    OwnPlace,
    Resolver,
    is_of_this_machine,
)

OWNER = "owner"


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Names:
    """A name server that gives its answers in turn, the last one for ever."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, _host: str, _port: int) -> list[str]:
        self.asked += 1
        await asyncio.sleep(0)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def code_of(waiting: Awaitable[object]) -> Code:
    with pytest.raises(ApiError) as refusal:
        await waiting
    return refusal.value.code


@pytest.mark.parametrize(
    "answer",
    [
        ["127.0.0.1"],
        ["8.8.8.8", "10.0.0.1"],
        ["169.254.169.254"],
        ["8.8.8.8", "2606:4700::1111", "::1"],
        ["64:ff9b::a9fe:a9fe"],
        ["2002:7f00:1::"],
        ["::ffff:127.0.0.1"],
        ["fe80::1%eth0"],
        ["not an address"],
        ["0"],
        [""],
    ],
)
async def test_one_address_that_is_not_public_refuses_the_host(answer: list[str]) -> None:
    resolver = Resolver(allow_private=False, lookup=Names(answer))
    assert await code_of(resolver.resolve("evil.example", 80, OWNER)) is Code.UPSTREAM_BLOCKED
    assert resolver.cached("evil.example") is None


async def test_every_public_address_is_given_in_order() -> None:
    answer = ["8.8.8.8", "2606:4700::1111"]
    assert await Resolver(allow_private=False, lookup=Names(answer)).resolve("good.example", 80, OWNER) == answer


async def test_an_address_is_judged_without_asking_anybody() -> None:
    names = Names(["8.8.8.8"])
    resolver = Resolver(allow_private=False, lookup=names)
    assert await resolver.resolve("1.1.1.1", 80, OWNER) == ["1.1.1.1"]
    assert await code_of(resolver.resolve("127.0.0.1", 80, OWNER)) is Code.UPSTREAM_BLOCKED
    assert await code_of(resolver.resolve("::1", 80, OWNER)) is Code.UPSTREAM_BLOCKED
    assert names.asked == 0


def failing(fault: Exception) -> Lookup:
    async def lookup(_host: str, _port: int) -> list[str]:
        raise fault

    return lookup


@pytest.mark.parametrize("lookup", [failing(OSError("no such host")), failing(UnicodeError("label")), Names([])])
async def test_a_host_that_has_no_address_is_unreachable(lookup: Lookup) -> None:
    assert (
        await code_of(Resolver(allow_private=False, lookup=lookup).resolve("a.example", 80, OWNER))
        is Code.UPSTREAM_UNREACHABLE
    )


async def test_a_name_server_that_does_not_answer_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_host: str, _port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr("tollkeeper.edge.target.addresses.LOOKUP_TIMEOUT_SECONDS", 0.05)
    assert (
        await code_of(Resolver(allow_private=False, lookup=hang).resolve("a.example", 80, OWNER))
        is Code.UPSTREAM_UNREACHABLE
    )


async def test_an_answer_is_remembered_for_five_seconds_and_checked_again_then() -> None:
    clock, names = Clock(), Names(["8.8.8.8"], ["127.0.0.1"])
    resolver = Resolver(allow_private=False, lookup=names, clock=clock)
    assert await resolver.resolve("a.example", 80, OWNER) == ["8.8.8.8"]
    clock.seconds += 4.99
    assert await resolver.resolve("a.example", 80, OWNER) == ["8.8.8.8"]
    assert names.asked == 1
    clock.seconds += 0.02
    assert await code_of(resolver.resolve("a.example", 80, OWNER)) is Code.UPSTREAM_BLOCKED
    assert names.asked == 2


async def test_many_who_ask_at_once_ask_once_and_one_who_leaves_takes_nobody_along() -> None:
    names = Names(["8.8.8.8"])
    resolver = Resolver(allow_private=False, lookup=names)
    waiting = [asyncio.ensure_future(resolver.resolve("a.example", 80, OWNER)) for _ in range(50)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    answers = await asyncio.gather(*waiting[1:])
    assert answers == [["8.8.8.8"]] * 49
    assert names.asked == 1


async def test_what_is_remembered_is_bounded() -> None:
    resolver = Resolver(allow_private=False, lookup=Names(["8.8.8.8"]))
    for number in range(CACHED_HOSTS_MAX + 10):
        await resolver.resolve(f"h{number}.example", 80, OWNER)
    assert resolver.cached("h0.example") is None
    assert resolver.cached(f"h{CACHED_HOSTS_MAX + 9}.example") == ["8.8.8.8"]


async def test_creating_and_updating_a_gate_resolve_the_host_and_name_the_field() -> None:
    resolver = Resolver(allow_private=False, lookup=Names(["8.8.8.8"], ["10.0.0.1"]), clock=Clock())
    assert (await resolver.check_target("https://A.example/x", OWNER)).text == "https://a.example/x"
    for url in ("https://b.example/", "http://127.0.0.1/", "ftp://a.example/"):
        with pytest.raises(ApiError) as refusal:
            await resolver.check_target(url, OWNER)
        assert (refusal.value.code, refusal.value.details) == (Code.INVALID_PARAMETER, {"field": "targetUrl"})


async def test_the_system_s_own_lookup_is_judged_like_any_other() -> None:
    resolver = Resolver(allow_private=False)
    try:
        assert await code_of(resolver.resolve("localhost", 80, OWNER)) is Code.UPSTREAM_BLOCKED
        assert await code_of(resolver.resolve("no-such-host.invalid", 80, OWNER)) is Code.UPSTREAM_UNREACHABLE
    finally:
        resolver.close()


class Answered(threading.Event):
    """The system's lookup, which answers for hosts called silent once this is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answered]:
    event = Answered()

    def getaddrinfo(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        event.asked.append(host)
        if host.startswith("silent"):
            event.wait(10)
        return [(0, 0, 0, "", ("8.8.8.8", 80))]

    monkeypatch.setattr("tollkeeper.edge.target.addresses.socket.getaddrinfo", getaddrinfo)
    yield event
    event.set()


async def test_silent_name_servers_of_called_gates_stop_nobody_else(
    answered: Answered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.edge.target.addresses.LOOKUP_TIMEOUT_SECONDS", 2)
    resolver = Resolver(allow_private=False)
    hosts = [f"silent{n}.example" for n in range(160)]
    calling = [asyncio.ensure_future(code_of(resolver.resolve(host, 80, OWNER))) for host in hosts]
    await until(lambda: len(answered.asked) == CALL_THREADS // 3)
    for number in range(20):
        assert await resolver.resolve(f"good{number}.example", 80, "another") == ["8.8.8.8"]
    assert await resolver.resolve("good.example", 80, "a third") == ["8.8.8.8"]
    codes = await asyncio.gather(*calling)
    for host, code in zip(hosts, codes, strict=True):  # a name that was not asked for is no reason to charge anybody
        assert code is (Code.UPSTREAM_UNREACHABLE if host in answered.asked else Code.UNAVAILABLE)
    assert await code_of(resolver.resolve(hosts[0], 80, OWNER)) is Code.UPSTREAM_UNREACHABLE  # it has its thread
    answered.set()
    assert await resolver.resolve(hosts[-1], 80, OWNER) == ["8.8.8.8"]
    resolver.close()


async def test_silent_name_servers_of_gates_that_are_made_stop_no_call_and_nobody_else_s_gate(
    answered: Answered,
) -> None:
    resolver = Resolver(allow_private=False)
    urls = [f"http://silent{n}.example/" for n in range(100)]
    making = [asyncio.ensure_future(resolver.check_target(url, OWNER)) for url in urls]
    await until(lambda: len(answered.asked) == CHECK_THREADS // 3)
    assert await resolver.resolve("good.example", 80, OWNER) == ["8.8.8.8"]
    assert (await resolver.check_target("http://other.example/", "another")).host == "other.example"
    answered.set()
    await asyncio.gather(*making)
    resolver.close()


async def test_a_tenant_that_waits_for_a_host_holds_up_nobody_else_who_asks_for_it(answered: Answered) -> None:
    resolver = Resolver(allow_private=False)
    calling = [asyncio.ensure_future(resolver.resolve(f"silent{n}.example", 80, OWNER)) for n in range(CALL_THREADS)]
    calling.append(asyncio.ensure_future(resolver.resolve("good.example", 80, OWNER)))
    await until(lambda: len(answered.asked) == CALL_THREADS // 3)
    assert not calling[-1].done()
    assert await resolver.resolve("good.example", 80, "another") == ["8.8.8.8"]
    answered.set()
    await asyncio.gather(*calling)
    resolver.close()


async def test_where_nothing_more_can_be_opened_no_target_is_to_blame() -> None:
    resolver = Resolver(allow_private=False, own=OwnPlace("gateway.example", 443), lookup=Names(["8.8.8.8"]))
    with nothing_more_can_be_opened(os.getpid()), pytest.raises(NothingSentError):
        await resolver.resolve("called.example", 8402, OWNER)
    assert await resolver.resolve("called.example", 8402, OWNER) == ["8.8.8.8"]
    saved = "https://good.example:8402/"
    with nothing_more_can_be_opened(os.getpid()), pytest.raises(NothingSentError):  # 503: nothing is wrong with it
        await resolver.check_target(saved, OWNER)
    assert (await resolver.check_target(saved, OWNER)).host == "good.example"
    by_the_system = Resolver(allow_private=True)
    with nothing_more_can_be_opened(os.getpid()), pytest.raises(NothingSentError):
        await by_the_system.resolve("localhost", 80, OWNER)
    assert await by_the_system.resolve("localhost", 80, OWNER)
    by_the_system.close()


async def test_a_lookup_that_nobody_waits_for_any_more_is_not_begun(
    answered: Answered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.edge.target.addresses.LOOKUP_TIMEOUT_SECONDS", 0.5)  # a thread has begun by then
    resolver = Resolver(allow_private=False)
    share = CHECK_THREADS // 3
    urls = [f"http://silent{n}.example/" for n in range(5 * share)]
    codes = await asyncio.gather(*(code_of(resolver.check_target(url, OWNER)) for url in urls))
    assert set(codes) == {Code.INVALID_PARAMETER, Code.UNAVAILABLE}  # nothing is known of a name that was not asked for
    assert codes.count(Code.INVALID_PARAMETER) == share
    monkeypatch.setattr("tollkeeper.edge.target.addresses.LOOKUP_TIMEOUT_SECONDS", 5)
    answered.set()
    assert (await resolver.check_target("http://good.example/", OWNER)).host == "good.example"
    assert len(answered.asked) == share + 1
    resolver.close()


def named(port: int) -> TargetUrl:
    return TargetUrl("http", "rebinding.example", port, "/", "")


@pytest.mark.parametrize("turn", range(4))
async def test_a_name_that_turns_inward_is_never_followed(turn: int) -> None:
    """The name gives a good address first and an inner one at any later moment: the inner one hears nothing."""
    clock = Clock()
    names = Names(*[["203.0.113.1", "8.8.8.8"][1:]] * turn, ["127.0.0.1"])
    resolver = Resolver(allow_private=False, lookup=names, clock=clock)
    async with target(serves(sized(b"secret"))) as inner, forwarder(resolver) as edge:
        for _ in range(turn):
            assert await resolver.resolve("rebinding.example", inner.port, OWNER) == ["8.8.8.8"]
            clock.seconds += 6
        assert await code_of(forward(edge, ForwardRequest(named(inner.port), "GET", []), b"")) is Code.UPSTREAM_BLOCKED
        assert inner.connections == 0


async def test_a_connection_goes_to_the_address_that_was_checked_with_the_name_that_was_asked_for() -> None:
    names = Names(["127.0.0.1"])
    async with target(serves(sized(b"x"))) as here, forwarder(Resolver(allow_private=True, lookup=names)) as edge:
        await forward(edge, ForwardRequest(named(here.port), "GET", []), b"")
        assert b"host: rebinding.example:%d\r\n" % here.port in here.heads[0]


async def test_a_kept_connection_serves_only_the_address_that_the_name_has_now() -> None:
    clock, names = Clock(), Names(["127.0.0.1"], ["127.0.0.2"])
    resolver = Resolver(allow_private=True, lookup=names, clock=clock)
    async with target(serves(sized(b"old"))) as old, forwarder(resolver) as edge:
        assert (await forward(edge, ForwardRequest(named(old.port), "GET", []), b"")).body == b"old"
        clock.seconds += 6
        assert (
            await code_of(forward(edge, ForwardRequest(named(old.port), "GET", []), b"")) is Code.UPSTREAM_UNREACHABLE
        )
        assert len(old.heads) == 1


@pytest.mark.parametrize(
    ("public_url", "target_url"),
    [
        ("https://pay.example", "https://pay.example/api/v1/paygates"),
        ("https://pay.example", "https://PAY.example:443/"),
        ("https://pay.example", "http://pay.example:443/"),
        ("http://8.8.4.4:8402", "http://8.8.4.4:8402/"),
        ("http://[2606:4700::0001]:8402", "http://[2606:4700:0::1]:8402/"),
    ],
)
async def test_the_gateway_itself_is_no_target(public_url: str, target_url: str) -> None:
    own = OwnPlace.of(public_url)
    resolver = Resolver(allow_private=False, own=own, lookup=Names(["8.8.8.8"]))
    assert await code_of(resolver.check_target(target_url, OWNER)) is Code.INVALID_PARAMETER
    assert await code_of(resolver.resolve(own.host, own.port, OWNER)) is Code.UPSTREAM_BLOCKED
    # Another port of its host may be somebody else's, and so is its port on another machine.
    assert (await resolver.check_target("http://pay.example:8080/", OWNER)).port == 8080
    assert (await resolver.check_target("http://8.8.8.8:8402/", OWNER)).port == 8402


async def test_in_development_the_gateway_may_be_its_own_target() -> None:
    resolver = Resolver(allow_private=True, own=OwnPlace.of("http://127.0.0.1:8402"))
    assert await resolver.resolve("127.0.0.1", 8402, OWNER) == ["127.0.0.1"]


@pytest.mark.parametrize("port", [80, 5432, 8402])
async def test_no_port_at_an_address_of_this_machine_is_a_target(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A public address of the machine's own: what listens there trusts who comes from it."""
    monkeypatch.setattr("tollkeeper.core.http.target_addresses._NOT_PUBLIC_V4", ())  # as if loopback were one
    resolver = Resolver(allow_private=False, lookup=Names(["127.0.0.1"]))
    with pytest.raises(ApiError, match=r"this machine's own.*allow_private_targets"):
        await resolver.check_target(f"http://shop.example:{port}/", OWNER)
    assert await code_of(resolver.check_target(f"http://127.0.0.1:{port}/", OWNER)) is Code.INVALID_PARAMETER
    assert await code_of(resolver.resolve("shop.example", port, OWNER)) is Code.UPSTREAM_BLOCKED
    allowed = Resolver(allow_private=True, lookup=Names(["127.0.0.1"]))
    assert (await allowed.check_target(f"http://shop.example:{port}/", OWNER)).port == port


def test_addresses_of_this_machine_are_known() -> None:
    assert is_of_this_machine("127.0.0.1")
    assert not is_of_this_machine("8.8.8.8")
    assert not is_of_this_machine("2606:4700::1111")
