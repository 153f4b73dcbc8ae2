"""How many connections and files a process that serves may have open (security A-58)."""

from __future__ import annotations

import resource
from typing import Final

_ENOUGH: Final = 1 << 20


def use_all_descriptors() -> None:
    """Take as many as the system lets this process and those that it starts have, and not only what it begins with.

    Many systems begin with 1024, for programs that know no better. Each caller takes one, and one more at the target.
    """
    now, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if allowed == resource.RLIM_INFINITY else min(allowed, _ENOUGH)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, allowed))
