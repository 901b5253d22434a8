# SPDX-License-Identifier: Apache-2.0
"""Reads and types the options of trtllm-build by the tool's names. Standard library only.

arguments.toml lists the options and their values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arguments import LAST_WITH_ENGINES, BuildOption, build_options, read_table, settable_options
from build_extra import read_extra
from buildlib.problems import BuildError, did_you_mean
from llm_arguments import ENGINE, read_arguments, settable_arguments

_KEY = "engine.options.compile"
_BUILDER_KEYS = ("extra", "timing_cache")

OptionValue = str | int | bool | tuple[str, ...]


@dataclass(frozen=True)
class TrtllmBuildOptions:
    """The checked `engine.options.compile`. Missing options have the tool's defaults."""

    values: Mapping[str, OptionValue] = field(default_factory=dict)
    extra: tuple[str, ...] = ()  # words for the command line that are not known options
    timing_cache: Path | None = None
    llm_arguments: Mapping[str, Any] = field(default_factory=dict)

    def is_set(self, name: str) -> bool:
        """Whether the project sets this option."""
        return name in self.values

    def is_enabled(self, name: str) -> bool:
        """Whether a switch or flag is on."""
        return bool(self.values.get(name, build_options()[name].default))

    def is_set_enabled(self, name: str) -> bool:
        """Whether the project enables a switch."""
        return self.is_set(name) and self.is_enabled(name)

    def is_set_disabled(self, name: str) -> bool:
        """Whether the project disables a switch."""
        return self.is_set(name) and not self.is_enabled(name)

    def choice(self, name: str) -> str:
        """Return a choice or a plugin's type, or "" if it is absent or disabled."""
        value = str(self.values.get(name, build_options()[name].default or ""))
        return "" if value == "disable" else value

    def number(self, name: str) -> int:
        """Return the value of a number option; 0: absent."""
        return int(str(self.values.get(name, build_options()[name].default or 0)))

    def words(self, name: str) -> tuple[str, ...]:
        """Return the value of a list option."""
        value = self.values.get(name, ())
        return value if isinstance(value, tuple) else ()


def read_options(raw: Mapping[str, Any], version: str = LAST_WITH_ENGINES) -> TrtllmBuildOptions:
    """Read and check the options. `version`: of the TensorRT-LLM that compiles.

    Raises:
        BuildError: an option is unknown, belongs elsewhere or has an invalid value.
    """
    runtime_arguments = settable_arguments(ENGINE)
    arguments = {name: value for name, value in raw.items() if name in runtime_arguments}
    values = {
        name: _parse_value(name, value)
        for name, value in raw.items()
        if name not in runtime_arguments and name not in _BUILDER_KEYS
    }
    extra_values, extra = read_extra(raw.get("extra", []), values, version)
    cache = raw.get("timing_cache")
    if cache is not None and not (isinstance(cache, str) and Path(cache).is_absolute()):
        raise _invalid_value("timing_cache", cache, "the absolute path of a folder")
    return TrtllmBuildOptions(
        values=values | {name: _parse_value(name, value) for name, value in extra_values.items()},
        extra=extra,
        timing_cache=Path(cache) if cache else None,
        llm_arguments=read_arguments(arguments, ENGINE, version, _KEY),
    )


def _parse_value(name: str, value: Any) -> OptionValue:
    option = build_options().get(name)
    elsewhere = option.elsewhere if option else read_table()["foreign"].get(name)
    if elsewhere:
        raise BuildError(f"{_KEY}.{name} cannot be set", remedy=elsewhere)
    if option is None:
        raise _unknown_option(name)
    if option.kind in ("switch", "flag"):
        return _parse_switch(name, value)
    if option.kind == "number":
        return _parse_number(name, value)
    if option.kind == "choice":
        return _parse_choice(name, value, option.choices)
    if option.kind == "list":
        return _parse_list(option, value)
    if not isinstance(value, str) or not value:
        raise _invalid_value(name, value, "text")
    return value


def _unknown_option(name: str) -> BuildError:
    names = (
        *settable_options(("switch", "flag", "number", "choice", "list", "text")),
        *_BUILDER_KEYS,
    )
    return BuildError(
        "trtllm-build has no option "
        f"{name!r}{did_you_mean(name, (*names, *settable_arguments(ENGINE)))}",
        remedy=f"Correct the name in {_KEY}; what this tritonctl does not know goes into "
        f'{_KEY}.extra, for example ["--flag", "value"].',
    )


def _parse_switch(name: str, value: Any) -> bool:
    words = {"enable": True, "disable": False, True: True, False: False}
    if not isinstance(value, str | bool) or value not in words:
        raise _invalid_value(name, value, "enable or disable")
    return words[value]


def _parse_number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _invalid_value(name, value, "a whole number")
    return value


def _parse_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    # YAML reads `none` as text, but `no` and `off` as false.
    if value is False and "disable" in choices:
        return "disable"
    if not isinstance(value, str) or value not in choices:
        raise _invalid_value(
            name, value, f"one of {', '.join(choices)}{did_you_mean(str(value), choices)}"
        )
    return value


def _parse_list(option: BuildOption, value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(i, str) for i in items):
        raise _invalid_value(option.name, value, "a list of text")
    for item in items if option.choices else ():
        if item not in option.choices:
            expectation = f"{', '.join(option.choices)}; not {item!r}"
            raise _invalid_value(
                option.name, value, f"some of {expectation}{did_you_mean(item, option.choices)}"
            )
    return tuple(items)


def _invalid_value(name: str, value: Any, expected: str) -> BuildError:
    return BuildError(
        f"{_KEY}.{name} is {value!r}, expected {expected}",
        remedy=f"Correct {_KEY}.{name}, or leave it out.",
    )
