"""A program whose database is a server's, whatever file it names.

`python -m tests.on_server URL MODULE [ARGUMENT ...]`.
"""

import runpy
import sys

from tollkeeper.storage import urls

if __name__ == "__main__":
    _, server, *sys.argv = sys.argv
    urls.server_of = lambda url: server  # noqa: ARG005 - its name is the caller's; before anything else takes it from there
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
