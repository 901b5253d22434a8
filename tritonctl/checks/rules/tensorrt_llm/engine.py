# SPDX-License-Identifier: Apache-2.0
"""TC72x: a compiled TensorRT-LLM engine against the model that is to run it.

Sources: https://nvidia.github.io/TensorRT-LLM/legacy/architecture/checkpoint.html;
cpp/tensorrt_llm/executor and triton_backend/inflight_batcher_llm in
https://github.com/NVIDIA/TensorRT-LLM (1.2);
https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis import declared
from tritonctl.checks.analysis.trtllm_model import Deployment
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning
from tritonctl.formats.graph_file import whole_number
from tritonctl.formats.trtllm_backend import LOGITS_TYPES, READ
from tritonctl.formats.trtllm_engine import Engine

_BUILD_AGAIN = "build the engine again with"


@error(
    "TC720 engine-unreadable",
    summary="an engine folder whose config.json cannot be read",
    why="TensorRT-LLM reads it before anything else and refuses the model.",
)
def unreadable(deployment: Deployment) -> Iterator[Hit]:
    if deployment.engine and deployment.engine.broken:
        yield Hit(
            f"the engine's config.json cannot be read: {deployment.engine.broken}",
            "copy the complete engine folder again",
            deployment.engine_span,
        )


@error(
    "TC721 engine-file-missing",
    summary="an engine folder without an engine file for every GPU",
    why="Each GPU of tp_size × pp_size loads its own file; without it Triton refuses the model.",
)
def _ranks(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    world = engine.world_size if _here(deployment, engine) else None
    missing = [rank for rank in range(min(world or 0, 1024)) if rank not in engine.ranks]
    if missing:
        yield Hit(
            f"the engine is for {_count(world or 0, 'GPU')}, and rank{missing[0]}.engine is "
            "not there",
            "copy the complete engine folder again",
            deployment.engine_span,
        )


def _here(deployment: Deployment, engine: Engine) -> bool:
    """Whether one machine runs all of it."""
    return engine.on_one_machine and (deployment.number("num_nodes") or 1) == 1


@error(
    "TC725 gpus-of-engine",
    summary="a different number of GPUs than the engine was built for",
    why="Each part of an engine runs on its own GPU: TensorRT-LLM says `MPI worldSize is "
    "expected to be equal to tp*pp` or asserts the number of devices.",
    answers=("TensorRT-LLM#2021", "TensorRT-LLM#1992"),
)
def _gpus(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    world, gpus = engine.world_size, deployment.repository.target.gpus
    if world is None or not _here(deployment, engine):
        return
    for key, what in (("gpu_device_ids", "GPU"), ("participant_ids", "rank")):
        text = deployment.text(key) if deployment.kind == "cpp" else None
        for one in (text or "").split(";") if text and READ[key].fits(text) else ():
            ids = [part for part in one.split(",") if part.strip()]
            if ids and len(ids) != world:
                yield Hit(
                    f"{key} gives {_count(len(ids), what)} to an instance, and the engine is for "
                    f"{world}",
                    f"give {world}, with commas between them",
                    deployment.span(key),
                )
    if gpus == () and deployment.kind == "cpp":
        return  # TC603: the backend needs a GPU
    yield from _beyond(deployment)
    if gpus is not None and len(gpus) < world:
        yield Hit(
            f"the engine is for {_count(world, 'GPU')} (tp_size × pp_size), and the target has "
            f"{len(gpus)}",
            "serve it on a machine with enough GPUs, or build it with a smaller tp_size",
            deployment.engine_span,
        )


def _beyond(deployment: Deployment) -> Iterator[Hit]:
    """A GPU that the target does not have."""
    key, gpus = "gpu_device_ids", deployment.repository.target.gpus
    text = deployment.text(key)
    if gpus is None or not text or deployment.kind != "cpp" or not READ[key].fits(text):
        return
    numbers = [whole_number(part) for part in text.replace(";", ",").split(",")]
    highest = max((number for number in numbers if number is not None), default=-1)
    if highest >= len(gpus):
        yield Hit(
            f"{key} names GPU {highest}, and the target has {_count(len(gpus), 'GPU')}, "
            "counted from 0",
            "name only GPUs that the target has",
            deployment.span(key),
        )


@error(
    "TC722 beams-over-engine",
    summary="a max_beam_width above the engine's",
    why="TensorRT-LLM refuses the model: the engine's buffers are made for its own width.",
    answers=("tensorrtllm_backend#115",),
)
def _beams(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    asked, most = deployment.number("max_beam_width"), engine.number("max_beam_width")
    if asked and most and asked > most:
        yield Hit(
            f"max_beam_width is {asked}, and the engine's is {most}",
            f"set it to {most}, or {_BUILD_AGAIN} --max_beam_width {asked}",
            deployment.span("max_beam_width"),
        )


@warning(
    "TC723 batch-over-engine",
    summary="a max_batch_size above the engine's",
    why="The engine runs no more sequences at a time than it was built for; the rest of a "
    "batch waits inside it, and queue time is reported as compute time.",
)
def _batch(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    most = engine.number("max_batch_size")
    asked, span = deployment.config.message.max_batch_size, deployment.config.span("max_batch_size")
    name = "max_batch_size"
    if deployment.kind == "own":
        asked, name = deployment.number("max_num_seqs") or 0, "max_num_seqs"
        span = deployment.span(name)
    if most and asked > most:
        yield Hit(
            f"{name} is {asked}, and the engine runs {most} sequences at a time",
            f"set it to {most}, or {_BUILD_AGAIN} --max_batch_size {asked}",
            span,
        )


@error(
    "TC724 logits-type",
    summary="logits of another data type than the engine's",
    why="The backend asserts that both are equal when a request asks for logits.",
)
def _logits(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    wanted = LOGITS_TYPES.get(str(engine.pretrained.get("logits_dtype")))
    if deployment.kind == "own" or wanted is None:
        return
    for tensor in declared.outputs(deployment.model):
        if tensor.name in ("context_logits", "generation_logits") and tensor.dtype != wanted:
            yield Hit(
                f"{tensor.name} is {tensor.dtype}, and the engine's logits are {wanted}",
                f"write {wanted} wherever the template says logits_datatype",
                deployment.config.span(*tensor.path, "data_type"),
            )
            return


@warning(
    "TC726 kv-cache-too-small",
    summary="a KV cache that cannot hold the engine's longest sequence",
    why="Requests that would fit the engine are refused, or sequences are cut shorter than it "
    "allows.",
    answers=("tensorrtllm_backend#59", "tensorrtllm_backend#183"),
)
def _kv_tokens(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    key = "max_tokens_in_paged_kv_cache"
    tokens, longest = deployment.number(key), engine.number("max_seq_len")
    if tokens and longest and tokens < longest:
        yield Hit(
            f"{key} is {tokens}, and one sequence of the engine may have {longest} tokens",
            f"set it to {longest} × the sequences at a time, or leave it out",
            deployment.span(key),
        )


@warning(
    "TC728 prompts-over-a-step",
    summary="an engine whose longest prompt is shorter than its longest sequence",
    why="Without chunked context a prompt is computed in one step of at most max_num_tokens "
    "tokens; trtllm-build's default is 8192, whatever max_seq_len is.",
    answers=("TensorRT-LLM#2702", "TensorRT-LLM#6539"),
)
def _prompts(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    step, longest = engine.number("max_num_tokens"), engine.number("max_seq_len")
    # Otherwise max_input_len is the bound.
    padded = any(
        engine.plugins.get(name) is False for name in ("remove_input_padding", "context_fmha")
    )
    chunked = deployment.kind == "own" or deployment.flag("enable_chunked_context")
    if step and longest and step < longest - 1 and not padded and not chunked:
        yield Hit(
            f"prompts above {step} tokens (the engine's max_num_tokens) are refused, although it "
            f"has sequences of up to {longest}",
            "set enable_chunked_context to true"
            if engine.paged_context
            else f"{_BUILD_AGAIN} --use_paged_context_fmha enable, and set enable_chunked_context",
            deployment.engine_span,
        )


@error(
    "TC729 artefact-missing",
    summary="a rendered TensorRT-LLM model without the engine or tokenizer that it loads",
    why="model.py names the missing file and refuses to load.",
)
def missing_artefact(deployment: Deployment, model: Model) -> Iterator[Hit]:
    if deployment.kind != "own" or model.served_version is None:
        return
    main = {"engine": "engine", "pytorch": "checkpoint"}.get(deployment.text("world") or "")
    wanted = (main, "llm_args.json", "tokenizer") if main else ()
    missing = [name for name in wanted if not any(deployment.version_file(name))]
    if missing:
        version = model.served_version
        yield Hit(
            f"version {version} has no {' and no '.join(missing)}, which this model loads",
            "render the repository again: tritonctl render",
            place=str(version),
        )


@error(
    "TC727 engine-replaced",
    summary="a rendered model with another engine than the one it was rendered for",
    why="The model compares its settings with the engine and the library, and refuses to load.",
)
def _own_sizes(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    if deployment.kind != "own":
        return
    world = engine.world_size
    tp, pp = deployment.number("tp_size"), deployment.number("pp_size")
    if world and tp and pp and tp * pp != world:
        yield Hit(
            f"tp_size × pp_size is {tp * pp}, and the engine is for {_count(world, 'GPU')}",
            "render the repository again: tritonctl render",
            deployment.span("tp_size"),
        )
    recorded = deployment.text("tensorrt_llm")
    if recorded and engine.version and recorded != engine.version:
        yield Hit(
            f"the model was rendered for TensorRT-LLM {recorded}, and the engine was compiled by "
            f"{engine.version}",
            "render the repository again: tritonctl render",
            deployment.span("tensorrt_llm"),
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
