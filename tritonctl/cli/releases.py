# SPDX-License-Identifier: Apache-2.0
"""`tritonctl releases`: list, inspect, compare, verify and remove what was published."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options, releases_image
from tritonctl.cli.confirmation import confirm
from tritonctl.errors import RepositoryError

if TYPE_CHECKING:
    from tritonctl.releases.differences import Difference
    from tritonctl.releases.manifest import Release
    from tritonctl.releases.pruning import Pruning
    from tritonctl.releases.store import Stored

app = typer.Typer(no_args_is_help=True, help="List, inspect, compare, verify and remove releases.")

Address = Annotated[str, typer.Argument(help="a number, NUMBER-HASH, or `latest`")]


@app.command("list")
@options.expand_options
def list_(
    *,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """List every release of the project, and which one is served."""
    from tritonctl.host.units import human_bytes
    from tritonctl.releases.store import stored_releases

    console = voice.console()
    loaded = project.load()
    releases, served = stored_releases(loaded), served_release(loaded)
    rows = [
        [
            stored.name,
            stored.release.created if stored.release else "?",
            human_bytes(_size(stored.release)) if stored.release else "?",
            stored.release.smoke.status if stored.release else "?",
            stored.problem or _remark(stored, served),
        ]
        for stored in releases
    ]
    records = [_record(stored, served) for stored in releases]
    headings = ("release", "published", "size", "smoke", "")
    console.table({"releases": records}, headings, rows)
    if not rows:
        console.note("none yet: `tritonctl release` publishes one")


def served_release(project: Any) -> str | None:
    """The name of the release that the project's server serves, as far as its state says."""
    from tritonctl.server.state import ServerFiles, read_state

    state = read_state(ServerFiles.of(project))
    return (state.release or None) if state else None


def _remark(stored: Stored, served: str | None) -> str:
    return "served" if stored.name == served else ""


def _size(release: Release) -> int:
    return sum(file.size for file in release.files)


def _record(stored: Stored, served: str | None) -> dict[str, Any]:
    release = stored.release
    return {
        "release": stored.name,
        "number": stored.number,
        "folder": str(stored.folder),
        "created": release.created if release else None,
        "parent": release.parent if release else None,
        "bytes": _size(release) if release else None,
        "smoke": release.smoke.status if release else None,
        "served": stored.name == served,
        "problem": stored.problem,
    }


@app.command()
@options.expand_options
def show(
    *,
    release: Address,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Show a release's manifest."""
    from tritonctl.releases.store import find_release, stored_releases

    console = voice.console()
    stored = find_release(stored_releases(project.load()), release)
    manifest = stored.manifest()
    rows = [["folder", str(stored.folder)], *_lines(manifest)]
    record = manifest.model_dump(by_alias=True, mode="json")
    console.table(record, ("release", stored.name), rows)


def _lines(release: Release) -> list[list[str]]:
    from tritonctl.host.units import human_bytes

    smoke = release.smoke
    asked = f"{smoke.passed} checks passed" if smoke.status == "passed" else None
    rows = [
        ["published", release.created],
        ["parent", release.parent or "-"],
        ["size", f"{human_bytes(_size(release))} in {len(release.files)} files"],
        ["check", f"{release.check.warnings} warnings"],
        ["smoke", asked or f"not run: {smoke.reason}"],
        *([name, version] for name, version in release.versions.items()),
    ]
    for name, engine in release.engines.items():
        what = f"{engine.builder} {engine.precision}, {engine.fingerprint[:16]}"
        rows.append([f"engine {name}", what])
        rows += [[f"  {key}", str(value)] for key, value in _figures(engine.evaluation).items()]
    rows += [[f"model {m.name}", f"version {m.version or 'of its own'}"] for m in release.models]
    return rows


def _figures(evaluation: dict[str, Any] | None) -> dict[str, float]:
    """The plain numbers of an evaluation."""
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
    voice: options.OutputOptions,
) -> None:
    """Show how two releases differ: what breaks clients first, then settings, engines, files."""
    from tritonctl.releases.differences import differences
    from tritonctl.releases.store import find_release, stored_releases

    console = voice.console()
    releases = stored_releases(project.load())
    one, other = find_release(releases, left), find_release(releases, right)
    found = differences(one, other)
    breaking = [each for each in found if each.breaking]
    record = {
        "left": one.name,
        "right": other.name,
        "breaking": bool(breaking),
        "differences": [asdict(each) | {"change": each.change} for each in found],
    }
    if not found:
        console.result(record, f"{one.name} and {other.name} do not differ")
        return
    rows = [
        [f"{each.section} {each.field}", _value(each.left), _value(each.right), _note(each)]
        for each in found
    ]
    console.table(record, ("", one.name, other.name, ""), rows)
    if breaking:
        console.note(f"{len(breaking)} of them may break clients of {one.name}")


