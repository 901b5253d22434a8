# SPDX-License-Identifier: Apache-2.0
"""TC34x: effects of decoupled steps on the other steps of an ensemble."""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.graph import EnsembleGraph
from tritonctl.checks.analysis.releases import newer_fields
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, error, warning

_LIMIT = "ensemble_scheduling.max_inflight_requests"
# Index of the decoupled step that a tensor comes from, -1 for the request; None if unknown.
Origin = int | None


@error(
    "TC341 mixed-streams",
    summary="a step that reads tensors of different streams, or of a stream and of the request",
    reason="A decoupled step sends many responses. Triton cannot tell which of them belongs to the "
    "other tensor, and refuses the ensemble.",
)
def mixed_streams(config: ConfigMessage, ensemble: EnsembleGraph, model: Model) -> Iterator[Hit]:
    origins = _origins(ensemble)
    for step in ensemble.steps:
        links_with_origin = [link for link in step.inputs if origins.get(link.tensor) is not None]
        foreign_links = [
            link
            for link in links_with_origin
            if origins[link.tensor] != origins[links_with_origin[0].tensor]
        ]
        for link in foreign_links[:1]:
            yield Hit(
                f"{step.name} reads {link.tensor} {_origin_text(ensemble, origins[link.tensor])} "
                "together "
                f"with {step.inputs[0].tensor} "
                f"{_origin_text(ensemble, origins[step.inputs[0].tensor])}",
                "pass all tensors through the decoupled step, or do both in one model",
                config.span(*link.path),
            )
    outputs = [name for name in ensemble.outputs if origins.get(name) is not None]
    for name in outputs[1:]:
        if origins[name] != origins[outputs[0]]:
            yield Hit(
                f"{model.name} answers with {name} {_origin_text(ensemble, origins[name])} "
                "together with "
                f"{outputs[0]} {_origin_text(ensemble, origins[outputs[0]])}",
                "pass all tensors through the decoupled step, or remove one of the outputs",
                config.span(*ensemble.outputs[name].path, "name"),
            )
            return


def _origins(graph: EnsembleGraph) -> dict[str, Origin]:
    """Map each tensor to the last decoupled step it comes from."""
    origins: dict[str, Origin] = dict.fromkeys(graph.inputs, -1)
    for step in (step for layer in graph.layers for step in layer):
        input_origins = {origins[link.tensor] for link in step.inputs}
        origin = input_origins.pop() if len(input_origins) == 1 else None
        decoupled = step.interface.decoupled if step.interface else None
        if decoupled is not False:
            origin = step.index if decoupled else None
        for link in step.outputs:
            origins.setdefault(link.tensor, origin)
    return origins


def _origin_text(graph: EnsembleGraph, origin: Origin) -> str:
    if origin is None or origin < 0:
        return "(one for each request)"
    return f"(one for each response of {graph.steps[origin].name})"


@warning(
    "TC342 ineffective-decoupled",
    summary="an ensemble declared decoupled without a decoupled step",
    reason="Triton derives the policy of an ensemble from its steps and ignores the file.",
)
def ineffective_decoupled(
    config: ConfigMessage, ensemble: EnsembleGraph, model: Model
) -> Iterator[Hit]:
    decoupled = config.message.model_transaction_policy.decoupled
    if decoupled and all(
        step.interface and step.interface.decoupled is False for step in ensemble.steps
    ):
        yield Hit(
            f"{model.name} is not decoupled: none of its steps is",
            "remove it here, and write it into the step that sends several responses",
            config.span("model_transaction_policy", "decoupled"),
        )


@error(
    "TC343 cached-stream",
    summary="a response cache of an ensemble with a decoupled step",
    reason="A cache stores one response per request: Triton refuses the ensemble.",
)
def cached_stream(config: ConfigMessage, ensemble: EnsembleGraph, model: Model) -> Iterator[Hit]:
    message = config.message
    decoupled = [s.name for s in ensemble.steps if s.interface and s.interface.decoupled]
    # TC174 reports an ensemble that declares `decoupled` itself.
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
    summary="a decoupled step whose responses wait for the next step without a limit",
    reason="A fast step before a slow one fills the memory. From Triton 2.63 on, "
    "`max_inflight_requests` limits it.",
    shows="elsewhere",
)
def unlimited_inflight(
    config: ConfigMessage, ensemble: EnsembleGraph, repository: Repository
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
                f"the responses of {step.name} wait for {slow} in memory without a limit",
                "write max_inflight_requests: 16 into `ensemble_scheduling`, or as many as fit",
                config.name_span("ensemble_scheduling"),
            )
            return
