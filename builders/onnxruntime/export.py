# SPDX-License-Identifier: Apache-2.0
"""Exports a Hugging Face encoder to ONNX with torch.onnx. Importing this module imports torch.

optimum-onnx pins transformers below 4.58 and uses torch's old tracing exporter, which bakes
branches on lengths into the graph.
"""

import os
import warnings
from typing import Any

from buildlib.problems import BuildError
from buildlib.request_types import BuilderRequest
from options import OnnxRuntimeOptions
from source import HuggingFaceEncoder
from taskcompile.task import LOGIT, POOLING_MASK, Normalize, Pooling, TextTask

# The libraries below read these on import: this module never uses the network.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import torch
import transformers

from heads import PoolingHead, apply_activation

# torch.export treats 0 and 1 as constants.
_BATCH, _LENGTH = 2, 8
# Prefix of output names until no inner value has such a name.
_OUTPUT = "output of the graph: "


class _EncoderModel(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """An encoder with positional inputs and plain tensors as outputs."""

    def __init__(self, model: Any, source: HuggingFaceEncoder, options: OnnxRuntimeOptions) -> None:
        super().__init__()
        self.model, self.names = model, source.inputs
        self.outputs = _outputs(model, source, options)
        self.head = None
        if options.pooling != "none":
            steps = (Pooling((options.pooling,)), *((Normalize(),) if options.normalize else ()))
            self.head = PoolingHead(steps)

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the outputs in the order of `self.outputs`."""
        named_inputs = dict(zip(self.names, inputs, strict=True))
        answer = self.model(**named_inputs)
        if self.head is None:
            return tuple(answer[name] for name in self.outputs)
        mask = named_inputs["attention_mask"]
        return (self.head(answer.last_hidden_state, mask, mask),)


class TaskModel(torch.nn.Module):  # type: ignore[misc]  # same
    """An encoder and the steps up to the task's output."""

    def __init__(self, model: Any, task: TextTask) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.names, self.outputs = task.inputs, task.outputs
        self.head = PoolingHead(task.steps) if task.steps else None

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the outputs in the order of `self.outputs`."""
        named_inputs = dict(zip(self.names, inputs, strict=True))
        attention_mask = named_inputs["attention_mask"]
        mask = named_inputs.pop(POOLING_MASK, attention_mask)
        answer = self.model(**named_inputs)
        if self.head is None:
            # A graph has no tensor under two names.
            logits = (answer.logits.clone(),) if LOGIT in self.outputs else ()
            return (apply_activation(answer.logits, self.task.activation), *logits)
        return (self.head(answer.last_hidden_state, mask, attention_mask),)


def _outputs(
    model: Any, source: HuggingFaceEncoder, options: OnnxRuntimeOptions
) -> tuple[str, ...]:
    if source.is_classifier:
        return ("logits",)
    if options.pooling != "none":
        return ("sentence_embedding",)
    has_pooler = getattr(model, "pooler", None) is not None
    return ("last_hidden_state", "pooler_output") if has_pooler else ("last_hidden_state",)


def load_encoder(
    source: HuggingFaceEncoder,
    options: OnnxRuntimeOptions,
    request: BuilderRequest,
    task: TextTask | None,
) -> Any:
    """Return the checkpoint as a module with positional inputs, in fp32 and evaluation mode.

    Raises:
        BuildError: tensors are missing. transformers would initialise them randomly.
    """
    transformers.logging.disable_progress_bar()
    settings: dict[str, Any] = {
        "dtype": torch.float32,
        "trust_remote_code": request.trust_remote_code,
        "local_files_only": True,
        "use_safetensors": None if request.allow_pickle else True,
        "output_loading_info": True,
        # Computes like the fused kernels, in operators that ONNX Runtime fuses itself.
        "attn_implementation": "eager",
    }
    kind = getattr(transformers, f"AutoModel{source.head}")
    model, info = kind.from_pretrained(source.folder, **settings)
    missing = sorted(info["missing_keys"])
    if missing and all(name.startswith("pooler.") for name in missing):
        # Many sentence encoders are saved without a pooler: it would be random.
        model.pooler, missing = None, []
    if missing:
        raise BuildError(
            f"{source.folder}: the weights lack {len(missing)} tensors of the model, "
            f"for example {missing[0]}",
            remedy="Save or download the checkpoint again: it is incomplete.",
        )
    if task is not None:
        return TaskModel(model, task).eval()
    if options.pooling != "none" and source.is_classifier:
        raise BuildError(
            f"engine.options.pooling is {options.pooling}, and {source.architecture} classifies",
            remedy="Remove pooling from engine.options.",
        )
    return _EncoderModel(model, source, options).eval()


def export_encoder(
    module: Any, source: HuggingFaceEncoder, options: OnnxRuntimeOptions, max_seq_len: int
) -> Any:
    """Return the ModelProto of `module` with variable batch and sequence.

    Raises:
        BuildError: torch cannot express the model in opset_version.
    """
    example = torch.ones((_BATCH, min(_LENGTH, max_seq_len)), dtype=torch.int64)
    sequence = torch.export.Dim("sequence", max=max_seq_len)
    shape = {0: torch.export.Dim("batch"), 1: sequence}
    return export_module(
        module,
        # Clones, because torch.export treats one object given twice as one input.
        tuple(example.clone() for _ in module.names),
        (tuple(shape for _ in module.names),),
        options,
        source.architecture,
    )


def export_module(
    module: Any,
    examples: tuple[Any, ...],
    shapes: Any,
    options: OnnxRuntimeOptions,
    architecture: str,
) -> Any:
    """Return the ModelProto of a module; its `names` and `outputs` name the tensors.

    Raises:
        BuildError: torch cannot express the module in opset_version.
    """
    warnings.filterwarnings("ignore", message=".*(axis name|torchvision|LeafSpec).*")
    try:
        program = torch.onnx.export(
            module,
            examples,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=list(module.names),
            output_names=[f"{_OUTPUT}{name}" for name in module.outputs],
            opset_version=options.opset_version,
            verbose=False,
        )
    except torch.onnx.errors.OnnxExporterError as error:
        first_line = str(error).strip().splitlines()[0]
        raise BuildError(
            f"torch cannot export {architecture} with opset_version "
            f"{options.opset_version}: {first_line}",
            remedy="Remove engine.options.opset_version (the default is 20); build.log has the "
            "whole report.",
        ) from error
    return _strip_metadata(_restore_output_names(program.model_proto, module.outputs))


def _restore_output_names(model: Any, outputs: tuple[str, ...]) -> Any:
    """Give the outputs their names, and rename inner values with the same names."""
    inside = {name: f"{name}_inside" for name in outputs}
    names = inside | {f"{_OUTPUT}{name}": name for name in outputs}
    for node in model.graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(value, value) for value in values]
    for values in (model.graph.value_info, model.graph.initializer):
        for value in values:
            value.name = names.get(value.name, value.name)
    for value in model.graph.output:
        value.name = names.get(value.name, value.name)
    return model


def _strip_metadata(model: Any) -> Any:
    """Remove the exporter's metadata, which contains paths of this machine."""
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for values in (model.graph.value_info, model.graph.input, model.graph.output):
        for value in values:
            value.ClearField("metadata_props")
    for tensor in model.graph.initializer:
        tensor.ClearField("metadata_props")
    model.ClearField("metadata_props")
    model.graph.ClearField("metadata_props")
    return model


def reference_outputs(module: Any, feed: dict[str, Any]) -> list[Any]:
    """Return the checkpoint's outputs as arrays."""
    with torch.inference_mode():
        outputs = module(*(torch.from_numpy(feed[name]) for name in module.names))
    return [output.numpy() for output in outputs]
