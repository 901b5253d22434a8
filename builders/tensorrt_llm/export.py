# SPDX-License-Identifier: Apache-2.0
"""Exports the quantised model as a TensorRT-LLM or a unified Hugging Face checkpoint."""

import json
from typing import Any

import torch
from modelopt.torch.export import export_hf_checkpoint, export_tensorrt_llm_checkpoint

from buildlib.checkpoint import DecoderCheckpoint
from buildlib.problems import BuildError
from choices import QuantiseChoices
from folders import CHECKPOINT
from recipes import ARCHITECTURES

# The modules that trtllm-build does not round by default. They are explicit, because an empty list
# in config.json would count as a choice.
_NOT_ROUNDED = ["*lm_head", "*router", "*vocab_embedding", "*position_embedding"]


def export(model: Any, checkpoint: DecoderCheckpoint, choices: QuantiseChoices) -> None:
    """Write `model` to checkpoint/. The export makes `model` unusable.

    Raises:
        BuildError: ModelOpt cannot export this model.
    """
    dtype = getattr(torch, choices.dtype)
    try:
        with torch.inference_mode():
            if choices.world == "pytorch":
                _cast(model, dtype)
                export_hf_checkpoint(model, dtype=dtype, export_dir=CHECKPOINT)
                return
            # Explicit also for 1: the default 0 means "as calibrated", and ModelOpt then uses
            # torch.distributed, which is not set up.
            export_tensorrt_llm_checkpoint(
                model,
                ARCHITECTURES[checkpoint.architecture],
                dtype,
                CHECKPOINT,
                inference_tensor_parallel=choices.tp_size,
                inference_pipeline_parallel=choices.pp_size,
            )
    except (AssertionError, NotImplementedError, ValueError) as error:
        raise BuildError(
            f"ModelOpt cannot export {checkpoint.architecture} with engine.tp_size "
            f"{choices.tp_size} and engine.pp_size {choices.pp_size}: {error}",
            remedy=f"Set engine.precision to {choices.recipe.instead}, or other sizes.",
        ) from error
    complete_engine_config(checkpoint, choices)


def _cast(model: Any, dtype: Any) -> None:
    """Convert `model` to its storage type. On a CPU it was calibrated in fp32.

    export_hf_checkpoint() takes a dtype but leaves fp32 embeddings and norms unchanged. The ranges
    (`_amax`) stay fp32, because scales derive from them.
    """
    model.config.dtype = dtype
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    for name, buffer in model.named_buffers():
        if name.endswith("_pre_quant_scale"):
            buffer.data = buffer.data.to(dtype)


def complete_engine_config(checkpoint: DecoderCheckpoint, choices: QuantiseChoices) -> None:
    """Add the keys to checkpoint/config.json that ModelOpt omits without TensorRT-LLM."""
    path = CHECKPOINT / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    source = json.loads((checkpoint.folder / "config.json").read_text(encoding="utf-8"))
    config |= rotary_fields(source)
    if checkpoint.architecture.startswith("Qwen"):
        config["qwen_type"] = source["model_type"]
    config["quantization"]["quant_algo"] = choices.recipe.quant_algo
    if "engine" in choices.recipe.at_build:
        config["quantization"]["exclude_modules"] = _NOT_ROUNDED
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # ModelOpt writes an empty table of layers if it quantised none. To TensorRT-LLM the file means
    # mixed precision.
    (CHECKPOINT / "quant_cfg.json").unlink(missing_ok=True)


def rotary_fields(source: dict[str, Any]) -> dict[str, Any]:
    """Return TensorRT-LLM's fields of the position encoding from a Hugging Face config.

    ModelOpt 0.47 reads rope_theta from a place that transformers 5 no longer uses, and omits the
    field. TensorRT-LLM then assumes 10000, and a model with another base answers nonsense.
    """
    # "rope_parameters" since transformers 5, "rope_theta" and "rope_scaling" before.
    rope = source.get("rope_parameters") or source.get("rope_scaling") or {}
    base = rope.get("rope_theta") or source.get("rope_theta") or 10000.0
    fields: dict[str, Any] = {"rotary_base": float(base)}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "default":
        scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
        fields["rotary_scaling"] = scaling | {"type": kind, "rope_type": kind}
    return fields
