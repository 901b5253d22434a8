# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint is, by its own files: config.json, modules.json, the header of an ONNX file.

Nothing is guessed: what no builder takes is refused here, with the next command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tritonctl.engines.build.catalog import Builder, builder_named
from tritonctl.engines.estimates.checkpoints import SAFETENSORS, json_object, read_architecture
from tritonctl.engines.estimates.encoders import read_encoder
from tritonctl.engines.estimates.quantisation import read_quantisation
from tritonctl.engines.estimates.vision import (
    CLIP_TEXTS,
    PROCESSORS,
    read_clip_texts,
    read_vision,
)
from tritonctl.engines.proposals.refusals import nothing_to_serve, without_tokenizer
from tritonctl.engines.proposals.sentences import MODULES, is_cross_encoder
from tritonctl.errors import ConfigurationError
from tritonctl.formats.graph_file import Graph, GraphTensor, UnjudgedError, is_pointer
from tritonctl.formats.onnx_graph import read_onnx

Kind = Literal["decoder", "encoder", "graph", "vision"]
MODEL = "model.onnx"
# Builders in the order in which they are asked: the first that exports an architecture has it.
_EXPORTERS: dict[str, Kind] = {
    "openvino": "decoder",
    "tensorrt_llm": "decoder",
    "onnxruntime": "encoder",
}
_WITHOUT_TYPES = ("DistilBert", "MPNet")
_IMAGE_CLASSIFIER = "ForImageClassification"
_CLASSIFIER, _TAGGER = "ForSequenceClassification", "ForTokenClassification"
_BATCH_REMEDY = (
    "export the graph again with a variable first dimension: torch.onnx.export(..., "
    'dynamic_shapes={"x": {0: Dim("batch")}})'
)


@dataclass(frozen=True)
class Recognised:
    """A checkpoint that builders take, and the task that it is for.

    what: its architecture, or "ONNX graph". longest: tokens that it was trained for. options: of
    the engine. vocabulary, inputs: what a request may hold. heads: a GPU gets some of them.
    """

    kind: Kind
    task: str
    what: str
    path: Path
    longest: int | None = None
    vocabulary: int = 0
    inputs: tuple[GraphTensor, ...] = ()
    heads: int = 1
    reasons: tuple[str, ...] = ()


def recognise(path: Path) -> Recognised:
    """Read a folder or a file. Raises ConfigurationError for what no builder takes."""
    if path.suffix == ".onnx" and path.is_file():
        return _graph(path, path)
    if any((path / name).is_file() for name in SAFETENSORS):
        return _transformers(path)
    if (path / MODEL).is_file():
        return _graph(path, path / MODEL)
    raise nothing_to_serve(path)


def _transformers(folder: Path) -> Recognised:
    file = folder / "config.json"
    if not file.is_file():
        raise ConfigurationError(
            f"{folder} has weights and no config.json, so nothing says what model they are",
            remedy="copy or download the whole folder that save_pretrained() made",
        )
    config = json_object(file)
    if read_quantisation(folder) is not None:
        raise ConfigurationError(
            f"{folder} is quantised already, and builders quantise themselves",
            remedy="name the checkpoint that it was made from, with 16-bit or 32-bit weights",
        )
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    builders = {builder: builder_named(builder) for builder in _EXPORTERS}
    kinds = [kind for b, kind in _EXPORTERS.items() if name in builders[b].architectures]
    if not kinds:
        raise _unknown(file, name, builders)
    return _decoder(folder, name) if kinds[0] == "decoder" else _encoder(folder, name, config)


def _unknown(file: Path, name: str, builders: Mapping[str, Builder]) -> ConfigurationError:
    reasons = [b.refused[name] for b in builders.values() if name in b.refused]
    known = dict.fromkeys(one for b in builders.values() for one in b.architectures)
    if not name:
        return ConfigurationError(
            f"{file} names no `architectures`, so nothing says what model it is",
            remedy=f"add the model's class to it; builders export {', '.join(known)}",
        )
    why = f": {reasons[0]}" if reasons else ""
    return ConfigurationError(
        f"{file}: no builder exports {name}{why}",
        remedy="export it to ONNX yourself (torch.onnx.export), then run `tritonctl init "
        f"MODEL.onnx`; builders export {', '.join(known)}",
    )


def _decoder(folder: Path, name: str) -> Recognised:
    if not (folder / "tokenizer.json").is_file():
        raise without_tokenizer(folder)
    sizes = read_architecture(folder)
    return Recognised(
        "decoder",
        "text_generation",
        name,
        folder,
        longest=sizes.max_position_embeddings,
        vocabulary=sizes.vocab_size,
        heads=sizes.num_attention_heads,
        reasons=(f"task text_generation: config.json says {name}",),
    )


