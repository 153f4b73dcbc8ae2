"""Tables as CSV (RFC 4180), and when a caller wants one (contract 7).

No cell can be taken for a formula by a spreadsheet: titles, resources and file names are other people's texts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MEDIA_TYPE: Final = "text/csv"
_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t", "\r", "\n")
_SPECIAL: Final = re.compile(r'[",\r\n]')
_QUALITY: Final = re.compile(r";\s*q\s*=\s*([01])(?:\.([0-9]{0,3}))?\s*(?:;|$)", re.ASCII)
_QUALITY_MAX: Final = 1000


def prefers_csv(accept: str) -> bool:
    """Does an `Accept` header want CSV rather than JSON? JSON where it names both alike and JSON first."""
    wanted: dict[str, int] = {}
    for media_range in accept.lower().split(","):
        name = media_range.partition(";")[0].strip()
        quality = _QUALITY.search(media_range)
        thousandths = int(quality[1] + (quality[2] or "").ljust(3, "0")) if quality else _QUALITY_MAX
        wanted.setdefault(name, thousandths)
    as_csv, as_json = wanted.get(MEDIA_TYPE, 0), wanted.get("application/json", 0)
    names = list(wanted)
    return as_csv > as_json or (as_csv == as_json > 0 and names.index(MEDIA_TYPE) < names.index("application/json"))


def csv_table(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a line of names, and a line of each row. None is an empty cell."""
    lines = [columns, *(map(_cell, row) for row in rows)]
    return "".join(",".join(map(_quoted, line)) + "\r\n" for line in lines)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "'" + text if text.startswith(_FORMULA) else text
