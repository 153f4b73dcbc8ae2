"""A blocking JSON-RPC client for tests: one connection, errors as `RpcFailure`."""

from __future__ import annotations

import http.client
import json
from typing import Any, Final
from urllib.parse import urlsplit

_TIMEOUT_SECONDS: Final = 20


class RpcFailure(Exception):  # noqa: N818 - what the node answered, not a fault of the test
    """The node's error object."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: str | None = error.get("data")


class RpcClient:
    """Calls one node."""

    def __init__(self, url: str) -> None:
        self.url = url
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_TIMEOUT_SECONDS)

    def post(self, body: object) -> Any:
        """The JSON answer to a JSON body."""
        try:
            return self._exchange(body)
        except (http.client.HTTPException, ConnectionError):  # an idle connection was ended, or a test was cut short
            self._connection.close()
            return self._exchange(body)

    def _exchange(self, body: object) -> Any:
        self._connection.request("POST", "/", json.dumps(body), {"Content-Type": "application/json"})
        return json.loads(self._connection.getresponse().read())

    def call(self, method: str, *params: object) -> Any:
        """The result of a method. Raises: RpcFailure."""
        answer = self.post({"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)})
        if "error" in answer:
            raise RpcFailure(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """Drop the connection."""
        self._connection.close()