def _vision(folder: Path, name: str) -> Recognised:
    """A vision transformer without a pooler is refused by the builder, which says what to set."""
    if not any((folder / file).is_file() for file in PROCESSORS):
        raise ConfigurationError(
            f"{folder} has no {PROCESSORS[-1]}, so nothing says how its images were prepared",
            remedy="copy the model's own there, or save it again with its image processor",
        )
    classifies = _IMAGE_CLASSIFIER in name
    task = "image_classification" if classifies else "image_embedding"
    reasons = [f"task {task}: config.json says {name}"]
    if name == "CLIPModel":
        reasons.append("for its vectors of texts add a model with `task: embedding`")
    read_vision(folder, [name])
    return Recognised("vision", task, name, folder, reasons=tuple(reasons))


def _encoder(folder: Path, name: str, config: Mapping[str, Any]) -> Recognised:
    texts = name == CLIP_TEXTS
    if not texts and (
        _IMAGE_CLASSIFIER in name or any((folder / file).is_file() for file in PROCESSORS)
    ):
        return _vision(folder, name)
    task, reasons = _task_of(folder, name, config)
    if task != "tensors" and not (folder / "tokenizer.json").is_file():
        raise without_tokenizer(folder)
    encoder = read_clip_texts(folder) if texts else read_encoder(folder, [name], task)
    return Recognised(
        "encoder",
        task,
        name,
        folder,
        longest=encoder.longest,
        vocabulary=_whole(config.get("vocab_size")) or 1,
        inputs=_text_inputs(name, config),
        reasons=reasons,
    )


def _task_of(folder: Path, name: str, config: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """What the checkpoint's files say that it is for, and the reasons."""
    if name == CLIP_TEXTS:
        return "embedding", (f"task embedding: config.json says {name}",)
    if name.endswith(_TAGGER):
        return "token_classification", (f"task token_classification: config.json says {name}",)
    if name.endswith(_CLASSIFIER):
        return _classifier(folder, name, config)
    if (folder / MODULES).is_file():
        return "embedding", (
            f"task embedding: {MODULES} says how tokens become the vector of a text",
        )
    why = f"task tensors: config.json says {name}, an encoder, and no {MODULES} says how it pools"
    texts = "for texts set `task: embedding` and `options: {pooling: ...}` as its authors say"
    return "tensors", (why, f"answers: a vector for each token; {texts}")


def _classifier(folder: Path, name: str, config: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    given = config.get("id2label")
    labels = len(given) if isinstance(given, dict) else _whole(config.get("num_labels", 2))
    if labels == 1 and is_cross_encoder(folder, config):
        return "rerank", (f"task rerank: config.json says {name}, of sentence-transformers",)
    if labels == 1 and config.get("problem_type") is None:
        return "rerank", (
            f"task rerank: config.json says {name} with one label and no problem_type",
            "if it scores single texts instead of pairs, set `task: classification`",
        )
    return "classification", (f"task classification: config.json says {name}, {labels} labels",)


def _text_inputs(name: str, config: Mapping[str, Any]) -> tuple[GraphTensor, ...]:
    """As the builder exports them."""
    names = ["input_ids", "attention_mask"]
    if _whole(config.get("type_vocab_size")) > 1 and not name.startswith(_WITHOUT_TYPES):
        names.append("token_type_ids")
    shape = ("batch", "sequence")
    return tuple(GraphTensor((one,), "TYPE_INT64", "int64", shape) for one in names)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _graph(checkpoint: Path, file: Path) -> Recognised:
    graph = _header(file)
    if graph.weights and checkpoint == file:
        raise ConfigurationError(
            f"{file} keeps its weights in {graph.weights[0].location}, so it is not one file",
            remedy=f"call the graph {MODEL} in a folder with its weights, and run `tritonctl init "
            "FOLDER`",
        )
    for tensor in graph.inputs:
        if not tensor.shape or isinstance(tensor.shape[0], int):
            raise ConfigurationError(
                f"{file}: the first dimension of its input {tensor.name} is "
                f"{tensor.shape[0] if tensor.shape else 'not there'}, so requests cannot be "
                "batched along it",
                remedy=_BATCH_REMEDY,
            )
    names = ", ".join(tensor.name for tensor in graph.inputs)
    return Recognised(
        "graph",
        "tensors",
        "ONNX graph",
        checkpoint,
        inputs=graph.inputs,
        reasons=(f"task tensors: {file.name} is an ONNX graph; it takes {names}",),
    )


def _header(file: Path) -> Graph:
    if is_pointer(file):
        raise ConfigurationError(f"{file} is a Git LFS pointer", remedy="fetch it: `git lfs pull`")
    try:
        graph = read_onnx(file)
        broken = graph.broken or ("" if graph.inputs else "it has no inputs")
    except (OSError, UnjudgedError) as error:
        graph, broken = Graph(file, "ONNX"), str(error) or "it is no plain ONNX file"
    if broken:
        raise ConfigurationError(
            f"{file} cannot be read as ONNX: {broken}",
            remedy="copy, download or export the file again",
        )
    return graph
