"""The refusal of a call whose target was sent nothing."""

from __future__ import annotations

from tollkeeper.core.api.errors import ApiError, Code


class NothingSentError(ApiError):
    """UNAVAILABLE: the target was sent nothing, for a reason of ours."""

    def __init__(
        self, message: str = "the gateway can open no connection to the target now; send the same again"
    ) -> None:
        super().__init__(Code.UNAVAILABLE, message)
