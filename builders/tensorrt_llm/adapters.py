# SPDX-License-Identifier: Apache-2.0
"""Reads LoRA adapters of Hugging Face's PEFT and copies them into the artefact.

Layout: https://huggingface.co/docs/peft/developer_guides/checkpoint. Standard library only.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError, read_json_object
from buildlib.weights import check_safetensors

ADAPTERS = Path("lora")
SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# TensorRT-LLM's module names by PEFT's (tensorrt_llm/lora_helper.py:
# get_default_trtllm_modules_to_hf_modules).
MODULES: Mapping[str, str] = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_dense",
    "gate_proj": "mlp_h_to_4h",
    "up_proj": "mlp_gate",
    "down_proj": "mlp_4h_to_h",
}
_ATTENTION_MODULES = ("attn_q", "attn_k", "attn_v")
_KEY = "engine.options.package.lora_config.lora_dir"


@dataclass(frozen=True)
class LoraAdapter:
    """A LoRA adapter. Requests name it by its folder."""

    name: str
    folder: Path
    rank: int
    modules: tuple[str, ...]  # changed linear layers by PEFT's names; (): not listed
    replaced_modules: tuple[str, ...]


def read_adapters(config: Mapping[str, Any]) -> tuple[LoraAdapter, ...]:
    """Read and check the adapters of a lora_config.

    Raises:
        BuildError: a path is not absolute, or its folder is missing or lacks a complete adapter.
    """
    if config.get("lora_ckpt_source") == "nemo":
        return ()  # a rule refuses these files
    return tuple(map(_read_adapter, config.get("lora_dir") or ()))


def _read_adapter(folder_path: str) -> LoraAdapter:
    folder = Path(folder_path)
    if not folder.is_absolute() or not folder.name or folder.name.startswith("."):
        raise BuildError(
            f"{_KEY} has {folder_path!r}, expected the absolute path of a folder whose name is the "
            "adapter's",
            remedy=f"Correct {_KEY}.",
        )
    if not folder.is_dir():
        raise BuildError(
            f"{_KEY}: {folder} is not a folder",
            remedy="Give the folder that PEFT's save_pretrained wrote.",
        )
    settings = _read_settings(folder)
    _check_weights(folder)
    return LoraAdapter(
        name=folder.name,
        folder=folder,
        rank=_max_rank(folder, settings),
        modules=_module_names(settings.get("target_modules")),
        replaced_modules=_module_names(settings.get("modules_to_save")),
    )


def _read_settings(folder: Path) -> dict[str, Any]:
    file = folder / SETTINGS
    settings = read_json_object(file, remedy="Give the folder that PEFT's save_pretrained wrote.")
    kind = settings.get("peft_type", "LORA")
    if kind != "LORA":
        raise BuildError(
            f"{file}: peft_type is {kind!r}, and the runtime supports LORA only",
            remedy=f"Remove the folder from {_KEY}.",
        )
    return settings


def _max_rank(folder: Path, settings: Mapping[str, Any]) -> int:
    ranks = [settings.get("r"), *(settings.get("rank_pattern") or {}).values()]
    if not all(type(rank) is int and rank > 0 for rank in ranks):
        raise BuildError(
            f"{folder / SETTINGS}: has no rank `r`",
            remedy="Save the adapter again with PEFT's save_pretrained.",
        )
    return max(int(rank) for rank in ranks)


def _check_weights(folder: Path) -> None:
    weights = folder / WEIGHTS
    if weights.is_file():
        check_safetensors(weights)
        return
    pickle = (folder / "adapter_model.bin").is_file()
    reason = "has its weights as a Python pickle only" if pickle else f"has no {WEIGHTS}"
    raise BuildError(
        f"{folder} {reason}",
        remedy="Save the adapter again with PEFT's save_pretrained(FOLDER, "
        "safe_serialization=True), where you trust the file.",
    )


def _module_names(value: Any) -> tuple[str, ...]:
    """Return the last part of each name, or () for a pattern or a missing list."""
    if not isinstance(value, list):
        return ()
    return tuple(str(item).rpartition(".")[2] for item in value)


def target_modules(adapters: Sequence[LoraAdapter]) -> list[str]:
    """Return the changed modules by TensorRT-LLM's names.

    Query, key and value go together, as when the runtime reads the settings of one adapter.
    """
    changed_modules = {MODULES[module] for adapter in adapters for module in adapter.modules}
    if changed_modules & set(_ATTENTION_MODULES):
        changed_modules |= set(_ATTENTION_MODULES)
    return [name for name in MODULES.values() if name in changed_modules]


def artefact_path(adapter: LoraAdapter) -> str:
    """Return the adapter's path in the artefact."""
    return (ADAPTERS / adapter.name).as_posix()


def copy_adapters(adapters: Sequence[LoraAdapter]) -> None:
    """Copy the adapters into the working directory, so that the artefact is complete."""
    for adapter in adapters:
        folder = Path(artefact_path(adapter))
        folder.mkdir(parents=True)
        for name in (SETTINGS, WEIGHTS):
            shutil.copyfile(adapter.folder / name, folder / name)
