"""Choice of the node to ask: the first in the configured order that is well (contract 5; security A-15, F4).

A node that gave no answer rests for a while, longer each time. A node that others overruled, or that is behind them,
comes after those that are not. A node of another chain or token is never asked. The limits that a node stated are kept
in its own words, for the operator. What is sent to a node, and what a node must be, is not decided here.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import structlog

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG = structlog.get_logger("tollkeeper.chains.rpc")
_REST_FIRST_SECONDS: Final = 2.0
_REST_MAX_SECONDS: Final = 60.0
_DOUBTED_SECONDS: Final = 60.0
LAG_BLOCKS_MAX: Final = 5
# Without an answer for so long, a node is out of reach; until then it may have been one broken connection.
OUT_OF_REACH_SECONDS: Final = 10.0
BATCH_SIZE_MAX: Final = 100
# A batch may have been refused for another reason than its size, so a larger one is tried again so much later.
_SMALLER_SECONDS: Final = 3600.0
# What was answered so short a time ago is not too large now.
_TAKEN_SECONDS: Final = 600.0
_WORDS_MAX: Final = 200
# Pieces of a URL that may be keys: long, and in its path no plain words such as a network's name.
_KEY_LENGTH_MIN: Final = 6
_PLAIN_WORDS: Final = re.compile(r"[a-z]+(?:[-_.][a-z]+)*")
_NUMBER: Final = re.compile(r"\d+")


@dataclass(slots=True, eq=False)
class Node:
    """One node. `barred` says why it must not be asked; `height` is the latest block that it was seen to have.

    `url`: where it is asked now, which may be where it redirects to.

    `silent_since`: when the first of its failures in a row was; one that has never answered was always silent.
    `limits`: what it does not do, each by a name, as a sentence with the node's own words.
    """

    position: int  # in the configuration, from 1: its URL may hold a key and is never shown
    url: str = field(repr=False)
    barred: str = ""
    limits: dict[str, str] = field(default_factory=dict)
    _batch_size: int = BATCH_SIZE_MAX
    _smaller_until: float = 0.0
    _batch_words: str = ""
    _taken: int = 0
    _taken_until: float = 0.0
    height: int | None = None
    failures: int = 0
    rests_until: float = 0.0
    silent_since: float | None = -math.inf
    is_behind: bool = False
    doubted_until: float = 0.0
    _configured_url: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._configured_url = self.url

    def judged(self, network: str, problem: str) -> None:
        """Note who it says it is; `problem`: why it must not be asked on this network, empty where it may."""
        if problem and problem != self.barred:
            _LOG.error("node_refused", network=network, node=self.position, reason=problem)
        self.barred = problem

    def answered(self) -> None:
        """Note an answer that could be read."""
        if self.failures:
            _LOG.info("node_answers_again", node=self.position)
        self.failures, self.rests_until, self.silent_since = 0, 0.0, None

    def failed(self, now: float, reason: str) -> None:
        """It gave none, perhaps because it is no longer where it redirected to. `now`: event loop time."""
        if not self.failures:
            _LOG.warning("node_failed", node=self.position, reason=reason)
        self.rests_until = now + min(_REST_FIRST_SECONDS * 2**self.failures, _REST_MAX_SECONDS)
        self.failures = min(self.failures + 1, 16)
        if self.silent_since is None:
            self.silent_since = now
        self.url = self._configured_url

    def batch_size(self, now: float) -> int:
        """Return how many calls it takes in one batch, as far as was learned. `now`: event loop time."""
        if self._batch_size < BATCH_SIZE_MAX and now >= self._smaller_until:
            self._batch_size = min(2 * self._batch_size, BATCH_SIZE_MAX)
            self._smaller_until = now + _SMALLER_SECONDS
        return self._batch_size

    def answered_batch(self, now: float, count: int) -> None:
        """Keep the size of the largest batch that it answered of late. `now`: event loop time."""
        if count >= self._taken or now >= self._taken_until:
            self._taken, self._taken_until = count, now + _TAKEN_SECONDS

    def is_taken(self, now: float, count: int, words: str) -> bool:
        """Tell whether it refuses so many calls for another reason than their number: it took as many of late."""
        return count <= self._taken and now < self._taken_until and "batch" not in words.lower()

    def refused_batch(self, now: float, count: int, words: str) -> None:
        """Learn that it takes fewer than `count` calls in a batch: as many as it says, else half of them."""
        named = [int(text) for text in _NUMBER.findall(words)] if "batch" in words.lower() else []
        size = max((number for number in named if 1 < number < count), default=count - count // 2 if count > 2 else 1)
        self._batch_size, self._smaller_until = min(self._batch_size, size), now + _SMALLER_SECONDS
        self._batch_words = words

    def tell_batch_size(self) -> None:
        """Keep what was learned of its batches, once a batch of that size was answered."""
        size = self._batch_size
        self.limited("batch", f"takes {size} calls in a batch" if size > 1 else "takes no batches", self._batch_words)

    def limited(self, name: str, what: str, words: str) -> None:
        """Keep what it does not do, and tell the operator where that is news. `words`: the node's own."""
        sentence = f"node {self.position} {what}" + (f" ({words})" if words else "")
        if self.limits.get(name) != sentence:
            self.limits[name] = sentence
            _LOG.warning("node_limit_learned", node=self.position, limit=what, words=words)

    def moved(self, url: str) -> None:
        """Ask it at another URL until it fails there: it redirects to that."""
        self.url = url
        parts = urlsplit(url)
        self.limited("moved", f"redirects to {parts.scheme}://{parts.hostname}", "")

    def clean(self, words: str) -> str:
        """Return a node's own words, shortened and without what its URLs may hold of keys."""
        for secret in (*_secrets(self.url), *_secrets(self._configured_url)):
            words = words.replace(secret, "...")
        shown = "".join(one if one.isprintable() else " " for one in words)
        return " ".join(shown.split())[:_WORDS_MAX]

    def overruled(self, now: float) -> None:
        """Enough others showed alike what it did not. `now`: event loop time."""
        if now >= self.doubted_until:
            _LOG.error("node_overruled", node=self.position)
        self.doubted_until = now + _DOUBTED_SECONDS