def _value(value: object) -> str:
    """A value as JSON, a string without quotes."""
    import json

    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _note(difference: Difference) -> str:
    if difference.breaking:
        return "BREAKS CLIENTS"
    return "" if difference.change is None else f"{difference.change:+.6g}"


@app.command()
@options.expand_options
def verify(
    *,
    releases: Annotated[
        list[str] | None,
        typer.Argument(help="numbers, or NUMBER-HASH", show_default="all"),
    ] = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Compare every file with its manifest; exit code 6 unless all are as they were published."""
    from tritonctl.releases.store import find_release, stored_releases
    from tritonctl.releases.verification import verify_release

    console = voice.console()
    stored = stored_releases(project.load())
    chosen = [find_release(stored, address) for address in releases or ()] or stored
    findings = {one.name: verify_release(one, console) for one in chosen}
    lines = []
    for name, damages in findings.items():
        lines.append(f"{name}: {'DAMAGED' if damages else 'whole'}")
        lines += [f"  {damage.kind:<10} {damage.path}: {damage.detail}" for damage in damages]
    records = {name: [asdict(damage) for damage in damages] for name, damages in findings.items()}
    failure = None
    if damaged := [name for name, damages in findings.items() if damages]:
        failure = RepositoryError(
            f"damaged: {', '.join(damaged)}",
            remedy="serve another one (`tritonctl releases list`), or publish again: "
            "`tritonctl release`",
        )
    console.result({"releases": records}, "\n".join(lines) or "no releases", failure)
    if failure:
        raise failure


@app.command()
@options.expand_options
def prune(
    *,
    keep: Annotated[int, typer.Option(min=1, help="the N newest stay")] = 5,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only list what would be removed")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Remove old releases; what is served and what a rollback leads to stay."""
    from tritonctl.server.release_switch import prune_releases

    console = voice.console()
    loaded = project.load()
    planned = prune_releases(loaded, None, keep, console)
    if not dry_run and planned.removed:
        if not yes:
            confirm(console, _pruned_lines(planned, "to remove:"))
        chosen = {one.name for one in planned.removed}
        planned = prune_releases(loaded, chosen, keep, console)
    record = {
        "dry_run": dry_run,
        "removed": [one.name for one in planned.removed],
        "kept": [one.name for one in planned.kept],
        "bytes": planned.freed,
    }
    console.result(record, _pruned_lines(planned, "would remove" if dry_run else "removed"))


def _pruned_lines(pruning: Pruning, verb: str) -> str:
    from tritonctl.host.units import human_bytes

    if not pruning.removed:
        kept = ", ".join(one.name for one in pruning.kept)
        why = f": {kept} stay, as the newest, as served, or for a rollback" if kept else ""
        return f"nothing to remove{why}"
    lines = [f"{verb} {one.name}" for one in pruning.removed]
    return "\n".join([*lines, f"{human_bytes(pruning.freed)} of their own"])


app.command("image")(releases_image.command)
