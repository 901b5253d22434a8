# SPDX-License-Identifier: Apache-2.0
"""`tritonctl fetch`: checkpoints of the Hugging Face Hub onto this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options
from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.engines.hub.fetch import Fetched
    from tritonctl.project.schema import Project


@options.expand_options
def command(
    *,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="models of the project; or of the hub: OWNER/NAME, OWNER/NAME@REVISION",
            show_default="all of the project",
        ),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="take the newest commit, and pin that")
    ] = False,
    offline: options.OfflineOption = False,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Download checkpoints of the Hugging Face Hub: resumed, checked, pinned in tritonctl.lock.

    Honours HF_TOKEN, HF_HOME, HF_ENDPOINT and proxies. What is here is not downloaded again.
    """
    from tritonctl.engines.hub.cache import is_hub_id

    if update and offline:
        raise UsageError(
            "--update asks the hub, --offline forbids it", remedy="leave one of them out"
        )
    console = voice.console()
    of_the_hub = [name for name in models or () if is_hub_id(name.partition("@")[0])]
    for name in of_the_hub:
        _fetch_by_id(name, console, update=update, offline=offline)
    of_the_project = [name for name in models or () if name not in of_the_hub]
    if of_the_project or not models:
        loaded = project.load()
        for name in of_the_project or sorted(loaded.models):
            _fetch_model(loaded, name, console, update=update, offline=offline)


def _fetch_by_id(name: str, console: Console, **how: bool) -> None:
    from tritonctl.engines.hub.cache import MAIN, HubModel
    from tritonctl.engines.hub.fetch import fetch

    repo, _, revision = name.partition("@")
    done = fetch(HubModel(repo, revision or MAIN), None, console, **how)
    console.result(_record(None, done), _summary(done))


def _fetch_model(project: Project, name: str, console: Console, **how: bool) -> None:
    from tritonctl.engines.build.requests import model_named
    from tritonctl.engines.hub.checkpoint import checkpoint_of, hidden_by_folder
    from tritonctl.engines.hub.fetch import fetch_checkpoint

    model = model_named(project, name)
    if note := hidden_by_folder(project, model):
        console.note(f"{name}: {note}")
    done = fetch_checkpoint(project, model, console, **how)
    if done is None:
        folder = str(checkpoint_of(project, model))
        record = {"model": name, "checkpoint": folder, "folder": folder, "downloaded_bytes": 0}
        console.result(record, f"{name}: nothing to fetch, its checkpoint is {folder}")
        return
    console.result(_record(name, done), f"{name}: {_summary(done)}")


def _record(name: str | None, done: Fetched) -> dict[str, Any]:
    return {
        "model": name,
        "checkpoint": done.model.repo,
        "revision": done.model.revision,
        "commit": done.commit,
        "folder": str(done.folder),
        "downloaded_bytes": done.downloaded,
    }


def _summary(done: Fetched) -> str:
    from tritonctl.host.units import human_bytes

    came = f"{human_bytes(done.downloaded)} downloaded" if done.downloaded else "already here"
    return f"{done.model}, commit {done.commit[:12]}: {came}\n  {done.folder}"
