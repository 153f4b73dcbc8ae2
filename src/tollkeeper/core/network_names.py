"""Types of the names of networks in bodies of the API: as they are answered, and as they may be asked."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from tollkeeper.core.networks import ALIASES, CAIP2_NAMES, NETWORKS

Network: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": sorted(NETWORKS)})]
Caip2Network: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": sorted(CAIP2_NAMES)})]
NetworkAsked: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": sorted({*NETWORKS, *ALIASES})})]
