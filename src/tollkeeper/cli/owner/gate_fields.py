"""The fields of a PayGate as options of `paygate create` and `paygate update` (contract 3.1).

One table: a field's name on the wire, its option, and how its text is read. The gateway judges the values.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.json_types import JsonMapping


def _as_it_is(value: Any) -> Any:  # noqa: ANN401 - of the option's own type
    return value


def _accepts(lines: list[str]) -> list[dict[str, str]]:
    if lines == ["none"]:
        return []
    pairs = [line.partition("=") for line in lines]
    if not all(network and address for network, _, address in pairs):
        raise typer.BadParameter("--accept: write NETWORK=ADDRESS, or none")
    return [{"network": network, "paymentAddress": address} for network, _, address in pairs]


def _headers(lines: list[str]) -> dict[str, str]:
    if lines == ["none"]:
        return {}
    pairs = [line.partition(":") for line in lines]
    if not all(name.strip() and colon for name, colon, _ in pairs):
        raise typer.BadParameter("--target-header: write 'Name: value', or none")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _seconds(text: str) -> int | None:
    if text == "never":
        return None
    if not text.isdecimal():
        raise typer.BadParameter("--credits-expire-after: write a number of seconds, or never")
    return int(text)


@dataclass(frozen=True, slots=True)
class GateField:
    """One field. `kind` is the option's type; a `list` may be repeated."""

    wire: str
    option: str
    help: str
    kind: type = str
    read: Callable[[Any], Any] = _as_it_is
    is_updatable: bool = True

    @property
    def name(self) -> str:
        """Name of the command's parameter."""
        return f"field_{self.wire}"

    def parameter(self, *, is_required: bool) -> inspect.Parameter:
        """Return the parameter as typer reads it."""
        kind = list[str] if self.kind is list else self.kind
        annotation = Annotated[kind if is_required else kind | None, typer.Option(self.option, help=self.help)]  # type: ignore[valid-type]  # a type that the table names
        default = inspect.Parameter.empty if is_required else None
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


FIELDS: Final = (
    GateField("price", "--price", "USDC for one purchase, such as 0.50."),
    GateField("targetUrl", "--target", "The URL whose calls are sold."),
    GateField("credits", "--credits", "Calls or links for one purchase; 1 unless given.", int),
    GateField("method", "--method", "Methods that are sold, such as GET,POST; GET unless given."),
    GateField("title", "--title", "What buyers read."),
    GateField("description", "--description", "More of what buyers read."),
    GateField("slug", "--slug", "The link's own name; random unless given.", is_updatable=False),
    GateField("network", "--network", "Where it is paid; else the gateway's default network."),
    GateField("paymentAddress", "--payment-address", "Who is paid, unless the gate's owner is."),
    GateField("accepts", "--accept", "Another network as NETWORK=ADDRESS; may be repeated; none.", list, _accepts),
    GateField("requireAuth", "--require-auth/--no-require-auth", "Callers must be logged in, too.", bool),
    GateField("assumeValid", "--assume-valid/--no-assume-valid", "Serve before the chain confirms.", bool),
    GateField("creditBinding", "--credit-binding", "What a later call shows: payment, token or wallet."),
    GateField("payerProof", "--payer-proof/--no-payer-proof", "Version 1 payments spend held credits.", bool),
    GateField("creditsExpireAfter", "--credits-expire-after", "Seconds; never.", str, _seconds),
    GateField("onFailure", "--on-failure", "The credit of a call whose target fails: consume or restore."),
    GateField("mimeType", "--mime-type", "The type of what is sold, as the 402 names it."),
    GateField("headerAuthMode", "--header-auth-mode", "none; hmac signs what the target gets."),
    GateField(
        "targetHeaders", "--target-header", "Sent to the target: 'Name: value'; may be repeated; none.", list, _headers
    ),
    GateField("allowSubpaths", "--allow-subpaths/--no-allow-subpaths", "Sell what is below the target, too.", bool),
    GateField("stream", "--stream/--no-stream", "Pass answers on as they come.", bool),
    GateField("isEnabled", "--enabled/--disabled", "Disabled: nothing is sold, held credits are served.", bool),
)


def with_gate_fields(
    *, is_update: bool, leave_out: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every field; it gets those that were typed as `fields`, as the API takes them."""
    table = [field for field in FIELDS if field.wire not in leave_out and (field.is_updatable or not is_update)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)

        def run(**values: Any) -> None:  # noqa: ANN401 - of each option's own type
            fields = {one.wire: one.read(value) for one in table if (value := values.pop(one.name)) not in (None, [])}
            command(**values, fields=fields)

        parameters = [one for one in own.parameters.values() if one.name != "fields"]
        parameters += [one.parameter(is_required=one.wire == "price" and not is_update) for one in table]
        run.__doc__, run.__name__ = command.__doc__, command.__name__
        annotations: JsonMapping = {one.name: one.annotation for one in parameters}
        run.__annotations__ = dict(annotations)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # where inspect looks for it
        return run

    return decorate
