"""Charts as SVG, made on the server, each with a text in its place and a table of its numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH: Final = 640
_HEIGHT: Final = 160
_BASE: Final = 135  # below it stand the names of some columns
_TOP: Final = 12
_LABELS_MAX: Final = 7
SERIES_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class Bar:
    """One rectangle of a chart, of the series with that number."""

    x: str
    y: str
    width: str
    height: str
    series: int


@dataclass(frozen=True, slots=True)
class Series:
    """One row of numbers under a name; `texts` are the numbers as they are read."""

    name: str
    values: Sequence[int]
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of stacked columns."""

    id: str
    title: str
    summary: str
    columns: Sequence[str]
    series: Sequence[Series]

    width = _WIDTH
    height = _HEIGHT
    base = _BASE

    @property
    def bars(self) -> list[Bar]:
        """The rectangles."""
        sums = [sum(one.values[place] for one in self.series) for place in range(len(self.columns))]
        most, step = max(sums, default=0) or 1, _WIDTH / max(1, len(self.columns))
        bars = []
        for place in range(len(self.columns)):
            y = float(_BASE)
            for number, one in enumerate(self.series):
                height = (_BASE - _TOP) * one.values[place] / most
                if height:
                    y -= height
                    bars.append(
                        Bar(
                            f"{place * step + step * 0.1:.1f}", f"{y:.1f}", f"{step * 0.8:.1f}", f"{height:.1f}", number
                        )
                    )
        return bars

    @property
    def labels(self) -> list[tuple[str, str]]:
        """Place the names of columns, as many as have room."""
        count = len(self.columns)
        every, step = -(-count // _LABELS_MAX) or 1, _WIDTH / max(1, count)
        return [(f"{(place + 0.5) * step:.1f}", self.columns[place]) for place in range(0, count, every)]

    @property
    def is_empty(self) -> bool:
        """Is there nothing to see?"""
        return not any(any(one.values) for one in self.series)
