# SPDX-License-Identifier: Apache-2.0
"""Recognises a checkpoint from config.json, modules.json or the header of an ONNX file.

It does not guess: unsupported checkpoints raise an error that names the next command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tritonctl.engines.builds.catalog import Builder, builder_named
from tritonctl.engines.estimates.checkpoints import SAFETENSORS, json_object, read_decoder_sizes
from tritonctl.engines.estimates.encoders import read_encoder
from tritonctl.engines.estimates.quantisation import read_quantisation
from tritonctl.engines.estimates.vision import (
    CLIP_TEXTS,
    PROCESSORS,
    read_clip_texts,
    read_vision,
)
from tritonctl.engines.proposals.sentence_transformers import MODULES, is_cross_encoder
from tritonctl.engines.proposals.unsupported_checkpoints import (
    missing_tokenizer_error,
    unsupported_path_error,
)
from tritonctl.errors import ConfigurationError
from tritonctl.formats.graph_file import GraphTensor, ModelGraph, UndecidedFileError, is_lfs_pointer
from tritonctl.formats.onnx_graph import read_onnx

Kind = Literal["decoder", "encoder", "graph", "vision"]
MODEL = "model.onnx"
# Builders by precedence: the first that exports an architecture is used.
_EXPORTERS: dict[str, Kind] = {
    "openvino": "decoder",
    "tensorrt_llm": "decoder",
    "onnxruntime": "encoder",
}
_WITHOUT_TOKEN_TYPES = ("DistilBert", "MPNet")
_IMAGE_CLASSIFIER = "ForImageClassification"
_CLASSIFIER, _TAGGER = "ForSequenceClassification", "ForTokenClassification"


@dataclass(frozen=True)
class RecognisedCheckpoint:
    """A supported checkpoint and its task."""

    kind: Kind
    task: str
    architecture: str  # "ONNX graph" for graphs
    path: Path
    max_length: int | None = None  # tokens
    vocabulary: int = 0  # number of token ids
    inputs: tuple[GraphTensor, ...] = ()
    heads: int = 1  # attention heads, which GPUs divide
    reasons: tuple[str, ...] = ()
    batched: bool = True  # requests can share a run


def recognise(path: Path) -> RecognisedCheckpoint:
    """Read a folder or a file. Raises ConfigurationError for an unsupported checkpoint."""
    if path.suffix == ".onnx" and path.is_file():
        return _recognise_graph(path, path)
    if any((path / name).is_file() for name in SAFETENSORS):
        return _recognise_transformers(path)
    if (path / MODEL).is_file():
        return _recognise_graph(path, path / MODEL)
    raise unsupported_path_error(path)


def _recognise_transformers(folder: Path) -> RecognisedCheckpoint:
    file = folder / "config.json"
    if not file.is_file():
        raise ConfigurationError(
            f"{folder} has weights but no config.json, so the model is unknown",
            remedy="copy or download the whole folder that save_pretrained() wrote",
        )
    config = json_object(file)
    if read_quantisation(folder) is not None:
        raise ConfigurationError(
            f"{folder} is already quantised, and builders need unquantised weights",
            remedy="name the original checkpoint with 16-bit or 32-bit weights",
        )
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    builders = {builder: builder_named(builder) for builder in _EXPORTERS}
    kinds = [kind for b, kind in _EXPORTERS.items() if name in builders[b].architectures]
    if not kinds:
        raise _unknown_architecture(file, name, builders)
    return (
        _recognise_decoder(folder, name)
        if kinds[0] == "decoder"
        else _recognise_encoder(folder, name, config)
    )


def _unknown_architecture(
    file: Path, name: str, builders: Mapping[str, Builder]
) -> ConfigurationError:
    reasons = [b.refused[name] for b in builders.values() if name in b.refused]
    architectures = dict.fromkeys(
        architecture for b in builders.values() for architecture in b.architectures
    )
    if not name:
        return ConfigurationError(
            f"{file} has no `architectures`, so the model is unknown",
            remedy=f"add the model's class to it; builders export {', '.join(architectures)}",
        )
    cause = f": {reasons[0]}" if reasons else ""
    return ConfigurationError(
        f"{file}: no builder exports {name}{cause}",
        remedy="export it to ONNX yourself (torch.onnx.export), then run `tritonctl init "
        f"MODEL.onnx`; builders export {', '.join(architectures)}",
    )


def _recognise_decoder(folder: Path, name: str) -> RecognisedCheckpoint:
    if not (folder / "tokenizer.json").is_file():
        raise missing_tokenizer_error(folder)
    sizes = read_decoder_sizes(folder)
    return RecognisedCheckpoint(
        "decoder",
        "text_generation",
        name,
        folder,
        max_length=sizes.max_position_embeddings,
        vocabulary=sizes.vocab_size,
        heads=sizes.num_attention_heads,
        reasons=(f"task text_generation: config.json says {name}",),
    )


def _recognise_vision(folder: Path, name: str) -> RecognisedCheckpoint:
    """Recognise a vision model. The builder refuses a transformer without a pooler."""
    if not any((folder / file).is_file() for file in PROCESSORS):
        raise ConfigurationError(
            f"{folder} has no {PROCESSORS[-1]}, so the preparation of images is unknown",
            remedy="copy the model's file there, or save it again with its image processor",
        )
    classifies = _IMAGE_CLASSIFIER in name
    task = "image_classification" if classifies else "image_embedding"
    reasons = [f"task {task}: config.json says {name}"]
    if name == "CLIPModel":
        reasons.append("for text embeddings add a model with `task: embedding`")
    read_vision(folder, [name])
    return RecognisedCheckpoint("vision", task, name, folder, reasons=tuple(reasons))


def _recognise_encoder(folder: Path, name: str, config: Mapping[str, Any]) -> RecognisedCheckpoint:
    is_clip_text = name == CLIP_TEXTS
    if not is_clip_text and (
        _IMAGE_CLASSIFIER in name or any((folder / file).is_file() for file in PROCESSORS)
    ):
        return _recognise_vision(folder, name)
    task, reasons = _task_of(folder, name, config)
    if task != "tensors" and not (folder / "tokenizer.json").is_file():
        raise missing_tokenizer_error(folder)
    encoder = read_clip_texts(folder) if is_clip_text else read_encoder(folder, [name], task)
    return RecognisedCheckpoint(
        "encoder",
        task,
        name,
        folder,
        max_length=encoder.max_length,
        vocabulary=_integer_or_zero(config.get("vocab_size")) or 1,
        inputs=_text_inputs(name, config),
        reasons=reasons,
    )


def _task_of(folder: Path, name: str, config: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the checkpoint's task and the reasons, from its files."""
    if name == CLIP_TEXTS:
        return "embedding", (f"task embedding: config.json says {name}",)
    if name.endswith(_TAGGER):
        return "token_classification", (f"task token_classification: config.json says {name}",)
    if name.endswith(_CLASSIFIER):
        return _classifier_task(folder, name, config)
    if (folder / MODULES).is_file():
        return "embedding", (f"task embedding: {MODULES} declares the pooling",)
    reason = f"task tensors: config.json says {name}, an encoder, and no {MODULES} declares pooling"
    texts = "for texts set `task: embedding` and the authors' `options: {pooling: ...}`"
    return "tensors", (reason, f"outputs: a vector for each token; {texts}")


