"""Type errors as diagnostics: of a script that failed, or before one is started."""

from __future__ import annotations

from typing import Final

from cellblock.catalog.model import Catalog
from cellblock.catalog.modules import SERVERS_PREFIX
from cellblock.config import CellblockSettings, TypecheckMode
from cellblock.execution.plan import Plan
from cellblock.execution.request import RunRequest
from cellblock.execution.response import Diagnostic, RunResponse, Severity
from cellblock.execution.source import SCRIPT_NAME
from cellblock.typecheck.checker import Checked, TypeChecker
from cellblock.typecheck.compiler import FIX

OF_THE_SCRIPT: Final = frozenset({"UNCAUGHT_EXCEPTION", "IMPORT_FAILURE"})
"""Failures that a type error may be behind; of a limit, or a host that is gone, the types say nothing."""


class TypeErrors:
    """What the executor asks.

    Args:
        settings: The mode, and the bound of a check.
        checker: None where type checking is switched off.
    """

    def __init__(self, settings: CellblockSettings, checker: TypeChecker | None) -> None:
        self._default: TypecheckMode = settings.typecheck
        self._explicit = "typecheck" in settings.model_fields_set
        self._bound_seconds = settings.typecheck_timeout_ms / 1000
        self._checker = checker

    def mode(self, request: RunRequest) -> TypecheckMode:
        """When this request's script is checked."""
        return request.typecheck or self._default

    async def before(self, plan: Plan, catalog: Catalog) -> tuple[list[Diagnostic], list[Diagnostic]]:
        """The errors that refuse a script, and the notices that belong to its response in any case.

        A script that cannot be checked is not refused: the notice says that it was not.
        """
        checked = await self._check(plan, catalog, wait_for_start=True)
        if checked.gave_up is not None:
            return [], [self._notice(checked.gave_up)]
        errors = _diagnostics(checked, "error")
        if errors:
            said = f"{errors[0].message} The script was not started, and no tool was called."
            errors[0] = errors[0].model_copy(update={"message": said})
        return errors, []

    async def after(
        self, response: RunResponse, request: RunRequest, plan: Plan, catalog: Catalog
    ) -> RunResponse:
        """The response, with the type errors of a script that failed."""
        if not any(found.code in OF_THE_SCRIPT for found in response.diagnostics):
            return response
        asked = request.typecheck is not None or self._explicit
        if self._checker is None and not asked:
            return response
        checked = await self._check(plan, catalog, wait_for_start=False)
        if checked.gave_up is None:
            # The engine has told a missing export already, at the same place.
            told = {found.path for found in response.diagnostics if found.code == "IMPORT_FAILURE"}
            found = [fault for fault in _diagnostics(checked, "warning") if fault.path not in told]
        else:
            # Who did not ask for a check is not told that there was none: `cellblock doctor` does that.
            found = [self._notice(checked.gave_up)] if asked else []
        if not found:
            return response
        return response.model_copy(update={"diagnostics": [*response.diagnostics, *found]})

    async def _check(self, plan: Plan, catalog: Catalog, *, wait_for_start: bool) -> Checked:
        if self._checker is None:
            return Checked(gave_up="type checking is switched off")
        script = plan.script
        imports = {found.specifier for found in script.static} | set(script.dynamic)
        if script.computed:
            imports |= {SERVERS_PREFIX + server_id for server_id in catalog.servers}
        return await self._checker.check(
            plan.code,
            typescript=script.typescript,
            catalog=catalog,
            imports=imports,
            bound_seconds=self._bound_seconds,
            wait_for_start=wait_for_start,
        )

    def _notice(self, why: str) -> Diagnostic:
        if self._checker is None:
            hint = "Set cellblock.typecheck to after or before in the configuration."
        elif self._checker.unavailable is not None:
            hint = FIX
        else:
            hint = "Read the script against the declarations of its tools."
        message = f"The script was not type-checked: {why}."
        return Diagnostic(severity="info", code="TYPECHECK_UNAVAILABLE", message=message, hint=hint)


def _diagnostics(checked: Checked, severity: Severity) -> list[Diagnostic]:
    return [
        Diagnostic(
            severity=severity,
            code="TYPE_ERROR",
            message=fault.message,
            hint=fault.hint,
            path=f"{SCRIPT_NAME}:{fault.line}:{fault.column}",
        )
        for fault in checked.faults
    ]
