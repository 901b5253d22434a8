# SPDX-License-Identifier: Apache-2.0
"""TC005 to TC019: what lies in a repository beside the models' own files.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_management.md
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tritonctl.checks.config.backends import DEFAULT_FILES, SHELL_IN_PATHS, backend_of_files
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.examples.models import CONFIG, python_model
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import CONFIG as CONFIG_NAME
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import File, Rule
from tritonctl.checks.rules.layout_files import WARM_UP, named_data
from tritonctl.formats.graph_file import LFS_POINTER, is_pointer

# Names that a config.pbtxt has by mistake.
_MISSPELT = ("config.pbtx", "config.pbtext", "config.prototxt", "model.pbtxt", "config.txt")
_LIKE = 0.85
_POINTER_SIZE = 1024


def folders(model: Model) -> list[str]:
    """The names of the folders in a model's folder."""
    return [name for name, status in model.entries.items() if _is_folder(status)]


def _is_folder(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISDIR(status.st_mode)


def dangling_link(repository: Repository) -> Iterator[tuple[Model, Hit]]:
    """A link to nowhere where Triton looks for folders."""
    root = repository.folder()
    for model in (root, *repository.models.values()):
        for name, status in model.entries.items():
            if status is None and name != CONFIG_NAME:
                yield (
                    model,
                    Hit(
                        f"the link {name} leads nowhere",
                        "remove it, or put back what it leads to",
                        place=name,
                    ),
                )


def hidden_folder(repository: Repository) -> Iterator[tuple[Model, Hit]]:
    """A folder such as .git, which Triton takes for a model."""
    for name in folders(repository.folder()):
        if name.startswith("."):
            yield (
                repository.folder(name),
                Hit(
                    f"Triton takes {name} for a model: it knows no hidden folders",
                    "keep the repository in a folder of its own, below the one that has it",
                ),
            )


def empty_folder(model: Model, _: Repository) -> Iterator[Hit]:
    """A folder with nothing in it, or nothing but hidden files."""
    if is_empty(model):
        yield Hit(
            f"{model.name} is empty or unreadable, and Triton takes it for a model",
            "put a model there, or remove the folder",
        )


def is_empty(model: Model) -> bool:
    """Whether a folder has nothing that would make it a model."""
    return all(name.startswith(".") for name in model.entries)


def models_inside(model: Model) -> list[str]:
    """The models in a folder that is none itself, but has some."""
    if model.file is not None or model.versions:
        return []
    return [name for name in folders(model) if (model.path / name / CONFIG_NAME).exists()]


def nested_repository(model: Model, _: Repository) -> Iterator[Hit]:
    """A folder of models where a model should be."""
    nested = models_inside(model)
    if nested:
        yield Hit(
            f"{model.name} is a repository itself: it has the model {nested[0]}"
            + (f" and {len(nested) - 1} more" if len(nested) > 1 else ""),
            f"serve it by itself, --model-repository={model.shown}, or move its models up",
        )


def no_repository(repository: Repository) -> Iterator[tuple[Model, Hit]]:
    """A repository without a model, or what is one model."""
    model = repository.folder()
    if CONFIG_NAME in model.entries:
        yield (
            model,
            Hit(
                f"this is a model, not a repository of models: it has a {CONFIG_NAME}",
                "name the folder above it",
            ),
        )
    elif not repository.models:
        yield (
            model,
            Hit(
                "there is no model here",
                "name the folder that has the models, each in a folder of its own",
            ),
        )


def misspelt_config(model: Model, _: Repository) -> Iterator[Hit]:
    """A configuration under a name that Triton does not read."""
    name = misspelt(model)
    # Without a file that tells the backend, the model is refused, which has a rule of its own.
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
    for name, status in model.entries.items():
        close = difflib.get_close_matches(name.lower(), (CONFIG_NAME,), n=1, cutoff=_LIKE)
        if (close or name.lower() in _MISSPELT) and not _is_folder(status):
            return name
    return None


def config_in_version(model: Model, _: Repository) -> Iterator[Hit]:
    """A configuration in a version folder."""
    for version in model.versions:
        if CONFIG_NAME in model.files_of(version):
            yield Hit(
                f"Triton does not read {version}/{CONFIG_NAME}",
                f"there is one {CONFIG_NAME} for all versions, beside their folders: "
                f"{model.shown}/{CONFIG_NAME}",
                place=f"{version}/{CONFIG_NAME}",
            )


def file_beside_versions(model: Model, _: Repository) -> Iterator[Hit]:
    """What a version folder should have, beside the version folders."""
    config = model.config
    if config is None or not model.versions:
        return
    for name in model.file_names if model.backend in DEFAULT_FILES else ():
        place = model.path / name
        if name in model.entries and not any(
            _leads_to(model, v, name, place) for v in model.versions
        ):
            yield Hit(
                f"Triton does not read {name} here: it belongs into a version's folder",
                f"move it to {model.shown}/{model.versions[-1]}/{name}, or remove it",
                place=name,
            )


def _leads_to(model: Model, version: int, name: str, place: Path) -> bool:
    """Whether a version has a link to it; or lacks the file, which another rule tells."""
    if name not in model.files_of(version):
        return True
    try:
        return (model.path / str(version) / name).samefile(place)
    except OSError:
        return False


def lfs_pointer(model: Model, _: Repository) -> Iterator[Hit]:
    """A file of a version that Git LFS has not fetched."""
    for version in model.versions:
        for name, status in model.files_of(version).items():
            small = status is not None and len(LFS_POINTER) <= status.st_size <= _POINTER_SIZE
            if small and is_pointer(model.path / str(version) / name):
                yield Hit(
                    f"{version}/{name} is a pointer of Git LFS: its content has not been fetched",
                    "fetch it: git lfs pull",
                    place=f"{version}/{name}",
                )


def shell_name(model: Model, _: Repository) -> Iterator[Hit]:
    """A name that the shell which starts a Python model takes apart."""
    broken = SHELL_IN_PATHS.search(model.name) if model.backend == "python" else None
    if broken:
        yield Hit(
            f"the model is called {model.name!r}, and {broken[0]!r} means something to the shell "
            "that starts it",
            "use letters, digits, - and _",
        )


def other_letters(model: Model, _: Repository) -> Iterator[Hit]:
    """A name of a Python model with letters that an ASCII locale lacks."""
    if model.backend == "python" and not model.name.isascii():
        yield Hit(
            f"the model is called {model.name}, which is not all ASCII",
            "use letters from a to z, digits, - and _, or start Triton with LC_ALL=C.UTF-8",
        )


def unused_data(model: Model, _: Repository) -> Iterator[Hit]:
    """Data for warm-up that no sample names."""
    if WARM_UP not in folders(model) or model.config is None or model.variants:
        return
    used = {data.name.lstrip("/") for data in named_data(model) if data.folder == WARM_UP}
    for path in sorted(_files(model.path / WARM_UP)):
        if path.name not in used and not path.name.startswith("."):
            yield Hit(
                f"no sample of model_warmup reads {WARM_UP}/{path.name}",
                f'name it there, input_data_file: "{path.name}", or remove it',
                place=f"{WARM_UP}/{path.name}",
            )


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_file()]
    except OSError:
        return []


