# SPDX-License-Identifier: Apache-2.0
"""The table of arguments held against the signatures of NVIDIA's classes, as pydantic reads them.

What the builder lets through, the class takes; what the class has, the builder knows. The
signatures are those of NVIDIA's documentation: trtllm_signatures.py.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pydantic
import pytest

from tests.builders.conftest import modules_of
from tests.builders.trtllm_signatures import CLASSES, KINDS, TAIL

_TYPES = {**vars(typing), **vars(pydantic)}
# Text, numbers at bounds, lists and objects, tried in every field next to its own choices.
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 64, 256, 257, 0.0, 0.5, 1.0, 1.5, -0.5),
    *("auto", "x", "", [], [1], [0], [1, 2], ["x"], [0.5, 0.5], {}, {"x": "y"}, {"1": 1}),
)
CASES = [(version, name) for version, classes in CLASSES.items() for name in classes]
KIND_CASES = [(version, name) for version, kinds in KINDS.items() for name in kinds]


@pytest.fixture(scope="module")
def trt() -> Iterator[SimpleNamespace]:
    """The modules that read the table."""
    with modules_of("tensorrt_llm", ("arguments", "llm_arguments")) as modules:
        yield modules


def model_of(name: str, signature: dict[str, str]) -> type[pydantic.BaseModel]:
    """The class that a signature describes; no field is required."""
    fields: dict[str, Any] = {
        field: (eval(annotation, _TYPES), None)  # noqa: S307 - the types of trtllm_signatures.py
        for field, annotation in signature.items()
        if field != TAIL
    }
    if "speculative_model" in fields:
        aliases = pydantic.AliasChoices("speculative_model", "speculative_model_dir")
        alias = pydantic.Field(default=None, validation_alias=aliases)
        fields["speculative_model"] = (str | None, alias)
    config = pydantic.ConfigDict(extra="allow" if TAIL in signature else "forbid")
    return pydantic.create_model(name, __config__=config, **fields)


def is_taken(model: type[pydantic.BaseModel], values: dict[str, Any]) -> bool:
    """Whether the class takes these fields."""
    try:
        model.model_validate(values)
    except pydantic.ValidationError:
        return False
    return True


def passes(
    trt: SimpleNamespace, fields: dict[str, Any], values: dict[str, Any], version: str, name: str
) -> bool:
    """Whether the builder lets these fields through."""
    try:
        trt.llm_arguments.check_fields(values, fields, version, "options", of=name)
    except trt.problems.BuildError:
        return False
    return True


def compare(
    trt: SimpleNamespace, fields: dict[str, Any], signature: dict[str, str], version: str, name: str
) -> int:
    """Check every value of every field of the table; return how many values passed."""
    model, count = model_of(name, signature), 0
    for field, argument in fields.items():
        later = [word for words in argument.more.values() for word in words]
        for value in (*VALUES, *argument.choices, *later):
            if version not in argument.unread and passes(
                trt, fields, {field: value}, version, name
            ):
                count += 1
                assert is_taken(model, {field: value}), (
                    f"{version} refuses {name}.{field} {value!r}"
                )
    return count


@pytest.mark.parametrize(("version", "name"), CASES)
def test_the_class_takes_what_passes(trt: SimpleNamespace, version: str, name: str) -> None:
    """Names, choices and bounds of a configuration class."""
    fields = trt.arguments.class_fields(name)
    assert compare(trt, fields, CLASSES[version][name], version, name) > 5


@pytest.mark.parametrize(("version", "name"), KIND_CASES)
def test_the_kind_takes_what_passes(trt: SimpleNamespace, version: str, name: str) -> None:
    """Names, choices and bounds of a kind of speculative decoding."""
    kinds = [kind for kind in trt.arguments.speculation_kinds() if kind.name == name]
    kind = next(kind for kind in kinds if trt.arguments.is_available(kind, version))
    fields = trt.arguments.speculation_fields(kind)
    untyped = {
        field: argument
        for field, argument in fields.items()
        if argument.type is None and not argument.choices and argument.removed_in is None
    }
    checked = {field: argument for field, argument in fields.items() if field not in untyped}
    assert compare(trt, checked, KINDS[version][name], version, name) > 20
    # The rules of package_speculation_rules.py check some of these.
    assert set(untyped) <= set(KINDS[version][name])


@pytest.mark.parametrize(("version", "name"), CASES)
def test_the_table_has_every_field(trt: SimpleNamespace, version: str, name: str) -> None:
    """A field of the class is a field of the table in that release."""
    available = {
        field
        for field, argument in trt.arguments.class_fields(name).items()
        if trt.arguments.is_available(argument, version)
    }
    assert set(CLASSES[version][name]) - {TAIL} <= available


@pytest.mark.parametrize(("version", "name"), KIND_CASES)
def test_the_table_has_every_field_of_a_kind(trt: SimpleNamespace, version: str, name: str) -> None:
    """A field of the kind's class is a field of the table in that release."""
    kinds = [kind for kind in trt.arguments.speculation_kinds() if kind.name == name]
    kind = next(kind for kind in kinds if trt.arguments.is_available(kind, version))
    available = {
        field
        for field, argument in trt.arguments.speculation_fields(kind).items()
        if trt.arguments.is_available(argument, version)
    }
    assert set(KINDS[version][name]) <= available


def test_two_names_of_a_draft_model_are_refused() -> None:
    """pydantic takes one of the aliases and refuses the other: the rule's reason."""
    model = model_of("MTP", KINDS["1.4.0rc1"]["MTP"])
    assert is_taken(model, {"speculative_model_dir": "/m"})
    assert not is_taken(model, {"speculative_model": "/m", "speculative_model_dir": "/m"})


def test_arguments_of_an_unread_release_pass(trt: SimpleNamespace) -> None:
    """25.11 has TensorRT-LLM 1.0.3.2510: names and choices pass, types of values are checked."""
    read = trt.llm_arguments.read_arguments
    given = {
        "moe_config": {"backend": "OF_TOMORROW", "knob": 1},
        "kv_cache_config": {"onboard_blocks": True, "block_reuse_config": {"policy": "x"}},
        "sampler_type": "TRTLLMSampler",
    }
    assert read(given, "pytorch", "1.0.3.2510", "options") == given
    with pytest.raises(trt.problems.BuildError, match="expected true or false"):
        read({"enable_chunked_prefill": "yes"}, "pytorch", "1.0.3.2510", "options")


def test_versions_of_the_table_were_read(trt: SimpleNamespace) -> None:
    """Every version that an argument of LLM names is a release of the list."""
    table, read = trt.arguments.read_table(), set(trt.arguments.read_releases())
    entries = [
        *table["llm"].items(),
        *(entry for fields in table["classes"].values() for entry in fields.items()),
        *table["speculation"]["common"].items(),
        *table["speculation"]["fields"].items(),
        *((kind["name"], kind) for kind in table["speculation"]["kinds"]),
    ]
    for name, entry in entries:
        versions = {entry.get("since"), entry.get("gone"), *entry.get("unread", ())}
        versions |= {*entry.get("more", {}), *entry.get("dropped", {})}
        versions |= {*entry.get("fields_since", {}), *entry.get("ignored", {}).values()}
        assert versions - {None} <= read, name
