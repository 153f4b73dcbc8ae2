"""`purchase-floor`: what a gateway on this event loop could reach at most on first purchases, beside those of `peers`.

Servers that do nothing but what no first purchase can leave out (`servers.bought`): two questions to the facilitator
and one to the target; the same behind the payer's signature; and behind two durable commits of the leanest books there
can be. The program and the official FastAPI and Express middlewares stand beside them, all at the facilitator of
`peers`. `ours`, `reference` and `ratio` are the purchases of the third server and FastAPI's, at 64 connections; the
other fields say the same of each and of one connection; `*_us` is the processor time of a purchase, and where it
goes at the program and at those servers, by perf at 64 connections, is told as by `parts`.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import cycle
from typing import Final

from bench.buying import FASTAPI, v1_signer
from bench.measuring import Result, cores
from bench.parts import LOOKED_SECONDS, parts_of
from bench.peers import CONNECTIONS, HELD, ROUNDS, Side, in_turns, peers
from bench.processes import serving

LEAN: Final = ("relay", "signature", "books")
FIRST_GUESS: Final = 8_000  # purchases per second of the last


def measure() -> Result:
    """Every side in turns."""
    with peers() as running, ExitStack() as stack:
        directory, sides = running.directory, running.sides
        for name in LEAN:
            books = [str(directory / "lean.db")] if name == "books" else []
            lean = stack.enter_context(serving("bought", cores()[0], name, str(running.port), *books))
            url = lean.url + "/small"
            if name == "books":
                side = Side(name, url, lean.pid, v1_signer(running.gate), directory)
                side.quickest = dict.fromkeys(CONNECTIONS, FIRST_GUESS)
            else:  # they take a payment again and again
                sign = cycle([v1_signer(running.gate)() for _ in range(HELD)]).__next__
                side = Side(name, url, lean.pid, sign, directory, repeat=True)
            sides.append(side)
        also = in_turns("purchase-floor", sides)
        for side in sides:
            if side.name in {"ours", *LEAN}:
                purchase_us = 1e6 / float(also[f"{side.name}_{CONNECTIONS[0]}_per_cpu_second"])
                load, _ = side.prepared(LOOKED_SECONDS, CONNECTIONS[0])
                also |= parts_of(side.name, purchase_us, load, side.pid, directory)
    for side in sides:
        for number in CONNECTIONS:
            also[f"{side.name}_{number}_us"] = 1e6 / float(also.pop(f"{side.name}_{number}_per_cpu_second"))
            for theirs in ("fastapi", "express"):
                rates = float(also[f"{side.name}_{number}"]), float(also[f"{theirs}_{number}"])
                also[f"{side.name}_over_{theirs}_{number}"] = rates[0] / rates[1]
    also["peer"] = FASTAPI
    ours, theirs_64 = float(also["books_64"]), float(also["fastapi_64"])
    return Result("purchase-floor", ours, theirs_64, ours / theirs_64, "purchases/s", ROUNDS, also)
