"""The 402s that are answered at once: whole answers, kept by gate version, network and profile (performance).

What an unpaid request without a body is answered is a function of its head and of its gate, where neither a login nor
anything else had to be asked. So it is judged once, as any request, and the judgement is kept with the head
(`calls.Asked.ready_402`); it holds as long as the gate is the very object that it was made for. Decides nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.api import clock_ms, iso
from tollkeeper.edge.call import JSON_LINE
from tollkeeper.edge.ready import ReadyAnswer
from tollkeeper.gateway.heads import CORS

if TYPE_CHECKING:
    from tollkeeper.core.challenge import Challenge, Profile
    from tollkeeper.gateway.gates import OpenGate
    from tollkeeper.gateway.traffic import Traffic

UNPAID_LINES: Final = JSON_LINE + CORS
KEPT_MAX: Final = 1024  # some 3 KB each


class Unpaid(ReadyAnswer):
    """How unpaid requests are answered while `opened` is the gate at `slug`, and how many were (`traffic.Tally`)."""

    __slots__ = ("count", "gate_id", "hour_ms", "is_counting", "opened", "slug")

    def __init__(self, opened: OpenGate, shown: Challenge, profile: Profile) -> None:
        super().__init__(402, UNPAID_LINES, lambda now_ms: shown.body(profile, iso(now_ms)))
        self.slug = opened.gate.slug
        self.opened = opened
        self.gate_id = opened.gate.id
        self.hour_ms = self.count = 0
        self.is_counting = False

    def renew(self, traffic: Traffic) -> None:
        """`make`, and counted in this hour from now on."""
        self.make()
        traffic.tally(self, clock_ms())

    def stop(self) -> None:
        """See `traffic.Tally`."""
        self.since = self.until = 0.0


class UnpaidAnswers:
    """One for all heads that are answered alike, the oldest forgotten first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, Profile], Unpaid] = {}

    def of(self, opened: OpenGate, shown: Challenge, profile: Profile) -> Unpaid:
        """The 402 that shows this challenge of the gate in this profile."""
        key = (opened.gate.slug, shown.requirements.network, profile)
        unpaid = self._kept.pop(key, None)
        if unpaid is None or unpaid.opened is not opened:
            unpaid = Unpaid(opened, shown, profile)
        if len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = unpaid
        return unpaid
