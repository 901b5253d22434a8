# SPDX-License-Identifier: Apache-2.0
"""Rules about fields of kv_cache_config that exclude or need each other.

Source: TensorRT-LLM (llmapi/llm_args.py: KvCacheConfig). Standard library only.
"""

from collections.abc import Callable, Mapping
from typing import Any

from package_facts import Package
from rule_check import refuse

_CONFIG = "engine.options.package.kv_cache_config"


def disk_cache_has_a_folder(package: Package) -> None:
    """The runtime refuses disk_cache_size without disk_cache_path."""
    config = _config(package)
    if config.get("disk_cache_size") and not config.get("disk_cache_path"):
        refuse(
            "kv_cache_config.disk_cache_size is set, and disk_cache_path is not",
            f"Set {_CONFIG}.disk_cache_path to a folder of the machine that serves.",
        )


def mamba_interval_is_said_once(package: Package) -> None:
    """mamba_state_cache_interval is the old name of mamba_state_config's periodic interval."""
    config = _config(package)
    nested = config.get("mamba_state_config") or {}
    is_set_in_both = "periodic_snapshot_interval" in nested
    if config.get("mamba_state_cache_interval") is not None and is_set_in_both:
        refuse(
            "kv_cache_config has mamba_state_cache_interval and "
            "mamba_state_config.periodic_snapshot_interval, two names of one field",
            f"Remove {_CONFIG}.mamba_state_cache_interval.",
        )


def mamba_snapshots_need_the_second_cache_manager(package: Package) -> None:
    """Additional snapshots of a Mamba state need use_kv_cache_manager_v2."""
    config = _config(package)
    nested = config.get("mamba_state_config") or {}
    names = (
        "additional_snapshot_offsets_from_start",
        "additional_snapshot_offsets_from_end",
        "enable_branch_snapshot",
    )
    requested = [name for name in names if nested.get(name)]
    if requested and config.get("use_kv_cache_manager_v2") is False:
        refuse(
            f"kv_cache_config.mamba_state_config.{requested[0]} is set, and "
            "use_kv_cache_manager_v2 is false",
            f"Set {_CONFIG}.use_kv_cache_manager_v2 to auto.",
        )


RULES: tuple[Callable[[Package], None], ...] = (
    disk_cache_has_a_folder,
    mamba_interval_is_said_once,
    mamba_snapshots_need_the_second_cache_manager,
)


def _config(package: Package) -> Mapping[str, Any]:
    return package.arguments.get("kv_cache_config") or {}
