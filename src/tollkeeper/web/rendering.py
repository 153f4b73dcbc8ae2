"""The templates' engine, loaded when the first page is made: a process that no browser asks does without it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2

    from tollkeeper.core.json_types import JsonObject


@cache
def templates() -> jinja2.Environment:
    """Return the pages' templates. Everything that is put into them is text unless a template says otherwise."""
    import jinja2  # noqa: PLC0415 - late

    class Absent(jinja2.StrictUndefined):
        """A value that is not there: a template may ask whether it is, and do nothing else with it."""

        __slots__ = ()

        def __bool__(self) -> bool:  # type: ignore[override]  # the other one raises
            return False

    loader = jinja2.PackageLoader("tollkeeper.web")
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=Absent)


def rendered(name: str, values: JsonObject) -> str:
    """Return the text of a template with these values."""
    return templates().get_template(name).render(values)
