# SPDX-License-Identifier: Apache-2.0
"""TC76x: the models of NVIDIA's inflight_batcher_llm template against each other.

Sources: triton_backend/all_models/inflight_batcher_llm in https://github.com/NVIDIA/TensorRT-LLM;
https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from tritonctl.checks.analysis.nesting import models_in
from tritonctl.checks.analysis.trtllm_model import deployment_of, filled
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.places import Span
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, error, warning

_NAME = "tensorrt_llm_model_name"
_NAMES = (_NAME, "tensorrt_llm_draft_model_name", "multimodal_encoders_name")
_DEFAULT = "tensorrt_llm"
# model.py calls these whatever the configuration says.
_FIXED = ("preprocessing", "postprocessing")
_CALL = 'model_name="preprocessing"'


def _calls(model: Model) -> bool:
    """Whether it is a tensorrt_llm_bls: a Python model with the template's parameters."""
    parameters = model.config.message.parameters
    return model.backend == "python" and (_NAME in parameters or "accumulate_tokens" in parameters)


def _callers(repository: Repository) -> Iterator[tuple[Model, str]]:
    """Each tensorrt_llm_bls, with the name of the model that it asks for tokens."""
    for model in repository.models.values():
        if _calls(model):
            yield model, filled(model.config, _NAME) or _DEFAULT


@error(
    "TC760 decoupled-unlike",
    summary="a tensorrt_llm_bls and the model it calls, of which one is decoupled",
    why="Either the call is refused (`exec` of a decoupled model needs decoupled=True), or "
    "streaming is (`Streaming is only supported if model is deployed using decoupled mode`).",
    answers=("tensorrtllm_backend#626",),
)
def decoupled(repository: Repository) -> Iterator[Hit]:
    for model, name in _callers(repository):
        called = repository.models.get(name)
        if called is None:
            continue
        here = model.config.message.model_transaction_policy.decoupled
        model_streams = called.config.message.model_transaction_policy.decoupled
        if deployment_of(called, repository) and here != model_streams:
            yield Hit(
                f"{model.name} is {'' if here else 'not '}decoupled, and {name}, which it "
                f"calls, is{'' if model_streams else ' not'}",
                "set decoupled alike in both: true for streams",
                model.config.span("model_transaction_policy", "decoupled"),
                model=model,
            )


@warning(
    "TC761 called-model-absent",
    summary="a tensorrt_llm_bls that calls a model which is not in the repository",
    why="The model loads; every request ends in an error, unless another repository of the "
    "server has the model.",
)
def absent(repository: Repository) -> Iterator[Hit]:
    for model, name in _callers(repository):
        for key, named in _named(model, name):
            if named not in repository.models:
                yield Hit(
                    f"{model.name} calls {named}, which is not in this repository",
                    f"put it there, or name another one in {key}",
                    model.config.span("parameters", key),
                    model=model,
                )
        code = model.code
        for fixed in _FIXED if code and _CALL in code.source.text else ():
            if code and fixed not in repository.models:
                at = code.source.text.index(_CALL)
                yield Hit(
                    f"{model.name} calls {fixed}, which is not in this repository",
                    f"put the model there under the name {fixed}: model.py looks for no other",
                    Span(at, at + len(_CALL)),
                    code.source,
                    model=model,
                )


def _named(model: Model, name: str) -> Iterator[tuple[str, str]]:
    for key in _NAMES:
        named = filled(model.config, key)
        if named or key == _NAME:
            yield key, named or name


@advice(
    "TC762 requests-one-by-one",
    summary="a tensorrt_llm_bls with a single instance",
    why="It holds a request until its answer is whole: the engine, which could batch, gets one "
    "at a time.",
)
def one_at_a_time(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not _calls(model):
        return
    if sum(max(group.count, 1) for group in config.message.instance_group) <= 1:
        yield Hit(
            f"{model.name} has one instance, which sees one request from its beginning to its end",
            "give it as many as the engine's max_batch_size, so that requests reach the engine "
            "together",
            config.span("instance_group"),
        )


@warning(
    "TC763 tokenizers-differ",
    summary="a pipeline whose steps name different tokenizers",
    why="Token ids mean other text to another tokenizer: answers come out garbled.",
)
def tokenizers(repository: Repository) -> Iterator[Hit]:
    reported = set()
    for names in _pipelines(repository):
        known = [(model, path) for model, path in _tokenizers(repository, names) if path]
        for model, path in known[1:]:
            if path != known[0][1] and model.name not in reported:
                reported.add(model.name)
                yield Hit(
                    f"tokenizer_dir is {path}, and in {known[0][0].name} it is {known[0][1]}",
                    "name the same tokenizer in both",
                    model.config.span("parameters", "tokenizer_dir", "string_value"),
                    model=model,
                )


def _pipelines(repository: Repository) -> Iterator[list[str]]:
    """The models that one request goes through, in the order of the configuration."""
    for model in repository.models.values():
        if model.backend == "ensemble":
            yield models_in(model)
    if any(_callers(repository)):
        yield list(_FIXED)


def _tokenizers(repository: Repository, names: list[str]) -> Iterator[tuple[Model, str | None]]:
    for name in names:
        model = repository.models.get(name)
        if model and model.backend == "python":
            path = filled(model.config, "tokenizer_dir")
            yield model, posixpath.normpath(path) if path else None
