# SPDX-License-Identifier: Apache-2.0
"""The verbs that `tritonctl artefacts` and `tritonctl releases` share: diff, verify, prune."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli.confirmation import confirm
from tritonctl.errors import RepositoryError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tritonctl.cli.console.output import Console
    from tritonctl.store.differences import FieldDifference
    from tritonctl.store.entries import EntryT, StoredEntry
    from tritonctl.store.pruning import PruningPlan

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="show what would be done, change nothing")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]


def diff(
    console: Console,
    left: EntryT,
    right: EntryT,
    differences: Sequence[FieldDifference],
    fields: Mapping[str, Any],
    note: str | None,
) -> None:
    """Print the differences of two entries; `fields` are further fields of the JSON object."""
    record = {
        "old": left.name,
        "new": right.name,
        "differences": [asdict(each) | {"change": each.change} for each in differences],
        **fields,
    }
    if not differences:
        console.result(record, note or f"{left.name} and {right.name} do not differ")
        return
    rows = [
        [each.label, format_value(each.old), format_value(each.new), each.remark]
        for each in differences
    ]
    console.table(record, ("field", left.name, right.name, ""), rows)
    if note:
        console.note(note)


def format_value(value: object) -> str:
    """Format a value as JSON, a string without quotes."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def verify(console: Console, kind: type[StoredEntry[Any]], entries: Sequence[EntryT]) -> None:
    """Verify entries and print the findings. Raises RepositoryError if one is damaged."""
    from tritonctl.store.entries import verify as verify_entry

    findings = {entry.name: verify_entry(entry, console) for entry in entries}
    lines = []
    for name, damages in findings.items():
        lines.append(f"{name}: {'DAMAGED' if damages else 'intact'}")
        lines += [f"  {damage.kind:<10} {damage.path}: {damage.detail}" for damage in damages]
    records = {name: [asdict(damage) for damage in damages] for name, damages in findings.items()}
    failure = None
    if damaged := [entry for entry in entries if findings[entry.name]]:
        failure = RepositoryError(
            f"damaged: {', '.join(entry.name for entry in damaged)}",
            remedy="; ".join(dict.fromkeys(entry.repair for entry in damaged)),
        )
    plural = f"{kind.noun}s"
    console.result({plural: records}, "\n".join(lines) or f"no {plural}", failure)
    if failure:
        raise failure


def prune(
    console: Console,
    planned: PruningPlan[EntryT],
    remove: Callable[[], PruningPlan[EntryT]],
    *,
    dry_run: bool,
    yes: bool,
    staying: str,
) -> None:
    """Print what is planned, or ask, remove it, and print what was removed.

    staying: why the retained entries stay.
    """
    if planned.folders and not dry_run:
        if not yes:
            confirm(console, _summary(planned, "to remove:", staying))
        planned = remove()
    record = {
        "dry_run": dry_run,
        "removed": [entry.name for entry in planned.removed],
        "leftovers": [str(folder) for folder in planned.leftovers],
        "retained": [entry.name for entry in planned.retained],
        "being_built": list(planned.busy_models),
        "freed_bytes": planned.freed_bytes,
    }
    console.result(record, _summary(planned, "would remove" if dry_run else "removed", staying))


def _summary(planned: PruningPlan[EntryT], verb: str, staying: str) -> str:
    from tritonctl.host.units import human_bytes

    if not planned.folders:
        retained = ", ".join(entry.name for entry in planned.retained)
        return f"nothing to remove{f': {retained} stay ({staying})' if retained else ''}"
    lines = [f"{verb} {entry.label}" for entry in planned.removed]
    lines += [f"{verb} {folder} (left by a killed command)" for folder in planned.leftovers]
    size = human_bytes(planned.freed_bytes)
    return "\n".join([*lines, f"{size} in {len(planned.folders)} folders"])
