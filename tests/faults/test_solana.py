"""The same faults at every boundary on Solana: killed, cut, doubled, silenced (F1 to F5, F8, F13 to F15, F20, F22).

A payment is settled, refused, adopted, finished, handed out, taken over, expires, fails in its block, or is taken away
with a fork: before and after whatever a hub awaits meanwhile, of one node, or of either of two (decision 0022).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.faults.solana_site import ACTS, SECOND, SETTLING, solana_site, strike
from tests.faults.striking import Case, cases
from tests.hub.faulty_database import Kind, Moment

OF_NODE: Final = tuple(boundary for boundary in SETTLING if "_" not in boundary)
# What comes once in a process's life, or from time to time.
STARTING: Final = frozenset({"getAccountInfo", "forget_refusals", "newest_confirmed_ms"})
# What whoever looks at a payment's public status waits for.
ASKING: Final = frozenset({"find_payment", "find_named"})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", Moment)
async def test_a_hub_killed_at_any_boundary_settles_once_after_its_restart(tmp_path: Path, moment: Moment) -> None:
    chosen = [case for case in cases(SETTLING, Kind.CRASH) if case.moment is moment]
    async with solana_site(tmp_path) as site:
        await strike(site, "settle", chosen)
        assert site.hub.starts == len(chosen) + 1


@pytest.mark.timeout(300)
async def test_an_error_or_a_doubled_answer_at_any_boundary_settles_once(tmp_path: Path) -> None:
    async with solana_site(tmp_path) as site:
        await strike(site, "settle", list(cases(SETTLING, Kind.ERROR, Kind.DUPLICATE)))
        assert site.hub.starts == 1


@pytest.mark.timeout(300)
async def test_a_request_or_an_answer_that_is_lost_without_a_word_settles_once(tmp_path: Path) -> None:
    async with solana_site(tmp_path) as site:
        await strike(site, "settle", list(cases(OF_NODE, Kind.TIMEOUT)))
        assert site.hub.starts == 1


@pytest.mark.timeout(300)
async def test_an_error_at_any_boundary_on_solana_loses_nothing_and_nothing_else_is_waited_for(tmp_path: Path) -> None:
    async with solana_site(tmp_path) as site:
        for name, (_, boundaries) in ACTS.items():
            await strike(site, name, [Case(boundaries[-1], Moment.AFTER, Kind.ERROR)])
        known = {boundary for _, boundaries in ACTS.values() for boundary in boundaries}
        assert known <= site.hub.seen <= {*known, *STARTING, *ASKING}


@pytest.mark.timeout(300)
async def test_an_error_at_the_second_of_two_nodes_on_solana_loses_nothing_and_nothing_else_is_asked_of_it(
    tmp_path: Path,
) -> None:
    async with solana_site(tmp_path, nodes=2) as site:
        await strike(site, "expire", [Case(SECOND["expire"][-1], Moment.AFTER, Kind.ERROR, node=1)])
        await strike(site, "adopt", [Case("getSignatureStatuses", Moment.BEFORE, Kind.ERROR, node=1)])
        sent_again = {"sendTransaction"}  # to every node, where a fork was left, or the first does not show it soon
        known = {boundary for boundaries in SECOND.values() for boundary in boundaries} - sent_again
        assert known <= site.hub.chaoses[1].methods <= {*known, *STARTING, *sent_again}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [name for name in ACTS if name != "hand out"])  # for which no node is asked
@pytest.mark.parametrize("kind", Kind)
async def test_every_kind_of_fault_at_either_of_two_nodes_on_solana_ends_as_it_should(
    tmp_path: Path, name: str, kind: Kind
) -> None:
    _, boundaries = ACTS[name]
    of_first = tuple(boundary for boundary in boundaries if "_" not in boundary and boundary != "join")
    async with solana_site(tmp_path, nodes=2) as site:
        await strike(site, name, [*cases(of_first, kind), *cases(SECOND.get(name, ()), kind, node=1)])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("kind", Kind)
async def test_every_kind_of_fault_at_every_boundary_ends_as_it_should(tmp_path: Path, name: str, kind: Kind) -> None:
    _, boundaries = ACTS[name]
    async with solana_site(tmp_path) as site:
        await strike(site, name, list(cases(boundaries, kind)))