class Nodes:
    """All nodes of a network."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.all = tuple(Node(position, url) for position, url in enumerate(urls, start=1))
        self.out_of_reach_seconds = OUT_OF_REACH_SECONDS

    @property
    def limits(self) -> list[str]:
        """Everything that was learned of what they do not do, for the operator."""
        return [sentence for node in self.all for sentence in node.limits.values()]

    def is_out_of_reach(self, node: Node, now: float) -> bool:
        """Say whether it has not answered for so long that nothing is to be expected of it."""
        return node.silent_since is not None and now - node.silent_since >= self.out_of_reach_seconds

    def missing(self, needed: int) -> int:
        """Return how many fewer answer than are needed."""
        return max(0, needed - sum(not node.barred and not node.failures for node in self.all))

    def well(self, now: float) -> list[Node]:
        """Return those that do not rest, in the order in which they are asked."""
        return [node for node in self.in_order(now) if now >= node.rests_until]

    def in_order(self, now: float) -> list[Node]:
        """Return those that may be asked, the best first."""
        usable = [node for node in self.all if not node.barred]
        return sorted(usable, key=lambda node: (now < node.rests_until, now < node.doubted_until, node.is_behind))

    def compare_heights(self) -> None:
        """Find out which nodes are behind, by the heights that were seen last."""
        heights = [node.height for node in self.all if node.height is not None and not node.barred]
        highest = max(heights, default=0)
        for node in self.all:
            was_behind, node.is_behind = (
                node.is_behind,
                node.height is not None and node.height < highest - LAG_BLOCKS_MAX,
            )
            if node.is_behind and not was_behind:
                _LOG.warning("node_behind", node=node.position, height=node.height, highest=highest)


def _secrets(url: str) -> list[str]:
    """Return the pieces of a URL that may be keys, the longest first."""
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    found = {b64encode(f"{user}:{password}".encode()).decode()} if user else set()
    values = [pair.partition("=")[2] or pair for pair in parts.query.split("&")]
    segments = [one for one in parts.path.split("/") if _PLAIN_WORDS.fullmatch(one) is None]
    pieces = [one for one in (user, password, *values, *segments) if len(one) >= _KEY_LENGTH_MIN]
    found.update(spelled for piece in pieces for spelled in (piece, unquote(piece)))
    return sorted(found, key=len, reverse=True)
