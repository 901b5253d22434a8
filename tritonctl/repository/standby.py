# SPDX-License-Identifier: Apache-2.0
"""A second set of a model's folders, under other names and in another repository.

Triton swaps a decoupled step under its ensemble badly (decision 14): a new version comes
next to the old one, and only the ensemble, which does no work itself, changes in place.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritonctl.host.files import explained
from tritonctl.repository.contents import CONFIG, HandwrittenModel
from tritonctl.repository.ensembles import CACHED, step_model_name
from tritonctl.repository.pbtxt import parse_pbtxt, to_pbtxt
from tritonctl.repository.planned import PlannedModel
from tritonctl.repository.publish import assemble, compile_python
from tritonctl.repository.response_cache import without_cache

_HEADER = "Beside the served version while `tritonctl reload` runs."
Config = Mapping[str, Any]


def renamed(models: Iterable[PlannedModel], tag: str) -> tuple[PlannedModel, ...]:
    """The same models as `NAME__TAG`, their ensemble wired to them and to what it shares."""
    planned = list(models)
    names = {model.name: f"{model.name}__{tag}" for model in planned}
    return tuple(
        replace(
            model,
            name=names[model.name],
            config=to_pbtxt(_renamed(parse_pbtxt(model.config), names), header=_HEADER),
        )
        for model in planned
    )


def rewired(ensemble: Config, steps: Collection[str], tag: str) -> dict[str, Any]:
    """The ensemble under its own name, these steps those of `tag`, every answer theirs.

    It is loaded as the version that was served before: cached under that, answers of the new one
    would come back after the next reload.
    """
    return without_cache(_renamed(ensemble, {step: f"{step}__{tag}" for step in steps}))


def _renamed(config: Config, names: Mapping[str, str]) -> dict[str, Any]:
    changed = dict(config) | {"name": names.get(config["name"], config["name"])}
    if "ensemble_scheduling" in config:
        steps = [
            step | {"model_name": names.get(step["model_name"], step["model_name"])}
            for step in config["ensemble_scheduling"]["step"]
        ]
        changed["ensemble_scheduling"] = {"step": steps}
    return changed


def steps_of(config: Config) -> list[str]:
    """The composing models of an ensemble in order; none for any other model."""
    return [step["model_name"] for step in config.get("ensemble_scheduling", {}).get("step", ())]


def serving_steps(
    name: str, config_of: Callable[[str], Config], shared: Collection[str]
) -> list[str]:
    """The models behind a public name on a server, without those that it shares with others.

    One with a response cache comes behind its own steps. config_of: asks the server.
    """
    steps = steps_of(config_of(name))
    cached = step_model_name(name, CACHED)
    inner = [step for step in steps if step.partition("__")[0] == cached]
    behind = [step for each in inner for step in steps_of(config_of(each))]
    return [step for step in (*behind, *steps) if step not in shared]


def place(models: Sequence[PlannedModel], repository: Path) -> None:
    """Assemble models in the standby repository. Raises HostError."""
    folders = [repository / model.name for model in models]
    with explained(repository):
        for model, folder in zip(models, folders, strict=True):
            assemble(model, folder)
    compile_python(folders)


def place_copy(model: HandwrittenModel, config: Config, name: str, repository: Path) -> None:
    """Copy a hand-written model, with this config of its, under another name. Raises HostError."""
    folder = repository / name
    with explained(model.folder):
        shutil.copytree(model.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
        text = to_pbtxt(dict(config) | {"name": name}, header=_HEADER)
        (folder / CONFIG).write_text(text, encoding="utf-8")
    compile_python([folder])


def emptied(repository: Path) -> Path:
    """Prepare the standby repository for a server that starts. Raises HostError."""
    with explained(repository):
        shutil.rmtree(repository, ignore_errors=True)
        repository.mkdir(parents=True)
    return repository


def names_in(repository: Path) -> set[str]:
    """The models that lie there, of this reload or of one that was killed."""
    return {folder.name for folder in repository.glob("*") if folder.is_dir()}


def remove(names: Collection[str], repository: Path) -> None:
    """Remove models' folders from the standby repository."""
    for name in names:
        shutil.rmtree(repository / name, ignore_errors=True)
