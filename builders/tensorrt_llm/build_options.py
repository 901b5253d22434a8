# SPDX-License-Identifier: Apache-2.0
"""The options of trtllm-build, by the tool's own names, read and typed. Standard library only.

What there is to set, and what it may be, is in arguments.toml.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arguments import LAST_WITH_ENGINES, Option, build_options, settable, table
from build_extra import read_extra
from buildlib.problems import BuildError, nearest
from llm_arguments import ENGINE, arguments_of, read_arguments

_WHERE = "engine.options.compile"
_OWN = ("extra", "timing_cache")

Value = str | int | bool | tuple[str, ...]


@dataclass(frozen=True)
class Options:
    """`engine.options.compile` as checked; what was not given has the tool's default.

    `extra`: words for the command line that no known option is made of.
    """

    values: Mapping[str, Value] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    timing_cache: Path | None = None
    llm_arguments: Mapping[str, Any] = field(default_factory=dict)

    def given(self, name: str) -> bool:
        """Return whether the project sets this option."""
        return name in self.values

    def enabled(self, name: str) -> bool:
        """Return whether a switch or flag is on."""
        return bool(self.values.get(name, build_options()[name].default))

    def insisted(self, name: str) -> bool:
        """Return whether the project itself enables a switch."""
        return self.given(name) and self.enabled(name)

    def refused(self, name: str) -> bool:
        """Return whether the project itself disables a switch."""
        return self.given(name) and not self.enabled(name)

    def choice(self, name: str) -> str:
        """Return a choice or a plugin's type; "" if it is absent or disabled."""
        value = str(self.values.get(name, build_options()[name].default or ""))
        return "" if value == "disable" else value

    def number(self, name: str) -> int:
        """Return a number."""
        return int(str(self.values.get(name, build_options()[name].default or 0)))

    def words(self, name: str) -> tuple[str, ...]:
        """Return a list."""
        value = self.values.get(name, ())
        return value if isinstance(value, tuple) else ()


def read_options(raw: Mapping[str, Any], version: str = LAST_WITH_ENGINES) -> Options:
    """Return the checked options; `version`: of the TensorRT-LLM whose tool gets them.

    Raises:
        BuildError: one is unknown, set elsewhere, or has a value that the tool does not take.
    """
    known = arguments_of(ENGINE)
    arguments = {name: value for name, value in raw.items() if name in known}
    values = {
        name: _value(name, value)
        for name, value in raw.items()
        if name not in known and name not in _OWN
    }
    given, extra = read_extra(raw.get("extra", []), values, version)
    cache = raw.get("timing_cache")
    if cache is not None and not (isinstance(cache, str) and Path(cache).is_absolute()):
        raise _wrong("timing_cache", cache, "the absolute path of a folder")
    return Options(
        values=values | {name: _value(name, value) for name, value in given.items()},
        extra=extra,
        timing_cache=Path(cache) if cache else None,
        llm_arguments=read_arguments(arguments, ENGINE, version, _WHERE),
    )


def _value(name: str, value: Any) -> Value:
    option = build_options().get(name)
    elsewhere = option.elsewhere if option else table()["foreign"].get(name)
    if elsewhere:
        raise BuildError(f"{_WHERE}.{name} cannot be set", remedy=elsewhere)
    if option is None:
        raise _unknown(name)
    if option.kind in ("switch", "flag"):
        return _switch(name, value)
    if option.kind == "number":
        return _number(name, value)
    if option.kind == "choice":
        return _one_of(name, value, option.choices)
    if option.kind == "list":
        return _strings(option, value)
    if not isinstance(value, str) or not value:
        raise _wrong(name, value, "text")
    return value


def _unknown(name: str) -> BuildError:
    known = (*settable(("switch", "flag", "number", "choice", "list", "text")), *_OWN)
    return BuildError(
        f"trtllm-build has no option {name!r}{nearest(name, (*known, *arguments_of(ENGINE)))}",
        remedy=f"Correct the name in {_WHERE}; what this tritonctl does not know goes into "
        f'{_WHERE}.extra, for example ["--flag", "value"].',
    )


def _switch(name: str, value: Any) -> bool:
    words = {"enable": True, "disable": False, True: True, False: False}
    if not isinstance(value, str | bool) or value not in words:
        raise _wrong(name, value, "enable or disable")
    return words[value]


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _wrong(name, value, "a whole number")
    return value


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    # YAML reads a bare `none` as text, but `no` and `off` as false.
    if value is False and "disable" in choices:
        return "disable"
    if not isinstance(value, str) or value not in choices:
        raise _wrong(name, value, f"one of {', '.join(choices)}{nearest(str(value), choices)}")
    return value


def _strings(option: Option, value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(i, str) for i in items):
        raise _wrong(option.name, value, "a list of text")
    for item in items if option.choices else ():
        if item not in option.choices:
            known = f"{', '.join(option.choices)}; not {item!r}"
            raise _wrong(option.name, value, f"some of {known}{nearest(item, option.choices)}")
    return tuple(items)


def _wrong(name: str, value: Any, expected: str) -> BuildError:
    return BuildError(
        f"{_WHERE}.{name} is {value!r}, expected {expected}",
        remedy=f"Correct {_WHERE}.{name}, or leave it out.",
    )
