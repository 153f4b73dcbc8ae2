"""Findings of `config check` and `doctor`."""

from __future__ import annotations

from dataclasses import dataclass, field

from tollkeeper.settings.model import SettingProblem


@dataclass(slots=True)
class Findings:
    """`errors` keep a process from starting, a network from being used, or gates from being saved; `warnings` do not.

    `values`: effective settings by name, and what nodes and accounts said. `good`: facts that are as they should be.
    `unchecked`: facts that remain for the operator to check.
    """

    values: list[tuple[str, str]] = field(default_factory=list)
    good: list[str] = field(default_factory=list)
    warnings: list[SettingProblem] = field(default_factory=list)
    errors: list[SettingProblem] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def fail(self, name: str, problem: str, remedy: str = "") -> None:
        """Add an error."""
        self.errors.append(SettingProblem(name, problem, remedy))

    def warn(self, name: str, problem: str, remedy: str = "") -> None:
        """Add a warning."""
        self.warnings.append(SettingProblem(name, problem, remedy))

    def add(self, others: Findings) -> None:
        """Add all that others found."""
        self.values += others.values
        self.good += others.good
        self.warnings += others.warnings
        self.errors += others.errors
        self.unchecked += others.unchecked
