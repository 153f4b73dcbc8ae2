"""Pages for a person who opens a PayGate's URL in a browser; they are made in `web`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tollkeeper.core.api.errors import Code
from tollkeeper.gateway.limiting import PROOFS

if TYPE_CHECKING:
    from tollkeeper.core.api.errors import ApiError
    from tollkeeper.edge.server.call import InboundCall
    from tollkeeper.gateway.open_gate import OpenGate

# What a page gets over, which logs in and sends other methods than the browser's GET.
_BEFORE_PAYMENT: Final = frozenset({Code.AUTH_REQUIRED, Code.METHOD_NOT_ALLOWED})


class Page(NamedTuple):
    """One answer: its own header lines, and its body."""

    lines: bytes
    body: bytes


class Pages(Protocol):
    """The maker of the pages."""

    def at(self, opened: OpenGate, call: InboundCall) -> Page:
        """The page of a gate that sells."""

    def of_refusal(self, error: ApiError) -> Page:
        """The page of a request for which there is nothing to buy."""


def is_for_person(call: InboundCall) -> bool:
    """Tell whether a person opens the URL in a browser, with nothing to show yet (contract 4.1)."""
    header = call.head.header
    return (
        call.method == "GET"
        and b"text/html" in header.get(b"accept", b"")
        and b"Mozilla" in header.get(b"user-agent", b"")
        and not any(name in header for name in PROOFS)
    )


def page_of_refusal(pages: Pages, opened: OpenGate | None, error: ApiError, call: InboundCall) -> Page:
    """Return the gate's page where it can still be paid for, else that of the refusal."""
    if opened is not None and error.code in _BEFORE_PAYMENT and opened.unsold() is None:
        return pages.at(opened, call)
    return pages.of_refusal(error)
