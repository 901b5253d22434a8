# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters of Hugging Face's PEFT, as folders: what they are, and their place in the artefact.

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
# TensorRT-LLM's names for what PEFT calls by the checkpoint's (tensorrt_llm/lora_helper.py:
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
_TOGETHER = ("attn_q", "attn_k", "attn_v")
_WHERE = "engine.options.package.lora_config.lora_dir"


@dataclass(frozen=True)
class Adapter:
    """An adapter: requests ask for it by the name of its folder.

    `modules`: the linear layers that it changes, by PEFT's names; none: its settings do not list
    them. `saved`: modules that it replaces as a whole.
    """

    name: str
    folder: Path
    rank: int
    modules: tuple[str, ...]
    saved: tuple[str, ...]


def read_adapters(config: Mapping[str, Any]) -> tuple[Adapter, ...]:
    """Return the adapters of a lora_config, each folder checked.

    Raises:
        BuildError: a path is not absolute, or its folder is missing or holds no complete adapter.
    """
    if config.get("lora_ckpt_source") == "nemo":
        return ()  # files of another kind, which a rule refuses
    return tuple(map(_read, config.get("lora_dir") or ()))


def _read(given: str) -> Adapter:
    folder = Path(given)
    if not folder.is_absolute() or not folder.name or folder.name.startswith("."):
        raise BuildError(
            f"{_WHERE} has {given!r}, expected the absolute path of a folder whose name is the "
            "adapter's",
            remedy=f"Correct {_WHERE}.",
        )
    if not folder.is_dir():
        raise BuildError(
            f"{_WHERE}: {folder} is not a folder",
            remedy="Give the folder that PEFT's save_pretrained wrote.",
        )
    settings = _settings(folder)
    _check_weights(folder)
    return Adapter(
        name=folder.name,
        folder=folder,
        rank=_rank(folder, settings),
        modules=_texts(settings.get("target_modules")),
        saved=_texts(settings.get("modules_to_save")),
    )


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / SETTINGS
    settings = read_json_object(file, remedy="Give the folder that PEFT's save_pretrained wrote.")
    kind = settings.get("peft_type", "LORA")
    if kind != "LORA":
        raise BuildError(
            f"{file}: peft_type is {kind!r}, and the runtime knows LORA alone",
            remedy=f"Remove the folder from {_WHERE}.",
        )
    return settings


def _rank(folder: Path, settings: Mapping[str, Any]) -> int:
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


def _texts(value: Any) -> tuple[str, ...]:
    """Return the last part of each name; () for what is no list (a pattern, or nothing)."""
    if not isinstance(value, list):
        return ()
    return tuple(str(item).rpartition(".")[2] for item in value)


def target_modules(adapters: Sequence[Adapter]) -> list[str]:
    """Return what the adapters change, by TensorRT-LLM's names.

    Query, key and value go together, as where the runtime reads one adapter's settings itself.
    """
    named = {MODULES[module] for adapter in adapters for module in adapter.modules}
    if named & set(_TOGETHER):
        named |= set(_TOGETHER)
    return [name for name in MODULES.values() if name in named]


def place(adapter: Adapter) -> str:
    """Return where the adapter is in the artefact."""
    return (ADAPTERS / adapter.name).as_posix()


def copy_adapters(adapters: Sequence[Adapter]) -> None:
    """Copy them into the working directory: an artefact is whole without its sources."""
    for adapter in adapters:
        folder = Path(place(adapter))
        folder.mkdir(parents=True)
        for name in (SETTINGS, WEIGHTS):
            shutil.copyfile(adapter.folder / name, folder / name)