def _classifier_task(
    folder: Path, name: str, config: Mapping[str, Any]
) -> tuple[str, tuple[str, ...]]:
    label_names = config.get("id2label")
    labels = (
        len(label_names)
        if isinstance(label_names, dict)
        else _integer_or_zero(config.get("num_labels", 2))
    )
    if labels == 1 and is_cross_encoder(folder, config):
        return "rerank", (f"task rerank: config.json says {name}, of sentence-transformers",)
    if labels == 1 and config.get("problem_type") is None:
        return "rerank", (
            f"task rerank: config.json says {name} with one label and no problem_type",
            "if it scores single texts instead of pairs, set `task: classification`",
        )
    return "classification", (f"task classification: config.json says {name}, {labels} labels",)


def _text_inputs(name: str, config: Mapping[str, Any]) -> tuple[GraphTensor, ...]:
    """Return the inputs that the builder exports."""
    names = ["input_ids", "attention_mask"]
    if _integer_or_zero(config.get("type_vocab_size")) > 1 and not name.startswith(
        _WITHOUT_TOKEN_TYPES
    ):
        names.append("token_type_ids")
    shape = ("batch", "sequence")
    return tuple(GraphTensor((name_part,), "TYPE_INT64", "int64", shape) for name_part in names)


def _integer_or_zero(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _recognise_graph(checkpoint: Path, file: Path) -> RecognisedCheckpoint:
    graph = _read_graph(file)
    if graph.weights and checkpoint == file:
        raise ConfigurationError(
            f"{file} stores its weights in {graph.weights[0].location}, so it is not one file",
            remedy=f"name the graph {MODEL} in a folder with its weights, and run `tritonctl init "
            "FOLDER`",
        )
    _refuse_uncarried(file, graph)
    names = ", ".join(tensor.name for tensor in graph.inputs)
    reasons = [f"task tensors: {file.name} is an ONNX graph; it takes {names}"]
    unbatched_reason = graph.unbatched_reason()
    if unbatched_reason:
        reasons.append(f"no batches: {unbatched_reason}, so each request is a run")
    return RecognisedCheckpoint(
        "graph",
        "tensors",
        "ONNX graph",
        checkpoint,
        inputs=graph.inputs,
        reasons=tuple(reasons),
        batched=unbatched_reason is None,
    )


def _refuse_uncarried(file: Path, graph: ModelGraph) -> None:
    """Raise ConfigurationError for inputs or outputs that Triton cannot carry."""
    for tensor in (*graph.inputs, *graph.outputs):
        if not tensor.is_tensor:
            raise ConfigurationError(
                f"{file}: {tensor.name} is a {tensor.kind}; Triton carries tensors only",
                remedy="export the graph with tensors (a scikit-learn classifier: "
                'skl2onnx.to_onnx(model, X, options={"zipmap": False}))',
            )
    for tensor in graph.inputs:
        if tensor.shape is None:
            raise ConfigurationError(
                f"{file}: the number of dimensions of its input {tensor.name} is unknown, and "
                "Triton needs it in config.pbtxt",
                remedy="export the graph with shapes; variable sizes are fine",
            )


def _read_graph(file: Path) -> ModelGraph:
    if is_lfs_pointer(file):
        raise ConfigurationError(f"{file} is a Git LFS pointer", remedy="fetch it: `git lfs pull`")
    try:
        graph = read_onnx(file)
        problem = graph.read_error or ("" if graph.inputs else "it has no inputs")
    except (OSError, UndecidedFileError) as error:
        graph, problem = ModelGraph(file, "ONNX"), str(error) or "it is not a plain ONNX file"
    if problem:
        raise ConfigurationError(
            f"{file} cannot be read as ONNX: {problem}",
            remedy="copy, download or export the file again",
        )
    return graph
