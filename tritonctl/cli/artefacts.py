# SPDX-License-Identifier: Apache-2.0
"""`tritonctl artefacts`: list, inspect, compare, verify and remove what was built."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options
from tritonctl.cli.confirmation import confirm
from tritonctl.errors import RepositoryError, UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.engines.artefacts.differences import Difference
    from tritonctl.engines.artefacts.pruning import Pruning
    from tritonctl.engines.artefacts.store import Stored
    from tritonctl.engines.artefacts.usage import Use
    from tritonctl.project.schema import Project

app = typer.Typer(no_args_is_help=True, help="List, inspect, compare, verify and remove engines.")

Address = Annotated[
    str, typer.Argument(help="a model, the beginning of a fingerprint, or MODEL/BEGINNING")
]


@app.command("list")
@options.expand_options
def list_(
    *,
    project: options.ProjectOption = None,
    voice: options.OutputOptions,
) -> None:
    """List every artefact of the project and who needs it."""
    from tritonctl.engines.artefacts.store import stored_artefacts
    from tritonctl.engines.artefacts.usage import usage
    from tritonctl.host.units import human_bytes, human_seconds
    from tritonctl.project.file import load_profiles

    console = voice.console()
    profiles = load_profiles(project)
    artefacts = stored_artefacts(profiles[None])
    uses = usage(profiles, artefacts)
    rows = [
        [
            stored.model,
            stored.folder.name,
            _engine(stored),
            human_bytes(stored.size) if stored.record else "?",
            human_seconds(time.time() - stored.made) if stored.made else "?",
            stored.problem or _reasons(uses[stored.folder]),
        ]
        for stored in artefacts
    ]
    records = [_record(stored, uses[stored.folder]) for stored in artefacts]
    headings = ("model", "artefact", "engine", "size", "age", "in use")
    console.table({"artefacts": records}, headings, rows)


def _engine(stored: Stored) -> str:
    """Builder, precision and stage, as far as they are known."""
    record = stored.record
    words = (record.builder, stored.precision, record.stage) if record else ()
    return " ".join(word for word in words if word) or "?"


def _reasons(use: Use) -> str:
    """Why an artefact is in use."""
    names = [name or "no profile" for name in use.profiles]
    reasons = [f"needed ({', '.join(names)})"] if names else []
    reasons += [f"linked ({repository.name})" for repository in use.repositories]
    reasons += [f"source of {name.rpartition('/')[2]}" for name in use.source_of]
    reasons += [f"unknown: {why}" for why in use.undecided]
    return ", ".join(reasons) or "no"


def _record(stored: Stored, use: Use) -> dict[str, Any]:
    record = stored.record
    return {
        "model": stored.model,
        "artefact": stored.name,
        "folder": str(stored.folder),
        "fingerprint": record.fingerprint if record else None,
        "builder": record.builder if record else None,
        "precision": stored.precision,
        "stage": record.stage if record else None,
        "source": record.source if record else None,
        "bytes": stored.size,
        "made": stored.made or None,
        "problem": stored.problem,
        "in_use": use.needed,
        "profiles": use.profiles,
        "repositories": [str(repository) for repository in use.repositories],
        "source_of": use.source_of,
        "undecided": use.undecided,
    }


def _stored(project: options.ProjectOption) -> list[Stored]:
    from tritonctl.engines.artefacts.store import stored_artefacts
    from tritonctl.project.file import load_profiles

    return stored_artefacts(load_profiles(project)[None])


@app.command()
@options.expand_options
def show(
    *,
    artefact: Address,
    project: options.ProjectOption = None,
    voice: options.OutputOptions,
) -> None:
    """Show an artefact's manifest."""
    from tritonctl.engines.artefacts.differences import fields
    from tritonctl.engines.artefacts.store import find_artefact

    console = voice.console()
    stored = find_artefact(_stored(project), artefact)
    rows = [["folder", str(stored.folder)]]
    rows += [[field, _value(value)] for field, value in fields(stored)]
    console.table(stored.manifest(), ("artefact", stored.name), rows)


@app.command()
@options.expand_options
def diff(
    *,
    left: Address,
    right: Address,
    project: options.ProjectOption = None,
    voice: options.OutputOptions,
) -> None:
    """Show in which fields two artefacts differ: request, limits, versions, evaluation, files."""
    from tritonctl.engines.artefacts.differences import differences, explanation
    from tritonctl.engines.artefacts.store import find_artefact

    console = voice.console()
    artefacts = _stored(project)
    one, other = find_artefact(artefacts, left), find_artefact(artefacts, right)
    changes = differences(one, other)
    why = explanation(one, other, changes)
    record = {
        "left": one.name,
        "right": other.name,
        "differences": [asdict(d) | {"change": d.change} for d in changes],
        "explanation": why,
    }
    if not changes:
        console.result(record, why or f"{one.name} and {other.name} do not differ")
        return
    rows = [[d.field, _value(d.left), _value(d.right), _remark(d)] for d in changes]
    console.table(record, ("field", one.name, other.name, ""), rows)
    if why:
        console.note(why)


