# SPDX-License-Identifier: Apache-2.0
"""What a Hugging Face folder holds, and every reason it cannot be built. Standard library only.

These checks take milliseconds and run before torch is imported: a half-downloaded checkpoint
must not cost minutes, and a weight that is missing must not become a random one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError, nearest, nearest_class, read_json_object
from buildlib.weights import DOWNLOAD_AGAIN, check_weights, refuse_pointer

_SAVE_TOKENIZER = (
    "Save it with a fast tokenizer: "
    "AutoTokenizer.from_pretrained(FOLDER, use_fast=True).save_pretrained(FOLDER)."
)

# Decoders of a tokenizer.json whose text can be streamed; all that tokenizers 0.23 has.
DECODERS = (
    *("BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse"),
    *("Metaspace", "Replace", "Strip", "WordPiece"),
)


@dataclass(frozen=True)
class Supported:
    """What a builder takes: names of model classes, and of position scalings.

    refused: why it does not take certain others.
    """

    builder: str
    architectures: Sequence[str]
    rope_types: Sequence[str]
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """The facts of a checkpoint that the build and the serving side need.

    Lengths are tokens; `eos_token_ids` is never empty; an absent id is None.
    """

    folder: Path
    architecture: str
    vocab_size: int
    num_hidden_layers: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None

    def described(self) -> dict[str, Any]:
        """Return the `model` object of the build result."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        del facts["folder"]
        return {**facts, "eos_token_ids": list(self.eos_token_ids)}


def inspect_checkpoint(
    folder: Path, supported: Supported, *, allow_pickle: bool = False
) -> Checkpoint:
    """Return the facts of the Hugging Face checkpoint in `folder`.

    Raises:
        BuildError: the folder is missing, incomplete, damaged, or of a kind not supported.
    """
    if not folder.is_dir():
        raise BuildError(
            f"checkpoint folder {folder} does not exist",
            remedy="Set models.<name>.checkpoint to a folder made by save_pretrained().",
        )
    config = _config(folder)
    refuse_quantised(folder, config)
    architecture = _architecture(folder, config, supported)
    check_weights(folder, allow_pickle=allow_pickle)
    checkpoint = _facts(folder, config, architecture)
    _check_tokenizer(checkpoint)
    return checkpoint


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if path.is_file():
        return read_json_object(path, remedy=DOWNLOAD_AGAIN)
    if (folder / "adapter_config.json").is_file():
        raise BuildError(
            f"{folder} holds an adapter (adapter_config.json), not a model",
            remedy="Merge it into its base model first: PeftModel.merge_and_unload().",
        )
    raise BuildError(
        f"{folder} has no config.json, so it is not a Hugging Face checkpoint",
        remedy="Point models.<name>.checkpoint at a folder made by save_pretrained().",
    )


def refuse_quantised(folder: Path, config: dict[str, Any]) -> None:
    """Raise BuildError if the weights are quantised already, by what config.json or files say."""
    quantised = config.get("quantization_config")
    method = quantised.get("quant_method", "?") if isinstance(quantised, dict) else "?"
    if (folder / "hf_quant_config.json").is_file():
        method = "modelopt"
    elif (folder / "rank0.safetensors").is_file():
        method = "a TensorRT-LLM checkpoint"
    elif not quantised:
        return
    raise BuildError(
        f"{folder}: its weights are quantised already ({method})",
        remedy="Point at the original checkpoint (fp32, bf16 or fp16): the build quantises it. "
        "`tritonctl plan` shows what serving this one would take.",
    )


def _architecture(folder: Path, config: dict[str, Any], supported: Supported) -> str:
    names = config.get("architectures")
    known = ", ".join(supported.architectures)
    if not isinstance(names, list) or not names:
        raise BuildError(
            f"{folder / 'config.json'}: names no architectures",
            remedy=f"Add the model's class, one of: {known}.",
        )
    name = str(names[0])
    if name in supported.refused:
        raise BuildError(
            f"the {supported.builder} builder does not support {name}: {supported.refused[name]}",
            remedy=f"Use a checkpoint of one of: {known}; or export the model yourself and serve "
            "it with a Python backend of your own (python_backends/README.md).",
        )
    if name not in supported.architectures:
        close = nearest_class(name, supported.architectures)
        raise BuildError(
            f"the {supported.builder} builder does not support {name}{close}",
            remedy=f"Use a checkpoint of one of: {known}. Another builder may support {name}.",
        )
    _check_rope(folder, config, supported)
    return name


