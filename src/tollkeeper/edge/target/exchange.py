"""One request and its response on a `connection` to a target, as who drives it sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tollkeeper.core.api.errors import Code
from tollkeeper.core.http.heads import ResponseHead


@dataclass(frozen=True, slots=True)
class TargetFailure:
    """Why an exchange failed. `untouched`: a reused connection ended before the target had said a byte."""

    code: Code
    message: str
    untouched: bool = False


class Exchange(Protocol):
    """Driver of a connection. The last call is `on_end`, `on_whole` or `on_failure`, once."""

    def on_head(self, head: ResponseHead) -> None:
        """The final response's head; header names in lower case."""

    def on_body(self, data: bytes) -> None:
        """A part of the body, as the target encoded it."""

    def on_end(self) -> None:
        """The response is complete."""

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """The response, which came in one piece; the connection is free again. In place of the three above."""
        self.on_head(head)
        if body:
            self.on_body(body)
        self.on_end()

    def on_failure(self, failure: TargetFailure) -> None:
        """There will be no complete response."""

    def pause_sending(self) -> None:
        """The target takes no more of the request for now."""

    def resume_sending(self) -> None:
        """The target takes more of the request."""