_GOOD = python_model()
_MODEL = _GOOD["m/1/model.py"]
_UNNAMED = CONFIG.replace('name: "m"\n', "")

RULES = (
    Rule(
        id="TC005",
        name="dangling-link",
        severity="error",
        summary="a link to nowhere in a model's folder, or in the repository's",
        why="Triton looks at every entry for folders, and stops at what is not there: it refuses "
        "the model, or, in the repository's folder, all of them.",
        check_all=dangling_link,
        bad=_GOOD | {"m/latest": File(link="3")},
        good=_GOOD,
    ),
    Rule(
        id="TC006",
        name="hidden-folder",
        severity="warning",
        summary="a hidden folder in the repository",
        why="Unless models are loaded by name, Triton takes .git or .ipynb_checkpoints for a "
        "model, cannot load it, and ends.",
        check_all=hidden_folder,
        bad=_GOOD | {".ipynb_checkpoints/notes.ipynb": ""},
        good=_GOOD,
    ),
    Rule(
        id="TC007",
        name="empty-folder",
        severity="error",
        summary="an empty folder in the repository",
        why="Triton takes it for a model and refuses it. Unless models are loaded by name, the "
        "server then ends.",
        check=empty_folder,
        bad={"m/.gitkeep": ""},
        good=_GOOD,
    ),
    Rule(
        id="TC008",
        name="nested-repository",
        severity="error",
        summary="a folder of models where a model should be",
        why="Triton looks for models in the repository's own folder only, and takes this folder "
        "for one of them.",
        check=nested_repository,
        bad={f"m/{name}": text for name, text in _GOOD.items()},
        good=_GOOD,
        answers=("server#4980",),
    ),
    Rule(
        id="TC009",
        name="no-repository",
        severity="warning",
        summary="a repository without a model, or a model in its place",
        why="Triton looks for models in the folders of the repository. One that serves nothing "
        "looks like one that works.",
        check_all=no_repository,
        bad={"config.pbtxt": CONFIG, "1/model.py": _MODEL},
        good=_GOOD,
        shows="elsewhere",
    ),
    Rule(
        id="TC010",
        name="misspelt-config",
        severity="warning",
        summary="a configuration under a name that Triton does not read",
        why="Triton goes on without a configuration: it guesses one, or refuses the model.",
        check=misspelt_config,
        bad={"m/config.prototxt": CONFIG, "m/1/model.py": _MODEL},
        good=_GOOD,
    ),
    Rule(
        id="TC011",
        name="config-in-version",
        severity="warning",
        summary="a config.pbtxt in a version folder",
        why="Triton reads the one beside the version folders, for all of them.",
        check=config_in_version,
        bad=_GOOD | {"m/1/config.pbtxt": CONFIG},
        good=_GOOD,
    ),
    Rule(
        id="TC012",
        name="file-beside-versions",
        severity="warning",
        summary="a model file beside the version folders",
        why="Triton reads the one in the version's folder: a change here changes nothing.",
        check=file_beside_versions,
        bad=_GOOD | {"m/model.py": _MODEL},
        good=_GOOD | {"m/1/model.py": _MODEL},
    ),
    Rule(
        id="TC013",
        name="unused-data",
        severity="warning",
        summary="data for warm-up that no sample reads",
        why="The model is not warmed up with it.",
        check=unused_data,
        bad=_GOOD | {"m/warmup/first.raw": "0123456789abcdef"},
        good=_GOOD,
    ),
    Rule(
        id="TC016",
        name="lfs-pointer",
        severity="error",
        summary="a file that Git LFS has not fetched",
        why="Only a pointer of a few lines lies in its place: the model cannot be loaded, or fails "
        "at its first use.",
        check=lfs_pointer,
        bad=_GOOD | {"m/1/weights.safetensors": LFS_POINTER.decode() + "/spec/v1\nsize 9\n"},
        good=_GOOD,
        shows="elsewhere",
    ),
    Rule(
        id="TC018",
        name="shell-name",
        severity="error",
        summary="a name of a Python model with a character that a shell interprets",
        why="Up to 2025 the Python backend starts a model through a shell, with its path in the "
        "command: tritonserver 2.51 waits for ever, or runs something else.",
        check=shell_name,
        bad={"m/config.pbtxt": _UNNAMED, "m/1/model.py": _MODEL}
        | {"m copy/config.pbtxt": _UNNAMED, "m copy/1/model.py": _MODEL},
        good={"m/config.pbtxt": _UNNAMED, "m/1/model.py": _MODEL}
        | {"m-copy/config.pbtxt": _UNNAMED, "m-copy/1/model.py": _MODEL},
        shows="elsewhere",
        answers=("python_backend#404",),
    ),
    Rule(
        id="TC019",
        name="other-letters",
        severity="warning",
        summary="a name of a Python model with letters beside those of ASCII",
        why="Python instances run in the locale of the server. In that of most containers such a "
        "path cannot be opened, and Triton refuses the model.",
        check=other_letters,
        bad={"m/config.pbtxt": _UNNAMED, "m/1/model.py": _MODEL}
        | {"modèle/config.pbtxt": _UNNAMED, "modèle/1/model.py": _MODEL},
        good={"m/config.pbtxt": _UNNAMED, "m/1/model.py": _MODEL},
        shows="elsewhere",
    ),
)
