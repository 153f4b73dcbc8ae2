"""Hands stored transactions to the nodes, in tasks that no caller's leaving ends (contract 5.2; security F15)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tollkeeper.chains.sightings import Submission

if TYPE_CHECKING:
    from tollkeeper.hub.membership import Membership
    from tollkeeper.hub.settlement.account import SettlingAccount
    from tollkeeper.hub.settlement.family import Outgoing
    from tollkeeper.storage.hub.transactions import RawTransaction

_LOG = structlog.get_logger("tollkeeper.hub")


class Sender:
    """Sender of one process."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._sending: set[asyncio.Task[Submission]] = set()

    def send(self, account: SettlingAccount, outgoing: Outgoing) -> asyncio.Future[Submission]:
        """Begin to send, once for all settlements of the transaction; the result is the node's answer."""
        if outgoing.sent is None:
            task = asyncio.get_running_loop().create_task(self._send(account, outgoing.raw))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
            outgoing.sent = task
        return outgoing.sent

    async def _send(self, account: SettlingAccount, raw: RawTransaction) -> Submission:
        if not self._membership.is_current():
            _LOG.error("not_sent_by_a_process_whose_lease_ended", transaction=raw.hash)
            return Submission.UNCLEAR
        return await account.chain.submit(raw.raw, raw.hash)
