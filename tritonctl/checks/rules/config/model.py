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
    BACKEND_BY_FILE,
    KNOWN_BACKENDS,
    PLATFORMS,
    SHELL_IN_PATHS,
    infer_backend,
)
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, error, warning
from tritonctl.checks.rules.layout.folders import config_inside, misspelt_name
from tritonctl.errors import suggest

# Above this similarity, a name is more likely a misspelling than a custom backend.
_MIN_SIMILARITY = 0.75
_LABEL = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")
_STEPS = "ensemble_scheduling"
_ENSEMBLE = "ensemble"
_BACKEND_PLATFORMS = {platform for platforms in PLATFORMS.values() for platform in platforms}
# These backends are libraries and have no model.py.
_COMPILED_BACKENDS = ("python", "onnxruntime", "openvino", "tensorrt", "tensorflow")
_LIBRARY = re.compile(r"\.(so|dll|dylib)\b")
_COMPLETING_BACKENDS = ("onnxruntime", "openvino", "tensorflow", "tensorrt")


@error(
    "TC150 no-backend",
    summary="a model whose backend is unknown",
    reason="Triton refuses the model: it cannot infer the backend, except from a file such as "
    "model.onnx or model.py.",
    needs_valid_config=True,
)
def no_backend(model: Model) -> Iterator[Hit]:
    message = model.config.message
    if (model.file and not model.has_config) or not model.versions:
        return
    if message.platform or message.HasField(_STEPS):
        return
    configured_name = message.default_model_filename
    # A model called m.custom is served by the backend custom.
    if message.backend or ("." in model.name and not configured_name):
        return
    if infer_backend(message, model.list_first_folder):
        return
    unread, inside = misspelt_name(model), None if model.file else config_inside(model)
    yield Hit(
        f"{model.name} names no backend, and "
        + (
            f"{configured_name} does not show it"
            if configured_name
            else "no file such as model.py shows it"
        )
        + (f"; Triton does not read {unread}: its name is not config.pbtxt" if unread else "")
        + (f"; Triton does not read {inside}: it is in a version folder" if inside else ""),
        f"move it next to the version folders: mv {model.display_path}/{inside} "
        f"{model.display_path}/"
        if inside
        else 'name it in config.pbtxt: backend: "python"',
        model.config.span(),
    )


