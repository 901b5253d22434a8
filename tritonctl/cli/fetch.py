# SPDX-License-Identifier: Apache-2.0
"""`tritonctl fetch`: download checkpoints of the Hugging Face Hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options
from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.engines.sources.fetch import FetchedModel
    from tritonctl.project.schema import Project


@options.expand_options
def command(
    *,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="models of the project, or of the hub: OWNER/NAME, OWNER/NAME@REVISION",
            show_default="all of the project",
        ),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="fetch and pin the newest commit")
    ] = False,
    offline: options.OfflineOption = False,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Download checkpoints of the Hugging Face Hub: resumed, checked, pinned in tritonctl.lock.

    Honours HF_TOKEN, HF_HOME, HF_ENDPOINT and proxies. Existing files are not downloaded again.
    """
    from tritonctl.engines.sources.cache import is_hub_id

    if update and offline:
        raise UsageError(
            "--update needs the hub, --offline forbids it", remedy="drop one of the two options"
        )
    console = output_options.console()
    hub_ids = [name for name in models or () if is_hub_id(name.partition("@")[0])]
    for name in hub_ids:
        _fetch_by_id(name, console, update=update, offline=offline)
    project_models = [name for name in models or () if name not in hub_ids]
    if project_models or not models:
        loaded = project.load()
        for name in project_models or sorted(loaded.models):
            _fetch_model(loaded, name, console, update=update, offline=offline)


def _fetch_by_id(name: str, console: Console, **fetch_options: bool) -> None:
    from tritonctl.engines.sources.cache import MAIN_BRANCH, HubModel
    from tritonctl.engines.sources.fetch import fetch

    repo, _, revision = name.partition("@")
    done = fetch(HubModel(repo, revision or MAIN_BRANCH), None, console, **fetch_options)
    console.result(_record(None, done), _summary(done))


def _fetch_model(project: Project, name: str, console: Console, **fetch_options: bool) -> None:
    from tritonctl.engines.builds.requests import model_named
    from tritonctl.engines.sources.checkpoint import checkpoint_path, shadowing_note
    from tritonctl.engines.sources.fetch import fetch_checkpoint

    model = model_named(project, name)
    if note := shadowing_note(project, model):
        console.note(f"{name}: {note}")
    done = fetch_checkpoint(project, model, console, **fetch_options)
    if done is None:
        folder = str(checkpoint_path(project, model))
        record = {"model": name, "checkpoint": folder, "folder": folder, "downloaded_bytes": 0}
        console.result(record, f"{name}: nothing to fetch, its checkpoint is {folder}")
        return
    console.result(_record(name, done), f"{name}: {_summary(done)}")


def _record(name: str | None, done: FetchedModel) -> dict[str, Any]:
    return {
        "model": name,
        "checkpoint": done.model.repo,
        "revision": done.model.revision,
        "commit": done.commit,
        "folder": str(done.folder),
        "downloaded_bytes": done.downloaded,
    }


def _summary(done: FetchedModel) -> str:
    from tritonctl.host.units import human_bytes

    came = f"{human_bytes(done.downloaded)} downloaded" if done.downloaded else "already here"
    return f"{done.model}, commit {done.commit[:12]}: {came}\n  {done.folder}"
