"""A process from its settings: compose, listen, serve until a signal, drain, close (contract 1, security F21)."""

from __future__ import annotations

import gc
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from tollkeeper.logs import configure_logs
from tollkeeper.serving.config.exposure import exposures
from tollkeeper.serving.http.server import HttpServer, listen, run, until_signalled
from tollkeeper.serving.process.imports import collect_rarely
from tollkeeper.serving.process.machine import machine_findings, set_up_heap, use_all_descriptors
from tollkeeper.serving.process.workers import WorkerPlace, Workers, place_of_worker
from tollkeeper.serving.reloading import Reloading
from tollkeeper.settings.model import Role
from tollkeeper.settings.sources import wants_colours

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tollkeeper.settings.model import Settings

_LOG = structlog.get_logger("tollkeeper.serving")


def serve(settings: Settings, read: Callable[[], Settings]) -> None:
    """Run the parts that the settings name until a signal. `read` reads them anew. Raises: StartError, StorageError."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to be reloaded
    use_all_descriptors()
    set_up_heap()
    configure_logs(settings.log_level, settings.log_format, colours=wants_colours(sys.stderr))
    place = place_of_worker()
    if place is None:
        for finding in (*exposures(settings), *machine_findings(settings.role)):
            _LOG.warning("setting_unwise", setting=finding.name, problem=finding.problem, remedy=finding.remedy)
        if settings.workers > 1:
            _serve_by_workers(settings)
            return
    else:
        settings = _of_worker(settings, place)
    reloading = Reloading(settings, read)
    run(until_signalled(lambda stop: serve_until(settings, stop, reloading, place), reloading.reload))


def _serve_by_workers(settings: Settings) -> None:
    """Have several processes serve until a signal. Raises: StartError."""
    with listen(settings.host, settings.port) as listening:
        workers = Workers(settings.workers, listening)
        run(until_signalled(workers.keep, lambda: workers.signal(signal.SIGHUP)))
    _LOG.info("stopped")


def _of_worker(settings: Settings, place: WorkerPlace) -> Settings:
    """The settings with an address of its own for metrics: the first worker has the one that is set, others follow."""
    if settings.metrics_address is None or not settings.metrics_address[1]:
        return settings
    host, port = settings.metrics_address
    return replace(settings, metrics_address=(host, port + place.number))


def _tell_of_dashboard(settings: Settings) -> None:
    if settings.app_url is None:
        _LOG.info("no_dashboard", reason="app_url is not set", remedy="give it a host name of its own")
    else:
        _LOG.info("dashboard", url=settings.app_url + "/app")


async def serve_until(settings: Settings, stop: asyncio.Event, reloading: Reloading, place: WorkerPlace | None) -> None:
    """Serve until `stop` is set, finish the accepted requests, close. Raises: ListenError, StorageError."""
    # Listening comes first: a port that is taken must not cost a start of everything, and early callers wait in line.
    listening = listen(settings.host, settings.port) if place is None else place.listening
    gc.disable()  # what a start makes stays: rounds would find nothing, for a twentieth of its time
    from tollkeeper.serving.composition import compose  # noqa: PLC0415 - most of the start's time, behind listening

    try:
        async with compose(settings, reloading=reloading) as app:
            drain_seconds = settings.shutdown_timeout_seconds
            async with HttpServer(app, listening, drain_seconds=drain_seconds, patience=settings.patience) as server:
                leave_to_the_collector_what_comes()
                _LOG.info("serving", role=settings.role.value, url=server.url, public_url=settings.public_url.text)
                if settings.role is not Role.HUB:
                    _tell_of_dashboard(settings)
                await stop.wait()
    finally:
        gc.enable()
        listening.close()
    _LOG.info("stopped")


def leave_to_the_collector_what_comes() -> None:
    """Take what the start made out of the collector's rounds: it lives as long as the process.

    A full round would walk all of it, 30 ms in which every caller waits. A last one here would cost a start as much,
    and find some thirty objects.
    """
    gc.freeze()
    gc.enable()
    collect_rarely()
