# SPDX-License-Identifier: Apache-2.0
"""TC541 to TC549: differences between requests that the response cache ignores.

Source: https://github.com/triton-inference-server/core/blob/main/src/cache_manager.cc
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis import declared
from tritonctl.checks.analysis.bls import bls_calls
from tritonctl.checks.analysis.cache_key import CachedInput, inputs_with_ambiguous_shape
from tritonctl.checks.analysis.nesting import step_models
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.memoize import memoized
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error, warning

_MIN_OUTPUTS = 2


@error(
    "TC541 cached-shapes",
    summary="a response cache of a model whose inputs have ambiguous shapes",
    reason="The cache key contains the bytes of the inputs, not their shapes: [2, 8] and [4, 4] "
    "with the same numbers get the same response, which is wrong for one of them.",
    answers=("server#4362",),
    shows="traffic",
)
def cached_shapes(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not config.message.response_cache.enable:
        return
    inputs = {tensor.name: tensor for tensor in declared.inputs(model)}
    cached_inputs = [CachedInput(t.name, t.dims or (), t.optional) for t in inputs.values()]
    for name in inputs_with_ambiguous_shape(cached_inputs, config.message.max_batch_size):
        yield Hit(
            f"the bytes of {name} do not determine its shape, and the response cache keys on bytes",
            "remove response_cache, write fixed dims, or set max_batch_size: 1 for one open dim",
            config.span(*inputs[name].path, "dims"),
        )
        return


@warning(
    "TC542 cached-bls",
    summary="a response cache in front of a model that calls another model from its code",
    reason="After the other model is reloaded, the cache still returns responses computed with the "
    "old one.",
    shows="traffic",
)
def cached_bls(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    for inner in _cached_models(config, model, repository):
        for call in bls_calls(inner)[:1]:
            called_model = call.model or "another model"
            yield Hit(
                f"{model.name} has a response cache, and {inner.name} calls {called_model}",
                "remove response_cache, or make the other model a step of an ensemble that is "
                "rendered together with this one",
                config.name_span("response_cache"),
            )


@warning(
    "TC543 cached-parameters",
    summary="a response cache of a model that reads the parameters of requests",
    reason="The cache key omits parameters: requests that differ only in them get the same "
    "response.",
    shows="traffic",
)
def cached_parameters(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    for inner in _cached_models(config, model, repository):
        if inner.code is not None and inner.code.calls_named("parameters"):
            yield Hit(
                f"{model.name} has a response cache, and {inner.name} reads request.parameters()",
                "turn the parameters into inputs, or remove response_cache",
                config.name_span("response_cache"),
            )


@warning(
    "TC544 cached-outputs",
    summary="a response cache of a model with several outputs that clients call directly",
    reason="The cache stores the outputs of the first request and returns them to later requests "
    "for other outputs, whose responses then lack them.",
    answers=("server#4362",),
    shows="traffic",
)
def cached_outputs(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    if not config.message.response_cache.enable or len(config.message.output) < _MIN_OUTPUTS:
        return
    if model.name not in memoized(repository, "all steps", lambda: _step_model_names(repository)):
        yield Hit(
            f"{model.name} has a response cache and {len(config.message.output)} outputs, and "
            "returns the outputs that an earlier request selected",
            "let clients call an ensemble with this model as its step, which requests all outputs, "
            "or have every client request the same outputs",
            config.name_span("response_cache"),
        )


def _step_model_names(repository: Repository) -> set[str]:
    return {name for model in repository.models.values() for name in step_models(model)}


def _cached_models(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Model]:
    """Yield the models whose responses are cached: this one, and all steps of an ensemble."""
    if not config.message.response_cache.enable:
        return
    queue, seen = [model.name], {model.name}
    for name in queue:
        inner = repository.models.get(name)
        if inner is None:
            continue
        yield inner
        added = [step for step in dict.fromkeys(step_models(inner)) if step not in seen]
        seen.update(added)
        queue += added
