"""The list of the dashboard's pages, and the modules that make them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tollkeeper.web.dashboard import Page
from tollkeeper.web.gate import GatePage
from tollkeeper.web.gate_editing import GateEditing
from tollkeeper.web.gate_list import GateList
from tollkeeper.web.login import Login

if TYPE_CHECKING:
    from tollkeeper.gateway.app import Gateway
    from tollkeeper.web.dashboard import Handler

_GATE = "/paygates/(?P<gate_id>[0-9]{1,16})"


def _page(method: str, path: str, handler: Handler, *, is_open: bool = False) -> Page:
    return Page(method, re.compile(path), handler, is_open)


def all_pages(gateway: Gateway) -> list[Page]:
    """Return every page, which is found by its path and method."""
    login = Login(gateway.auth)
    listed = GateList(gateway.management)
    editing = GateEditing(gateway.management, gateway.uploads, gateway.reports)
    gate = GatePage(gateway.management)
    return [
        _page("GET", "/login", login.show, is_open=True),
        _page("GET", "/login/message", login.message, is_open=True),
        _page("POST", "/login", login.log_in, is_open=True),
        _page("POST", "/logout", login.log_out),
        _page("GET", "", listed.home),
        _page("GET", r"/paygates(?P<form>\.json|\.csv|)", listed.show),
        _page("GET", "/paygates/new", editing.new),
        _page("POST", "/paygates/new", editing.create),
        _page("POST", "/paygates/test", editing.test),
        _page("GET", _GATE, gate.show),
        _page("GET", _GATE + "/edit", editing.edit),
        _page("POST", _GATE + "/edit", editing.update),
        _page("POST", _GATE + "/enabled", editing.set_enabled),
        _page("POST", _GATE + "/secret", editing.replace_secret),
        _page("POST", _GATE + "/claim", editing.claim),
        _page("GET", _GATE + "/delete", editing.ask_delete),
        _page("POST", _GATE + "/delete", editing.delete),
    ]
