"""`tollkeeper doctor`: what is wrong with an installation or a gate, and what to do about it."""
# ruff: noqa: PLC0415 - a command imports what it runs, so that the others start at once

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tollkeeper.cli.options import Config, ForRole, check_url
from tollkeeper.cli.output import EXIT_FAILED, say, tell
from tollkeeper.cli.owner.at_gateway import AsJson, OwnerKey, at_gateway, show_json
from tollkeeper.settings.model import Role

if TYPE_CHECKING:
    from tollkeeper.client.gateway_account import GatewayAccount
    from tollkeeper.serving.config.findings import Findings

_TARGET: Final = "see that it answers from where the gateway runs; `tollkeeper paygate update --target` names another"


def doctor_command(
    link: Annotated[str | None, typer.Argument(metavar="[URL]", help="A gate's link: it is looked at, too.")] = None,
    *,
    config: Config = None,
    role: ForRole = Role.SERVE,
    key_file: OwnerKey = None,
    as_json: AsJson = False,
) -> None:
    """Look at settings, keys, database, disk, nodes, accounts, clock, public URL, proxy and a gate, and say what to do.

    Exits with 1 where something is wrong. It changes nothing.

    Example: tollkeeper doctor --config /etc/tollkeeper/tollkeeper.toml
    """
    import io

    from tollkeeper.core.configuration import LogFormat, LogLevel
    from tollkeeper.logs import configure_logs
    from tollkeeper.serving.doctor.examination import examine

    if link is not None:
        check_url("the link", link)
    configure_logs(LogLevel.ERROR, LogFormat.TEXT, io.StringIO())  # what asking makes logged is told as findings
    found = examine(role, config)
    if link is not None:
        gateway = link.rstrip("/").rpartition("/")[0]
        at_gateway(gateway, key_file, lambda account: _examine_gate(account, link, found))
    _show(found, as_json=as_json)
    sys.exit(EXIT_FAILED if found.errors else 0)


async def _examine_gate(account: GatewayAccount, link: str, found: Findings) -> None:
    """Look at a gate as a buyer sees it, and let the gateway ask its target."""
    from tollkeeper.client.gateway_account import offered_price, target_answer
    from tollkeeper.client.requests import RefusedError

    try:
        found.good.append(f"{link}: {await offered_price(link)}")
    except RefusedError as error:
        found.fail(link, str(error), "see `tollkeeper paygate show`")
        return
    try:
        answer = await target_answer(account, link)
    except RefusedError as error:
        if error.code == "CONFLICT":  # a file's
            return
        if not error.code.startswith("UPSTREAM_"):
            found.unchecked.append(f"does the target of {link} answer ({error})")
            return
        found.fail(link, f"its target does not answer: {error}", _TARGET)
        return
    told = f"its target answers {answer['status']}"
    if answer["status"] < HTTPStatus.BAD_REQUEST:
        found.good.append(f"{link}: {told} in {answer['durationUs'] / 1000:.0f} ms")
    else:
        found.fail(link, f"{told}: buyers pay for that", _TARGET)


def _show(found: Findings, *, as_json: bool) -> None:
    if as_json:
        show_json(
            {
                "ok": not found.errors,
                **{
                    kind: [{"name": one.name, "problem": one.problem, "remedy": one.remedy} for one in problems]
                    for kind, problems in (("errors", found.errors), ("warnings", found.warnings))
                },
                "good": found.good,
                "notChecked": found.unchecked,
            }
        )
        return
    for fact in found.good:
        tell(f"good: {fact}")
    for finding in found.warnings:
        say(f"warning: {finding}", typer.colors.YELLOW, sys.stdout)
    for finding in found.errors:
        say(f"error: {finding}", typer.colors.RED, sys.stdout)
    for question in found.unchecked:
        tell(f"not checked: {question}")
