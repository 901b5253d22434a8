# SPDX-License-Identifier: Apache-2.0
"""TC541 to TC549: what the key of the response cache leaves out.

Source: https://github.com/triton-inference-server/core/blob/main/src/cache_manager.cc
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis import declared
from tritonctl.checks.analysis.bls import bls_calls
from tritonctl.checks.analysis.cache_key import CachedInput, shapeless
from tritonctl.checks.analysis.nesting import models_in
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.memoize import memoized
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error, warning

_SEVERAL = 2


@error(
    "TC541 cached-shapes",
    summary="a response cache of a model whose inputs do not tell their shape",
    why="The cache knows a request by the bytes of its inputs, not by their shapes: [2, 8] and "
    "[4, 4] of the same numbers get the same answer, which is wrong for one of them.",
    answers=("server#4362",),
    shows="traffic",
)
def cached_shapes(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not config.message.response_cache.enable:
        return
    inputs = {tensor.name: tensor for tensor in declared.inputs(model)}
    known = [CachedInput(t.name, t.dims or (), t.optional) for t in inputs.values()]
    for name in shapeless(known, config.message.max_batch_size):
        yield Hit(
            f"the bytes of {name} do not tell its shape, and the response cache knows nothing else",
            "remove response_cache, write fixed dims, or set max_batch_size: 1 for one open dim",
            config.span(*inputs[name].path, "dims"),
        )
        return


@warning(
    "TC542 cached-bls",
    summary="a response cache in front of a model that asks another one from its code",
    why="When the other model is loaded again, the cache goes on giving the answers that the old "
    "one led to.",
    shows="traffic",
)
def cached_bls(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    for inner in _behind(config, model, repository):
        for call in bls_calls(inner)[:1]:
            asked = call.model or "another model"
            yield Hit(
                f"{model.name} has a response cache, and {inner.name} asks {asked}",
                "remove response_cache, or make the other model a step of an ensemble that is "
                "rendered with this one",
                config.name_span("response_cache"),
            )


@warning(
    "TC543 cached-parameters",
    summary="a response cache of a model that reads the parameters of requests",
    why="Parameters are no part of the cache's key: requests that differ in them alone get the "
    "same answer.",
    shows="traffic",
)
def cached_parameters(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    for inner in _behind(config, model, repository):
        if inner.code is not None and inner.code.called("parameters"):
            yield Hit(
                f"{model.name} has a response cache, and {inner.name} reads request.parameters()",
                "make an input of what the answer depends on, or remove response_cache",
                config.name_span("response_cache"),
            )


@warning(
    "TC544 cached-outputs",
    summary="a response cache of a model with several outputs that clients ask directly",
    why="The cache keeps the outputs that its first request asked for, and gives them to whoever "
    "asks for others: what they want is not in their answer.",
    answers=("server#4362",),
    shows="traffic",
)
def cached_outputs(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    if not config.message.response_cache.enable or len(config.message.output) < _SEVERAL:
        return
    if model.name not in memoized(repository, "all steps", lambda: _all_steps(repository)):
        yield Hit(
            f"{model.name} has a response cache and {len(config.message.output)} outputs, and "
            "answers with those that somebody asked for before",
            "let clients ask an ensemble with this model as its step, which asks for all of them, "
            "or have every client ask for the same outputs",
            config.name_span("response_cache"),
        )


def _all_steps(repository: Repository) -> set[str]:
    return {name for model in repository.models.values() for name in models_in(model)}


def _behind(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Model]:
    """The models whose answers the cache keeps: this one, or the steps of an ensemble."""
    if not config.message.response_cache.enable:
        return
    waiting, seen = [model.name], {model.name}
    for name in waiting:
        inner = repository.models.get(name)
        if inner is None:
            continue
        yield inner
        new = [step for step in dict.fromkeys(models_in(inner)) if step not in seen]
        seen.update(new)
        waiting += new
