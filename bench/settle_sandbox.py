"""`settle-sandbox`: settles per second on the sandbox's own chain, in a process of its own, mining at once."""

from __future__ import annotations

from bench.measuring import Result, cores
from bench.processes import serving
from bench.settling import measure_settling
from tollkeeper.sandbox.genesis import TOKEN_NAME


def measure() -> Result:
    """Our hub beside the official Python facilitator."""
    with serving("embedded_node", cores()[1]) as node:
        return measure_settling("settle-sandbox", node.url, TOKEN_NAME)
