# SPDX-License-Identifier: Apache-2.0
"""Fetches hub models with builders/hub/fetch.py, which runs in a separate environment.

A complete local copy needs no network.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.engines.sources.cache import HubModel, hub_cache
from tritonctl.engines.sources.checkpoint import fetched_folder, hub_model_of
from tritonctl.engines.sources.lock_file import LOCK_FILE, pin_commit, pinned_commit
from tritonctl.errors import CommandFailedError, ConfigurationError, HostError, TritonctlError
from tritonctl.host import bundled
from tritonctl.host.environments import EnvironmentRecipe, ensure_environment, environment_python
from tritonctl.host.files import cache_folder, exclusive, read_object, read_record
from tritonctl.host.process import run, without_python_variables
from tritonctl.host.progress import Progress, ProgressStep
from tritonctl.host.requirements import verified_install_arguments
from tritonctl.host.units import human_bytes
from tritonctl.project.schema import Model, Project

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = {"1", "true", "yes", "on"}
# Kinds of errors that the project file causes; all others concern this machine or its account.
_PROJECT_MISTAKES = {"repo", "revision", "weights"}
_QUIET_SETTINGS = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_RESUME_REMEDY = "run `tritonctl fetch` again: it resumes the download"


@dataclass(frozen=True)
class FetchedModel:
    """A hub model on this machine."""

    model: HubModel
    commit: str
    folder: Path
    downloaded: int  # bytes downloaded by this call


def hub_recipe() -> EnvironmentRecipe:
    """Return the environment of the download program."""
    return EnvironmentRecipe(
        name="hub",
        installs=(verified_install_arguments("requirements.lock"),),
        folder=bundled.find("builders/hub"),
        probe="import huggingface_hub",
    )


def is_offline() -> bool:
    """Whether the hub's environment variables forbid the network."""
    return any(os.environ.get(name, "").lower() in _TRUE for name in _OFFLINE)


def fetch(
    model: HubModel,
    pinned: str | None,
    progress: Progress,
    *,
    offline: bool = False,
    update: bool = False,
) -> FetchedModel:
    """Return the model, after downloading missing files.

    `pinned` is the commit; `update` requests the newest commit of the revision instead. Raises
    HostError or ConfigurationError; downloaded files stay.
    """
    if not update and (cached := _cached_model(model, pinned)):
        return cached
    if offline or is_offline():
        return _require_cached_model(model, pinned)
    python = environment_python(ensure_environment(hub_recipe(), progress))
    requested_model = model if update or not pinned else HubModel(model.repo, pinned)
    with exclusive(cache_folder() / "hub" / f"{model.folder.name}.lock", progress, "fetch"):
        answer = _run_download(python, requested_model, progress)
    commit = str(answer["commit"])
    return FetchedModel(model, commit, fetched_folder(model, commit), int(answer["bytes"]))


def fetch_checkpoint(
    project: Project,
    model: Model,
    progress: Progress,
    *,
    offline: bool = False,
    update: bool = False,
    locked: bool = False,
) -> FetchedModel | None:
    """Fetch a project model's checkpoint and pin its commit; None for a folder or a file.

    With `locked`, the lock must already pin it. Raises HostError or ConfigurationError.
    """
    hub = hub_model_of(project, model)
    if hub is None:
        return None
    pinned = pinned_commit(project.root, hub)
    if locked and pinned is None:
        raise ConfigurationError(
            f"{LOCK_FILE} does not pin the hub's {hub}",
            remedy="pin it with `tritonctl fetch` and commit the lock",
        )
    done = fetch(hub, pinned, progress, offline=offline, update=update)
    if not locked:
        pin_commit(project.root, hub, done.commit)
    return done


def _cached_model(model: HubModel, pinned: str | None) -> FetchedModel | None:
    commit = pinned or model.known_commit()
    with suppress(ConfigurationError):
        return FetchedModel(model, commit, fetched_folder(model, commit), 0) if commit else None
    return None


def _require_cached_model(model: HubModel, pinned: str | None) -> FetchedModel:
    try:
        folder = fetched_folder(model, pinned)
    except ConfigurationError as error:
        raise HostError(
            f"{error.problem}; --offline forbids asking the hub",
            remedy="run `tritonctl fetch` without --offline (and without HF_HUB_OFFLINE), or copy "
            f"{model.folder.name} from a machine that has it into {hub_cache()}",
        ) from error
    return FetchedModel(model, folder.name, folder, 0)


def _run_download(python: Path, model: HubModel, progress: Progress) -> Mapping[str, Any]:
    program = bundled.find("builders/hub/fetch.py")
    with tempfile.TemporaryDirectory() as folder, progress.step(f"Fetching {model}") as step:
        request, result = Path(folder, "request.json"), Path(folder, "result.json")
        record = {"repo": model.repo, "revision": model.revision, "records": str(model.records)}
        request.write_text(json.dumps(record), encoding="utf-8")
        failure: CommandFailedError | None = None
        try:
            run(
                [python, program, "--request", request, "--result", result],
                cwd=Path(folder),
                environment=_environment(),
                on_line=_ProgressDisplay(model, progress, step).process_line,
                remedy=_RESUME_REMEDY,
            )
        except CommandFailedError as error:
            failure = error
        answer = read_record(result)
        if failure is not None or answer.get("status") != "ok":
            raise _fetch_error(answer, model, failure)
        return read_object(result, remedy=_RESUME_REMEDY)


def _environment() -> dict[str, str]:
    """Return our environment (proxies, HF_TOKEN, HF_ENDPOINT) with the same hub cache."""
    settings = {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1", "HF_HUB_CACHE": str(hub_cache())}
    return without_python_variables() | settings | _QUIET_SETTINGS


def _fetch_error(
    answer: Mapping[str, Any], model: HubModel, failure: CommandFailedError | None
) -> TritonctlError:
    if answer.get("status") == "failed":
        kind = ConfigurationError if answer["kind"] in _PROJECT_MISTAKES else HostError
        return kind(str(answer["problem"]), remedy=str(answer["remedy"]))
    details = failure.details if failure else None
    if details and (token := os.environ.get("HF_TOKEN")):
        details = details.replace(token, "[removed]")
    return HostError(
        f"the download program of {model} exited without a result",
        remedy=_RESUME_REMEDY,
        details=details,
    )


class _ProgressDisplay:
    """Translates the download program's output into progress."""

    def __init__(self, model: HubModel, progress: Progress, step: ProgressStep) -> None:
        self._model, self._progress, self._step = model, progress, step
        self._first: tuple[float, int] | None = None

    def process_line(self, text: str) -> None:
        """Process a line of the program's output."""
        word, _, arguments = text.partition(" ")
        if word == "@size":
            total_bytes, present_bytes = map(int, arguments.split())
            resumed_note = (
                f", {human_bytes(present_bytes)} already downloaded" if present_bytes else ""
            )
            self._progress.note(
                f"{self._model}: {human_bytes(total_bytes)} to download{resumed_note}"
            )
        elif word == "@bytes":
            self._show_progress(*map(int, arguments.split()))

    def _show_progress(self, present_bytes: int, total_bytes: int) -> None:
        now = time.monotonic()
        started_at, initial_bytes = self._first = self._first or (now, present_bytes)
        speed = (present_bytes - initial_bytes) / (now - started_at) if now > started_at else 0.0
        rate = f", {human_bytes(speed)}/s" if speed else ""
        self._step.update(f"{human_bytes(present_bytes)} of {human_bytes(total_bytes)}{rate}")
