# SPDX-License-Identifier: Apache-2.0
"""What is built: a Hugging Face encoder or a given ONNX file. Standard library only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildlib.checkpoint import refuse_quantised
from buildlib.problems import BuildError, nearest_class, read_json_object
from buildlib.weights import DOWNLOAD_AGAIN, check_weights, has_pickles, refuse_pointer
from support import ARCHITECTURES, OFFSET_POSITIONS, REFUSED, RELATIVE_POSITIONS
from taskcompile.compile import head_for
from taskcompile.sentence_modules import has_modules
from taskcompile.task import TEXT_INPUTS

MODEL = "model.onnx"

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True)
class Encoder:
    """A Hugging Face folder. `max_seq_len`: the tokens it was trained for.

    `hidden_size`: values of a token's state, 0 where neither a task nor modules.json asks.
    `either_side`: the padding may stand in front of the text, for positions do not count it.
    """

    folder: Path
    architecture: str
    vocab_size: int
    hidden_size: int
    max_seq_len: int
    pad_token_id: int
    inputs: tuple[str, ...]
    labels: tuple[str, ...]
    either_side: bool

    @property
    def head(self) -> str:
        """What follows the encoder: `ForSequenceClassification`, `ForTokenClassification` or ""."""
        return "".join(self.architecture.partition("For")[1:])

    @property
    def classifies(self) -> bool:
        """Whether its output is one score per label, of a text or of each token."""
        return bool(self.head)


@dataclass(frozen=True)
class GivenGraph:
    """An ONNX file. `folder`: what it may need lies beside it; None where only a file is given."""

    file: Path
    folder: Path | None


Source = Encoder | GivenGraph


def inspect_source(
    checkpoint: Path, *, allow_pickle: bool = False, task: str | None = None
) -> Source:
    """Return what `checkpoint` is; a `task` is one of a Hugging Face folder.

    Weights of transformers win over a model.onnx beside them, which may be older.

    Raises:
        BuildError: it is missing, incomplete, damaged, or of a kind not supported.
    """
    if checkpoint.is_file():
        _refuse_graph_of_task(checkpoint, task)
        if checkpoint.suffix != ".onnx":
            raise BuildError(
                f"checkpoint {checkpoint} is a file, but not an ONNX model",
                remedy="Point it at a file that ends in .onnx, or at a folder.",
            )
        refuse_pointer(checkpoint)
        return GivenGraph(checkpoint, None)
    if not checkpoint.is_dir():
        raise BuildError(
            f"checkpoint {checkpoint} does not exist",
            remedy="Set models.<name>.checkpoint to a folder or to an .onnx file.",
        )
    if any((checkpoint / name).is_file() for name in _WEIGHTS):
        return _encoder(checkpoint, allow_pickle=allow_pickle, task=task)
    if (checkpoint / MODEL).is_file():
        _refuse_graph_of_task(checkpoint / MODEL, task)
        refuse_pointer(checkpoint / MODEL)
        return GivenGraph(checkpoint / MODEL, checkpoint)
    if allow_pickle and has_pickles(checkpoint):
        return _encoder(checkpoint, allow_pickle=True, task=task)
    check_weights(checkpoint)  # says which: pickles, or nothing at all
    raise AssertionError("unreachable: no safetensors")


def _refuse_graph_of_task(file: Path, task: str | None) -> None:
    if task is not None:
        raise BuildError(
            f"the task {task} is made of a Hugging Face folder, and {file} is a graph whose own "
            "tensors are all that is known of it",
            remedy="Point the checkpoint at the folder that the graph was exported from; or serve "
            "the graph as it is, with `task: tensors`.",
        )


def _encoder(folder: Path, *, allow_pickle: bool, task: str | None) -> Encoder:
    path = folder / "config.json"
    if not path.is_file():
        raise BuildError(
            f"{folder} has weights and no config.json, so it is not a Hugging Face checkpoint",
            remedy="Point models.<name>.checkpoint at a folder made by save_pretrained().",
        )
    config = read_json_object(path, remedy=DOWNLOAD_AGAIN)
    refuse_quantised(folder, config)
    architecture = _architecture(path, config, task)
    check_weights(folder, allow_pickle=allow_pickle)
    pad = config.get("pad_token_id")
    pad = pad if isinstance(pad, int) and pad >= 0 else 0
    return Encoder(
        folder=folder,
        architecture=architecture,
        vocab_size=_number(path, config, "vocab_size"),
        hidden_size=_hidden_size(path, config) if task or has_modules(folder) else 0,
        max_seq_len=_longest(path, config, architecture, pad),
        pad_token_id=pad,
        inputs=_inputs(config, architecture),
        labels=_labels(config),
        either_side=architecture.startswith((*OFFSET_POSITIONS, *RELATIVE_POSITIONS)),
    )


def _architecture(path: Path, config: dict[str, Any], task: str | None) -> str:
    names = config.get("architectures")
    known = ", ".join(ARCHITECTURES)
    if not isinstance(names, list) or not names:
        raise BuildError(
            f"{path}: names no architectures", remedy=f"Add the model's class, one of: {known}."
        )
    name = head_for(task, str(names[0]))
    if name not in ARCHITECTURES:
        reason = f": {REFUSED[name]}" if name in REFUSED else nearest_class(name, ARCHITECTURES)
        raise BuildError(
            f"the onnxruntime builder does not export {name}{reason}",
            remedy=f"Export it yourself (torch.onnx.export(..., dynamo=True)) as {MODEL} and point "
            f"the checkpoint at that file. Or use one of: {known}.",
        )
    return name


def _number(path: Path, config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BuildError(
            f"{path}: {name} is missing or not a positive whole number",
            remedy=f"Add {name} as the model was trained with it, or save the model again.",
        )
    return value


def _hidden_size(path: Path, config: dict[str, Any]) -> int:
    return _number(path, config, "dim" if "dim" in config else "hidden_size")


def _longest(path: Path, config: dict[str, Any], architecture: str, pad: int) -> int:
    positions = _number(path, config, "max_position_embeddings")
    return positions - pad - 1 if architecture.startswith(OFFSET_POSITIONS) else positions


def _inputs(config: dict[str, Any], architecture: str) -> tuple[str, ...]:
    # RoBERTa has a table of one row for them: nothing to choose. DistilBERT and MPNet have none.
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


def refuse_files_beside(source: GivenGraph, files: list[str]) -> None:
    """Raise BuildError if only the graph was given: what lies beside it is not fingerprinted."""
    if source.folder is None:
        raise BuildError(
            f"{source.file}: keeps its weights in {', '.join(files)}, so it is not one file",
            remedy=f"Call the graph {MODEL} and point the checkpoint at its folder.",
        )


def resolve_max_seq_len(asked: int | None, source: Source) -> int | None:
    """Return the longest sequence that is served, in tokens; None for a graph without that.

    Raises:
        BuildError: more is asked for than the model was trained for.
    """
    if isinstance(source, GivenGraph):
        return asked
    if asked is not None and asked > source.max_seq_len:
        raise BuildError(
            f"engine.max_seq_len is {asked}, and {source.folder} was trained for "
            f"{source.max_seq_len} tokens",
            remedy=f"Set engine.max_seq_len to {source.max_seq_len} or less.",
        )
    return asked or source.max_seq_len
