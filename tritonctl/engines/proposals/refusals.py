# SPDX-License-Identifier: Apache-2.0
"""What people point `tritonctl init` at that is no checkpoint for a builder, and what to do."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tritonctl.errors import ConfigurationError, TritonctlError, UsageError
from tritonctl.host.files import read_record

_SAFE = "the original model with *.safetensors, as Hugging Face folders have them"
_SHOWN = 3
_WHOLE = "download the whole folder again and let it finish"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def without_tokenizer(folder: Path) -> ConfigurationError:
    """A text model without the file that the served tokenizer reads."""
    others = [n for n in ("tokenizer.model", "vocab.json", "vocab.txt") if (folder / n).is_file()]
    has = f", only {', '.join(others)}" if others else ""
    convert = _saved_again(folder, "AutoTokenizer")
    return ConfigurationError(
        f"{folder} has no tokenizer.json{has}: prompts could not be turned into tokens",
        remedy=f"make it: {convert}" if others else _WHOLE,
    )


def nothing_to_serve(path: Path) -> TritonctlError:
    """A path without safetensors and without a model.onnx: what is there instead."""
    if path.is_file():
        return _of_file(path)
    if not path.is_dir():
        return UsageError(
            f"there is no {path}", remedy="name a model's folder, an .onnx file, or OWNER/NAME"
        )
    return _of_folder(path)


def _of_file(path: Path) -> ConfigurationError:
    if path.suffix == ".gguf":
        return _gguf(path)
    if path.suffix in (".safetensors", ".bin", ".json"):
        return ConfigurationError(
            f"{path} is one file of a checkpoint",
            remedy=f"name its folder: `tritonctl init {path.parent}`",
        )
    return ConfigurationError(
        f"{path} is no model: neither a folder nor an .onnx file",
        remedy="name a Hugging Face folder with config.json and *.safetensors, or an .onnx file",
    )


def _gguf(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is GGUF, llama.cpp's format: no builder reads it",
        remedy=f"use {_SAFE}: `tritonctl init OWNER/NAME`",
    )


def _of_folder(folder: Path) -> ConfigurationError:
    names = sorted(path.name for path in folder.iterdir())
    by_suffix = {Path(name).suffix: name for name in names}
    graphs = sorted((*folder.glob("*.onnx"), *folder.glob("*/*.onnx")))
    if "adapter_config.json" in names:
        return _adapter(folder)
    if graphs:
        return ConfigurationError(
            f"{folder} has no model.onnx, but other ONNX files",
            remedy=f"name one: `tritonctl init {graphs[0]}`",
        )
    if ".gguf" in by_suffix:
        return _gguf(folder / by_suffix[".gguf"])
    if ".safetensors" not in by_suffix and any(name.endswith(_PICKLES) for name in names):
        return _pickles(folder)
    if ".safetensors" in by_suffix or "config.json" in names:
        has = by_suffix.get(".safetensors", "config.json")
        return ConfigurationError(
            f"{folder} has {has}, and neither model.safetensors nor model.safetensors.index.json: "
            "a part of the model is missing",
            remedy=_WHOLE,
        )
    return _without_model(folder, names)


def _adapter(folder: Path) -> ConfigurationError:
    base = read_record(folder / "adapter_config.json").get("base_model_name_or_path")
    return ConfigurationError(
        f"{folder} is an adapter (LoRA), not a whole model",
        remedy=f"start from the model that it adapts: `tritonctl init {base or 'OWNER/NAME'}`",
    )


def _pickles(folder: Path) -> ConfigurationError:
    names = read_record(folder / "config.json").get("architectures")
    kind = names[0] if isinstance(names, list) and names else "AutoModel"
    return ConfigurationError(
        f"the weights of {folder} are Python pickles, which can run any code when they are read; "
        "there are no *.safetensors",
        remedy=f"use {_SAFE}, or where you trust them convert them: {_saved_again(folder, kind)}",
    )


def _saved_again(folder: Path, kind: str) -> str:
    where = json.dumps(str(folder))
    call = f"{kind}.from_pretrained({where}).save_pretrained({where})"
    return f"`python -c {shlex.quote(f'from transformers import {kind}; {call}')}`"


def _without_model(folder: Path, names: list[str]) -> ConfigurationError:
    inner = sorted(path.parent for path in folder.glob("*/config.json"))
    if inner:
        return ConfigurationError(
            f"{folder} holds no model itself", remedy=f"name one: `tritonctl init {inner[0]}`"
        )
    holds = f"holds {', '.join(names[:_SHOWN])} and no model" if names else "is empty"
    return ConfigurationError(
        f"{folder} {holds}: no config.json with *.safetensors, no model.onnx",
        remedy="name a model's folder, an .onnx file, or OWNER/NAME of the Hugging Face Hub; for "
        f"a commented example in that folder: `tritonctl init --into {folder}`",
    )
