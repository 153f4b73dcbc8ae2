"""`postgres-costs`: what a call, a purchase and a settlement leave in PostgreSQL and ask of it.

Rows written, commits, syncs of the log, bytes of the log and, after everything is packed, on disk; processor time of
the server. A server of its own syncs as in operation. A call is a spend of a known purchase with its end, 64 or 8 at
once. A purchase is one at a gateway whose facilitator settles at once, with its first call and its line of log. At a
gateway with its hub, on the embedded chain, it costs more: that is the settlement. Programs run twice, for few and for
many of them: the difference counts.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.gateway import COMMAND, family_cpu_seconds, gateway
from bench.measuring import TICKS_PER_SECOND, Result, cores, say
from bench.postgres import CALLERS, sold, spent, started
from bench.scene import scene
from tests.engines import said_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.scene import Scene
    from tests.engines import PostgresqlServer

FEW: Final = 16
MANY: Final = FEW + 320
FEW_CALLERS: Final = 8
FEW_SECONDS: Final = 1.0
MANY_SECONDS: Final = 6.0
SETTLED_SECONDS: Final = 3.0  # until lines of the log and statistics are written
# Counters of connections are complete once these have ended.
_COUNTED: Final = """
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint AS wal_bytes,
    (SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal') AS syncs,
    (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()) AS commits,
    (SELECT sum(n_tup_ins)::bigint FROM pg_stat_user_tables) AS rows_added,
    (SELECT sum(n_tup_upd)::bigint FROM pg_stat_user_tables) AS rows_changed,
    (SELECT sum(n_tup_del)::bigint FROM pg_stat_user_tables) AS rows_removed
"""
_DISK: Final = "SELECT sum(pg_total_relation_size(relid))::bigint AS bytes FROM pg_stat_user_tables"


@dataclass(frozen=True, slots=True)
class Costs:
    """What something asked of the server."""

    wal_bytes: float
    syncs: float
    commits: float
    rows_added: float
    rows_changed: float
    rows_removed: float
    server_us: float
    disk_bytes: float

    def per(self, count: int, less: Costs | None = None) -> Costs:
        """These for each of so many, less what others were."""
        others = astuple(less) if less is not None else (0.0,) * len(astuple(self))
        return Costs(*((one - other) / count for one, other in zip(astuple(self), others, strict=True)))


def measure() -> Result:
    """The bytes of log of a purchase with its settlement, beside those of a call; all else is in further fields."""
    with scene() as running, ExitStack() as stack:
        server = started(stack, fsync="on")
        node = stack.enter_context(running.chain())
        at_once = "instant", "gateway", "http://127.0.0.1:1", {"TOLLKEEPER_HUB_URL": f"{running.target}/v1"}
        on_chain = "serve", "serve", node, dict[str, str]()
        told = {
            f"call_of_{CALLERS}": _calls(server, CALLERS),
            f"call_of_{FEW_CALLERS}": _calls(server, FEW_CALLERS),
            "purchase": _purchase(running, server, *at_once),
            "both": _purchase(running, server, *on_chain),
        }
    told["settlement"] = told["both"].per(1, told["purchase"])
    for name, costs in told.items():
        say(f"{name}: {json.dumps({what: round(value, 3) for what, value in asdict(costs).items()})}")
    also: dict[str, float | str] = {}
    for name, costs in told.items():
        also |= {f"{name}_{what}": value for what, value in asdict(costs).items()}
    ours, reference = told["both"].wal_bytes, told[f"call_of_{CALLERS}"].wal_bytes
    return Result("postgres-costs", ours, reference, ours / reference, "bytes of WAL", MANY - FEW, also)


def _calls(server: PostgresqlServer, callers: int) -> Costs:
    """One of known purchases: the first of each is not yet, and as much in the shorter run as in the longer."""

    def spending(seconds: float) -> tuple[int, Costs]:
        url, count = sold(server), 0

        def spend() -> None:
            nonlocal count
            count = spent(server, url, 1, callers, seconds).answers

        costs = _costs(server, url, spend)
        return count, costs

    few, less = spending(FEW_SECONDS)
    many, more = spending(MANY_SECONDS)
    return more.per(many - few, less)


def _purchase(running: Scene, server: PostgresqlServer, name: str, role: str, node: str, env: dict[str, str]) -> Costs:
    def bought(count: int) -> Costs:
        directory = running.directory / f"{name}-{count}"
        url = server.database_of(str(directory))

        def buy() -> None:
            own_env = {"TOLLKEEPER_DATABASE_URL": url, "SSL_CERT_FILE": str(running.directory / "localhost.pem"), **env}
            with gateway(directory, node, cores()[0], role=role, program=COMMAND, **own_env) as own:
                own.buy(own.gate(running.target + "/small"), count)
                time.sleep(SETTLED_SECONDS)

        return _costs(server, url, buy)

    few = bought(FEW)
    return bought(MANY).per(MANY - FEW, few)


def _costs(server: PostgresqlServer, url: str, work: Callable[[], None]) -> Costs:
    """What the server did meanwhile."""
    packed = _packed(url)
    before, used = said_to(url, _COUNTED)[0], _cpu_seconds(server.pid)
    work()
    used = _cpu_seconds(server.pid) - used
    after = said_to(url, _COUNTED)[0]
    grown = _packed(url) - packed
    counted = {name: float(after[name] - before[name]) for name in before}
    return Costs(**counted, server_us=1e6 * used, disk_bytes=float(grown))


def _packed(url: str) -> int:
    """How many bytes tables and indexes have, without what was removed."""
    said_to(url, "VACUUM FULL")
    size: int = said_to(url, _DISK)[0]["bytes"]
    return size


def _cpu_seconds(pid: int) -> float:
    """What the server has used, with its processes that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(") ")[2].split()
    return family_cpu_seconds(pid) + (int(fields[13]) + int(fields[14])) / TICKS_PER_SECOND
