"""The pages that make, change and end PayGates; each is one operation of the management."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.api.errors import ApiError, Code, missing
from tollkeeper.core.networks import NETWORKS
from tollkeeper.gateway.management.idempotency import key_among
from tollkeeper.web.gate_form import (
    METHOD_NAMES,
    create_body,
    fresh_values,
    target_body,
    update_body,
    values_of,
    values_sent,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.json_types import JsonMapping, JsonObject
    from tollkeeper.core.paygates.model import PayGate
    from tollkeeper.gateway.management.paygates import Management
    from tollkeeper.gateway.management.statistics import Reports
    from tollkeeper.gateway.management.uploads import Form, Uploads
    from tollkeeper.web.dashboard.visit import PageAnswer, Visit

_KINDS: Final = ("url", "file")


@dataclass(slots=True)
class _Sent:
    """A gate's form as far as it was read."""

    fields: JsonObject


@dataclass(frozen=True, slots=True)
class GateEditing:
    """The pages."""

    management: Management
    uploads: Uploads
    reports: Reports

    async def new(self, visit: Visit) -> PageAnswer:
        """Show the form of a new PayGate."""
        return self._new(visit, _kind(visit), fresh_values(visit.place.default_network))

    def _new(self, visit: Visit, kind: str, values: JsonObject, error: ApiError | None = None) -> PageAnswer:
        return self._form(
            visit,
            values,
            error,
            kind=kind,
            gate=None,
            action=f"/app/paygates/new?kind={kind}",
            once=os.urandom(16).hex(),
        )

    def _form(self, visit: Visit, values: JsonObject, error: ApiError | None, **more: object) -> PageAnswer:
        return visit.page(
            "gate_form.html",
            status=200 if error is None else error.status,
            values=values,
            error=None if error is None else _told(error),
            network_choices=_networks(visit, str(values["network"])),
            methods=METHOD_NAMES,
            **more,
        )

    async def create(self, visit: Visit) -> PageAnswer:
        """Make the PayGate of a form, or show the form again with what is wrong."""
        kind, sent = _kind(visit), _Sent({})
        caller, _ = await self.management.may_send_form(visit.bearer, None)

        def check(fields: JsonObject) -> None:
            body = create_body(_taken(visit, sent, fields), is_file=True)
            self.management.check_before_file(body, gate=None)

        try:
            form = await self._read(visit, sent, check)
            body = create_body(sent.fields, is_file=kind == "file")
            if kind == "file" and form.file is None:
                raise missing("file")
            key = key_among([str(sent.fields.get("once", ""))])
            async with self.uploads.kept_if_sold(form.file):
                made = await self.management.create(caller, body, form.file, key=key)
        except ApiError as error:
            if error.code in {Code.FORBIDDEN, Code.AUTH_REQUIRED}:
                raise
            return self._new(visit, kind, values_sent(sent.fields, fresh_values(visit.place.default_network)), error)
        return visit.page("gate_saved.html", gate=made, verb="created")

    async def edit(self, visit: Visit, gate_id: int) -> PageAnswer:
        """Show the form of a PayGate. Raises: NOT_FOUND, FORBIDDEN."""
        gate = await self.management.read(visit.bearer, gate_id)
        return self._edit(visit, gate, values_of(gate))

    def _edit(self, visit: Visit, gate: JsonMapping, values: JsonObject, error: ApiError | None = None) -> PageAnswer:
        action = f"/app/paygates/{gate['id']}/edit"
        return self._form(visit, values, error, kind=gate["resourceType"], gate=gate, action=action, once="")

    async def update(self, visit: Visit, gate_id: int) -> PageAnswer:
        """Change a PayGate as its form says. Raises: NOT_FOUND, FORBIDDEN."""
        gate, sent = await self.management.read(visit.bearer, gate_id), _Sent({})
        caller, stored = await self.management.may_send_form(visit.bearer, gate_id)

        def check(fields: JsonObject) -> None:
            self._check_file(gate, _taken(visit, sent, fields), stored)

        try:
            form = await self._read(visit, sent, check)
            body = update_body(sent.fields, gate)
            if not body and form.file is None:
                return visit.page("gate_saved.html", gate=gate, verb="as it was")
            async with self.uploads.kept_if_sold(form.file):
                if form.file is not None:
                    body["resourceType"] = "file"
                changed = await self.management.update(caller, gate_id, body, form.file)
        except ApiError as error:
            if error.code in {Code.FORBIDDEN, Code.AUTH_REQUIRED}:
                raise
            return self._edit(visit, gate, values_sent(sent.fields, values_of(gate)), error)
        return visit.page("gate_saved.html", gate=changed, verb="saved")

    def _check_file(self, gate: JsonMapping, fields: JsonObject, stored: PayGate | None) -> None:
        if gate["resourceType"] == "file":
            self.management.check_before_file(update_body(fields, gate), gate=stored)

    async def _read(self, visit: Visit, sent: _Sent, check: Callable[[JsonObject], None]) -> Form:
        """Read the form; nothing of a file is stored before `check` agrees. Raises: ApiError."""
        form = await self.uploads.read(visit.headers, visit.chunks(), check)
        _taken(visit, sent, form.fields)
        return form

    async def test(self, visit: Visit) -> PageAnswer:
        """Ask the target that a form names once. Raises: INVALID_PARAMETER."""
        form = await self.uploads.read(visit.headers, visit.chunks(), _no_file)
        visit.check_csrf(form.fields)
        gate_id = int(form.fields["gate"]) if str(form.fields.get("gate", "")).isdigit() else None
        try:
            answer = await self.management.test_target(visit.bearer, target_body(form.fields), gate_id)
        except ApiError as error:
            return visit.page("target_tested.html", answer=None, error=_told(error))
        return visit.page("target_tested.html", answer=answer, error=None)

    async def set_enabled(self, visit: Visit, gate_id: int) -> PageAnswer:
        """Sell, or sell no more. Raises: NOT_FOUND, FORBIDDEN."""
        fields = await visit.form()
        caller = await self.management.ownership.caller(visit.bearer)
        await self.management.update(caller, gate_id, {"isEnabled": fields.get("isEnabled") == "true"})
        return visit.go(f"/paygates/{gate_id}")

    async def replace_secret(self, visit: Visit, gate_id: int) -> PageAnswer:
        """Make a new secret, and show it once. Raises: NOT_FOUND, FORBIDDEN, CONFLICT."""
        await visit.form()
        secret = await self.management.replace_secret(visit.bearer, gate_id)
        gate = await self.management.read(visit.bearer, gate_id)
        return visit.page(
            "gate_saved.html", gate={**gate, "secret": secret.secret, "keyId": secret.key_id}, verb="has a new secret"
        )

    async def claim(self, visit: Visit, gate_id: int) -> PageAnswer:
        """Take over a PayGate that nobody owns. Raises: NOT_FOUND, FORBIDDEN, CONFLICT."""
        await visit.form()
        await self.management.claim(visit.bearer, gate_id, None)
        return visit.go(f"/paygates/{gate_id}")

    async def ask_delete(self, visit: Visit, gate_id: int) -> PageAnswer:
        """Ask before a PayGate is deleted, and say what that voids. Raises: NOT_FOUND, FORBIDDEN."""
        gate = await self.management.read(visit.bearer, gate_id)
        owed = (await self.reports.of_gate(visit.bearer, gate_id, {}))["outstanding"]
        return visit.page("gate_delete.html", gate=gate, owed=owed)

    async def delete(self, visit: Visit, gate_id: int) -> PageAnswer:
        """End a PayGate. Raises: NOT_FOUND, FORBIDDEN."""
        await visit.form()
        done = await self.management.delete(visit.bearer, gate_id)
        return visit.go("/paygates", voided=str(done.outstanding_credits))


def _networks(visit: Visit, current: str) -> list[tuple[str, str]]:
    """Return the networks that can be chosen: those that are enabled, and the one that the PayGate has."""
    names = {one.name for one in visit.place.networks} | ({current} if current else set())
    return [(name, NETWORKS[name].label) for name in sorted(names)]


def _kind(visit: Visit) -> str:
    kind = visit.query.get("kind", "url")
    return kind if kind in _KINDS else "url"


def _taken(visit: Visit, sent: _Sent, fields: JsonObject) -> JsonObject:
    """Note the fields that came, for a form that is shown again. Raises: FORBIDDEN."""
    visit.check_csrf(fields)
    sent.fields = fields
    return fields


def _no_file(_fields: JsonObject) -> None:
    """Take no file: a browser sends an empty one with the form."""


def _told(error: ApiError) -> dict[str, str]:
    message = error.message[:1].upper() + error.message[1:]
    return {"message": message + ".", "field": str((error.details or {}).get("field", "")), "code": error.code.value}
