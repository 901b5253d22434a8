# SPDX-License-Identifier: Apache-2.0
"""`tritonctl artefacts`: list, inspect, compare, verify and remove built engines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options, store_verbs
from tritonctl.cli.confirmation import confirm
from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.engines.artefacts.store import StoredArtefact
    from tritonctl.engines.artefacts.usage import ArtefactUse
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
    output_options: options.OutputOptions,
) -> None:
    """List every artefact of the project and its users."""
    from tritonctl.engines.artefacts.store import stored_artefacts
    from tritonctl.engines.artefacts.usage import find_uses
    from tritonctl.host.units import human_bytes, human_seconds
    from tritonctl.project.file import load_profiles

    console = output_options.console()
    profiles = load_profiles(project)
    artefacts = stored_artefacts(profiles[None])
    uses = find_uses(profiles, artefacts)
    rows = [
        [
            stored.model,
            stored.folder.name,
            _engine(stored),
            human_bytes(stored.size) if stored.record else "?",
            human_seconds(time.time() - stored.made_at) if stored.made_at else "?",
            stored.problem or _reasons(uses[stored.folder]),
        ]
        for stored in artefacts
    ]
    records = [_record(stored, uses[stored.folder]) for stored in artefacts]
    headings = ("model", "artefact", "engine", "size", "age", "in use")
    console.table({"artefacts": records}, headings, rows)


def _engine(stored: StoredArtefact) -> str:
    """Return builder, precision and stage, as far as known."""
    record = stored.record
    words = (record.builder, stored.precision, record.stage) if record else ()
    return " ".join(word for word in words if word) or "?"


def _reasons(use: ArtefactUse) -> str:
    """Return why an artefact is in use."""
    names = [name or "no profile" for name in use.profiles]
    reasons = [f"needed ({', '.join(names)})"] if names else []
    reasons += [f"linked ({repository.name})" for repository in use.repositories]
    reasons += [f"source of {name.rpartition('/')[2]}" for name in use.source_of]
    reasons += [f"unknown: {reason}" for reason in use.unknown_reasons]
    return ", ".join(reasons) or "no"


def _record(stored: StoredArtefact, use: ArtefactUse) -> dict[str, Any]:
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
        "size_bytes": stored.size,
        "built_unix_seconds": stored.made_at or None,
        "problem": stored.problem,
        "in_use": use.is_needed,
        "profiles": use.profiles,
        "repositories": [str(repository) for repository in use.repositories],
        "source_of": use.source_of,
        "unknown_reasons": use.unknown_reasons,
    }


def _stored_artefacts(project: options.ProjectOption) -> list[StoredArtefact]:
    from tritonctl.engines.artefacts.store import stored_artefacts
    from tritonctl.project.file import load_profiles

    return stored_artefacts(load_profiles(project)[None])


@app.command()
@options.expand_options
def show(
    *,
    artefact: Address,
    project: options.ProjectOption = None,
    output_options: options.OutputOptions,
) -> None:
    """Show an artefact's manifest."""
    from tritonctl.engines.artefacts.differences import manifest_fields
    from tritonctl.engines.artefacts.store import find_artefact

    console = output_options.console()
    stored = find_artefact(_stored_artefacts(project), artefact)
    rows = [["folder", str(stored.folder)]]
    rows += [[field, store_verbs.format_value(value)] for field, value in manifest_fields(stored)]
    console.table(stored.manifest().model_dump(mode="json"), ("artefact", stored.name), rows)


@app.command()
@options.expand_options
def diff(
    *,
    left: Address,
    right: Address,
    project: options.ProjectOption = None,
    output_options: options.OutputOptions,
) -> None:
    """Show in which fields two artefacts differ: request, limits, versions, evaluation, files."""
    from tritonctl.engines.artefacts.differences import compare_artefacts, explain_hidden_difference
    from tritonctl.engines.artefacts.store import find_artefact

    console = output_options.console()
    artefacts = _stored_artefacts(project)
    left_artefact, right_artefact = find_artefact(artefacts, left), find_artefact(artefacts, right)
    changes = compare_artefacts(left_artefact, right_artefact)
    explanation = explain_hidden_difference(left_artefact, right_artefact, changes)
    fields = {"explanation": explanation}
    store_verbs.diff(console, left_artefact, right_artefact, changes, fields, explanation)


@app.command()
@options.expand_options
def verify(
    *,
    artefacts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARTEFACT", help="models or beginnings of fingerprints", show_default="all"
        ),
    ] = None,
    project: options.ProjectOption = None,
    output_options: options.OutputOptions,
) -> None:
    """Compare every file with its manifest; exit code 6 if a file differs."""
    from tritonctl.engines.artefacts.store import StoredArtefact, find_artefact

    stored = _stored_artefacts(project)
    chosen = [find_artefact(stored, address) for address in artefacts or ()] or stored
    store_verbs.verify(output_options.console(), StoredArtefact, chosen)


@app.command()
@options.expand_options
def prune(
    *,
    keep: Annotated[int, typer.Option(min=0, help="also keep the N newest of each model")] = 0,
    sources: Annotated[
        bool,
        typer.Option("--sources", help="also remove the stages that kept engines were built from"),
    ] = False,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared", help="prune the folder `engines:`: remove files without hard links"
        ),
    ] = False,
    dry_run: store_verbs.DryRunOption = False,
    yes: store_verbs.YesOption = False,
    project: options.ProjectOption = None,
    output_options: options.OutputOptions,
) -> None:
    """Remove artefacts that no profile of the project and no repository needs."""
    from tritonctl.engines.artefacts.pruning import plan_pruning
    from tritonctl.engines.artefacts.pruning import prune as prune_artefacts
    from tritonctl.project.file import load_profiles

    console = output_options.console()
    profiles = load_profiles(project)
    if shared:
        _prune_shared(console, profiles[None], dry_run=dry_run, yes=yes)
        return
    planned = plan_pruning(profiles, keep=keep, sources=sources)
    for model in planned.busy_models:
        console.warning(f"{model} is being built: its artefacts stay")
    store_verbs.prune(
        console,
        planned,
        lambda: prune_artefacts(profiles, planned.folders, console, keep=keep, sources=sources),
        dry_run=dry_run,
        yes=yes,
        staying="needed by a profile, a repository or another artefact, or newest",
    )


def _prune_shared(console: Console, project: Project, *, dry_run: bool, yes: bool) -> None:
    """Remove unused files from the folder that several projects share."""
    from tritonctl.engines.builds.shared_store import remove_unused, unused_artefacts

    if project.engines is None:
        raise UsageError(
            "this project shares no engines: it has no `engines:`",
            remedy="drop `--shared`, or write `engines: FOLDER` in the project file",
        )
    folder = project.path(project.engines)
    chosen = unused_artefacts(folder)
    if chosen and not dry_run:
        if not yes:
            confirm(console, "\n".join(f"to remove: {path}" for path in chosen))
        chosen = remove_unused(folder, chosen, console)
    verb = "would remove" if dry_run else "removed"
    record = {"dry_run": dry_run, "removed": [str(path) for path in chosen]}
    lines = "\n".join(f"{verb} {path}" for path in chosen)
    console.result(record, lines or "nothing to remove")
