"""`/ops`: what an operator looks at, on the admin address: the numbers of `/metrics`, by subject and in words.

It is read and never written to, so there is no form that another page could send. It answers only where the request
names this machine or the admin address: a name that a stranger's page led here gets nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tollkeeper.core.configuration import is_loopback
from tollkeeper.web.rendering import rendered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from prometheus_client import Metric

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.web.assets import Assets

HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (
        b"content-security-policy",
        (
            b"default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
            b"frame-ancestors 'none'"
        ),
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
_FEW_SETTLEMENTS: Final = 1000
_PARKED: Final = "nobody can tell their outcome. `tollkeeper payments honour` grants one that the chain shows as paid."


def is_own_host(host: str, address: str) -> bool:
    """Tell whether a request names this machine, or the address where the page is served."""
    name = urlsplit("//" + host).hostname or ""
    return is_loopback(name) or name == address.strip("[]").lower()


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """Facts beside the metrics.

    `findings` are `doctor`'s: name, problem, remedy, is it an error. `keys`: ring, current key, when it was changed.
    `parked`: since when, purchase, why, the command that grants it.
    """

    findings: Sequence[tuple[str, str, str, bool]] = ()
    keys: Sequence[tuple[str, str, str]] = ()
    parked: Sequence[tuple[str, str, str, str]] = ()


def ops_page(text: str, facts: OperatorFacts, assets: Assets, role: str) -> bytes:
    """Return the page of these facts and metrics, which are in Prometheus's text form."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - a page is rarely asked for

    found = {family.name: family for family in text_string_to_metric_families(text)}
    values = {
        "assets": f"/assets/{assets.version}",
        "role": role,
        "tables": [table for table in (*_of_facts(facts), *_tables(found)) if table["rows"]],
    }
    return rendered("ops.html", values).encode()


def _of_facts(facts: OperatorFacts) -> list[JsonObject]:
    return [
        _table(
            "What doctor finds",
            ("Setting", "Finding", "What to do"),
            [one[:3] for one in facts.findings] or [("all", "Nothing is wrong", "")],
            [is_error for *_, is_error in facts.findings],
            "As `tollkeeper doctor` sees it from this machine, at most a minute ago.",
            is_text=True,
        ),
        _table(
            "Payments that wait for you",
            ("Since", "Purchase", "Why", "Command"),
            facts.parked,
            [],
            "See on the network's explorer that the payment was made; then the command grants it, once. Where the "
            "transaction is not known, look for the payer's and put it in place of TRANSACTION.",
            is_text=True,
        ),
        _table(
            "Keys",
            ("For", "Current key", "Its file was changed"),
            facts.keys,
            [],
            "`tollkeeper keys rotate` puts a new encryption key first: once a year, and at once after a leak.",
            is_text=True,
        ),
    ]


def _tables(found: Mapping[str, Metric]) -> list[JsonObject]:
    return [
        _table(
            "Nodes of the networks",
            ("Network", "Node", "State"),
            [
                (one["network"], one["node"], "asked" if value else "not answering")
                for one, value in _of(found, "tollkeeper_node_up")
            ],
            [not value for _, value in _of(found, "tollkeeper_node_up")],
            "A node that does not answer is asked again from time to time. Without any, sales on its network wait.",
        ),
        _table(
            "Signers' money for fees",
            ("Network", "Signer", "Lasts for settlements"),
            [
                (one["network"], one["signer"], f"{value:,.0f}")
                for one, value in _of(found, "tollkeeper_hub_signer_settlements_left")
            ],
            [value < _FEW_SETTLEMENTS for _, value in _of(found, "tollkeeper_hub_signer_settlements_left")],
            "At the fees of the moment. Send the signer the network's own coin before it is used up.",
        ),
        _table(
            "Settlements under way",
            ("Network", "State", "Number"),
            _counted(found, "tollkeeper_hub_settlements_unfinished", "network", "state"),
            [],
            "They are followed until the chain has decided, also after a restart.",
        ),
        _table(
            "Purchases without an outcome",
            ("State", "Number"),
            _counted(found, "tollkeeper_purchases_unfinished", "state"),
            [one["state"] == "PARKED" and value > 0 for one, value in _of(found, "tollkeeper_purchases_unfinished")],
            f"CLAIMED are settling. PARKED wait for you: {_PARKED}",
        ),
        _table(
            "Differences in the books",
            ("Check", "Rows"),
            [*_counted(found, "tollkeeper_differences"), *_counted(found, "tollkeeper_chain_differences")],
            [
                value > 0
                for name in ("tollkeeper_differences", "tollkeeper_chain_differences")
                for _, value in _of(found, name)
            ],
            "None is right. `tollkeeper db check` and the log say which.",
        ),
        _table(
            "Answers",
            ("Kind", "Status", "Number"),
            _counted(found, "tollkeeper_requests", "kind", "status"),
            [],
            "Since this process began. Status 0: the caller left.",
        ),
    ]


def _table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    bad: Sequence[bool],
    note: str,
    *,
    is_text: bool = False,
) -> JsonObject:
    marked = [{"cells": row, "isBad": place < len(bad) and bad[place]} for place, row in enumerate(rows)]
    return {"title": title, "columns": columns, "rows": marked, "note": note, "isText": is_text}


def _of(found: Mapping[str, Metric], name: str) -> list[tuple[dict[str, str], float]]:
    family = found.get(name)
    names = {name, name + "_total"}
    return [] if family is None else [(one.labels, one.value) for one in family.samples if one.name in names]


def _counted(found: Mapping[str, Metric], name: str, *labels: str) -> list[tuple[str, ...]]:
    """Return the labels and the number of each sample; all labels where none is named."""
    return [
        (*((one[label] for label in labels) if labels else (", ".join(one.values()) or name,)), f"{value:,.0f}")
        for one, value in _of(found, name)
    ]
