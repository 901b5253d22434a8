# SPDX-License-Identifier: Apache-2.0
"""TC005 to TC019: what else lies in a repository, next to the models' own files.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_management.md
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from tritonctl.checks.config.backends import (
    DEFAULT_FILES,
    SHELL_IN_PATHS,
    TELLING_FILES,
    backend_of_files,
)
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.findings import Hit
from tritonctl.checks.memoize import memoized
from tritonctl.checks.repository import CONFIG as CONFIG_NAME
from tritonctl.checks.repository import Model, Repository, entries_of
from tritonctl.checks.rule import error, warning
from tritonctl.checks.rules.layout.files import WARM_UP, named_data
from tritonctl.errors import suggest
from tritonctl.formats.graph_file import LFS_POINTER, is_pointer

# Names that a config.pbtxt has by mistake.
_MISSPELT = ("config.pbtx", "config.pbtext", "config.prototxt", "model.pbtxt", "config.txt")
_LIKE = 0.85
_POINTER_SIZE = 1024
# Where models are looked for below the folder that was named.
_DEEPEST, _MOST_FOLDERS = 3, 50


@error(
    "TC005 dangling-link",
    summary="a broken link in a model's folder, or in the repository's",
    why="Triton looks at every entry for folders, and stops at a broken link: it refuses "
    "the model, or, in the repository's folder, all of them.",
)
def dangling_link(repository: Repository) -> Iterator[Hit]:
    root = repository.folder()
    for model in (root, *repository.models.values()):
        for name, status in model.entries.items():
            if status is None and name != CONFIG_NAME:
                yield Hit(
                    f"the link {name} is broken",
                    "remove it, or restore its target",
                    place=name,
                    model=model,
                )


@warning(
    "TC006 hidden-folder",
    summary="a hidden folder in the repository",
    why="Unless models are loaded by name, Triton takes .git or .ipynb_checkpoints for a "
    "model, cannot load it, and ends.",
)
def hidden_folder(repository: Repository) -> Iterator[Hit]:
    for name in repository.folder().folders:
        if name.startswith("."):
            yield Hit(
                f"Triton takes {name} for a model: it does not skip hidden folders",
                "keep the models in a folder below this one, and serve that",
                model=repository.folder(name),
            )


@error(
    "TC007 empty-folder",
    summary="an empty folder in the repository",
    why="Triton takes it for a model and refuses it. Unless models are loaded by name, the "
    "server then ends.",
)
def empty_folder(model: Model, repository: Repository) -> Iterator[Hit]:
    if is_empty(model) and not other_level(repository):
        yield Hit(
            f"{model.name} is empty or unreadable, and Triton takes it for a model",
            "put a model there, or remove the folder",
        )


def is_empty(model: Model) -> bool:
    """Whether a folder has nothing that would make it a model."""
    return all(name.startswith(".") for name in model.entries)


def models_inside(model: Model, levels: int = _DEEPEST) -> list[str]:
    """The models in a folder that is not a model itself, or in folders of it."""
    if model.file is not None or model.versions or not levels:
        return []
    inner = [Model(name, model.path / name, "") for name in model.folders if name[0] != "."]
    here = [one.name for one in inner if _is_model(one)]
    if here:
        return here
    below = ((one.name, models_inside(one, levels - 1)) for one in inner[:_MOST_FOLDERS])
    return next(([f"{folder}/{name}" for name in names] for folder, names in below if names), [])


def _is_model(model: Model) -> bool:
    return model.file is not None or any(
        not TELLING_FILES.keys().isdisjoint(model.files_of(version)) for version in model.versions
    )


def other_level(repository: Repository) -> str | None:
    """What the folder is instead of a repository, whose models lie above or below; or nothing.

    Of its own folders nothing can be told then.
    """
    return memoized(repository, "other level", lambda: _other_level(repository))


def _other_level(repository: Repository) -> str | None:
    here, models = repository.folder(), repository.models.values()
    if CONFIG_NAME in here.entries:
        return f"a model: it has a {CONFIG_NAME}"
    if _is_model(here) and not any(one.file or one.versions for one in models):
        return f"a model: {here.versions[-1]} is one of its versions"
    telling = [name for name in TELLING_FILES if name in here.entries]
    if telling and not models:
        return f"a version of a model: it has a {telling[0]}"
    if any(one.file or one.versions for one in models):
        return None
    return "above" if any(map(models_inside, models)) else None


@error(
    "TC008 nested-repository",
    summary="a folder of models where a model should be",
    why="Triton looks for models in the repository's own folder only, and takes this folder "
    "for one of them.",
    answers=("server#4980",),
)
def nested_repository(model: Model) -> Iterator[Hit]:
    nested = models_inside(model)
    if nested:
        folder, _, name = f"{model.shown}/{nested[0]}".rpartition("/")
        yield Hit(
            f"{model.name} is no model; models lie in {folder}: {name}"
            + (f" and {len(nested) - 1} more" if len(nested) > 1 else ""),
            f"check and serve that folder instead: tritonctl check {folder}, "
            f"--model-repository={folder}; or move its models up",
        )


@warning(
    "TC009 no-repository",
    summary="a repository without a model, or a model in its place",
    why="Triton looks for models in the folders of the repository. One that serves nothing "
    "looks like one that works.",
    shows="elsewhere",
)
def no_repository(repository: Repository) -> Iterator[Hit]:
    level, path = other_level(repository), repository.path.absolute()
    if level and level != "above":
        right = path.parents[1] if "version of" in level else path.parent
        yield Hit(
            f"this is not a repository of models, but {level}",
            f"name the folder that has the models: tritonctl check {right}",
        )
    elif not repository.models:
        yield Hit(
            "the repository has no models",
            "name the folder that has the models, each in its own folder",
        )


@warning(
    "TC010 misspelt-config",
    summary="a configuration under a name that Triton does not read",
    why="Triton continues without a configuration: it guesses one, or refuses the model.",
)
def misspelt_config(model: Model) -> Iterator[Hit]:
    name = misspelt(model)
    # Without a file that tells the backend, the model is refused, which another rule reports.
    guessed = "." in model.name or not model.versions
    if name and (
        guessed or backend_of_files(model_config_schema().ModelConfig(), model.first_folder)
    ):
        yield Hit(
            f"Triton reads {CONFIG_NAME}, not {name}",
            f"rename it: mv {model.shown}/{name} {model.shown}/{CONFIG_NAME}",
            place=name,
        )


def misspelt(model: Model) -> str | None:
    """What may be meant as the configuration of a model that has none."""
    if model.file is not None:
        return None
    for name in model.entries:
        close = suggest(name.lower(), (CONFIG_NAME,), likeness=_LIKE)
        if (close or name.lower() in _MISSPELT) and name not in model.folders:
            return name
    return None


@warning(
    "TC011 config-in-version",
    summary="a config.pbtxt in a version folder",
    why="Triton reads one file for all versions, next to their folders.",
)
def config_in_version(model: Model) -> Iterator[Hit]:
    for version in model.versions:
        if CONFIG_NAME in model.files_of(version):
            yield Hit(
                f"Triton does not read {version}/{CONFIG_NAME}",
                f"all versions share the {CONFIG_NAME} next to their folders: "
                f"{model.shown}/{CONFIG_NAME}",
                place=f"{version}/{CONFIG_NAME}",
            )


def config_inside(model: Model) -> str | None:
    """A config.pbtxt that lies in a version folder."""
    versions = (v for v in model.versions if CONFIG_NAME in model.files_of(v))
    return next((f"{version}/{CONFIG_NAME}" for version in versions), None)


@warning(
    "TC012 file-beside-versions",
    summary="a model file next to the version folders",
    why="Triton reads the one in the version's folder: a change here changes nothing.",
)
def file_beside_versions(_config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not model.versions:
        return
    for name in model.file_names if model.backend in DEFAULT_FILES else ():
        place = model.path / name
        if name in model.entries and not any(
            _leads_to(model, v, name, place) for v in model.versions
        ):
            yield Hit(
                f"Triton does not read {name} here: it belongs in a version's folder",
                f"move it to {model.shown}/{model.versions[-1]}/{name}, or remove it",
                place=name,
            )


def _leads_to(model: Model, version: int, name: str, place: Path) -> bool:
    """Whether a version links to it, or has no such file, which another rule reports."""
    if name not in model.files_of(version):
        return True
    try:
        return (model.path / str(version) / name).samefile(place)
    except OSError:
        return False


@error(
    "TC016 lfs-pointer",
    summary="a file that Git LFS has not fetched",
    why="Only a pointer of a few lines lies in its place: the model cannot be loaded, or fails "
    "at its first use.",
    shows="elsewhere",
)
def lfs_pointer(model: Model) -> Iterator[Hit]:
    for version in model.versions:
        for name, status in model.files_of(version).items():
            small = status is not None and len(LFS_POINTER) <= status.st_size <= _POINTER_SIZE
            if small and is_pointer(model.path / str(version) / name):
                yield Hit(
                    f"{version}/{name} is a pointer of Git LFS: its content has not been fetched",
                    "fetch it: git lfs pull",
                    place=f"{version}/{name}",
                )


@error(
    "TC018 shell-name",
    summary="a name of a Python model with a character that a shell interprets",
    why="Up to 2025 the Python backend starts a model through a shell, with its path in the "
    "command: tritonserver 2.51 hangs, or runs something else.",
    shows="elsewhere",
    answers=("python_backend#404",),
)
def shell_name(model: Model) -> Iterator[Hit]:
    broken = SHELL_IN_PATHS.search(model.name) if model.backend == "python" else None
    if broken:
        yield Hit(
            f"the model is called {model.name!r}, and {broken[0]!r} means something to the shell "
            "that starts it",
            "use letters, digits, - and _",
        )


@warning(
    "TC019 other-letters",
    summary="a name of a Python model with letters outside of ASCII",
    why="Python instances run in the locale of the server. In that of most containers such a "
    "path cannot be opened, and Triton refuses the model.",
    shows="elsewhere",
)
def other_letters(model: Model) -> Iterator[Hit]:
    if model.backend == "python" and not model.name.isascii():
        yield Hit(
            f"the model is called {model.name}, which is not all ASCII",
            "use letters from a to z, digits, - and _, or start Triton with LC_ALL=C.UTF-8",
        )


@warning(
    "TC013 unused-data",
    summary="data for warm-up that no sample reads",
    why="The model is not warmed up with it.",
)
def unused_data(_config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if WARM_UP not in model.folders or model.variants:
        return
    used = {data.name.lstrip("/") for data in named_data(model) if data.folder == WARM_UP}
    for name, status in entries_of(model.path / WARM_UP):
        is_file = status is not None and stat.S_ISREG(status.st_mode)
        if is_file and name not in used and not name.startswith("."):
            yield Hit(
                f"no sample of model_warmup reads {WARM_UP}/{name}",
                f'name it there, input_data_file: "{name}", or remove it',
                place=f"{WARM_UP}/{name}",
            )
