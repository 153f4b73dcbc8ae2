"""Families of networks are told apart in their own files and in a few tables, and nowhere else (specification 2.4)."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import tollkeeper

SOURCES: Final = Path(tollkeeper.__file__).parent
# A family's own packages and files. Whoever else outside the core names a family, asks what of a family something is,
# or decides by a reason that only one family has, stands below, with why it may.
OWN: Final = ("chains/evm/chain.py", "chains/solana/", "gateway/evidence/solana.py", "hub/solana/")
NAMES_A_FAMILY: Final = {
    "cli/wallets.py": "a new wallet is of the family that was asked for",
    "client/balances.py": "how a balance of either is asked for",
    "client/payments.py": "what is signed of either",
    "gateway/evidence/nodes.py": "the gateway's table",
    "gateway/purchase/payer_proofs.py": "a credit is spent by version 1's payments on one family only",
    "gateway/purchase/unsigned_payments.py": "only one family's payments are made for a wallet",
    "hub/api/standing.py": "how a payment of either is named",
    "hub/families.py": "the hub's table",
    "client/buying.py": "the table of what a buyer signs",
    "settings/loading.py": "the table of a network's settings",
    "serving/doctor/nodes.py": "what a node of either is asked to see whether it is in step",
    "serving/nodes.py": "the table of networks' nodes",
    "serving/books/reconciliation.py": "the table of what compares the books with a chain",
    "sandbox/wallets.py": "a test wallet of each",
}
# The same inside the core, whose rules are of a family: its own packages and files, and those that hold both sides.
OWN_RULES: Final = ("core/evm/encoding.py", "core/solana/")
NAMES_A_FAMILY_IN_THE_CORE: Final = {
    "core/families.py": "the core's table",
    "core/networks.py": "which family a network is of",
    "core/keys/siwe.py": "what a login's text calls an account",
    "core/payment_offers.py": "a payment of either as a gate sees it",
    "core/x402/verification.py": "the shape that a payload must have, the reasons of both",
    "core/keys/wallet_keys.py": "how a key is written and signs",
    "core/wallets.py": "how an address is written",
    "core/x402/version1.py": "a payload of either",
}


def names_a_family(tree: ast.Module) -> bool:
    """Is there `Family.EVM`, `Reason.SVM_...`, or a question whether something is an Evm... or a Solana...?"""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="Family"), attr="EVM" | "SOLANA"):
                return True
            case ast.Attribute(value=ast.Name(id="Reason"), attr=reason) if reason.startswith("SVM_"):
                return True
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                asked = [one.id for one in ast.walk(kinds) if isinstance(one, ast.Name)]
                if any(name.startswith(("Evm", "Solana")) for name in asked):
                    return True
    return False


def naming(folder: Path) -> list[str]:
    """The files below a folder that name a family."""
    return sorted(
        path.relative_to(SOURCES).as_posix()
        for path in folder.rglob("*.py")
        if names_a_family(ast.parse(path.read_text(encoding="utf-8")))
    )


def test_nobody_decides_by_a_family_but_its_own_files_and_the_tables() -> None:
    found = [name for name in naming(SOURCES) if not name.startswith(("core/", *OWN))]
    assert found == sorted(NAMES_A_FAMILY)


def test_in_the_core_nobody_does_but_its_own_rules_and_what_holds_both() -> None:
    found = [name for name in naming(SOURCES / "core") if not name.startswith(OWN_RULES)]
    assert found == sorted(NAMES_A_FAMILY_IN_THE_CORE)
