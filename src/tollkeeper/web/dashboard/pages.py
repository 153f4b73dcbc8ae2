"""The list of the dashboard's pages, and the modules that make them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tollkeeper.web.dashboard.account import AccountPages
from tollkeeper.web.dashboard.gate import GatePage
from tollkeeper.web.dashboard.gate_editing import GateEditing
from tollkeeper.web.dashboard.gate_list import GateList
from tollkeeper.web.dashboard.login import LoginPage
from tollkeeper.web.dashboard.overview import Overview
from tollkeeper.web.dashboard.page import DashboardPage
from tollkeeper.web.dashboard.payments import PaymentPages
from tollkeeper.web.dashboard.playing import PlayPages
from tollkeeper.web.dashboard.requests import RequestPages

if TYPE_CHECKING:
    from tollkeeper.gateway.app import Gateway
    from tollkeeper.web.dashboard.page import Handler
    from tollkeeper.web.play import Play

_GATE = "/paygates/(?P<gate_id>[0-9]{1,16})"
_FORM = r"(?P<form>\.json|\.csv|)"


def _page(method: str, path: str, handler: Handler, *, is_open: bool = False) -> DashboardPage:
    return DashboardPage(method, re.compile(path), handler, is_open)


def all_pages(gateway: Gateway, play: Play | None) -> list[DashboardPage]:
    """Return every page, which is found by its path and method; `play`: a sandbox's."""
    login = LoginPage(gateway.auth)
    listed = GateList(gateway.management)
    editing = GateEditing(gateway.management, gateway.uploads, gateway.reports)
    account = AccountPages(gateway.auth, gateway.management)
    rows = gateway.lists
    gate = GatePage(gateway.management, gateway.reports, rows)
    overview = Overview(gateway.management, gateway.reports, rows, gateway.feed)
    requests, payments = RequestPages(rows), PaymentPages(rows)
    playing: list[DashboardPage] = []
    if play is not None:
        played = PlayPages(gateway.management, gateway.auth, play)
        playing = [
            _page("POST", "/login/test", played.log_in, is_open=True),
            _page("POST", _GATE + "/pay", played.pay),
        ]
    return [
        *playing,
        _page("GET", "/login", login.show, is_open=True),
        _page("GET", "/login/message", login.message, is_open=True),
        _page("POST", "/login", login.log_in, is_open=True),
        _page("POST", "/logout", login.log_out),
        _page("GET", "", overview.show),
        _page("GET", "/events", overview.events),
        _page("GET", "/settings", account.show),
        _page("POST", "/settings/logins", account.end),
        _page("GET", "/terminal", account.ask_terminal),
        _page("POST", "/terminal", account.hand_over),
        _page("GET", "/requests" + _FORM, requests.show),
        _page("GET", "/requests/(?P<request_id>[0-9a-f]{1,64})", requests.one),
        _page("GET", "/payments" + _FORM, payments.show),
        _page("GET", "/payments/(?P<purchase_id>[0-9a-z_]{1,64})", payments.one),
        _page("GET", "/paygates" + _FORM, listed.show),
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
