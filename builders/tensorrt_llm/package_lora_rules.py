# SPDX-License-Identifier: Apache-2.0
"""Rules about LoRA adapters in the PyTorch runtime.

Sources: TensorRT-LLM (_torch/pyexecutor/_util.py, lora_manager.py, llmapi/llm_args.py: LoraConfig).
"""

from collections.abc import Callable, Mapping
from typing import Any

from adapters import MODULES
from package_facts import Package
from rule_check import refuse

_CONFIG = "engine.options.package.lora_config"


def lora_names_its_adapters(package: Package) -> None:
    """A request can name only adapters of lora_dir."""
    set_names = [name for name in ("enable_lora", "lora_config") if package.arguments.get(name)]
    if set_names and not _config(package).get("lora_dir"):
        refuse(
            f"{' and '.join(set_names)} prepare for adapters, and lora_dir names none",
            f"Set {_CONFIG}.lora_dir to the adapters' folders, or remove "
            f"{' and '.join(set_names)}.",
        )


def lora_is_not_switched_off(package: Package) -> None:
    """With a lora_config the runtime ignores enable_lora."""
    if package.arguments.get("enable_lora") is False and _config(package):
        refuse(
            "enable_lora is false, but lora_config is set",
            "Remove engine.options.package.enable_lora, or the lora_config.",
        )


def adapters_are_of_hugging_face(package: Package) -> None:
    """Requests name folders written by PEFT."""
    if _config(package).get("lora_ckpt_source") == "nemo":
        refuse(
            "lora_config.lora_ckpt_source is nemo, and trtllm_engine serves adapters of PEFT",
            f"Convert the adapters, and remove {_CONFIG}.lora_ckpt_source.",
        )


def adapters_have_different_names(package: Package) -> None:
    """A request names an adapter by its folder's name."""
    names = [adapter.name for adapter in package.adapters]
    duplicates = [adapter for adapter in package.adapters if names.count(adapter.name) > 1]
    if duplicates:
        refuse(
            f"two adapters have the name {duplicates[0].name}: "
            f"{', '.join(str(adapter.folder) for adapter in duplicates)}",
            f"Rename one of the folders, and correct {_CONFIG}.lora_dir.",
        )


def adapters_fit_max_lora_rank(package: Package) -> None:
    """The runtime sizes its LoRA buffers for max_lora_rank when it loads."""
    max_rank = _config(package).get("max_lora_rank")
    for adapter in package.adapters:
        if max_rank and adapter.rank > max_rank:
            refuse(
                f"the adapter {adapter.name} has the rank {adapter.rank}, and "
                f"lora_config.max_lora_rank is {max_rank}",
                f"Set {_CONFIG}.max_lora_rank to {adapter.rank} or more, or leave it out.",
            )


def adapters_change_layers_that_the_runtime_knows(package: Package) -> None:
    """Other layers fail the first request that names the adapter."""
    configured_modules = _config(package).get("lora_target_modules")
    for adapter in package.adapters:
        unsupported = [module for module in adapter.modules if module not in MODULES]
        if unsupported or not (adapter.modules or configured_modules):
            problem = (
                f"changes {', '.join(unsupported)}"
                if unsupported
                else "does not list what it changes"
            )
            refuse(
                f"the adapter {adapter.name} {problem} (target_modules in its "
                f"adapter_config.json), and the runtime supports {', '.join(MODULES)}",
                f"Train it for these layers, or remove it from {_CONFIG}.lora_dir."
                if unsupported
                else f"Set {_CONFIG}.lora_target_modules.",
            )


def adapters_fit_lora_target_modules(package: Package) -> None:
    """The runtime skips other changes of an adapter with a warning."""
    configured_modules = _config(package).get("lora_target_modules")
    for adapter in package.adapters:
        changed = [MODULES[module] for module in adapter.modules if module in MODULES]
        left_out = [
            name for name in changed if configured_modules and name not in configured_modules
        ]
        if left_out:
            refuse(
                f"the adapter {adapter.name} changes {', '.join(left_out)}, which "
                "lora_config.lora_target_modules leaves out",
                f"Remove {_CONFIG}.lora_target_modules: it is read from the adapters.",
            )


def several_adapters_replace_no_modules(package: Package) -> None:
    """The runtime reads an adapter's embedding or head only if it is the only adapter."""
    replacing = [adapter for adapter in package.adapters if adapter.replaced_modules]
    if len(package.adapters) > 1 and replacing:
        first = replacing[0]
        refuse(
            f"the adapter {first.name} replaces {', '.join(first.replaced_modules)} "
            "(modules_to_save in its "
            "adapter_config.json), which the runtime ignores with several adapters",
            f"Remove it from {_CONFIG}.lora_dir, or serve it as a separate model.",
        )


def lora_graphs_go_without_attention_dp(package: Package) -> None:
    """The runtime refuses cuda_graph_specialize_lora together with enable_attention_dp."""
    if _config(package).get("cuda_graph_specialize_lora") and package.arguments.get(
        "enable_attention_dp"
    ):
        refuse(
            "lora_config.cuda_graph_specialize_lora and enable_attention_dp exclude each other",
            f"Remove {_CONFIG}.cuda_graph_specialize_lora.",
        )


RULES: tuple[Callable[[Package], None], ...] = (
    lora_names_its_adapters,
    lora_is_not_switched_off,
    adapters_are_of_hugging_face,
    adapters_have_different_names,
    adapters_fit_max_lora_rank,
    adapters_change_layers_that_the_runtime_knows,
    adapters_fit_lora_target_modules,
    several_adapters_replace_no_modules,
    lora_graphs_go_without_attention_dp,
)


def _config(package: Package) -> Mapping[str, Any]:
    return package.arguments.get("lora_config") or {}
