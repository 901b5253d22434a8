# SPDX-License-Identifier: Apache-2.0
"""TC72x: mismatches between a compiled TensorRT-LLM engine and its model.

Sources: https://nvidia.github.io/TensorRT-LLM/legacy/architecture/checkpoint.html;
cpp/tensorrt_llm/executor and triton_backend/inflight_batcher_llm in
https://github.com/NVIDIA/TensorRT-LLM (1.2);
https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis import declared
from tritonctl.checks.analysis.trtllm_model import TrtllmDeployment
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning
from tritonctl.formats.graph_file import whole_number
from tritonctl.formats.trtllm_backend import LOGITS_TYPES, PARAMETERS_WITH_DEFAULT
from tritonctl.formats.trtllm_engine import CompiledEngine

_REBUILD = "rebuild the engine with"


@error(
    "TC720 engine-unreadable",
    summary="an engine folder whose config.json cannot be read",
    reason="TensorRT-LLM reads this file first and refuses the model.",
    shows="elsewhere",
)
def unreadable(deployment: TrtllmDeployment) -> Iterator[Hit]:
    if deployment.engine and deployment.engine.read_error:
        yield Hit(
            f"the engine's config.json cannot be read: {deployment.engine.read_error}",
            "copy the complete engine folder again",
            deployment.engine_span,
        )


@error(
    "TC721 engine-file-missing",
    summary="an engine folder without an engine file for every GPU",
    reason="Each GPU of tp_size × pp_size loads its own file; without it Triton refuses the model.",
    shows="elsewhere",
)
def _ranks(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    world = engine.world_size if _runs_on_one_machine(deployment, engine) else None
    missing = [rank for rank in range(min(world or 0, 1024)) if rank not in engine.ranks]
    if missing:
        yield Hit(
            f"the engine is for {_count(world or 0, 'GPU')}, and rank{missing[0]}.engine is "
            "missing",
            "copy the complete engine folder again",
            deployment.engine_span,
        )


def _runs_on_one_machine(deployment: TrtllmDeployment, engine: CompiledEngine) -> bool:
    """Whether one machine runs the whole engine."""
    return engine.on_one_machine and (deployment.number("num_nodes") or 1) == 1


@error(
    "TC725 gpus-of-engine",
    summary="a different number of GPUs than the engine was built for",
    reason="Each part of an engine runs on its own GPU: TensorRT-LLM says `MPI worldSize is "
    "expected to be equal to tp*pp` or asserts the number of devices.",
    answers=("TensorRT-LLM#2021", "TensorRT-LLM#1992"),
    shows="elsewhere",
)
def _gpus(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    world, gpus = engine.world_size, deployment.repository.target.gpus
    if world is None or not _runs_on_one_machine(deployment, engine):
        return
    for key, unit in (("gpu_device_ids", "GPU"), ("participant_ids", "rank")):
        text = deployment.text(key) if deployment.kind == "cpp" else None
        for id_list in (
            (text or "").split(";") if text and PARAMETERS_WITH_DEFAULT[key].fits(text) else ()
        ):
            ids = [part for part in id_list.split(",") if part.strip()]
            if ids and len(ids) != world:
                yield Hit(
                    f"{key} gives {_count(len(ids), unit)} to an instance, and the engine is for "
                    f"{world}",
                    f"give {world}, with commas between them",
                    deployment.span(key),
                )
    if gpus == () and deployment.kind == "cpp":
        return  # TC603: the backend needs a GPU
    yield from _missing_gpu(deployment)
    if gpus is not None and len(gpus) < world:
        yield Hit(
            f"the engine is for {_count(world, 'GPU')} (tp_size × pp_size), and the target has "
            f"{len(gpus)}",
            "serve it on a machine with enough GPUs, or build it with a smaller tp_size",
            deployment.engine_span,
        )


def _missing_gpu(deployment: TrtllmDeployment) -> Iterator[Hit]:
    """Report a GPU that the target does not have."""
    key, gpus = "gpu_device_ids", deployment.repository.target.gpus
    text = deployment.text(key)
    if (
        gpus is None
        or not text
        or deployment.kind != "cpp"
        or not PARAMETERS_WITH_DEFAULT[key].fits(text)
    ):
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
    reason="TensorRT-LLM refuses the model: the engine's buffers have a fixed width.",
    answers=("tensorrtllm_backend#115",),
    shows="elsewhere",
)
def _beams(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    requested, engine_max = deployment.number("max_beam_width"), engine.number("max_beam_width")
    if requested and engine_max and requested > engine_max:
        yield Hit(
            f"max_beam_width is {requested}, and the engine's is {engine_max}",
            f"set it to {engine_max}, or {_REBUILD} --max_beam_width {requested}",
            deployment.span("max_beam_width"),
        )


@warning(
    "TC723 batch-over-engine",
    summary="a max_batch_size above the engine's",
    reason="The engine runs at most as many sequences at a time as it was built for. The rest of a "
    "batch waits inside it, and its queue time counts as compute time.",
    shows="elsewhere",
)
def _batch(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    engine_max = engine.number("max_batch_size")
    requested, span = (
        deployment.config.message.max_batch_size,
        deployment.config.span("max_batch_size"),
    )
    name = "max_batch_size"
    if deployment.kind == "own":
        requested, name = deployment.number("max_num_seqs") or 0, "max_num_seqs"
        span = deployment.span(name)
    if engine_max and requested > engine_max:
        yield Hit(
            f"{name} is {requested}, and the engine runs {engine_max} sequences at a time",
            f"set it to {engine_max}, or {_REBUILD} --max_batch_size {requested}",
            span,
        )


@error(
    "TC724 logits-type",
    summary="logits whose data type differs from the engine's",
    reason="The backend asserts that both are equal when a request selects logits.",
    shows="elsewhere",
)
def _logits(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    engine_type = LOGITS_TYPES.get(str(engine.pretrained.get("logits_dtype")))
    if deployment.kind == "own" or engine_type is None:
        return
    for tensor in declared.outputs(deployment.model):
        if tensor.name in ("context_logits", "generation_logits") and tensor.dtype != engine_type:
            yield Hit(
                f"{tensor.name} is {tensor.dtype}, and the engine's logits are {engine_type}",
                f"write {engine_type} wherever the template says logits_datatype",
                deployment.config.span(*tensor.path, "data_type"),
            )
            return


@warning(
    "TC726 kv-cache-too-small",
    summary="a KV cache that cannot hold the engine's longest sequence",
    reason="TensorRT-LLM refuses requests that would fit the engine, or truncates sequences.",
    answers=("tensorrtllm_backend#59", "tensorrtllm_backend#183"),
    shows="elsewhere",
)
def _kv_tokens(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    key = "max_tokens_in_paged_kv_cache"
    tokens, max_seq_len = deployment.number(key), engine.number("max_seq_len")
    if tokens and max_seq_len and tokens < max_seq_len:
        yield Hit(
            f"{key} is {tokens}, and one sequence of the engine may have {max_seq_len} tokens",
            f"set it to {max_seq_len} × the concurrent sequences, or remove it",
            deployment.span(key),
        )


@warning(
    "TC728 prompts-over-a-step",
    summary="an engine whose longest prompt is shorter than its longest sequence",
    reason="Without chunked context a prompt must fit into one step of max_num_tokens tokens. The "
    "default of trtllm-build is 8192, independent of max_seq_len.",
    answers=("TensorRT-LLM#2702", "TensorRT-LLM#6539"),
    shows="elsewhere",
)
def _prompts(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    step, max_seq_len = engine.number("max_num_tokens"), engine.number("max_seq_len")
    # With padded inputs max_input_len is the limit.
    padded = any(
        engine.plugins.get(name) is False for name in ("remove_input_padding", "context_fmha")
    )
    chunked = deployment.kind == "own" or deployment.flag("enable_chunked_context")
    if step and max_seq_len and step < max_seq_len - 1 and not padded and not chunked:
        yield Hit(
            f"prompts above {step} tokens (the engine's max_num_tokens) are refused, although it "
            f"has sequences of up to {max_seq_len}",
            "set enable_chunked_context to true"
            if engine.paged_context
            else f"{_REBUILD} --use_paged_context_fmha enable, and set enable_chunked_context",
            deployment.engine_span,
        )


@error(
    "TC729 artefact-missing",
    summary="a rendered TensorRT-LLM model without the engine or tokenizer that it loads",
    reason="model.py names the missing file and refuses to load.",
    shows="elsewhere",
)
def missing_artefact(deployment: TrtllmDeployment, model: Model) -> Iterator[Hit]:
    if deployment.kind != "own" or model.served_version is None:
        return
    main = {"engine": "engine", "pytorch": "checkpoint"}.get(deployment.text("world") or "")
    required = (main, "llm_args.json", "tokenizer") if main else ()
    missing = [name for name in required if not any(deployment.served_files(name))]
    if missing:
        version = model.served_version
        yield Hit(
            f"version {version} has no {' and no '.join(missing)}, which this model loads",
            "render the repository again: tritonctl render",
            relative_path=str(version),
        )


@error(
    "TC727 engine-replaced",
    summary="a rendered model whose engine was replaced",
    reason="The model compares its settings with the engine and the library, and refuses to load.",
    shows="elsewhere",
)
def _replaced_engine(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
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


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'}"
