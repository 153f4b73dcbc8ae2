"""A server of S3's protocol (moto's) on a free port of this machine."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer


@contextmanager
def s3_server(*buckets: str) -> Iterator[str]:
    """Its URL; with these buckets, empty."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        for bucket in buckets:
            urllib.request.urlopen(urllib.request.Request(f"{url}/{bucket}", method="PUT")).close()  # noqa: S310  own
        yield url
    finally:
        server.stop()
