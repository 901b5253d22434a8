# SPDX-License-Identifier: Apache-2.0
"""Errors of `tritonctl init` for paths that no builder supports, with the next step."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tritonctl.errors import ConfigurationError, TritonctlError, UsageError
from tritonctl.host.files import read_record

_SAFETENSORS_ADVICE = "the original model with *.safetensors, as in a Hugging Face folder"
_MAX_NAMES = 3
_DOWNLOAD_AGAIN = "download the whole folder again and let it finish"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def missing_tokenizer_error(folder: Path) -> ConfigurationError:
    """Return the error for a text model without tokenizer.json."""
    other_files = [
        n for n in ("tokenizer.model", "vocab.json", "vocab.txt") if (folder / n).is_file()
    ]
    suffix = f", only {', '.join(other_files)}" if other_files else ""
    convert = _convert_command(folder, "AutoTokenizer")
    return ConfigurationError(
        f"{folder} has no tokenizer.json{suffix}: prompts cannot be tokenized",
        remedy=f"create it: {convert}" if other_files else _DOWNLOAD_AGAIN,
    )


def unsupported_path_error(path: Path) -> TritonctlError:
    """Return the error for a path without safetensors and model.onnx, by its content."""
    if path.is_file():
        return _file_error(path)
    if not path.is_dir():
        return UsageError(
            f"{path} does not exist",
            remedy="name a model's folder, an .onnx file, or OWNER/NAME; without any, "
            "`tritonctl init` writes a commented example",
        )
    return _folder_error(path)


def _file_error(path: Path) -> ConfigurationError:
    if path.suffix == ".gguf":
        return _gguf_error(path)
    if path.suffix in (".safetensors", ".bin", ".json"):
        return ConfigurationError(
            f"{path} is one file of a checkpoint",
            remedy=f"name its folder: `tritonctl init {path.parent}`",
        )
    return ConfigurationError(
        f"{path} is neither a model's folder nor an .onnx file",
        remedy="name a Hugging Face folder with config.json and *.safetensors, or an .onnx file",
    )


def _gguf_error(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is in llama.cpp's format GGUF, which no builder reads",
        remedy=f"use {_SAFETENSORS_ADVICE}: `tritonctl init OWNER/NAME`",
    )


def _folder_error(folder: Path) -> ConfigurationError:
    names = sorted(path.name for path in folder.iterdir())
    by_suffix = {Path(name).suffix: name for name in names}
    graphs = sorted((*folder.glob("*.onnx"), *folder.glob("*/*.onnx")))
    if "adapter_config.json" in names:
        return _adapter_error(folder)
    if graphs:
        return ConfigurationError(
            f"{folder} has ONNX files, but no model.onnx",
            remedy=f"name one: `tritonctl init {graphs[0]}`",
        )
    if ".gguf" in by_suffix:
        return _gguf_error(folder / by_suffix[".gguf"])
    if ".safetensors" not in by_suffix and any(name.endswith(_PICKLES) for name in names):
        return _pickles_error(folder)
    if ".safetensors" in by_suffix or "config.json" in names:
        has = by_suffix.get(".safetensors", "config.json")
        return ConfigurationError(
            f"{folder} has {has}, but neither model.safetensors nor model.safetensors.index.json: "
            "the model is incomplete",
            remedy=_DOWNLOAD_AGAIN,
        )
    return _no_model_error(folder, names)


def _adapter_error(folder: Path) -> ConfigurationError:
    base = read_record(folder / "adapter_config.json").get("base_model_name_or_path")
    return ConfigurationError(
        f"{folder} is a LoRA adapter, not a complete model",
        remedy=f"start from its base model: `tritonctl init {base or 'OWNER/NAME'}`",
    )


def _pickles_error(folder: Path) -> ConfigurationError:
    names = read_record(folder / "config.json").get("architectures")
    kind = names[0] if isinstance(names, list) and names else "AutoModel"
    return ConfigurationError(
        f"the weights of {folder} are Python pickles, which can run any code when read; there "
        "are no *.safetensors",
        remedy=f"use {_SAFETENSORS_ADVICE}, or convert them if you trust them: "
        f"{_convert_command(folder, kind)}",
    )


def _convert_command(folder: Path, kind: str) -> str:
    folder_text = json.dumps(str(folder))
    call = f"{kind}.from_pretrained({folder_text}).save_pretrained({folder_text})"
    return f"`python -c {shlex.quote(f'from transformers import {kind}; {call}')}`"


def _no_model_error(folder: Path, names: list[str]) -> ConfigurationError:
    inner = sorted(path.parent for path in folder.glob("*/config.json"))
    if inner:
        return ConfigurationError(
            f"{folder} contains models, but is not one",
            remedy=f"name one: `tritonctl init {inner[0]}`",
        )
    holds = f"holds {', '.join(names[:_MAX_NAMES])} and no model" if names else "is empty"
    return ConfigurationError(
        f"{folder} {holds}: no config.json with *.safetensors, no model.onnx",
        remedy="name a model's folder, an .onnx file, or OWNER/NAME of the Hugging Face Hub; for "
        f"a commented example in that folder: `tritonctl init -o {folder}`",
    )
