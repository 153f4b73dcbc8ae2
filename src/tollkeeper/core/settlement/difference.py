"""Differences that a check of the books reports: two things that must agree and do not (security 5).

The rules are named after the invariants I1 to I14 of docs/security.md where they are among them. Finding a difference
is not done here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """`rule` is what does not hold, `subject` what it does not hold of, `found` what was there in its place."""

    rule: str
    subject: str
    found: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.found}"