def _value(value: object) -> str:
    """A value as JSON, a string without quotes."""
    import json

    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _remark(difference: Difference) -> str:
    if difference.place:
        return "a path only"
    return "" if difference.change is None else f"{difference.change:+.6g}"


@app.command()
@options.expand_options
def verify(
    *,
    artefacts: Annotated[
        list[str] | None,
        typer.Argument(help="models or beginnings of fingerprints", show_default="all"),
    ] = None,
    project: options.ProjectOption = None,
    voice: options.OutputOptions,
) -> None:
    """Compare every file with its manifest; exit code 6 unless all are as they were built."""
    from tritonctl.engines.artefacts.store import find_artefact, verify_artefact

    console = voice.console()
    stored = _stored(project)
    chosen = [find_artefact(stored, address) for address in artefacts or ()] or stored
    findings = {artefact.name: verify_artefact(artefact, console) for artefact in chosen}
    lines = []
    for name, damages in findings.items():
        lines.append(f"{name}: {'DAMAGED' if damages else 'whole'}")
        lines += [f"  {damage.kind:<10} {damage.path}: {damage.detail}" for damage in damages]
    records = {name: [asdict(damage) for damage in damages] for name, damages in findings.items()}
    damaged = [artefact for artefact in chosen if findings[artefact.name]]
    failure = None
    if damaged:
        models = sorted({artefact.model for artefact in damaged})
        failure = RepositoryError(
            f"damaged: {', '.join(artefact.name for artefact in damaged)}",
            remedy=f"build them again: tritonctl build --force {' '.join(models)}",
        )
    console.result({"artefacts": records}, "\n".join(lines) or "no artefacts", failure)
    if failure:
        raise failure


@app.command()
@options.expand_options
def prune(
    *,
    keep: Annotated[
        int, typer.Option(min=0, help="also keep the N newest unneeded artefacts of each model")
    ] = 0,
    sources: Annotated[
        bool,
        typer.Option("--sources", help="also remove the stages that kept engines were built from"),
    ] = False,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared", help="of the folder `engines:` instead: what no project has hard links to"
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only list what would be removed")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    project: options.ProjectOption = None,
    voice: options.OutputOptions,
) -> None:
    """Remove artefacts that no profile of the project and no repository needs."""
    from tritonctl.engines.artefacts.pruning import plan_pruning
    from tritonctl.engines.artefacts.pruning import prune as prune_artefacts
    from tritonctl.project.file import load_profiles

    console = voice.console()
    profiles = load_profiles(project)
    if shared:
        _prune_shared(console, profiles[None], dry_run=dry_run, yes=yes)
        return
    planned = plan_pruning(profiles, keep=keep, sources=sources)
    for model in planned.being_built:
        console.warning(f"{model} is being built: its artefacts stay")
    if dry_run or not planned.folders:
        console.result(_pruned(planned, dry_run=dry_run), _summary(planned, "would remove"))
        return
    if not yes:
        confirm(console, _summary(planned, "to remove:"))
    done = prune_artefacts(profiles, planned.folders, console, keep=keep, sources=sources)
    console.result(_pruned(done, dry_run=False), _summary(done, "removed"))


def _prune_shared(console: Console, project: Project, *, dry_run: bool, yes: bool) -> None:
    """Remove what no project uses from the folder that several share."""
    from tritonctl.engines.build.shared_store import remove_unused, unused

    if project.engines is None:
        raise UsageError(
            "this project shares no engines: it has no `engines:`",
            remedy="leave `--shared` away, or write `engines: FOLDER` in the project file",
        )
    folder = project.path(project.engines)
    chosen = unused(folder)
    if chosen and not dry_run:
        if not yes:
            confirm(console, "\n".join(f"to remove: {path}" for path in chosen))
        chosen = remove_unused(folder, chosen, console)
    verb = "would remove" if dry_run else "removed"
    record = {"dry_run": dry_run, "removed": [str(path) for path in chosen]}
    lines = "\n".join(f"{verb} {path}" for path in chosen)
    console.result(record, lines or "nothing to remove")


def _pruned(pruning: Pruning, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "removed": [stored.name for stored in pruning.artefacts],
        "leftovers": [str(folder) for folder in pruning.leftovers],
        "kept": [stored.name for stored in pruning.kept],
        "being_built": list(pruning.being_built),
        "bytes": pruning.freed,
    }


def _summary(pruning: Pruning, verb: str) -> str:
    from tritonctl.host.units import human_bytes

    if not pruning.folders:
        return "nothing to remove"
    lines = [f"{verb} {stored.name} ({stored.precision or '?'})" for stored in pruning.artefacts]
    lines += [f"{verb} {folder} (left by a killed command)" for folder in pruning.leftovers]
    return "\n".join([*lines, f"{human_bytes(pruning.freed)} in {len(pruning.folders)} folders"])
