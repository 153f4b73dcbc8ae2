"""The benchmarks of calls: each one kind of request, through the gateway and through an nginx that knows no payment.

`challenge`: 402 answers, beside nginx answering with a static file of as many bytes. `held_credits`: calls on
purchases that hold credits, 200 bytes from the target, the spend durable before the call is forwarded;
`held_credits_hot`: the same on one purchase; `connections`: the same on many, at ever more connections. `body_1mib`,
`tls_target`: as `held_credits`, with 1 MiB answers, or 200 bytes from a target behind TLS.
`mixed`: of ten calls two are 402s, five get 200 bytes, one posts 1 KiB, one gets 16 KiB and one 200 bytes over TLS.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bench.scene import PURCHASES, ROUNDS, compare, scene
from bench.wrk import calls, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measuring import Result
    from bench.scene import Scene
    from bench.wrk import Calls

POSTED_BYTES: Final = 1024
LARGE_ROUNDS: Final = 5
CROWDS: Final = (64, 128, 256)
MIXED_PURCHASES: Final = 64
MIXED_REFUSED_SHARE: Final = 0.2


def challenge() -> Result:
    """402 answers per second."""
    with scene() as running:
        gate = running.gateway.gate(running.target + "/small")
        size_bytes = len(running.gateway.challenge(gate).body)
        with running.reference(size_bytes) as (url, pid):
            ours = calls(running.directory, gate, [request(gate)], refused_share=1)
            theirs = calls(running.directory, url, [request(url + "/challenge")])
            result = compare("challenge", "402s/s", ours, running.gateway.pid, theirs, pid)
    result.also["body_bytes"] = float(size_bytes)
    return result


def held_credits() -> Result:
    """Paid calls per second on many purchases."""
    return _held("held-credits", PURCHASES, "/small")


def held_credits_hot() -> Result:
    """Paid calls per second on one purchase."""
    return _held("held-credits-hot", 1, "/small")


def connections() -> Result:
    """Paid calls per second at ever more connections; the result is that of the most, the others are beside it."""
    results: dict[int, Result] = {}
    with _holding(PURCHASES, "/small") as sides:
        for count in CROWDS:
            unit = f"calls/s at {count} connections"
            results[count] = compare("connections", unit, *sides, rounds=LARGE_ROUNDS, connections=count)
    *fewer, most = results.items()
    for count, one in fewer:
        said = {"ours": one.ours, "ratio": one.ratio, **one.also}
        most[1].also.update({f"at_{count}_{name}": value for name, value in said.items() if name != "connections"})
    return most[1]


def body_1mib() -> Result:
    """Paid calls per second with answers of 1 MiB."""
    return _held("body-1mib", PURCHASES, "/large", rounds=LARGE_ROUNDS)


def tls_target() -> Result:
    """Paid calls per second to a target behind TLS."""
    return _held("tls-target", PURCHASES, "/small", is_secure=True)


def _held(name: str, purchases: int, path: str, *, is_secure: bool = False, rounds: int = ROUNDS) -> Result:
    with _holding(purchases, path, is_secure=is_secure) as sides:
        result = compare(name, "calls/s", *sides, rounds=rounds)
    result.also["purchases"] = float(purchases)
    return result


@contextmanager
def _holding(purchases: int, path: str, *, is_secure: bool = False) -> Iterator[tuple[Calls, int, Calls, int]]:
    """Calls on so many purchases, of which none is young, and the same through nginx; each with who answers them."""
    with scene() as running:
        gate = running.gateway.gate((running.secure_target if is_secure else running.target) + path)
        payments = running.gateway.buy(gate, purchases)
        with running.reference() as (url, pid):
            same = url + ("/secure" if is_secure else "") + path
            ours = calls(running.directory, gate, [request(gate, X_Payment=payment) for payment in payments])
            theirs = calls(running.directory, url, [request(same, X_Payment=payment) for payment in payments])
            running.gateway.rest()
            yield ours, running.gateway.pid, theirs, pid


def mixed() -> Result:
    """Calls and 402s of several kinds in turn, per second."""
    with scene() as running:
        ours, theirs = _mixed_requests(running)
        with running.reference(len(running.gateway.challenge(ours[0][0]).body)) as (url, pid):
            own = calls(
                running.directory, running.gateway.url, [one for _, one in ours], refused_share=MIXED_REFUSED_SHARE
            )
            same = [request(url + path, method, body, **headers) for path, method, body, headers in theirs]
            other = calls(running.directory, url, same)
            running.gateway.rest()
            return compare("mixed", "calls/s", own, running.gateway.pid, other, pid)


def _mixed_requests(
    running: Scene,
) -> tuple[list[tuple[str, bytes]], list[tuple[str, str, bytes, dict[str, str]]]]:
    """Ours with their gate, and what nginx gets in their place: path, method, body and headers."""
    own = running.gateway
    small = own.gate(running.target + "/small")
    posted = own.gate(running.target + "/small", method="POST")
    medium = own.gate(running.target + "/medium")
    secure = own.gate(running.secure_target + "/small")
    bought = {
        gate: own.buy(gate, MIXED_PURCHASES, method)
        for gate, method in ((small, "GET"), (posted, "POST"), (medium, "GET"), (secure, "GET"))
    }
    body = b'"' + b"p" * (POSTED_BYTES - 2) + b'"'
    ours: list[tuple[str, bytes]] = []
    theirs: list[tuple[str, str, bytes, dict[str, str]]] = []
    for number in range(MIXED_PURCHASES):
        for kind in (None, small, small, medium, small, None, posted, small, secure, small):
            if kind is None:
                ours.append((small, request(small)))
                theirs.append(("/challenge", "GET", b"", {}))
                continue
            headers = {"X_Payment": bought[kind][number]}
            method, sent = ("POST", body) if kind == posted else ("GET", b"")
            path = {medium: "/medium", secure: "/secure/small"}.get(kind, "/small")
            ours.append((kind, request(kind, method, sent, **headers)))
            theirs.append((path, method, sent, headers))
    return ours, theirs
