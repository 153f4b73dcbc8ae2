"""The benchmarks of calls: each one kind of request, through the gateway and through an nginx that knows no payment.

No two requests are alike (`variety`). `challenge`: 402 answers, beside nginx answering with a file, as many bytes in
all. `held_credits`: calls on 256 purchases that hold credits, 200 bytes from the target, the spend durable before the
call is forwarded. Both with three headers beside Host, and (`twelve_...`) with twelve; held credits then to a target
whose heads differ from answer to answer. `once_...`: each call spends the last credit of a purchase of its own.
`body_1mib`, `tls_target`: as `held_credits`, with 1 MiB answers, or 200 bytes from a target behind TLS.
"""

from __future__ import annotations

import http.client
import itertools
from collections import deque
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bench.gateway import family_cpu_seconds
from bench.load import OK, drive
from bench.measuring import cores, pinned, say
from bench.scene import ROUNDS, compare, scene
from bench.variety import THREE, TWELVE, request
from bench.wrk import CONNECTIONS, varied

if TYPE_CHECKING:
    from bench.load import Visit
    from bench.measuring import Result
    from bench.scene import Scene

PURCHASES: Final = 256
LARGE_ROUNDS: Final = 5
ONCE_ROUNDS: Final = 3
ONCE_CALLS: Final = 2_500  # of each side in a round
# What nginx says before a body of its own, in bytes; the date and a length of four digits are as long in each answer.
_NGINX_HEAD_BYTES: Final = len(
    "HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Fri, 27 Nov 2026 20:11:46 GMT\r\nContent-Type: text/plain\r\n"
    "Content-Length: 1000\r\nLast-Modified: Fri, 27 Nov 2026 20:11:46 GMT\r\nConnection: keep-alive\r\n"
    'ETag: "65654321-3e8"\r\nAccept-Ranges: bytes\r\n\r\n'
)


def challenge() -> Result:
    """402 answers per second."""
    with scene() as running, running.serve() as own:
        gate = own.gate(running.target + "/small", allowSubpaths=True)
        size_bytes = _size_of_challenge(gate)
        with running.reference(size_bytes - _NGINX_HEAD_BYTES) as (url, pid):
            told = []
            for name, form in (("challenge", THREE), ("challenge, twelve headers", TWELVE)):
                ours = varied(running.directory, gate, form=form, is_refused=True)
                theirs = varied(running.directory, url + "/challenge", form=form)
                told.append(compare(name, "402s/s", ours, own.pid, theirs, pid))
    told[0].also["answer_bytes"] = float(size_bytes)
    return _with(told[0], twelve=told[1])


def _size_of_challenge(gate: str) -> int:
    """Bytes of the whole 402."""
    parts = urlsplit(gate)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    connection.request("GET", parts.path)
    answer = connection.getresponse()
    head = sum(len(name) + len(value) + 4 for name, value in answer.getheaders())
    size = len("HTTP/1.1 402 Payment Required\r\n\r\n") + head + len(answer.read())
    connection.close()
    return size


def held_credits() -> Result:
    """Paid calls per second on many purchases."""
    with scene() as running, running.serve() as own, running.reference() as (url, pid):
        sides = []
        for path, form in (("/small", THREE), ("/other", TWELVE)):
            gate = own.gate(running.target + path, allowSubpaths=True)
            payments = own.buy(gate, PURCHASES)
            calls = [varied(running.directory, place, payments, form) for place in (gate, url + path)]
            sides.append(calls)
        own.rest()
        three, twelve = (
            compare(name, "calls/s", ours, own.pid, theirs, pid)
            for name, (ours, theirs) in zip(("held-credits", "held-credits, twelve headers"), sides, strict=True)
        )
        three.also["purchases"] = float(PURCHASES)
        three.also.update(_once(running, url, pid))
    return _with(three, twelve=twelve)


def _once(running: Scene, reference: str, pid: int) -> dict[str, float | str]:
    """Processor time of calls that each spend the last credit of a purchase of their own, and of nginx's beside it."""
    numbers = itertools.count()
    with running.instant() as own:
        gate = own.gate(running.target + "/small", allowSubpaths=True, credits=2)
        payments = own.buy(gate, ONCE_CALLS * (ONCE_ROUNDS + 1))
        spent = {"once_cpu_us": 0.0, "once_reference_cpu_us": 0.0}
        for number in range(ONCE_ROUNDS + 1):
            mine = payments[number * ONCE_CALLS :][:ONCE_CALLS]
            sides = ("once_cpu_us", gate, own.pid), ("once_reference_cpu_us", reference + "/small", pid)
            for side, url, process in sides:
                visits: deque[Visit] = deque([(request(url, next(numbers), payment), OK)] for payment in mine)
                before = family_cpu_seconds(process)
                with pinned(cores()[1]):
                    load = drive(url, visits, callers=CONNECTIONS, seconds=120)
                used_us = 1e6 * (family_cpu_seconds(process) - before) / load.answers
                spent[side] += used_us / ONCE_ROUNDS if number else 0
            say(f"held-credits, once {number}/{ONCE_ROUNDS}: {spent}")
    return {**spent, "once_cpu_ratio": spent["once_reference_cpu_us"] / spent["once_cpu_us"]}


def body_1mib() -> Result:
    """Paid calls per second with answers of 1 MiB."""
    return _held("body-1mib", "/large", rounds=LARGE_ROUNDS)


def tls_target() -> Result:
    """Paid calls per second to a target behind TLS."""
    return _held("tls-target", "/small", is_secure=True)


def _held(name: str, path: str, *, is_secure: bool = False, rounds: int = ROUNDS) -> Result:
    with scene() as running, running.serve() as own, running.reference() as (url, pid):
        gate = own.gate((running.secure_target if is_secure else running.target) + path, allowSubpaths=True)
        payments = own.buy(gate, PURCHASES)
        ours = varied(running.directory, gate, payments)
        theirs = varied(running.directory, url + ("/secure" if is_secure else "") + path, payments)
        own.rest()
        return compare(name, "calls/s", ours, own.pid, theirs, pid, rounds=rounds)


def _with(first: Result, **others: Result) -> Result:
    """The first result, with the others beside it."""
    for name, one in others.items():
        said = {"ours": one.ours, "reference": one.reference, "ratio": one.ratio, **one.also}
        first.also.update({f"{name}_{what}": value for what, value in said.items()})
    return first
