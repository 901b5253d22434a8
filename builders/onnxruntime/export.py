# SPDX-License-Identifier: Apache-2.0
"""From a Hugging Face encoder to ONNX, with torch.onnx. Importing this module imports torch.

torch.onnx rather than optimum-onnx: that pins transformers below 4.58 and drives torch's old
tracing exporter, which bakes branches on lengths into the graph.
"""

import os
import warnings
from typing import Any

from buildlib.problems import BuildError
from buildlib.request import Request
from options import Options
from source import Encoder
from taskcompile.task import POOLING_MASK, Normalize, Pooling, Task

# Read when the libraries below are imported: the network is never needed here.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import torch
import transformers

from heads import Head, activated

# Not 0 or 1: torch.export takes those for constants.
_BATCH, _LENGTH = 2, 8
# Before the names of outputs, until no value inside has one of them.
_OUTPUT = "output of the graph: "


class _Exported(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """An encoder with positional inputs and plain tensors as outputs."""

    def __init__(self, model: Any, source: Encoder, options: Options) -> None:
        super().__init__()
        self.model, self.names = model, source.inputs
        self.outputs = _outputs(model, source, options)
        self.head = None
        if options.pooling != "none":
            steps = (Pooling((options.pooling,)), *((Normalize(),) if options.normalize else ()))
            self.head = Head(steps)

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        """The outputs, in the order of `self.outputs`."""
        given = dict(zip(self.names, inputs, strict=True))
        answer = self.model(**given)
        if self.head is None:
            return tuple(answer[name] for name in self.outputs)
        mask = given["attention_mask"]
        return (self.head(answer.last_hidden_state, mask, mask),)


class TaskModel(torch.nn.Module):  # type: ignore[misc]  # same
    """An encoder and all that follows it up to the task's output."""

    def __init__(self, model: Any, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.names, self.outputs = task.inputs, (task.output,)
        self.head = Head(task.steps) if task.steps else None

    def forward(self, *inputs: Any) -> tuple[Any]:
        """The task's output."""
        given = dict(zip(self.names, inputs, strict=True))
        everything = given["attention_mask"]
        mask = given.pop(POOLING_MASK, everything)
        answer = self.model(**given)
        if self.head is None:
            return (activated(answer.logits, self.task.activation),)
        return (self.head(answer.last_hidden_state, mask, everything),)


def _outputs(model: Any, source: Encoder, options: Options) -> tuple[str, ...]:
    if source.classifies:
        return ("logits",)
    if options.pooling != "none":
        return ("sentence_embedding",)
    has_pooler = getattr(model, "pooler", None) is not None
    return ("last_hidden_state", "pooler_output") if has_pooler else ("last_hidden_state",)


def load_encoder(source: Encoder, options: Options, request: Request, task: Task | None) -> Any:
    """Return the checkpoint as a module of positional inputs, in fp32, in evaluation mode.

    Raises:
        BuildError: the weights do not cover the model: transformers would invent the rest.
    """
    transformers.logging.disable_progress_bar()
    settings: dict[str, Any] = {
        "dtype": torch.float32,
        "trust_remote_code": request.trust_remote_code,
        "local_files_only": True,
        "use_safetensors": None if request.allow_pickle else True,
        "output_loading_info": True,
        # The same sums as the fused kernels, in operators that ONNX Runtime fuses itself.
        "attn_implementation": "eager",
    }
    kind = getattr(transformers, f"AutoModel{source.head}")
    model, info = kind.from_pretrained(source.folder, **settings)
    missing = sorted(info["missing_keys"])
    if missing and all(name.startswith("pooler.") for name in missing):
        # Saved without one, as many sentence encoders are: it would be random.
        model.pooler, missing = None, []
    if missing:
        raise BuildError(
            f"{source.folder}: the weights lack {len(missing)} tensors of the model, "
            f"for example {missing[0]}",
            remedy="Save or download the checkpoint again: it is incomplete.",
        )
    if task is not None:
        return TaskModel(model, task).eval()
    if options.pooling != "none" and source.classifies:
        raise BuildError(
            f"engine.options.pooling is {options.pooling}, and {source.architecture} classifies",
            remedy="Remove pooling from engine.options.",
        )
    return _Exported(model, source, options).eval()


def export_encoder(module: Any, source: Encoder, options: Options, max_seq_len: int) -> Any:
    """Return the ModelProto of `module`: batch and sequence variable, operators of opset_version.

    Raises:
        BuildError: torch cannot express the model in that operator set.
    """
    example = torch.ones((_BATCH, min(_LENGTH, max_seq_len)), dtype=torch.int64)
    longest = torch.export.Dim("sequence", max=max_seq_len)
    shape = {0: torch.export.Dim("batch"), 1: longest}
    return exported(
        module,
        # Tensors of their own: torch.export takes one object given twice for one input.
        tuple(example.clone() for _ in module.names),
        (tuple(shape for _ in module.names),),
        options,
        source.architecture,
    )


def exported(
    module: Any, examples: tuple[Any, ...], shapes: Any, options: Options, architecture: str
) -> Any:
    """Return the ModelProto of a module whose `names` and `outputs` are those of its tensors.

    Raises:
        BuildError: torch cannot express it in the operators of opset_version.
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
        last = str(error).strip().splitlines()[0]
        raise BuildError(
            f"torch cannot export {architecture} with opset_version "
            f"{options.opset_version}: {last}",
            remedy="Remove engine.options.opset_version (the default is 20); the whole report is "
            "in build.log.",
        ) from error
    return _stripped(_named(program.model_proto, module.outputs))


def _named(model: Any, outputs: tuple[str, ...]) -> Any:
    """With its outputs' own names, which the exporter may have given to values inside."""
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


def _stripped(model: Any) -> Any:
    """Without the exporter's notes: they hold paths and lines of this machine."""
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
    """Return the checkpoint's own outputs as arrays."""
    with torch.inference_mode():
        outputs = module(*(torch.from_numpy(feed[name]) for name in module.names))
    return [output.numpy() for output in outputs]
