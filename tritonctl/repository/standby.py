# SPDX-License-Identifier: Apache-2.0
"""A standby copy of a model's folders, under other names in another repository.

Triton cannot safely replace a decoupled step under its ensemble (decision 14). A new version is
therefore loaded next to the old one, and only the ensemble changes in place.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritonctl.host.files import as_host_error
from tritonctl.repository.contents import CONFIG, HandwrittenModel
from tritonctl.repository.ensembles import CACHED, step_model_name
from tritonctl.repository.pbtxt import parse_pbtxt, to_pbtxt
from tritonctl.repository.planned import PlannedModel
from tritonctl.repository.publish import assemble, compile_python
from tritonctl.repository.response_cache import without_cache

_HEADER = "Standby copy of the served version while `tritonctl reload` runs."
Config = Mapping[str, Any]


def tag_models(models: Iterable[PlannedModel], tag: str) -> tuple[PlannedModel, ...]:
    """Rename models to `NAME__TAG` and rewire their ensemble; steps it shares keep their names."""
    planned = list(models)
    names = {model.name: f"{model.name}__{tag}" for model in planned}
    return tuple(
        replace(
            model,
            name=names[model.name],
            config=to_pbtxt(_rename_steps(parse_pbtxt(model.config), names), header=_HEADER),
        )
        for model in planned
    )


def retarget_ensemble(ensemble: Config, steps: Collection[str], tag: str) -> dict[str, Any]:
    """Return the ensemble with these steps replaced by those of `tag`, and without a cache.

    It is loaded under the old version number: cached answers of the new version would reappear
    under that number after the next reload.
    """
    return without_cache(_rename_steps(ensemble, {step: f"{step}__{tag}" for step in steps}))


def _rename_steps(config: Config, names: Mapping[str, str]) -> dict[str, Any]:
    changed = dict(config) | {"name": names.get(config["name"], config["name"])}
    if "ensemble_scheduling" in config:
        steps = [
            step | {"model_name": names.get(step["model_name"], step["model_name"])}
            for step in config["ensemble_scheduling"]["step"]
        ]
        changed["ensemble_scheduling"] = {"step": steps}
    return changed


def steps_of(config: Config) -> list[str]:
    """Return the composing models of an ensemble in order; [] for other models."""
    return [step["model_name"] for step in config.get("ensemble_scheduling", {}).get("step", ())]


def serving_steps(
    name: str, config_of: Callable[[str], Config], shared: Collection[str]
) -> list[str]:
    """Return the models behind a public name on a server, except shared ones.

    A model with a response cache follows its steps. `config_of` queries the server.
    """
    steps = steps_of(config_of(name))
    cached = step_model_name(name, CACHED)
    inner = [step for step in steps if step.partition("__")[0] == cached]
    behind = [step for each in inner for step in steps_of(config_of(each))]
    return [step for step in (*behind, *steps) if step not in shared]


def assemble_models(models: Sequence[PlannedModel], repository: Path) -> None:
    """Assemble models in the standby repository. Raises HostError."""
    folders = [repository / model.name for model in models]
    with as_host_error(repository):
        for model, folder in zip(models, folders, strict=True):
            assemble(model, folder)
    compile_python(folders)


def copy_model(model: HandwrittenModel, config: Config, name: str, repository: Path) -> None:
    """Copy a hand-written model under another name, with this config. Raises HostError."""
    folder = repository / name
    with as_host_error(model.folder):
        shutil.copytree(model.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
        text = to_pbtxt(dict(config) | {"name": name}, header=_HEADER)
        (folder / CONFIG).write_text(text, encoding="utf-8")
    compile_python([folder])


def prepare_repository(repository: Path) -> Path:
    """Empty the standby repository before a server starts. Raises HostError."""
    with as_host_error(repository):
        shutil.rmtree(repository, ignore_errors=True)
        repository.mkdir(parents=True)
    return repository


def standby_models(repository: Path) -> set[str]:
    """Return the models in the standby repository, of this reload or of a killed one."""
    return {folder.name for folder in repository.glob("*") if folder.is_dir()}


def remove(names: Collection[str], repository: Path) -> None:
    """Remove models' folders from the standby repository."""
    for name in names:
        shutil.rmtree(repository / name, ignore_errors=True)
