# SPDX-License-Identifier: Apache-2.0
"""Reads a Hugging Face folder and refuses one that cannot be built. Standard library only.

The checks take milliseconds and run before torch is imported. A half-downloaded checkpoint must
not cost minutes, and a missing weight must not become a random one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from buildlib.config_sizes import TRAINED_POSITIONS, read_size
from buildlib.problems import BuildError, did_you_mean, did_you_mean_class, read_json_object
from buildlib.result_types import DecoderProperties
from buildlib.weights import DOWNLOAD_AGAIN, check_weights, refuse_lfs_pointer

_SAVE_TOKENIZER = (
    "Save it with a fast tokenizer: "
    "AutoTokenizer.from_pretrained(FOLDER, use_fast=True).save_pretrained(FOLDER)."
)

# Decoders of a tokenizer.json whose text can be streamed: all decoders of tokenizers 0.23.
DECODERS = (
    *("BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse"),
    *("Metaspace", "Replace", "Strip", "WordPiece"),
)


@dataclass(frozen=True)
class SupportedModels:
    """The checkpoints that a builder supports."""

    builder: str
    architectures: Sequence[str]  # model classes
    rope_types: Sequence[str]  # position scalings
    # By unsupported model class.
    refusal_reasons: Mapping[str, str] = field(default_factory=dict)
    # By model class and key of config.json that is unsupported when it is true.
    refused_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class DecoderCheckpoint(DecoderProperties):
    """The properties of a decoder checkpoint that building and serving use."""

    folder: Path = field(kw_only=True)

    def to_result(self) -> dict[str, Any]:
        """Return the `model` object of the build result."""
        return {entry.name: getattr(self, entry.name) for entry in fields(DecoderProperties)}


def inspect_checkpoint(
    folder: Path, supported: SupportedModels, *, allow_pickle: bool = False
) -> DecoderCheckpoint:
    """Read and check the Hugging Face checkpoint in `folder`.

    Raises:
        BuildError: the folder is missing, incomplete, damaged or not supported.
    """
    if not folder.is_dir():
        raise BuildError(
            f"checkpoint folder {folder} does not exist",
            remedy="Set models.<name>.checkpoint to a folder made by save_pretrained().",
        )
    config = _read_config(folder)
    refuse_quantised(folder, config)
    architecture = _read_architecture(folder, config, supported)
    check_weights(folder, allow_pickle=allow_pickle)
    checkpoint = _read_facts(folder, config, architecture)
    _check_tokenizer(checkpoint)
    return checkpoint


def _read_config(folder: Path) -> dict[str, Any]:
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
    """Raise BuildError if config.json or the file names show weights that are quantised already."""
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


def _read_architecture(folder: Path, config: dict[str, Any], supported: SupportedModels) -> str:
    names = config.get("architectures")
    supported_names = ", ".join(supported.architectures)
    if not isinstance(names, list) or not names:
        raise BuildError(
            f"{folder / 'config.json'}: names no architectures",
            remedy=f"Add the model's class, one of: {supported_names}.",
        )
    name = str(names[0])
    if name in supported.refusal_reasons:
        raise BuildError(
            f"the {supported.builder} builder does not support {name}: "
            f"{supported.refusal_reasons[name]}",
            remedy=f"Use a checkpoint of one of: {supported_names}; or export the model yourself "
            "and serve it with a Python backend of your own (python_backends/README.md).",
        )
    if name not in supported.architectures:
        suggestion = did_you_mean_class(name, supported.architectures)
        raise BuildError(
            f"the {supported.builder} builder does not support {name}{suggestion}",
            remedy=f"Use a checkpoint of one of: {supported_names}. "
            f"Another builder may support {name}.",
        )
    for key, reason in supported.refused_settings.get(name, {}).items():
        if config.get(key):
            raise BuildError(
                f"{folder / 'config.json'}: {key} is {config[key]!r}; the {supported.builder} "
                f"builder does not support {name} with it: {reason}",
                remedy=f"Use a checkpoint of {name} without {key}, or another builder.",
            )
    _check_rope(folder, config, supported)
    return name


def _check_rope(folder: Path, config: dict[str, Any], supported: SupportedModels) -> None:
    # "rope_parameters" since transformers 5, "rope_scaling" before; "type" in the oldest files.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise BuildError(
            f"{folder / 'config.json'}: its position scaling is not a JSON object",
            remedy=DOWNLOAD_AGAIN,
        )
    # One scaling for all layers, or one by type of layer (Gemma 3).
    by_layer = [value for value in rope.values() if isinstance(value, dict)]
    for scaling in by_layer or [rope]:
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind not in supported.rope_types:
            raise BuildError(
                f"{folder / 'config.json'}: scales positions by {kind!r}, which changes with the "
                f"length of the sequence; the {supported.builder} builder does not support it",
                remedy=f"Use a checkpoint with one of: {', '.join(supported.rope_types)}.",
            )


def _read_facts(folder: Path, config: dict[str, Any], architecture: str) -> DecoderCheckpoint:
    generation = _read_generation_config(folder)
    file = folder / "config.json"
    heads = read_size(file, config, "num_attention_heads")
    hidden = read_size(file, config, "hidden_size")
    return DecoderCheckpoint(
        folder=folder,
        architecture=architecture,
        vocab_size=read_size(file, config, "vocab_size"),
        num_hidden_layers=read_size(file, config, "num_hidden_layers"),
        num_key_value_heads=_key_value_heads(file, config, heads),
        head_dim=read_size(file, config, "head_dim", default=hidden // heads),
        max_position_embeddings=read_size(
            file, config, "max_position_embeddings", default=TRAINED_POSITIONS.get(architecture)
        ),
        bos_token_id=_first_id(_read_token_ids(generation, config, "bos_token_id")),
        eos_token_ids=_read_eos_ids(folder, generation, config),
        pad_token_id=_first_id(_read_token_ids(generation, config, "pad_token_id")),
    )


def _key_value_heads(file: Path, config: dict[str, Any], heads: int) -> int:
    """Return the heads of keys: one with `multi_query`, whose other keys Falcon then ignores."""
    if config.get("multi_query") is True and not config.get("new_decoder_architecture"):
        return 1
    return read_size(file, config, "num_key_value_heads", default=heads)


def _read_generation_config(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    return read_json_object(path, remedy=DOWNLOAD_AGAIN) if path.is_file() else {}


def _read_token_ids(
    generation: dict[str, Any], config: dict[str, Any], name: str
) -> tuple[int, ...]:
    """Return the ids under `name`. The generation config wins, as in transformers."""
    for source in (generation, config):
        value = source.get(name)
        values = value if isinstance(value, list) else [value]
        ids = tuple(item for item in values if isinstance(item, int) and item >= 0)
        if ids:
            return ids
    return ()


def _first_id(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None


def _read_eos_ids(
    folder: Path, generation: dict[str, Any], config: dict[str, Any]
) -> tuple[int, ...]:
    ids = _read_token_ids(generation, config, "eos_token_id")
    if not ids:
        raise BuildError(
            f"{folder}: neither generation_config.json nor config.json has an eos_token_id, "
            "so no answer would end",
            remedy="Add eos_token_id to generation_config.json: a token id or a list of them.",
        )
    return ids


def _check_tokenizer(checkpoint: DecoderCheckpoint) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = checkpoint.folder / name
        if not path.is_file():
            raise BuildError(f"{checkpoint.folder} has no {name}", remedy=_SAVE_TOKENIZER)
        refuse_lfs_pointer(path)
    path = checkpoint.folder / "tokenizer.json"
    tokenizer = read_json_object(path, remedy=_SAVE_TOKENIZER)
    try:
        _check_decoder(path, tokenizer.get("decoder"))
        max_token_id = max_vocabulary_id(tokenizer)
    except (TypeError, KeyError, AttributeError) as error:
        raise BuildError(
            f"{path}: its decoder, vocabulary or added tokens are not those of a tokenizer "
            f"({type(error).__name__}: {error})",
            remedy=_SAVE_TOKENIZER,
        ) from error
    if max_token_id >= checkpoint.vocab_size:
        raise BuildError(
            f"{path}: has token ids up to {max_token_id}, and the model knows "
            f"{checkpoint.vocab_size} (config.json: vocab_size): the tokenizer is of another model",
            remedy="Put the model's own tokenizer there, or resize_token_embeddings() and retrain.",
        )


def _check_decoder(path: Path, decoder: Any) -> None:
    """Raise BuildError for a decoder that `textlib.tokens.decoder_chain` cannot stream."""
    if decoder is None:
        return
    kind = decoder.get("type") if isinstance(decoder, dict) else decoder
    if kind == "Sequence":
        for step in decoder.get("decoders") or []:
            _check_decoder(path, step)
    elif kind not in DECODERS:
        raise BuildError(
            f"{path}: its decoder {kind!r:.80} cannot be "
            f"streamed{did_you_mean(str(kind), DECODERS)}",
            remedy=f"Use a tokenizer whose decoder consists of: {', '.join(DECODERS)}.",
        )


def max_vocabulary_id(tokenizer: dict[str, Any]) -> int:
    """Return the largest token id in a tokenizer.json, or -1 without any."""
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids = [entry["id"] for entry in tokenizer.get("added_tokens") or []]
    if isinstance(vocab, dict):
        ids.extend(vocab.values())
    elif isinstance(vocab, list):  # Unigram: a list of [piece, score], the id is the position
        ids.append(len(vocab) - 1)
    return max(ids, default=-1)
