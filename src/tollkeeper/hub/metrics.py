"""Metrics of the hub for its operator, in a registry of its own (contract 2; security F7, F8, F23)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class HubMetrics:
    """Alerts as numbers; each of them has a log line beside it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.set_aside = Gauge(
            "tollkeeper_hub_settlements_set_aside",
            "Unfinished settlements that failed to be worked on again and again, and are tried rarely",
            ["network"],
            registry=self.registry,
        )
        self.signer_settlements = Gauge(
            "tollkeeper_hub_signer_settlements_left",
            "For how many settlements the signer's gas money lasts, at the fees of the moment",
            ["network", "signer"],
            registry=self.registry,
        )
        self.moved = Counter(
            "tollkeeper_hub_settlements",
            "Settlements that came into a state",
            ["network", "state"],
            registry=self.registry,
        )
        self.reorganised = Counter(
            "tollkeeper_hub_settlements_reorganised",
            "Settlements whose block a reorganisation took away",
            ["network"],
            registry=self.registry,
        )
        self.turned_away = Counter(
            "tollkeeper_hub_settlements_turned_away",
            "Settlements that were not begun because too many were under way",
            ["network"],
            registry=self.registry,
        )
        self.adopted = Counter(
            "tollkeeper_hub_settlements_adopted",
            "Settlements carried out by a transaction of our signers that the database did not remember",
            ["network"],
            registry=self.registry,
        )
        self.gaps_filled = Counter(
            "tollkeeper_hub_nonce_gaps_filled",
            "Nonces of our signers that nothing was stored for",
            ["network", "signer"],
            registry=self.registry,
        )
