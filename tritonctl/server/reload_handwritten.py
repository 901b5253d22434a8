# SPDX-License-Identifier: Apache-2.0
"""Reloads a model that was written by hand, as it lies in the repository.

    a copy beside it → smoke request → Triton swaps the model in place → unload the copy

So whoever is served notices nothing, and a version that does not load or answer is not served.
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
from tritonctl.server.smoke.single_request import Smoke, smoke_tensors
from tritonctl.server.state import Server, ServerFiles

_UNLOAD_SECONDS = 10.0


def reload_handwritten(
    project: Project,
    model: HandwrittenModel,
    state: Server,
    control: ModelControl,
    progress: Progress,
    *,
    ask: bool,
) -> Smoke | None:
    """Load the model anew; `ask`: after a smoke request, which one that streams does not get.

    Raises ServerError or ConfigurationError; what was served before then goes on.
    """
    config = model.config
    _refuse_ensembles(model, config, state, control)
    _refuse_known_version(model, config, control)
    beside = ServerFiles.of(project).beside
    _sweep(model, beside, control)
    copy = f"{model.name}__{uuid.uuid4().hex[:6]}"
    asked = None
    try:
        with progress.step(f"Loading {model.name} beside the served version"):
            standby.place_copy(model, config, copy, beside)
            _load(control, copy)
        if ask and not is_decoupled(config):
            with progress.step(f"Asking the new version of {model.name}"):
                seconds = float(project.server.ready_timeout_seconds)
                asked = smoke_tensors(state.endpoint, copy, config, seconds)
    finally:
        control.unload(copy, _UNLOAD_SECONDS)
        standby.remove([copy], beside)
    compile_python([model.folder])
    with progress.step(f"Loading {model.name} from the repository"):
        _load(control, model.name)
    return asked


def _load(control: ModelControl, name: str) -> None:
    control.load(name)
    control.wait_until_ready([name])


def _sweep(model: HandwrittenModel, beside: Path, control: ModelControl) -> None:
    """Unload what a killed reload left behind."""
    left = [name for name in standby.names_in(beside) if name.startswith(f"{model.name}__")]
    for name in left:
        control.unload(name, _UNLOAD_SECONDS)
    standby.remove(left, beside)


def _refuse_ensembles(
    model: HandwrittenModel, config: Config, state: Server, control: ModelControl
) -> None:
    """Triton 2.51 may end over a step that is loaded again under its ensemble."""
    served = [name for name in state.models if control.ready(name)]
    users = [name for name in served if model.name in steps_of(control.config(name))]
    if users or steps_of(config):
        kind = f"a step of {users[0]}" if users else "an ensemble"
        raise ServerError(
            f"{model.name} was written by hand and is {kind}: tritonserver 2.51 may crash when "
            "steps are loaded again under their ensemble",
            remedy="run `tritonctl down`, then `tritonctl up`",
        )


def _refuse_known_version(model: HandwrittenModel, config: Config, control: ModelControl) -> None:
    """The cache keeps its answers by version, and forgets none when a model is loaded again."""
    if not is_cached(config):
        return
    folder = Model(model.name, model.folder, model.name)
    known = control.versions(model.name)
    if again := [version for version in folder.served_versions if str(version) in known]:
        free = max(*folder.versions, *map(int, known)) + 1
        raise ServerError(
            f"{model.name} has a response cache, and its version {again[-1]} was served before: "
            "the cache would go on giving its old answers",
            remedy=f"give it a new number, `mv {model.folder}/{again[-1]} {model.folder}/{free}`, "
            "then reload again",
        )
