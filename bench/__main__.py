"""`python -m bench [NAME]`: one benchmark, or each in a process of its own. The last line of each is its result."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Final

# In the order in which they run. Each module has `measure() -> Result`.
BENCHMARKS: Final = {
    "verify-core": "bench.verify_core",
    "verify-http": "bench.verify_http",
    "settle-sandbox": "bench.settle_sandbox",
    "settle-anvil": "bench.settle_anvil",
    "start": "bench.start",
}


def main(arguments: list[str]) -> int:
    """0 when everything that was asked for was measured."""
    if len(arguments) > 1 or not set(arguments) <= set(BENCHMARKS):
        print(f"usage: python -m bench [{' | '.join(BENCHMARKS)}]", file=sys.stderr)
        return 2
    if not arguments:
        finished = [subprocess.run([sys.executable, "-m", "bench", name], check=False) for name in BENCHMARKS]
        return max(one.returncode for one in finished)
    module = importlib.import_module(BENCHMARKS[arguments[0]])
    print(module.measure().line(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
