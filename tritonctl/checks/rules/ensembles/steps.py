# SPDX-License-Identifier: Apache-2.0
"""TC30x: wrong configuration of an ensemble, and missing models of its steps."""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.graph import EnsembleGraph
from tritonctl.checks.analysis.nesting import MAX_REPORTED_CYCLE, containment_cycle
from tritonctl.checks.config.backends import BACKEND_BY_FILE
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error, warning
from tritonctl.errors import suggest

_INFERRED_BACKENDS = ("tensorrt", "onnxruntime", "openvino", "pytorch", "python")
_REFUSED_FIELDS = ("instance_group", "optimization", "model_warmup")
_FIELDS_WITHOUT_EFFECT = (
    "cc_model_filenames",
    "runtime",
    "batch_input",
    "batch_output",
    "model_operations",
)


@error(
    "TC301 no-ensemble-platform",
    summary="steps in a model whose platform is not ensemble, or that also has a backend",
    reason="Triton refuses the model.",
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
        )
    for name in ("backend", "default_model_filename") if message.platform == "ensemble" else ():
        value = getattr(message, name)
        # Triton infers the backend from such a file name.
        if value and (name == "backend" or BACKEND_BY_FILE.get(value) in _INFERRED_BACKENDS):
            yield Hit(
                f"an ensemble takes no backend, and {model.name} names {value}",
                f"remove `{name}`",
                config.name_span(name),
            )


@error(
    "TC302 no-steps",
    summary="an ensemble without steps",
    reason="Triton refuses the model.",
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
    reason="An ensemble runs no model itself: Triton refuses these fields on it.",
    answers=("server#6877",),
)
def refused_field(_ensemble: EnsembleGraph, config: ConfigMessage) -> Iterator[Hit]:
    for name in _REFUSED_FIELDS:
        field = getattr(config.message, name)
        is_set = config.message.HasField(name) if name == "optimization" else bool(field)
        if is_set:
            yield Hit(
                f"an ensemble cannot have `{name}`",
                "remove it here and write it into the steps' own models",
                config.name_span(name),
            )


@error(
    "TC305 missing-model",
    summary="a step whose model is not in the repository",
    reason="Triton refuses the ensemble, unless another --model-repository has the model.",
)
def missing_model(
    config: ConfigMessage, ensemble: EnsembleGraph, repository: Repository
) -> Iterator[Hit]:
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
    summary="a step that requests a version of its model that is not loaded",
    reason="Triton refuses the ensemble. It loads only the latest version of a model unless its "
    "`version_policy` says otherwise.",
)
def unserved_version(
    config: ConfigMessage, ensemble: EnsembleGraph, repository: Repository
) -> Iterator[Hit]:
    for step in ensemble.steps:
        inner = repository.models.get(step.name)
        if inner is None or not inner.is_readable:
            continue
        served_versions = inner.served_versions
        if not served_versions or step.version == -1 or step.version in served_versions:
            continue
        loaded = ", ".join(map(str, served_versions))
        version = (*step.path, "model_version")
        if version in config.value_spans:
            requested, span = f"version {step.version} of {step.name}", config.span(*version)
        else:
            requested = f"version 0 of {step.name}, the default"
            span = config.span(*step.path, "model_name")
        reason = "" if step.version not in inner.versions else ": its version_policy excludes it"
        yield Hit(
            f"step {step.index + 1} requests {requested}; Triton loads {loaded}{reason}",
            "write model_version: -1 for the latest",
            span,
        )


@error(
    "TC307 contains-itself",
    summary="an ensemble that contains itself, directly or through others",
    reason="Triton refuses it; a model that leads into such a cycle kills tritonserver 2.51.",
)
def contains_itself(
    config: ConfigMessage, ensemble: EnsembleGraph, model: Model, repository: Repository
) -> Iterator[Hit]:
    cycle = containment_cycle(model, repository)
    if not cycle:
        return
    step = next(step for step in ensemble.steps if step.name == cycle[1])
    if len(cycle) > MAX_REPORTED_CYCLE:
        cycle = (*cycle[: MAX_REPORTED_CYCLE - 2], "…", cycle[-1])
    yield Hit(
        f"{model.name} contains itself: {' → '.join(cycle)}",
        "remove one of these steps",
        config.span(*step.path, "model_name"),
    )


@warning(
    "TC308 no-effect-on-ensembles",
    summary="a field about how a model runs, on an ensemble",
    reason="The ensemble scheduler never reads it, and the steps do not get it.",
)
def without_effect(_ensemble: EnsembleGraph, config: ConfigMessage) -> Iterator[Hit]:
    for name in _FIELDS_WITHOUT_EFFECT:
        if (name,) in config.name_spans:
            yield Hit(
                f"`{name}` has no effect on an ensemble",
                "remove it, or write it into the step's own model",
                config.name_span(name),
            )
