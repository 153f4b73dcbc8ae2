"""The entry of a process that a parent starts: prepares its imports, and runs `worker_process`."""

import sys

from tollkeeper.serving.imports import collect_rarely, leave_rich_out

if __name__ == "__main__":
    collect_rarely()
    leave_rich_out()
    from tollkeeper.serving.worker_process import main

    sys.exit(main())
