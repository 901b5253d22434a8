# SPDX-License-Identifier: Apache-2.0
"""Reads the source of a build: a Hugging Face encoder or an ONNX file. Standard library only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildlib.checkpoint import refuse_quantised
from buildlib.config_sizes import OFFSET_POSITIONS, read_size
from buildlib.problems import BuildError, did_you_mean_class, read_json_object
from buildlib.weights import DOWNLOAD_AGAIN, check_weights, has_pickles, refuse_lfs_pointer
from support import ARCHITECTURES, REFUSAL_REASONS, RELATIVE_POSITIONS
from taskcompile.compile import exported_class
from taskcompile.sentence_modules import has_modules
from taskcompile.task import TEXT_INPUTS

MODEL = "model.onnx"

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True)
class HuggingFaceEncoder:
    """A Hugging Face folder with an encoder."""

    folder: Path
    architecture: str
    vocab_size: int
    hidden_size: int  # values of a token's state; 0: not used
    max_seq_len: int  # tokens it was trained for
    pad_token_id: int
    inputs: tuple[str, ...]
    labels: tuple[str, ...]
    allows_left_padding: bool  # positions do not count padding

    @property
    def head(self) -> str:
        """The head: `ForSequenceClassification`, `ForTokenClassification` or ""."""
        return "".join(self.architecture.partition("For")[1:])

    @property
    def is_classifier(self) -> bool:
        """Whether the output is one score per label, for a text or for each token."""
        return bool(self.head)


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX file."""

    file: Path
    folder: Path | None  # with its external weights; None: only the file is given


Source = HuggingFaceEncoder | OnnxFile


def inspect_source(
    checkpoint: Path, *, allow_pickle: bool = False, task: str | None = None
) -> Source:
    """Read and check `checkpoint`. A `task` needs a Hugging Face folder.

    transformers weights win over a model.onnx in the same folder, which may be older.

    Raises:
        BuildError: it is missing, incomplete, damaged or not supported.
    """
    if checkpoint.is_file():
        _refuse_graph_of_task(checkpoint, task)
        if checkpoint.suffix != ".onnx":
            raise BuildError(
                f"checkpoint {checkpoint} is a file, but not an ONNX model",
                remedy="Point it at a file that ends in .onnx, or at a folder.",
            )
        refuse_lfs_pointer(checkpoint)
        return OnnxFile(checkpoint, None)
    if not checkpoint.is_dir():
        raise BuildError(
            f"checkpoint {checkpoint} does not exist",
            remedy="Set models.<name>.checkpoint to a folder or to an .onnx file.",
        )
    if any((checkpoint / name).is_file() for name in _WEIGHTS):
        return _inspect_encoder(checkpoint, allow_pickle=allow_pickle, task=task)
    if (checkpoint / MODEL).is_file():
        _refuse_graph_of_task(checkpoint / MODEL, task)
        refuse_lfs_pointer(checkpoint / MODEL)
        return OnnxFile(checkpoint / MODEL, checkpoint)
    if allow_pickle and has_pickles(checkpoint):
        return _inspect_encoder(checkpoint, allow_pickle=True, task=task)
    check_weights(checkpoint)  # raises for pickles and for missing weights
    raise AssertionError("unreachable: no safetensors")


def _refuse_graph_of_task(file: Path, task: str | None) -> None:
    if task is not None:
        raise BuildError(
            f"the task {task} needs a Hugging Face folder, and {file} is a graph: only its tensors "
            "are known",
            remedy="Point the checkpoint at the folder that the graph was exported from; or serve "
            "the graph as it is, with `task: tensors`.",
        )


def _inspect_encoder(folder: Path, *, allow_pickle: bool, task: str | None) -> HuggingFaceEncoder:
    path = folder / "config.json"
    if not path.is_file():
        raise BuildError(
            f"{folder} has weights and no config.json, so it is not a Hugging Face checkpoint",
            remedy="Point models.<name>.checkpoint at a folder made by save_pretrained().",
        )
    config = read_json_object(path, remedy=DOWNLOAD_AGAIN)
    refuse_quantised(folder, config)
    architecture = _read_architecture(path, config, task)
    check_weights(folder, allow_pickle=allow_pickle)
    pad = config.get("pad_token_id")
    pad = pad if isinstance(pad, int) and pad >= 0 else 0
    return HuggingFaceEncoder(
        folder=folder,
        architecture=architecture,
        vocab_size=read_size(path, config, "vocab_size"),
        hidden_size=read_size(path, config, "hidden_size") if task or has_modules(folder) else 0,
        max_seq_len=_trained_length(path, config, architecture, pad),
        pad_token_id=pad,
        inputs=_inputs(config, architecture),
        labels=_labels(config),
        allows_left_padding=architecture.startswith((*OFFSET_POSITIONS, *RELATIVE_POSITIONS)),
    )


def _read_architecture(path: Path, config: dict[str, Any], task: str | None) -> str:
    names = config.get("architectures")
    supported_names = ", ".join(ARCHITECTURES)
    if not isinstance(names, list) or not names:
        raise BuildError(
            f"{path}: names no architectures",
            remedy=f"Add the model's class, one of: {supported_names}.",
        )
    name = exported_class(task, str(names[0]))
    if name not in ARCHITECTURES:
        reason = (
            f": {REFUSAL_REASONS[name]}"
            if name in REFUSAL_REASONS
            else did_you_mean_class(name, ARCHITECTURES)
        )
        raise BuildError(
            f"the onnxruntime builder does not export {name}{reason}",
            remedy=f"Export it yourself (torch.onnx.export(..., dynamo=True)) as {MODEL} and point "
            f"the checkpoint at that file. Or use one of: {supported_names}.",
        )
    return name


def _trained_length(path: Path, config: dict[str, Any], architecture: str, pad: int) -> int:
    positions = read_size(path, config, "max_position_embeddings")
    return positions - pad - 1 if architecture.startswith(OFFSET_POSITIONS) else positions


def _inputs(config: dict[str, Any], architecture: str) -> tuple[str, ...]:
    # RoBERTa has one token type. DistilBERT and MPNet have none.
    kinds = config.get("type_vocab_size", 0)
    two_texts = isinstance(kinds, int) and kinds > 1
    if two_texts and not architecture.startswith(("DistilBert", "MPNet")):
        return TEXT_INPUTS
    return TEXT_INPUTS[:2]


def _labels(config: dict[str, Any]) -> tuple[str, ...]:
    labels = config.get("id2label")
    if not isinstance(labels, dict):
        return ()
    return tuple(str(labels[key]) for key in sorted(labels, key=int))


def refuse_external_files(source: OnnxFile, files: list[str]) -> None:
    """Raise BuildError if only the graph is given: external files are not fingerprinted."""
    if source.folder is None:
        raise BuildError(
            f"{source.file}: keeps its weights in {', '.join(files)}, so it is not one file",
            remedy=f"Call the graph {MODEL} and point the checkpoint at its folder.",
        )


def resolve_max_seq_len(requested: int | None, source: Source) -> int | None:
    """Return the maximum sequence length in tokens, or None for a graph without sequences.

    Raises:
        BuildError: the requested length exceeds the trained one.
    """
    if isinstance(source, OnnxFile):
        return requested
    if requested is not None and requested > source.max_seq_len:
        raise BuildError(
            f"engine.max_seq_len is {requested}, and {source.folder} was trained for "
            f"{source.max_seq_len} tokens",
            remedy=f"Set engine.max_seq_len to {source.max_seq_len} or less.",
        )
    return requested or source.max_seq_len