def _check_rope(folder: Path, config: dict[str, Any], supported: Supported) -> None:
    # "rope_parameters" since transformers 5, "rope_scaling" before; "type" in the oldest files.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    # One scaling for all layers, or one by type of layer (Gemma 3).
    by_layer = [value for value in rope.values() if isinstance(value, dict)]
    for scaling in by_layer or [rope]:
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind not in supported.rope_types:
            raise BuildError(
                f"{folder / 'config.json'}: scales positions by {kind!r}, which changes with the "
                f"length of the sequence and is not what the {supported.builder} builder can do",
                remedy=f"Use a checkpoint with one of: {', '.join(supported.rope_types)}.",
            )


def _facts(folder: Path, config: dict[str, Any], architecture: str) -> Checkpoint:
    generation = _generation_config(folder)
    heads = _number(folder, config, "num_attention_heads", "n_head")
    hidden = _number(folder, config, "hidden_size", "n_embd")
    return Checkpoint(
        folder=folder,
        architecture=architecture,
        vocab_size=_number(folder, config, "vocab_size"),
        num_hidden_layers=_number(folder, config, "num_hidden_layers", "n_layer"),
        num_key_value_heads=_number(folder, config, "num_key_value_heads", default=heads),
        head_dim=_number(folder, config, "head_dim", default=hidden // heads),
        max_position_embeddings=_number(folder, config, "max_position_embeddings", "n_positions"),
        bos_token_id=_first(_ids(generation, config, "bos_token_id")),
        eos_token_ids=_eos(folder, generation, config),
        pad_token_id=_first(_ids(generation, config, "pad_token_id")),
    )


def _generation_config(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    return read_json_object(path, remedy=DOWNLOAD_AGAIN) if path.is_file() else {}


def _number(folder: Path, config: dict[str, Any], *names: str, default: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and value > 0:
            return value
    if default is not None:
        return default
    raise BuildError(
        f"{folder / 'config.json'}: {names[0]} is missing or not a positive whole number",
        remedy=f"Add {names[0]} as the model was trained with it, or save the model again.",
    )


def _ids(generation: dict[str, Any], config: dict[str, Any], name: str) -> tuple[int, ...]:
    """Return the ids under `name`; the generation config wins, as in transformers."""
    for source in (generation, config):
        value = source.get(name)
        values = value if isinstance(value, list) else [value]
        ids = tuple(item for item in values if isinstance(item, int) and item >= 0)
        if ids:
            return ids
    return ()


def _first(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None


def _eos(folder: Path, generation: dict[str, Any], config: dict[str, Any]) -> tuple[int, ...]:
    ids = _ids(generation, config, "eos_token_id")
    if not ids:
        raise BuildError(
            f"{folder}: neither generation_config.json nor config.json has an eos_token_id, "
            "so no answer would ever end",
            remedy="Add eos_token_id to generation_config.json: a token id or a list of them.",
        )
    return ids


def _check_tokenizer(checkpoint: Checkpoint) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = checkpoint.folder / name
        if not path.is_file():
            raise BuildError(f"{checkpoint.folder} has no {name}", remedy=_SAVE_TOKENIZER)
        refuse_pointer(path)
    path = checkpoint.folder / "tokenizer.json"
    tokenizer = read_json_object(path, remedy=_SAVE_TOKENIZER)
    _check_decoder(path, tokenizer.get("decoder"))
    largest = largest_token_id(tokenizer)
    if largest >= checkpoint.vocab_size:
        raise BuildError(
            f"{path}: has token ids up to {largest}, and the model knows {checkpoint.vocab_size} "
            "(config.json: vocab_size): the tokenizer is of another model",
            remedy="Put the model's own tokenizer there, or resize_token_embeddings() and retrain.",
        )


def _check_decoder(path: Path, decoder: Any) -> None:
    """Every step must be one that streamed text knows: python_backends/textlib/decoder_chain.py."""
    if decoder is None:
        return
    kind = decoder.get("type") if isinstance(decoder, dict) else decoder
    if kind == "Sequence":
        for step in decoder.get("decoders") or []:
            _check_decoder(path, step)
    elif kind not in DECODERS:
        raise BuildError(
            f"{path}: its decoder {kind!r:.80} cannot be streamed{nearest(str(kind), DECODERS)}",
            remedy=f"Use a tokenizer whose decoder is made of: {', '.join(DECODERS)}.",
        )


def largest_token_id(tokenizer: dict[str, Any]) -> int:
    """Return the largest id in a tokenizer.json; -1 if it names none."""
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids = [entry["id"] for entry in tokenizer.get("added_tokens") or []]
    if isinstance(vocab, dict):
        ids.extend(vocab.values())
    elif isinstance(vocab, list):  # Unigram: a list of [piece, score], the id is the position
        ids.append(len(vocab) - 1)
    return max(ids, default=-1)