@error(
    "TC151 unknown-platform",
    summary="an unknown platform",
    reason="Triton refuses the model: without a backend, the platform must be one that Triton "
    "knows.",
    needs_valid_config=True,
)
def unknown_platform(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    platform = config.message.platform
    if not platform or model.backend:
        return
    platforms = [name for names in PLATFORMS.values() for name in names]
    close = suggest(platform, platforms)
    fix = f"did you mean {close}?" if close else f"it is one of {', '.join(sorted(platforms))}"
    if platform in KNOWN_BACKENDS:
        fix = f'it is a backend: write backend: "{platform}"'
    yield Hit(f"unknown platform: {platform}", fix, config.span("platform"))


_GRAPHS = ("model.savedmodel", "model.graphdef")


@error(
    "TC152 platform-against-backend",
    summary="a platform that belongs to another backend",
    reason="Triton refuses the model. One of the two is enough.",
    needs_valid_config=True,
)
def platform_against_backend(config: ConfigMessage) -> Iterator[Hit]:
    message = config.message
    configured_name, platform = message.default_model_filename, message.platform
    # Triton infers the platform of TensorFlow from the file's name, and requires one.
    if message.backend == "tensorflow" and not platform and configured_name not in ("", *_GRAPHS):
        yield Hit(
            f"the backend is tensorflow, and {configured_name} does not show the platform",
            f"write platform: {' or '.join(map(repr, PLATFORMS['tensorflow']))}",
            config.span("backend"),
        )
        return
    file_backend = (
        BACKEND_BY_FILE.get(configured_name) if platform not in _BACKEND_PLATFORMS else None
    )
    backend = message.backend or file_backend
    expected_platforms = PLATFORMS.get(backend or "")
    # TC301 covers ensembles. Later servers have more PyTorch platforms.
    if (
        not expected_platforms
        or platform in ("", _ENSEMBLE, *expected_platforms)
        or "torch" in platform
    ):
        return
    source = "" if message.backend else f" by default_model_filename {configured_name}"
    yield Hit(
        f"the backend is {backend}{source}, and the platform {platform}",
        f"write {' or '.join(expected_platforms)}, or leave `platform` out",
        config.span("platform"),
    )


@error(
    "TC159 unusable-runtime",
    summary="a runtime that is not a library in the backend's folder",
    reason="Triton looks for the file in the folders of the version, the model and the backend. It "
    "refuses the model if the file is in none of them, or if the path leaves the folder.",
    needs_valid_config=True,
)
def unusable_runtime(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    runtime, backend = config.message.runtime, config.message.backend
    if not runtime or model.backend == _ENSEMBLE:
        return
    # Triton requires the normalised path to stay in the backend's folder.
    path = posixpath.normpath(posixpath.join("/backends", backend or "any", runtime.lstrip("/")))
    folders = (model.entries, *map(model.version_files, model.versions))
    if runtime.startswith("/") or not path.startswith(f"/backends/{backend or 'any'}/"):
        wrong = "leaves the backend's folder"
    elif runtime == "model.py" and model.backend in _COMPILED_BACKENDS:
        wrong = f"is of backends in Python, and {model.backend} is a library"
    elif (
        runtime != "model.py"
        and not _LIBRARY.search(runtime)
        and not any(runtime in folder for folder in folders)
    ):
        wrong = "is not a library"
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
    reason="Triton looks for libtriton_NAME.so in its folder of backends and refuses the model if "
    "it is missing. A custom backend may have this name.",
    shows="elsewhere",
    needs_valid_config=True,
)
def unknown_backend(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    name = config.message.backend
    if not name or name in KNOWN_BACKENDS or config.message.runtime:
        return
    close = suggest(name.lower(), KNOWN_BACKENDS, cutoff=_MIN_SIMILARITY)
    folders = (model.entries, *map(model.version_files, model.versions))
    if close and not any(f"libtriton_{name}.so" in folder for folder in folders):
        yield Hit(
            f"unknown backend: {name}",
            f"did you mean {close}?",
            config.span("backend"),
        )


@error(
    "TC157 python-filename",
    summary="a default_model_filename that is not the name of a Python module",
    reason="The Python backend imports the file as a module and refuses the model, or, in Triton "
    "2.51, hangs.",
    answers=("server#3237",),
    needs_valid_config=True,
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
        wrong = "has a character that the shell which starts the backend interprets"
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
    reason="tritonserver 2.51 crashes on it, with all its models.",
    needs_valid_config=True,
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
    summary="a metric tag that is not a valid label name",
    reason="tritonserver 2.51 crashes on it, with all its models.",
    needs_valid_config=True,
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
    needs_valid_config=True,
)
def metric_control(config: ConfigMessage) -> Iterator[Hit]:
    controls = config.message.model_metrics.metric_control
    for index, control in enumerate(controls):
        parts = {
            "metric_identifier.family": control.metric_identifier.family,
            "histogram_options.buckets": control.histogram_options.buckets,
        }
        missing = [name for name, value in parts.items() if not value]
        if missing:
            yield Hit(
                f"metric_control number {index + 1} has no {' and no '.join(missing)}",
                "name the metric, and the bounds of its buckets",
                config.span("model_metrics", "metric_control", index),
            )


@advice(
    "TC154 filled-in",
    summary="a configuration that Triton completes from the model's file",
    reason="The server's configuration differs from this file: the batch size and the batcher come "
    "from defaults that a later server may change.",
    shows="elsewhere",
    answers=("server#5215", "server#2635"),
    needs_valid_config=True,
)
def relies_on_auto_complete(
    config: ConfigMessage, model: Model, repository: Repository
) -> Iterator[Hit]:
    if model.backend not in _COMPLETING_BACKENDS or not repository.target.completes:
        return
    message = config.message
    missing = [name for name in ("input", "output") if not len(getattr(message, name))]
    if missing and not message.max_batch_size:
        yield Hit(
            f"{' and '.join(missing)} missing, and max_batch_size is 0: Triton fills them "
            "in, with a batch of up to 4 and dynamic_batching where the model takes batches",
            "write max_batch_size and the tensors; `tritonctl check --url` shows them",
            config.span("max_batch_size"),
        )
