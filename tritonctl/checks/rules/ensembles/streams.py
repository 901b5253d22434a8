# SPDX-License-Identifier: Apache-2.0
"""TC34x: what decoupled steps mean for the rest of an ensemble."""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.graph import Graph
from tritonctl.checks.analysis.releases import newer_fields
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, error, warning

_LIMIT = "ensemble_scheduling.max_inflight_requests"
# The step whose answers a tensor counts, -1 for the request itself; None where it is not known.
Origin = int | None


@error(
    "TC341 mixed-streams",
    summary="a step that reads tensors of different streams, or of a stream and of the request",
    why="A decoupled step answers many times: which of its answers would belong to the other "
    "tensor is not defined, and Triton refuses the ensemble.",
)
def mixed_streams(config: ConfigMessage, ensemble: Graph, model: Model) -> Iterator[Hit]:
    origins = _origins(ensemble)
    for step in ensemble.steps:
        known = [link for link in step.inputs if origins.get(link.tensor) is not None]
        others = [link for link in known if origins[link.tensor] != origins[known[0].tensor]]
        for link in others[:1]:
            yield Hit(
                f"{step.name} reads {link.tensor} {_from(ensemble, origins[link.tensor])} together "
                f"with {step.inputs[0].tensor} {_from(ensemble, origins[step.inputs[0].tensor])}",
                "hand everything through the decoupled step, or do both in one model",
                config.span(*link.path),
            )
    outputs = [name for name in ensemble.outputs if origins.get(name) is not None]
    for name in outputs[1:]:
        if origins[name] != origins[outputs[0]]:
            yield Hit(
                f"{model.name} answers with {name} {_from(ensemble, origins[name])} together with "
                f"{outputs[0]} {_from(ensemble, origins[outputs[0]])}",
                "hand everything through the decoupled step, or leave one of them out",
                config.span(*ensemble.outputs[name].path, "name"),
            )
            return


def _origins(graph: Graph) -> dict[str, Origin]:
    """By tensor: the decoupled step that it comes from last."""
    origins: dict[str, Origin] = dict.fromkeys(graph.inputs, -1)
    for step in (step for layer in graph.layers for step in layer):
        before = {origins[link.tensor] for link in step.inputs}
        origin = before.pop() if len(before) == 1 else None
        decoupled = step.interface.decoupled if step.interface else None
        if decoupled is not False:
            origin = step.index if decoupled else None
        for link in step.outputs:
            origins.setdefault(link.tensor, origin)
    return origins


def _from(graph: Graph, origin: Origin) -> str:
    if origin is None or origin < 0:
        return "(one for each request)"
    return f"(of each answer of {graph.steps[origin].name})"


@warning(
    "TC342 ineffective-decoupled",
    summary="an ensemble that calls itself decoupled without a decoupled step",
    why="Triton sets the policy of an ensemble by its steps, whatever the file says.",
)
def ineffective_decoupled(config: ConfigMessage, ensemble: Graph, model: Model) -> Iterator[Hit]:
    decoupled = config.message.model_transaction_policy.decoupled
    if decoupled and all(
        step.interface and step.interface.decoupled is False for step in ensemble.steps
    ):
        yield Hit(
            f"{model.name} is not decoupled: none of its steps is",
            "remove it here, and write it into the step that answers several times",
            config.span("model_transaction_policy", "decoupled"),
        )


@error(
    "TC343 cached-stream",
    summary="a response cache of an ensemble with a decoupled step",
    why="A cache keeps one answer for a request: Triton refuses the ensemble.",
)
def cached_stream(config: ConfigMessage, ensemble: Graph, model: Model) -> Iterator[Hit]:
    message = config.message
    decoupled = [s.name for s in ensemble.steps if s.interface and s.interface.decoupled]
    # With `decoupled` written out, Triton sees it itself.
    if (
        message.response_cache.enable
        and decoupled
        and not message.model_transaction_policy.decoupled
    ):
        yield Hit(
            f"{model.name} has a response cache, and {decoupled[0]} is decoupled",
            "remove `response_cache`",
            config.name_span("response_cache"),
        )


@advice(
    "TC344 unlimited-inflight",
    summary="a decoupled step whose answers wait for the next step without a limit",
    why="A fast step before a slow one fills the memory; from Triton 2.63 on "
    "`max_inflight_requests` bounds it.",
    shows="elsewhere",
)
def unlimited_inflight(
    config: ConfigMessage, ensemble: Graph, repository: Repository
) -> Iterator[Hit]:
    version = repository.target.version
    limited = config.message.ensemble_scheduling.max_inflight_requests
    if version is None or limited or _LIMIT in newer_fields(version):
        return
    for step in ensemble.steps:
        readers = [r for link in step.outputs for r in ensemble.readers.get(link.tensor, ())]
        if step.interface and step.interface.decoupled and readers:
            slow = ensemble.steps[readers[0].step].name
            yield Hit(
                f"answers of {step.name} wait for {slow} in memory, however many they are",
                "write max_inflight_requests: 16 into `ensemble_scheduling`, or as many as fit",
                config.name_span("ensemble_scheduling"),
            )
            return
