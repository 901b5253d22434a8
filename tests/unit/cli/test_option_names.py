# SPDX-License-Identifier: Apache-2.0
"""An option means the same in every verb: its names, its value, its panel, its explanation."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest

from tests.commands import verbs
from tritonctl.cli.help import displayed
from tritonctl.cli.vocabulary import CLUSTER, CONNECTION, METAVARS, OUTPUT, PANELS, PROJECT

PANEL_OF = {
    **dict.fromkeys(
        (
            *("--url", "--ca", "--certificate", "--key", "--server-name", "--api-key-file"),
            *("--api-key-in-clear", "--metrics-url", "--resume-on", "--max-resumes"),
        ),
        CONNECTION,
    ),
    **dict.fromkeys(("--on", "--context", "--namespace", "--release-name"), CLUSTER),
    **dict.fromkeys(("--project", "--env", "--set"), PROJECT),
    **dict.fromkeys(("--json", "--quiet"), OUTPUT),
}
# The meaning is the same, what it applies to is the verb's: explained in other words.
EXPLAINED_DIFFERENTLY = {
    "--force",  # what exists
    "--format",  # the formats
    "--keep",  # of each model, or in all
    "--model",  # asked, or wired
    "--output",  # what is written
    "--seed",  # of sampled text, or of a load
    "--url",  # `check` compares it
    "--values",  # of a chart that is installed, or written
}
# A file of some verbs is a folder of others.
OTHER_VALUE = {"--output"}
OTHER_PANEL = {"--values", "--max-tokens", "--seed"}  # no panel, where it does not sample
TEXTS = {"--text", "--stop", "--system", "--query"}


def _options() -> dict[str, dict[str, Any]]:
    """By long name: the option as each verb displays it."""
    options: dict[str, dict[str, Any]] = defaultdict(dict)
    for verb, command in verbs().items():
        context = command.make_context(verb, [], resilient_parsing=True)
        for parameter in command.params:
            if parameter.param_type_name == "option":
                (name,) = (each for each in parameter.opts if each.startswith("--"))
                options[name][verb] = displayed(parameter, context)
    return options


OPTIONS = _options()


def _different(name: str, what: Any) -> set[Any]:
    return {what(option) for option in OPTIONS[name].values()}


def _explanations(name: str) -> set[str]:
    """Without the range, which depends on the verb."""
    return _different(name, lambda option: re.sub(r" \([\d.]+ to [\d.]+\)$", "", option.help))


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_means_one_thing(name: str) -> None:
    """Short name, value, type, panel and explanation, in all verbs."""
    assert len(_different(name, lambda option: option.opts[0])) == 1
    assert len(_different(name, lambda option: option.multiple)) == 1
    values = _different(name, lambda option: option.display_type_rich(None))
    assert len(values) == 1 or (name in OTHER_VALUE and values == {"FILE", "FOLDER"})
    panels = _different(name, lambda option: option.rich_help_panel)
    assert len(panels) == 1 or name in OTHER_PANEL
    if name not in EXPLAINED_DIFFERENTLY:
        assert len(_explanations(name)) == 1


def test_no_exception_is_left_over() -> None:
    """What has become the same in all verbs is no longer an exception."""
    same = {name for name in OPTIONS if len(_explanations(name)) == 1}
    assert same.isdisjoint(EXPLAINED_DIFFERENTLY)
    assert set(OPTIONS) >= EXPLAINED_DIFFERENTLY | OTHER_PANEL


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_in_the_panel_of_its_kind(name: str) -> None:
    """Those that connect, of a cluster, of the project, of the output; no panel is empty."""
    for option in OPTIONS[name].values():
        assert option.rich_help_panel in (None, *PANELS)
        if expected := PANEL_OF.get(name):
            assert option.rich_help_panel == expected


@pytest.mark.parametrize("name", OPTIONS)
def test_a_value_has_a_noun(name: str) -> None:
    """Of the table; `TEXT` only where any text will do."""
    for option in OPTIONS[name].values():
        metavar = option.display_type_rich(None)
        assert bool(metavar) is not option.is_flag
        assert not metavar or metavar in METAVARS
        assert (metavar == "TEXT") is (name in TEXTS)


def test_every_noun_is_used() -> None:
    """The table of the reference has no other."""
    used = {option.display_type_rich(None) for each in OPTIONS.values() for option in each.values()}
    assert set(METAVARS) == used - {""}


def test_a_letter_means_one_option() -> None:
    """`-o` is --output wherever something is written."""
    letters = defaultdict(set)
    for name, each in OPTIONS.items():
        for option in each.values():
            letter, separator, _ = option.opts[0].partition(", ")
            if separator:
                letters[letter].add(name)
    assert [names for names in letters.values() if len(names) > 1] == []
    assert letters["-o"] == {"--output"}


def test_what_was_one_name_for_two_things() -> None:
    """Each of these had two meanings once; a verb has the one or the other."""
    assert set(OPTIONS["--precision"]) == {"init"}
    assert set(OPTIONS["--memory"]) == {"check"}
    assert set(OPTIONS["--gpus"]) == {"plan"}
    assert OPTIONS.keys().isdisjoint({"--into", "--page", "--checkpoint"})
