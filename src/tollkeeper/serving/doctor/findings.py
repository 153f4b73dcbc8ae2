"""Findings of `tollkeeper doctor`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tollkeeper.settings.model import SettingProblem


@dataclass(slots=True)
class Examination:
    """Findings. `good`: facts that are as they should be. `unchecked`: facts that remain for the operator to check."""

    good: list[str] = field(default_factory=list)
    warnings: list[SettingProblem] = field(default_factory=list)
    errors: list[SettingProblem] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
