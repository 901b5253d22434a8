# SPDX-License-Identifier: Apache-2.0
"""`tritonctl releases`: publish, list, inspect, compare, verify, remove and roll back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import (
    options,
    releases_image,
    releases_publish,
    releases_rollback,
    store_verbs,
)

if TYPE_CHECKING:
    from tritonctl.releases.store import StoredRelease

app = typer.Typer(
    no_args_is_help=True, help="Publish, inspect, compare and remove releases, or roll back to one."
)
app.command("publish")(releases_publish.command)
app.command("rollback")(releases_rollback.command)

Address = Annotated[str, typer.Argument(help="a number, NUMBER-HASH, or `latest`")]


@app.command("list")
@options.expand_options
def list_(
    *,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """List every release of the project and mark the live one."""
    from tritonctl.host.units import human_bytes
    from tritonctl.releases.store import stored_releases

    console = output_options.console()
    loaded = project.load()
    releases, live_release = stored_releases(loaded), live_release_name(loaded)
    rows = [
        [
            stored.name,
            stored.record.created if stored.record else "?",
            human_bytes(stored.size) if stored.record else "?",
            stored.record.smoke.status if stored.record else "?",
            stored.problem or ("live" if stored.name == live_release else ""),
        ]
        for stored in releases
    ]
    records = [_record(stored, live_release) for stored in releases]
    headings = ("release", "published", "size", "smoke", "")
    console.table({"releases": records}, headings, rows)
    if not rows:
        console.note("no releases yet: `tritonctl releases publish` makes the first")


def live_release_name(project: Any) -> str | None:
    """Return the name of the release that the project's server serves, if any."""
    from tritonctl.runtimes.server_state import ServerFiles, read_state

    state = read_state(ServerFiles.of(project))
    return (state.release or None) if state else None


def _record(stored: StoredRelease, live_release: str | None) -> dict[str, Any]:
    release = stored.record
    return {
        "release": stored.name,
        "number": stored.number,
        "folder": str(stored.folder),
        "created": release.created if release else None,
        "parent": release.parent if release else None,
        "size_bytes": stored.size if release else None,
        "smoke": release.smoke.status if release else None,
        "live": stored.name == live_release,
        "problem": stored.problem,
    }


@app.command()
@options.expand_options
def show(
    *,
    release: Address,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Show a release's manifest."""
    from tritonctl.releases.store import find_release, stored_releases

    console = output_options.console()
    stored = find_release(stored_releases(project.load()), release)
    rows = [["folder", str(stored.folder)], *_lines(stored)]
    record = stored.manifest().model_dump(by_alias=True, mode="json")
    console.table(record, ("release", stored.name), rows)


def _lines(stored: StoredRelease) -> list[list[str]]:
    from tritonctl.host.units import human_bytes

    release = stored.manifest()
    smoke = release.smoke
    smoke_text = f"{smoke.passed} checks passed" if smoke.status == "passed" else None
    rows = [
        ["published", release.created],
        ["parent", release.parent or "-"],
        ["size", f"{human_bytes(stored.size)} in {len(release.files)} files"],
        ["check", f"{release.check.warnings} warnings"],
        ["smoke", smoke_text or f"not run: {smoke.reason}"],
        *([name, version] for name, version in release.versions.items()),
    ]
    for name, engine in release.engines.items():
        engine_text = f"{engine.builder} {engine.precision}, {engine.fingerprint[:16]}"
        rows.append([f"engine {name}", engine_text])
        rows += [[f"  {key}", str(value)] for key, value in _figures(engine.evaluation).items()]
    rows += [[f"model {m.name}", f"version {m.version or 'its own'}"] for m in release.models]
    return rows


def _figures(evaluation: dict[str, Any] | None) -> dict[str, float]:
    """Return the numbers of an evaluation."""
    numbers = (evaluation or {}).items()
    return {
        key: value
        for key, value in numbers
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


@app.command()
@options.expand_options
def diff(
    *,
    left: Address,
    right: Address,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Show how two releases differ: breaking changes first, then settings, engines, files."""
    from tritonctl.releases.differences import compare_releases
    from tritonctl.releases.store import find_release, stored_releases

    console = output_options.console()
    releases = stored_releases(project.load())
    left_release, right_release = find_release(releases, left), find_release(releases, right)
    changes = compare_releases(left_release, right_release)
    breaking = sum(each.breaking for each in changes)
    note = f"{breaking} changes may break clients of {left_release.name}" if breaking else None
    fields = {"breaking": bool(breaking)}
    store_verbs.diff(console, left_release, right_release, changes, fields, note)


@app.command()
@options.expand_options
def verify(
    *,
    releases: Annotated[
        list[str] | None,
        typer.Argument(metavar="RELEASE", help="numbers, or NUMBER-HASH", show_default="all"),
    ] = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Compare every file with its manifest; exit code 6 if a file differs."""
    from tritonctl.releases.store import StoredRelease, find_release, stored_releases

    stored = stored_releases(project.load())
    chosen = [find_release(stored, address) for address in releases or ()] or stored
    store_verbs.verify(output_options.console(), StoredRelease, chosen)


@app.command()
@options.expand_options
def prune(
    *,
    keep: Annotated[int, typer.Option(min=1, help="keep the N newest")] = 5,
    dry_run: store_verbs.DryRunOption = False,
    yes: store_verbs.YesOption = False,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Remove old releases, except the live one and the target of a rollback."""
    from tritonctl.runtimes.release_switch import prune_releases

    console = output_options.console()
    loaded = project.load()
    planned = prune_releases(loaded, None, keep, console)
    store_verbs.prune(
        console,
        planned,
        lambda: prune_releases(loaded, planned.folders, keep, console),
        dry_run=dry_run,
        yes=yes,
        staying="newest, live, or for a rollback",
    )


app.command("image")(releases_image.command)
