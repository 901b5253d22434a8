# SPDX-License-Identifier: Apache-2.0
"""Reload a handwritten model from the repository.

    load a copy → smoke request → unload the copy → Triton swaps the model in place

Clients notice nothing, and a version that fails to load or answer is not deployed.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from tritonctl.checks.repository import Model
from tritonctl.errors import ServerError
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.model_config import Config, is_cached, is_decoupled, steps_of
from tritonctl.protocol.model_control import ModelControl
from tritonctl.repository import standby
from tritonctl.repository.contents import HandwrittenModel
from tritonctl.repository.publish import compile_python
from tritonctl.runtimes.server_state import Server, ServerFiles
from tritonctl.smoke.single_request import SmokeResult, smoke_tensors

_UNLOAD_SECONDS = 10.0


def reload_handwritten(
    project: Project,
    model: HandwrittenModel,
    state: Server,
    control: ModelControl,
    progress: Progress,
    *,
    smoke_test: bool,
) -> SmokeResult | None:
    """Reload the model, by default after a smoke request; streaming models get none.

    Raises ServerError or ConfigurationError; the previous version then keeps serving.
    """
    config = model.config
    _refuse_ensembles(model, config, state, control)
    _refuse_cached_version(model, config, control)
    standby_folder = ServerFiles.of(project).standby
    _unload_leftovers(model, standby_folder, control)
    copy = f"{model.name}__{uuid.uuid4().hex[:6]}"
    smoke_result = None
    try:
        with progress.step(f"Loading {model.name} on standby"):
            standby.copy_model(model, config, copy, standby_folder)
            _load(control, copy)
        if smoke_test and not is_decoupled(config):
            with progress.step(f"Sending a request to the new version of {model.name}"):
                seconds = float(project.server.ready_timeout_seconds)
                smoke_result = smoke_tensors(state.endpoint, copy, config, seconds)
    finally:
        control.unload(copy, _UNLOAD_SECONDS)
        standby.remove([copy], standby_folder)
    compile_python([model.folder])
    with progress.step(f"Loading {model.name} from the repository"):
        _load(control, model.name)
    return smoke_result


def _load(control: ModelControl, name: str) -> None:
    control.load(name)
    control.wait_until_ready([name])


def _unload_leftovers(model: HandwrittenModel, standby_folder: Path, control: ModelControl) -> None:
    """Unload the copies that a killed reload left behind."""
    leftovers = [
        name
        for name in standby.standby_models(standby_folder)
        if name.startswith(f"{model.name}__")
    ]
    for name in leftovers:
        control.unload(name, _UNLOAD_SECONDS)
    standby.remove(leftovers, standby_folder)


def _refuse_ensembles(
    model: HandwrittenModel, config: Config, state: Server, control: ModelControl
) -> None:
    """Refuse a reload during which Triton 2.51 may crash: a step of an ensemble, or an ensemble."""
    ready_models = [name for name in state.models if control.ready(name)]
    users = [name for name in ready_models if model.name in steps_of(control.config(name))]
    if users or steps_of(config):
        kind = f"a step of {users[0]}" if users else "an ensemble"
        raise ServerError(
            f"{model.name} is handwritten and is {kind}: tritonserver 2.51 may crash when "
            "steps of a loaded ensemble are reloaded",
            remedy="run `tritonctl down`, then `tritonctl up`",
        )


def _refuse_cached_version(model: HandwrittenModel, config: Config, control: ModelControl) -> None:
    """Refuse a version that the response cache knows: a reload does not clear the cache."""
    if not is_cached(config):
        return
    folder = Model(model.name, model.folder, model.name)
    loaded_versions = control.versions(model.name)
    if cached_versions := [
        version for version in folder.served_versions if str(version) in loaded_versions
    ]:
        cached = cached_versions[-1]
        new_version = max(*folder.versions, *map(int, loaded_versions)) + 1
        raise ServerError(
            f"{model.name} has a response cache, and its version {cached} was already deployed: "
            "the cache would keep returning its old responses",
            remedy="give it a new number, "
            f"`mv {model.folder}/{cached} {model.folder}/{new_version}`, then reload again",
        )
