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
    """A request names an adapter, which lora_dir must hold."""
    asked = [name for name in ("enable_lora", "lora_config") if package.given.get(name)]
    if asked and not _config(package).get("lora_dir"):
        refuse(
            f"{' and '.join(asked)} prepare for adapters, and none is named",
            f"Set {_CONFIG}.lora_dir to the adapters' folders, or remove {' and '.join(asked)}.",
        )


def lora_is_not_switched_off(package: Package) -> None:
    """The runtime ignores enable_lora beside a lora_config."""
    if package.given.get("enable_lora") is False and _config(package):
        refuse(
            "enable_lora is false, but lora_config is set",
            "Remove engine.options.package.enable_lora, or the lora_config.",
        )


def adapters_are_of_hugging_face(package: Package) -> None:
    """Requests name folders that PEFT wrote."""
    if _config(package).get("lora_ckpt_source") == "nemo":
        refuse(
            "lora_config.lora_ckpt_source is nemo, and trtllm_engine serves adapters of PEFT",
            f"Convert the adapters, and remove {_CONFIG}.lora_ckpt_source.",
        )


def adapters_have_different_names(package: Package) -> None:
    """The name of its folder is all that a request can say."""
    names = [adapter.name for adapter in package.adapters]
    twice = [adapter for adapter in package.adapters if names.count(adapter.name) > 1]
    if twice:
        refuse(
            f"two adapters are called {twice[0].name}: "
            f"{', '.join(str(adapter.folder) for adapter in twice)}",
            f"Rename one of the folders, and correct {_CONFIG}.lora_dir.",
        )


def adapters_fit_max_lora_rank(package: Package) -> None:
    """The runtime's LoRA buffers are cut for max_lora_rank when it loads."""
    most = _config(package).get("max_lora_rank")
    for adapter in package.adapters:
        if most and adapter.rank > most:
            refuse(
                f"the adapter {adapter.name} has the rank {adapter.rank}, and "
                f"lora_config.max_lora_rank is {most}",
                f"Set {_CONFIG}.max_lora_rank to {adapter.rank} or more, or leave it out.",
            )


def adapters_change_layers_that_the_runtime_knows(package: Package) -> None:
    """Others end the first request that names the adapter."""
    given = _config(package).get("lora_target_modules")
    for adapter in package.adapters:
        unknown = [module for module in adapter.modules if module not in MODULES]
        if unknown or not (adapter.modules or given):
            what = f"changes {', '.join(unknown)}" if unknown else "does not list what it changes"
            refuse(
                f"the adapter {adapter.name} {what} (target_modules in its adapter_config.json), "
                f"and the runtime knows {', '.join(MODULES)}",
                f"Train it for these layers, or remove it from {_CONFIG}.lora_dir."
                if unknown
                else f"Set {_CONFIG}.lora_target_modules.",
            )


def adapters_fit_lora_target_modules(package: Package) -> None:
    """The runtime leaves out what an adapter changes beside them, with a warning."""
    given = _config(package).get("lora_target_modules")
    for adapter in package.adapters:
        named = [MODULES[module] for module in adapter.modules if module in MODULES]
        left_out = [name for name in named if given and name not in given]
        if left_out:
            refuse(
                f"the adapter {adapter.name} changes {', '.join(left_out)}, which "
                "lora_config.lora_target_modules leaves out",
                f"Remove {_CONFIG}.lora_target_modules: it is read from the adapters.",
            )


def several_adapters_replace_no_modules(package: Package) -> None:
    """The runtime reads an embedding or a head of an adapter only where it is the only one."""
    replacing = [adapter for adapter in package.adapters if adapter.saved]
    if len(package.adapters) > 1 and replacing:
        first = replacing[0]
        refuse(
            f"the adapter {first.name} replaces {', '.join(first.saved)} (modules_to_save in its "
            "adapter_config.json), which the runtime ignores with several adapters",
            f"Remove it from {_CONFIG}.lora_dir, or serve it as a separate model.",
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
)


def _config(package: Package) -> Mapping[str, Any]:
    return package.given.get("lora_config") or {}
