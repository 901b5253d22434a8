# SPDX-License-Identifier: Apache-2.0
"""TC30x: whether an ensemble is configured as one, and its steps' models are there."""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.graph import Graph
from tritonctl.checks.analysis.nesting import LONG_CIRCLE, circle
from tritonctl.checks.config.backends import TELLING_FILES
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Edit, Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error, warning
from tritonctl.errors import suggest

_INFERRED = ("tensorrt", "onnxruntime", "openvino", "pytorch", "python")
_REFUSED = ("instance_group", "optimization", "model_warmup")
_WITHOUT_EFFECT = (
    "cc_model_filenames",
    "runtime",
    "batch_input",
    "batch_output",
    "model_operations",
)


@error(
    "TC301 no-ensemble-platform",
    summary="steps in a model whose platform is not ensemble, or that also has a backend",
    why="Triton refuses the model.",
)
def no_platform(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not model.is_readable:
        return
    message = config.message
    if not message.HasField("ensemble_scheduling") and message.platform != "ensemble":
        return
    if message.platform != "ensemble":
        span = config.span("platform") if message.platform else None
        yield Hit(
            f"{model.name} has steps, but its platform is not ensemble",
            'write platform: "ensemble"',
            span or config.name_span("ensemble_scheduling"),
            edits=(Edit(span, '"ensemble"'),) if span else (),
        )
    for name in ("backend", "default_model_filename") if message.platform == "ensemble" else ():
        value = getattr(message, name)
        # From such a name Triton infers the backend.
        if value and (name == "backend" or TELLING_FILES.get(value) in _INFERRED):
            yield Hit(
                f"an ensemble takes no backend, and {model.name} names {value}",
                f"remove `{name}`",
                config.name_span(name),
            )


@error(
    "TC302 no-steps",
    summary="an ensemble without steps",
    why="Triton refuses the model.",
)
def no_steps(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not model.is_readable or config.message.platform != "ensemble":
        return
    if not config.message.ensemble_scheduling.step:
        yield Hit(
            f"{model.name} is an ensemble without a step",
            "write its steps into `ensemble_scheduling`",
            config.span("platform"),
        )


@error(
    "TC303 refused-on-ensembles",
    summary="instance groups, optimisation or warm-up of an ensemble",
    why="An ensemble runs nothing itself: Triton refuses it with these fields.",
    answers=("server#6877",),
)
def refused_field(_ensemble: Graph, config: ConfigMessage) -> Iterator[Hit]:
    for name in _REFUSED:
        field = getattr(config.message, name)
        given = config.message.HasField(name) if name == "optimization" else bool(field)
        if given:
            yield Hit(
                f"an ensemble cannot have `{name}`",
                "remove it here and write it into the steps' own models",
                config.name_span(name),
            )


@error(
    "TC305 missing-model",
    summary="a step whose model is not in the repository",
    why="Triton refuses the ensemble, unless another --model-repository has the model.",
)
def missing_model(config: ConfigMessage, ensemble: Graph, repository: Repository) -> Iterator[Hit]:
    for step in ensemble.steps:
        if step.name and step.name not in repository.models:
            close = suggest(step.name, repository.models)
            yield Hit(
                f"{step.name} is not in this repository",
                f"did you mean {close}?"
                if close
                else f"add it, or also start Triton with the --model-repository of {step.name}",
                config.span(*step.path, "model_name"),
            )


@error(
    "TC306 unserved-version",
    summary="a step that asks for a version of its model which is not loaded",
    why="Triton refuses the ensemble. It loads only the latest version of a model unless its "
    "`version_policy` says otherwise.",
)
def unserved_version(
    config: ConfigMessage, ensemble: Graph, repository: Repository
) -> Iterator[Hit]:
    for step in ensemble.steps:
        inner = repository.models.get(step.name)
        if inner is None or not inner.is_readable:
            continue
        served = inner.served_versions
        if not served or step.version == -1 or step.version in served:
            continue
        loaded = ", ".join(map(str, served))
        version = (*step.path, "model_version")
        if version in config.values:
            asked, span = f"version {step.version} of {step.name}", config.span(*version)
        else:
            asked = f"version 0 of {step.name}, for it names none"
            span = config.span(*step.path, "model_name")
        why = "" if step.version not in inner.versions else ": its version_policy leaves it out"
        yield Hit(
            f"step {step.index + 1} asks for {asked}; Triton loads {loaded}{why}",
            "write model_version: -1 for the latest",
            span,
        )


@error(
    "TC307 contains-itself",
    summary="an ensemble that contains itself, directly or through others",
    why="Triton refuses it; a model that leads into such a cycle kills tritonserver 2.51.",
)
def contains_itself(
    config: ConfigMessage, ensemble: Graph, model: Model, repository: Repository
) -> Iterator[Hit]:
    way = circle(model, repository)
    if not way:
        return
    step = next(step for step in ensemble.steps if step.name == way[1])
    if len(way) > LONG_CIRCLE:
        way = (*way[: LONG_CIRCLE - 2], "…", way[-1])
    yield Hit(
        f"{model.name} contains itself: {' → '.join(way)}",
        "take one of these steps out",
        config.span(*step.path, "model_name"),
    )


@warning(
    "TC308 no-effect-on-ensembles",
    summary="a field that says how a model runs, on an ensemble",
    why="The ensemble scheduler never reads it: it does not reach the steps.",
)
def without_effect(_ensemble: Graph, config: ConfigMessage) -> Iterator[Hit]:
    for name in _WITHOUT_EFFECT:
        if (name,) in config.names:
            yield Hit(
                f"`{name}` has no effect on an ensemble",
                "remove it, or write it into the step's own model",
                config.name_span(name),
            )
