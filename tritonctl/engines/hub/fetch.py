# SPDX-License-Identifier: Apache-2.0
"""Fetches models of the hub: builders/hub/fetch.py in an environment of its own.

What is here whole is not asked for again: then nothing touches the network.
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

from tritonctl.engines.hub.cache import HubModel, hub_cache
from tritonctl.engines.hub.checkpoint import fetched, hub_model_of
from tritonctl.engines.hub.lock_file import FILE, pin_commit, pinned_commit
from tritonctl.errors import CommandFailedError, ConfigurationError, HostError, TritonctlError
from tritonctl.host import bundled
from tritonctl.host.environments import Recipe, ensure, environment_python
from tritonctl.host.files import cache_folder, exclusive, read_object, read_record
from tritonctl.host.process import run, without_python_variables
from tritonctl.host.progress import Progress, Step
from tritonctl.host.units import human_bytes
from tritonctl.project.schema import Model, Project

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = {"1", "true", "yes", "on"}
# What the project file says wrong; everything else is this machine's, or its account's.
_OF_THE_PROJECT = {"repo", "revision", "weights"}
_SHOWN = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_AGAIN = "run `tritonctl fetch` again: it goes on where the download ended"


@dataclass(frozen=True)
class Fetched:
    """A model of the hub on this machine; `downloaded`: bytes that came now."""

    model: HubModel
    commit: str
    folder: Path
    downloaded: int


def hub_recipe() -> Recipe:
    """The environment of the program that downloads."""
    return Recipe(
        name="hub",
        installs=(("--no-deps", "-r", "requirements.txt"),),
        folder=bundled.find("builders/hub"),
        probe="import huggingface_hub",
    )


def is_offline() -> bool:
    """Whether the hub's own variables forbid the network."""
    return any(os.environ.get(name, "").lower() in _TRUE for name in _OFFLINE)


def fetch(
    model: HubModel,
    pinned: str | None,
    progress: Progress,
    *,
    offline: bool = False,
    update: bool = False,
) -> Fetched:
    """The model on this machine, downloaded now as far as it is missing.

    pinned: the commit to take. update: ask the hub for the newest one of the revision. Raises
    HostError or ConfigurationError; what came until then is kept.
    """
    if not update and (here := _here(model, pinned)):
        return here
    if offline or is_offline():
        return _offline(model, pinned)
    python = environment_python(ensure(hub_recipe(), progress))
    wanted = model if update or not pinned else HubModel(model.repo, pinned)
    with exclusive(cache_folder() / "hub" / f"{model.folder.name}.lock", progress, "fetch"):
        answer = _run(python, wanted, progress)
    commit = str(answer["commit"])
    return Fetched(model, commit, fetched(model, commit), int(answer["bytes"]))


def fetch_checkpoint(
    project: Project,
    model: Model,
    progress: Progress,
    *,
    offline: bool = False,
    update: bool = False,
    locked: bool = False,
) -> Fetched | None:
    """Fetch what a model of a project names, and pin its commit; None for a folder or a file.

    locked: the lock must pin it already. Raises HostError or ConfigurationError.
    """
    hub = hub_model_of(project, model)
    if hub is None:
        return None
    pinned = pinned_commit(project.root, hub)
    if locked and pinned is None:
        raise ConfigurationError(
            f"{FILE} does not pin the hub's {hub}",
            remedy="pin it with `tritonctl fetch`, and commit the lock",
        )
    done = fetch(hub, pinned, progress, offline=offline, update=update)
    if not locked:
        pin_commit(project.root, hub, done.commit)
    return done


def _here(model: HubModel, pinned: str | None) -> Fetched | None:
    commit = pinned or model.known_commit()
    with suppress(ConfigurationError):
        return Fetched(model, commit, fetched(model, commit), 0) if commit else None
    return None


def _offline(model: HubModel, pinned: str | None) -> Fetched:
    try:
        folder = fetched(model, pinned)
    except ConfigurationError as error:
        raise HostError(
            f"{error.problem}; --offline forbids asking the hub",
            remedy="run `tritonctl fetch` without --offline (and without HF_HUB_OFFLINE), or copy "
            f"{model.folder.name} from a machine that has it into {hub_cache()}",
        ) from error
    return Fetched(model, folder.name, folder, 0)


def _run(python: Path, model: HubModel, progress: Progress) -> Mapping[str, Any]:
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
                on_line=_Shown(model, progress, step).line,
                remedy=_AGAIN,
            )
        except CommandFailedError as error:
            failure = error
        answer = read_record(result)
        if failure is not None or answer.get("status") != "ok":
            raise _refused(answer, model, failure)
        return read_object(result, remedy=_AGAIN)


def _environment() -> dict[str, str]:
    """Ours with its proxies, HF_TOKEN and HF_ENDPOINT; both sides agree on the cache."""
    ours = {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1", "HF_HUB_CACHE": str(hub_cache())}
    return without_python_variables() | ours | _SHOWN


def _refused(
    answer: Mapping[str, Any], model: HubModel, failure: CommandFailedError | None
) -> TritonctlError:
    if answer.get("status") == "failed":
        kind = ConfigurationError if answer["kind"] in _OF_THE_PROJECT else HostError
        return kind(str(answer["problem"]), remedy=str(answer["remedy"]))
    details = failure.details if failure else None
    if details and (token := os.environ.get("HF_TOKEN")):
        details = details.replace(token, "[removed]")
    return HostError(
        f"the program that fetches {model} ended without an answer", remedy=_AGAIN, details=details
    )


class _Shown:
    """Turns the program's lines into progress."""

    def __init__(self, model: HubModel, progress: Progress, step: Step) -> None:
        self._model, self._progress, self._step = model, progress, step
        self._first: tuple[float, int] | None = None

    def line(self, text: str) -> None:
        """Show a line of the program's output."""
        word, _, rest = text.partition(" ")
        if word == "@size":
            wanted, begun = map(int, rest.split())
            here = f", {human_bytes(begun)} of it begun before" if begun else ""
            self._progress.note(f"{self._model}: {human_bytes(wanted)} to download{here}")
        elif word == "@bytes":
            self._bytes(*map(int, rest.split()))

    def _bytes(self, here: int, whole: int) -> None:
        now = time.monotonic()
        began, before = self._first = self._first or (now, here)
        speed = (here - before) / (now - began) if now > began else 0.0
        rate = f", {human_bytes(speed)}/s" if speed else ""
        self._step.update(f"{human_bytes(here)} of {human_bytes(whole)}{rate}")
