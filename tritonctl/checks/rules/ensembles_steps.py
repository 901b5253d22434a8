# SPDX-License-Identifier: Apache-2.0
"""TC30x: whether an ensemble is configured as one, and its steps' models are there."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from tritonctl.checks.analysis.graph import graph_of
from tritonctl.checks.analysis.nesting import circle, is_readable
from tritonctl.checks.config.backends import TELLING_FILES
from tritonctl.checks.examples.ensembles import CLASSIFY, ENSEMBLE, TOKENIZE, ensemble, rewired
from tritonctl.checks.findings import Edit, Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import File, Rule

_INFERRED = ("tensorrt", "onnxruntime", "openvino", "pytorch", "python")
_MOST_SHOWN = 8
_REFUSED = ("instance_group", "optimization", "model_warmup")
_WITHOUT_EFFECT = (
    "cc_model_filenames",
    "runtime",
    "batch_input",
    "batch_output",
    "model_operations",
)


def no_platform(model: Model, _: Repository) -> Iterator[Hit]:
    """Steps in a model that is not called an ensemble, or has a backend besides."""
    config = model.config
    if config is None or not is_readable(model):
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
                f"an ensemble has no backend of its own, {model.name} names {value}",
                f"remove `{name}`",
                config.name_span(name),
            )


def no_steps(model: Model, _: Repository) -> Iterator[Hit]:
    """An ensemble without a step."""
    config = model.config
    if config is None or not is_readable(model) or config.message.platform != "ensemble":
        return
    if not config.message.ensemble_scheduling.step:
        yield Hit(
            f"{model.name} is an ensemble without a step",
            "write its steps into `ensemble_scheduling`",
            config.span("platform"),
        )


def refused_field(model: Model, repository: Repository) -> Iterator[Hit]:
    """A field of models that run themselves."""
    graph = graph_of(model, repository)
    config = model.config
    if graph is None or config is None:
        return
    for name in _REFUSED:
        field = getattr(config.message, name)
        given = config.message.HasField(name) if name == "optimization" else bool(field)
        if given:
            yield Hit(
                f"an ensemble cannot have `{name}`",
                "remove it here and write it into the steps' own models",
                config.name_span(name),
            )


def unfinished_step(model: Model, repository: Repository) -> Iterator[Hit]:
    """A step that lacks its model or one of its maps."""
    graph = graph_of(model, repository)
    for step in graph.steps if graph else ():
        lacking = [
            name
            for name, there in (
                ("model_name", step.name),
                ("input_map", step.inputs),
                ("output_map", step.outputs),
            )
            if not there
        ]
        if lacking and model.config:
            yield Hit(
                f"step {step.index + 1} has no {' and no '.join(lacking)}",
                "every step names its model, at least one input and one output",
                model.config.name_span(*step.path),
            )


def missing_model(model: Model, repository: Repository) -> Iterator[Hit]:
    """A step whose model is not in the repository."""
    graph = graph_of(model, repository)
    for step in graph.steps if graph else ():
        if step.name and step.name not in repository.models and model.config:
            close = difflib.get_close_matches(step.name, repository.models, n=1)
            yield Hit(
                f"there is no model {step.name} in this repository",
                f"did you mean {close[0]}?"
                if close
                else f"add it, or start Triton with the --model-repository of {step.name}, too",
                model.config.span(*step.path, "model_name"),
            )


def unserved_version(model: Model, repository: Repository) -> Iterator[Hit]:
    """A step that asks for a version which is not loaded."""
    graph = graph_of(model, repository)
    for step in graph.steps if graph else ():
        inner = repository.models.get(step.name)
        if inner is None or model.config is None or not is_readable(inner):
            continue
        served = inner.served_versions
        if not served or step.version == -1 or step.version in served:
            continue
        there = ", ".join(map(str, served))
        version = (*step.path, "model_version")
        if version in model.config.values:
            told, span = f"version {step.version} of {step.name}", model.config.span(*version)
        else:
            told = f"version 0 of {step.name}, for it names none"
            span = model.config.span(*step.path, "model_name")
        why = "" if step.version not in inner.versions else ": its version_policy leaves it out"
        yield Hit(
            f"step {step.index + 1} asks for {told}; Triton loads {there}{why}",
            "write model_version: -1 for the latest",
            span,
        )


def contains_itself(model: Model, repository: Repository) -> Iterator[Hit]:
    """Ensembles in a circle."""
    way = circle(model, repository)
    graph = graph_of(model, repository)
    if not way or graph is None or model.config is None:
        return
    step = next(step for step in graph.steps if step.name == way[1])
    yield Hit(
        f"{model.name} contains itself: {' → '.join(_shortened(way))}",
        "take one of these steps out",
        model.config.span(*step.path, "model_name"),
    )


def _shortened(way: tuple[str, ...]) -> tuple[str, ...]:
    return way if len(way) <= _MOST_SHOWN else (*way[: _MOST_SHOWN - 2], "…", way[-1])


def without_effect(model: Model, repository: Repository) -> Iterator[Hit]:
    """A field that the ensemble scheduler never reads."""
    config = model.config
    if graph_of(model, repository) is None or config is None:
        return
    for name in _WITHOUT_EFFECT:
        if (name,) in config.names:
            yield Hit(
                f"`{name}` has no effect on an ensemble",
                "remove it, or write it into the step's own model",
                config.name_span(name),
            )


_GOOD = ensemble()
_HEAD = ENSEMBLE[: ENSEMBLE.index("ensemble_scheduling")]
_PLATFORM = 'platform: "ensemble"\n'
_INNER = ENSEMBLE.replace('name: "m"', 'name: "inner"')


def _around(name: str) -> dict[str, str | File]:
    """An ensemble with that one as its only step."""
    step = f'''\
ensemble_scheduling {{
  step {{
    model_name: "{name}"
    model_version: -1
    input_map {{ key: "TEXT" value: "TEXT" }}
    output_map {{ key: "SCORES" value: "SCORES" }}
  }}
}}
'''
    inner = {"inner/config.pbtxt": _INNER, "inner/1/.keep": ""}
    return ensemble(_HEAD + step, TOKENIZE, CLASSIFY, inner)


RULES = (
    Rule(
        id="TC301",
        name="no-ensemble-platform",
        severity="error",
        summary="steps in a model whose platform is not ensemble, or that has a backend besides",
        why="Triton refuses the model.",
        check=no_platform,
        bad=rewired(_PLATFORM, ""),
        good=_GOOD,
    ),
    Rule(
        id="TC302",
        name="no-steps",
        severity="error",
        summary="an ensemble without steps",
        why="Triton refuses the model.",
        check=no_steps,
        bad=ensemble(_HEAD),
        good=_GOOD,
    ),
    Rule(
        id="TC303",
        name="refused-on-ensembles",
        severity="error",
        summary="instance groups, optimisation or warm-up of an ensemble",
        why="An ensemble runs nothing itself: Triton refuses it with these fields.",
        check=refused_field,
        bad=rewired(_PLATFORM, f"{_PLATFORM}instance_group [ {{ kind: KIND_CPU }} ]\n"),
        good=_GOOD,
        answers=("server#6877",),
    ),
    Rule(
        id="TC304",
        name="unfinished-step",
        severity="error",
        summary="a step without a model, an input or an output",
        why="Triton refuses the ensemble.",
        check=unfinished_step,
        bad=ensemble(
            ENSEMBLE.replace("model_version: -1", "", 1).replace('model_name: "tokenize"', "")
        ),
        good=_GOOD,
    ),
    Rule(
        id="TC305",
        name="missing-model",
        severity="error",
        summary="a step whose model is not in the repository",
        why="Triton refuses the ensemble, unless another --model-repository has the model.",
        check=missing_model,
        bad=rewired('model_name: "classify"', 'model_name: "clasify"'),
        good=_GOOD,
    ),
    Rule(
        id="TC306",
        name="unserved-version",
        severity="error",
        summary="a step that asks for a version of its model which is not loaded",
        why="Triton refuses the ensemble. It loads only the latest version of a model unless its "
        "`version_policy` says otherwise.",
        check=unserved_version,
        bad=ensemble(ENSEMBLE.replace("model_version: -1", "model_version: 2", 1)),
        good=_GOOD,
    ),
    Rule(
        id="TC307",
        name="contains-itself",
        severity="error",
        summary="an ensemble that contains itself, directly or through others",
        why="Triton refuses it; what leads to such a circle from outside kills tritonserver 2.51.",
        check=contains_itself,
        bad=_around("m"),
        good=_around("inner"),
    ),
    Rule(
        id="TC308",
        name="no-effect-on-ensembles",
        severity="warning",
        summary="a field that says how a model runs, on an ensemble",
        why="The ensemble scheduler never reads it: it does not reach the steps.",
        check=without_effect,
        bad=rewired(_PLATFORM, f'{_PLATFORM}runtime: "model.py"\n'),
        good=_GOOD,
    ),
)
