# SPDX-License-Identifier: Apache-2.0
"""TC005 to TC019: other files and folders of a repository.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_management.md
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from tritonctl.checks.config.backends import (
    BACKEND_BY_FILE,
    DEFAULT_FILES,
    SHELL_IN_PATHS,
    infer_backend,
)
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.findings import Hit
from tritonctl.checks.memoize import memoized
from tritonctl.checks.repository import CONFIG as CONFIG_NAME
from tritonctl.checks.repository import Model, Repository, folder_entries
from tritonctl.checks.rule import error, warning
from tritonctl.checks.rules.layout.files import WARM_UP, tensor_files
from tritonctl.errors import suggest
from tritonctl.formats.graph_file import LFS_POINTER, is_lfs_pointer

# Wrong names of a config.pbtxt.
_MISSPELT = ("config.pbtx", "config.pbtext", "config.prototxt", "model.pbtxt", "config.txt")
_MIN_SIMILARITY = 0.85
_POINTER_SIZE = 1024
# Limits of the search for models below the given folder.
_MAX_DEPTH, _MAX_FOLDERS = 3, 50


@error(
    "TC005 dangling-link",
    summary="a broken link in a model's folder, or in the repository's",
    reason="Triton looks for folders among all entries and stops at a broken link. It refuses the "
    "model or, for a link in the repository's folder, all models.",
)
def dangling_link(repository: Repository) -> Iterator[Hit]:
    root = repository.folder()
    for model in (root, *repository.models.values()):
        for name, status in model.entries.items():
            if status is None and name != CONFIG_NAME:
                yield Hit(
                    f"the link {name} is broken",
                    "remove it, or restore its target",
                    relative_path=name,
                    model=model,
                )


@warning(
    "TC006 hidden-folder",
    summary="a hidden folder in the repository",
    reason="Unless models are loaded by name, Triton treats .git or .ipynb_checkpoints as a model, "
    "cannot load it, and exits.",
)
def hidden_folder(repository: Repository) -> Iterator[Hit]:
    for name in repository.folder().folders:
        if name.startswith("."):
            yield Hit(
                f"Triton treats {name} as a model: it does not skip hidden folders",
                "keep the models in a folder below this one, and serve that",
                model=repository.folder(name),
            )


@error(
    "TC007 empty-folder",
    summary="an empty folder in the repository",
    reason="Triton treats it as a model and refuses it. Unless models are loaded by name, the "
    "server then exits.",
)
def empty_folder(model: Model, repository: Repository) -> Iterator[Hit]:
    if is_empty(model) and not wrong_level(repository):
        yield Hit(
            f"{model.name} is empty or unreadable, and Triton treats it as a model",
            "put a model there, or remove the folder",
        )


def is_empty(model: Model) -> bool:
    """Whether a folder is empty apart from hidden entries."""
    return all(name.startswith(".") for name in model.entries)


def models_inside(model: Model, levels: int = _MAX_DEPTH) -> list[str]:
    """Return the models in a folder that is not a model itself, or in its subfolders."""
    if model.file is not None or model.versions or not levels:
        return []
    inner = [Model(name, model.path / name, "") for name in model.folders if name[0] != "."]
    model_names = [folder_model.name for folder_model in inner if _is_model(folder_model)]
    if model_names:
        return model_names
    nested = (
        (folder_model.name, models_inside(folder_model, levels - 1))
        for folder_model in inner[:_MAX_FOLDERS]
    )
    return next(([f"{folder}/{name}" for name in names] for folder, names in nested if names), [])


def _is_model(model: Model) -> bool:
    return model.file is not None or any(
        not BACKEND_BY_FILE.keys().isdisjoint(model.version_files(version))
        for version in model.versions
    )


def wrong_level(repository: Repository) -> str | None:
    """Return what a wrong folder is instead of a repository; None for a repository.

    The rules cannot judge the subfolders of a wrong folder.
    """
    return memoized(repository, "other level", lambda: _find_wrong_level(repository))


def _find_wrong_level(repository: Repository) -> str | None:
    root, models = repository.folder(), repository.models.values()
    if CONFIG_NAME in root.entries:
        return f"a model: it has a {CONFIG_NAME}"
    if _is_model(root) and not any(model.file or model.versions for model in models):
        return f"a model: {root.versions[-1]} is one of its versions"
    model_files = [name for name in BACKEND_BY_FILE if name in root.entries]
    if model_files and not models:
        return f"a version of a model: it has a {model_files[0]}"
    if any(model.file or model.versions for model in models):
        return None
    return "above" if any(map(models_inside, models)) else None


@error(
    "TC008 nested-repository",
    summary="a folder of models where a model should be",
    reason="Triton looks for models only directly in the repository, and treats this folder as "
    "one of them.",
    answers=("server#4980",),
)
def nested_repository(model: Model) -> Iterator[Hit]:
    nested = models_inside(model)
    if nested:
        folder, _, name = f"{model.display_path}/{nested[0]}".rpartition("/")
        yield Hit(
            f"{model.name} is not a model; there are models in {folder}: {name}"
            + (f" and {len(nested) - 1} more" if len(nested) > 1 else ""),
            f"check and serve that folder instead: tritonctl check {folder}, "
            f"--model-repository={folder}; or move its models up",
        )


@warning(
    "TC009 no-repository",
    summary="a repository without a model, or a model in its place",
    reason="Triton looks for models in the folders of the repository. A server without models "
    "looks like one that works.",
    shows="elsewhere",
)
def no_repository(repository: Repository) -> Iterator[Hit]:
    level, path = wrong_level(repository), repository.path.absolute()
    if level and level != "above":
        suggested_folder = path.parents[1] if "version of" in level else path.parent
        yield Hit(
            f"this is not a repository of models, but {level}",
            f"pass the folder that contains the models: tritonctl check {suggested_folder}",
        )
    elif not repository.models:
        yield Hit(
            "the repository has no models",
            "pass the folder that contains the models, each in its own folder",
        )


@warning(
    "TC010 misspelt-config",
    summary="a configuration under a name that Triton does not read",
    reason="Triton continues without a configuration: it guesses one, or refuses the model.",
)
def misspelt_config(model: Model) -> Iterator[Hit]:
    name = misspelt_name(model)
    # TC150 reports a model whose backend cannot be inferred.
    is_guessed = "." in model.name or not model.versions
    if name and (
        is_guessed or infer_backend(model_config_schema().ModelConfig(), model.list_first_folder)
    ):
        yield Hit(
            f"Triton reads {CONFIG_NAME}, not {name}",
            f"rename it: mv {model.display_path}/{name} {model.display_path}/{CONFIG_NAME}",
            relative_path=name,
        )


def misspelt_name(model: Model) -> str | None:
    """Return the name of a file that may be meant as the missing config.pbtxt."""
    if model.file is not None:
        return None
    for name in model.entries:
        close = suggest(name.lower(), (CONFIG_NAME,), cutoff=_MIN_SIMILARITY)
        if (close or name.lower() in _MISSPELT) and name not in model.folders:
            return name
    return None


@warning(
    "TC011 config-in-version",
    summary="a config.pbtxt in a version folder",
    reason="Triton reads one file for all versions, next to their folders.",
)
def config_in_version(model: Model) -> Iterator[Hit]:
    for version in model.versions:
        if CONFIG_NAME in model.version_files(version):
            yield Hit(
                f"Triton does not read {version}/{CONFIG_NAME}",
                f"all versions share the {CONFIG_NAME} next to their folders: "
                f"{model.display_path}/{CONFIG_NAME}",
                relative_path=f"{version}/{CONFIG_NAME}",
            )


def config_inside(model: Model) -> str | None:
    """Return the path of a config.pbtxt in a version folder, or None."""
    versions = (v for v in model.versions if CONFIG_NAME in model.version_files(v))
    return next((f"{version}/{CONFIG_NAME}" for version in versions), None)


@warning(
    "TC012 file-beside-versions",
    summary="a model file next to the version folders",
    reason="Triton reads the file in the version folder: a change to this one has no effect.",
)
def file_outside_versions(_config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not model.versions:
        return
    for name in model.file_names if model.backend in DEFAULT_FILES else ():
        path = model.path / name
        if name in model.entries and not any(
            _is_used_by(model, v, name, path) for v in model.versions
        ):
            yield Hit(
                f"Triton does not read {name} here: it belongs in a version folder",
                f"move it to {model.display_path}/{model.versions[-1]}/{name}, or remove it",
                relative_path=name,
            )


def _is_used_by(model: Model, version: int, name: str, place: Path) -> bool:
    """Whether a version links to the file, or has no such file, which TC004 reports."""
    if name not in model.version_files(version):
        return True
    try:
        return (model.path / str(version) / name).samefile(place)
    except OSError:
        return False


@error(
    "TC016 lfs-pointer",
    summary="a file that Git LFS has not fetched",
    reason="The file is only a pointer of a few lines: the model cannot be loaded, or fails at its "
    "first use.",
    shows="elsewhere",
)
def lfs_pointer(model: Model) -> Iterator[Hit]:
    for version in model.versions:
        for name, status in model.version_files(version).items():
            may_be_pointer = (
                status is not None and len(LFS_POINTER) <= status.st_size <= _POINTER_SIZE
            )
            if may_be_pointer and is_lfs_pointer(model.path / str(version) / name):
                yield Hit(
                    f"{version}/{name} is a Git LFS pointer: its content has not been fetched",
                    "fetch it: git lfs pull",
                    relative_path=f"{version}/{name}",
                )


@error(
    "TC018 shell-name",
    summary="a name of a Python model with a character that a shell interprets",
    reason="Up to 2025 the Python backend starts a model through a shell, with its path in the "
    "command: tritonserver 2.51 hangs, or runs another command.",
    shows="elsewhere",
    answers=("python_backend#404",),
)
def shell_name(model: Model) -> Iterator[Hit]:
    broken = SHELL_IN_PATHS.search(model.name) if model.backend == "python" else None
    if broken:
        yield Hit(
            f"the model is called {model.name!r}, and the shell that starts it interprets "
            f"{broken[0]!r}",
            "use letters, digits, - and _",
        )


@warning(
    "TC019 other-letters",
    summary="a name of a Python model with letters outside ASCII",
    reason="Python instances run in the locale of the server. With most containers' locale they "
    "cannot open such a path, and Triton refuses the model.",
    shows="elsewhere",
)
def non_ascii_name(model: Model) -> Iterator[Hit]:
    if model.backend == "python" and not model.name.isascii():
        yield Hit(
            f"the model is called {model.name}, which is not all ASCII",
            "use letters from a to z, digits, - and _, or start Triton with LC_ALL=C.UTF-8",
        )


@warning(
    "TC013 unused-data",
    summary="warm-up data that no sample reads",
    reason="Warm-up does not use the data.",
)
def unused_data(_config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if WARM_UP not in model.folders or model.variants:
        return
    used = {data.name.lstrip("/") for data in tensor_files(model) if data.folder == WARM_UP}
    for name, status in folder_entries(model.path / WARM_UP):
        is_file = status is not None and stat.S_ISREG(status.st_mode)
        if is_file and name not in used and not name.startswith("."):
            yield Hit(
                f"no sample of model_warmup reads {WARM_UP}/{name}",
                f'name it there, input_data_file: "{name}", or remove it',
                relative_path=f"{WARM_UP}/{name}",
            )
