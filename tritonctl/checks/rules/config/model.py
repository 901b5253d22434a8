# SPDX-License-Identifier: Apache-2.0
"""TC15x: backends and platforms that Triton refuses as they are configured.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
https://github.com/triton-inference-server/backend/blob/main/README.md
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from tritonctl.checks.config.backends import (
    KNOWN,
    PLATFORMS,
    SHELL_IN_PATHS,
    TELLING_FILES,
    backend_of_files,
)
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, error, warning
from tritonctl.checks.rules.layout.folders import config_inside, misspelt
from tritonctl.errors import suggest

# Above it, a name is more likely a slip of the pen than a backend of one's own.
_LIKE = 0.75
_LABEL = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")
_STEPS = "ensemble_scheduling"
_ENSEMBLE = "ensemble"
_OF_BACKEND = {platform for platforms in PLATFORMS.values() for platform in platforms}
# These are libraries, and have no model.py that could stand in for them.
_COMPILED = ("python", "onnxruntime", "openvino", "tensorrt", "tensorflow")
_LIBRARY = re.compile(r"\.(so|dll|dylib)\b")
_FILLS_IN = ("onnxruntime", "openvino", "tensorflow", "tensorrt")


@error(
    "TC150 no-backend",
    summary="a model whose backend is unknown",
    why="Triton refuses the model: it does not know which backend loads it. It guesses only from a "
    "file such as model.onnx or model.py.",
)
def no_backend(model: Model) -> Iterator[Hit]:
    message = model.config.message
    if (model.file and not model.has_config) or not model.versions:
        return
    if message.platform or message.HasField(_STEPS):
        return
    named = message.default_model_filename
    # A model called m.custom is served by the backend custom.
    if message.backend or ("." in model.name and not named):
        return
    if backend_of_files(message, model.first_folder):
        return
    unread, inside = misspelt(model), None if model.file else config_inside(model)
    yield Hit(
        f"{model.name} names no backend, and "
        + (f"{named} does not show it" if named else "no file such as model.py shows it")
        + (f"; {unread} is not read, for it is not called config.pbtxt" if unread else "")
        + (f"; {inside} is not read, for it lies in a version's folder" if inside else ""),
        f"move it next to the version folders: mv {model.shown}/{inside} {model.shown}/"
        if inside
        else 'name it in config.pbtxt: backend: "python"',
        model.config.span(),
    )


@error(
    "TC151 unknown-platform",
    summary="an unknown platform",
    why="Triton refuses the model: a platform without a backend has to be one that Triton knows.",
)
def unknown_platform(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    platform = config.message.platform
    if not platform or model.backend:
        return
    known = [name for names in PLATFORMS.values() for name in names]
    close = suggest(platform, known)
    fix = f"did you mean {close}?" if close else f"it is one of {', '.join(sorted(known))}"
    if platform in KNOWN:
        fix = f'it is a backend: write backend: "{platform}"'
    yield Hit(f"unknown platform: {platform}", fix, config.span("platform"))


@error(
    "TC152 platform-against-backend",
    summary="a platform that belongs to another backend",
    why="Triton refuses the model. One of the two is enough.",
)
def platform_against_backend(config: ConfigMessage) -> Iterator[Hit]:
    message = config.message
    named, platform = message.default_model_filename, message.platform
    of_file = TELLING_FILES.get(named) if platform not in _OF_BACKEND else None
    backend = message.backend or of_file
    wanted = PLATFORMS.get(backend or "")
    # TC301 is about ensembles. Later servers have more platforms of PyTorch.
    if not wanted or platform in ("", _ENSEMBLE, *wanted) or "torch" in platform:
        return
    by = "" if message.backend else f" by default_model_filename {named}"
    yield Hit(
        f"the backend is {backend}{by}, and the platform {platform}",
        f"write {' or '.join(wanted)}, or leave `platform` out",
        config.span("platform"),
    )


@error(
    "TC159 unusable-runtime",
    summary="a runtime that is no library of the backend's folder",
    why="Triton looks for the file in the folders of the version, the model and the backend, and "
    "refuses the model where it is in none, or leaves the folder it is in.",
)
def unusable_runtime(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    runtime, backend = config.message.runtime, config.message.backend
    if not runtime or model.backend == _ENSEMBLE:
        return
    # What begins in the backend's folder; Triton compares paths as they are written out.
    path = posixpath.normpath(posixpath.join("/backends", backend or "any", runtime.lstrip("/")))
    folders = (model.entries, *map(model.files_of, model.versions))
    if runtime.startswith("/") or not path.startswith(f"/backends/{backend or 'any'}/"):
        wrong = "leaves the backend's folder"
    elif runtime == "model.py" and model.backend in _COMPILED:
        wrong = f"is of backends in Python, and {model.backend} is a library"
    elif (
        runtime != "model.py"
        and not _LIBRARY.search(runtime)
        and not any(runtime in folder for folder in folders)
    ):
        wrong = "is no library"
    else:
        return
    yield Hit(
        f"the runtime {runtime} {wrong}",
        "leave `runtime` out, or name a file of the backend's folder: "
        f"libtriton_{model.backend or 'NAME'}.so",
        config.span("runtime"),
    )


@warning(
    "TC153 unknown-backend",
    summary="a backend whose name looks misspelt",
    why="Triton looks for libtriton_NAME.so in its folder of backends and refuses the model "
    "where that is missing. A backend of your own may have this name.",
    shows="elsewhere",
)
def unknown_backend(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    name = config.message.backend
    if not name or name in KNOWN or config.message.runtime:
        return
    close = suggest(name.lower(), KNOWN, likeness=_LIKE)
    folders = (model.entries, *map(model.files_of, model.versions))
    if close and not any(f"libtriton_{name}.so" in folder for folder in folders):
        yield Hit(
            f"unknown backend: {name}",
            f"did you mean {close}?",
            config.span("backend"),
        )


@error(
    "TC157 python-filename",
    summary="a default_model_filename that is not the name of a Python module",
    why="The Python backend imports the file as a module and refuses the model, or, in Triton "
    "2.51, hangs.",
    answers=("server#3237",),
)
def python_filename(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    name = config.message.default_model_filename
    if model.backend != "python" or not name:
        return
    if not name.endswith(".py"):
        wrong = "does not end with .py"
    elif "." in name.removesuffix(".py"):
        wrong = "has another dot, and is not a module name"
    elif SHELL_IN_PATHS.search(name):
        wrong = "has a character that means something to the shell which starts the backend"
    else:
        return
    yield Hit(
        f"default_model_filename {name!r} {wrong}",
        "name it like a module: letters, digits, _ and .py",
        config.span("default_model_filename"),
    )


@error(
    "TC155 no-agent",
    summary="model_repository_agents without an agent",
    why="tritonserver 2.51 crashes over it, with all models that it serves.",
)
def no_agent(config: ConfigMessage) -> Iterator[Hit]:
    if not config.message.HasField("model_repository_agents"):
        return
    if not config.message.model_repository_agents.agents:
        yield Hit(
            "model_repository_agents names no agent",
            'remove it, or name one: agents [ { name: "checksum" } ]',
            config.name_span("model_repository_agents"),
        )


@error(
    "TC156 metric-tag",
    summary="a metric tag that cannot be a label's name",
    why="tritonserver 2.51 crashes over it, with all models that it serves.",
)
def metric_tag(config: ConfigMessage) -> Iterator[Hit]:
    for key in config.message.metric_tags:
        if key and not _LABEL.fullmatch(key):  # one without a key loads
            yield Hit(
                f"the metric tag {key!r} is not a valid label name",
                "use letters, digits and _, with no digit first",
                config.name_span("metric_tags", key),
            )


@error(
    "TC158 metric-control",
    summary="a metric_control without its metric or its buckets",
    shows="elsewhere",
)
def metric_control(config: ConfigMessage) -> Iterator[Hit]:
    controls = config.message.model_metrics.metric_control
    for index, control in enumerate(controls):
        parts = {
            "metric_identifier.family": control.metric_identifier.family,
            "histogram_options.buckets": control.histogram_options.buckets,
        }
        lacking = [name for name, given in parts.items() if not given]
        if lacking:
            yield Hit(
                f"metric_control number {index + 1} has no {' and no '.join(lacking)}",
                "name the metric, and the bounds of its buckets",
                config.span("model_metrics", "metric_control", index),
            )


@advice(
    "TC154 filled-in",
    summary="a configuration that Triton completes from the model's file",
    why="What is served differs from what is written here: the size of a batch and the batcher "
    "come from defaults that a later server may change.",
    shows="elsewhere",
    answers=("server#5215", "server#2635"),
)
def filled_in(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    if model.backend not in _FILLS_IN or not repository.target.completes:
        return
    message = config.message
    lacking = [name for name in ("input", "output") if not len(getattr(message, name))]
    if lacking and not message.max_batch_size:
        yield Hit(
            f"{' and '.join(lacking)} missing, and max_batch_size is 0: Triton fills them "
            "in, with a batch of up to 4 and dynamic_batching where the model takes batches",
            "write max_batch_size and the tensors; `tritonctl check --url` shows what it serves",
            config.span("max_batch_size"),
        )
