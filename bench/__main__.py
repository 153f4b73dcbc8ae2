"""`python -m bench [NAME [ARGUMENT]]`: one benchmark, or each in a process of its own. Its last line is its result."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Final

# In the order in which they run: the function that measures, which returns a Result.
BENCHMARKS: Final = {
    "verify-core": "bench.verify:on_evm",
    "verify-solana": "bench.verify:on_solana",
    "verify-node": "bench.verify_node:measure",
    "settle-load": "bench.settle_load:measure",
    "settle-batch": "bench.settle_batch:measure",
    "settle-solana": "bench.settle_solana:measure",
    "start": "bench.start:measure",
    "challenge": "bench.calling:challenge",
    "held-credits": "bench.calling:held_credits",
    "body-1mib": "bench.calling:body_1mib",
    "tls-target": "bench.calling:tls_target",
    "mixed": "bench.mixed:measure",
    "latency": "bench.latency:measure",
    "memory": "bench.memory:measure",
    "first-purchase": "bench.buying:first_purchase",
    "peers": "bench.peers:measure",
    "payer-proof": "bench.proofs:measure",
    "tenants": "bench.tenants:measure",
    "books": "bench.books:measure",
    "postgres-held": "bench.postgres:held",
    "postgres-nodes": "bench.postgres:nodes",
    "postgres-costs": "bench.postgres_costs:measure",
}
TAKES_NUMBER: Final = {"memory"}  # of calls


def main(arguments: list[str]) -> int:
    """0 when everything that was asked for was measured."""
    name, numbers = (arguments[0] if arguments else None), arguments[1:]
    is_number_right = not numbers or (name in TAKES_NUMBER and len(numbers) == 1 and numbers[0].isdecimal())
    if (name is not None and name not in BENCHMARKS) or not is_number_right:
        print(f"usage: python -m bench [{' | '.join(BENCHMARKS)}]; memory takes a number of calls", file=sys.stderr)
        return 2
    if name is None:
        finished = [subprocess.run([sys.executable, "-m", "bench", one], check=False) for one in BENCHMARKS]
        return max(one.returncode for one in finished)
    module, _, function = BENCHMARKS[name].partition(":")
    print(getattr(importlib.import_module(module), function)(*map(int, numbers)).line(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
