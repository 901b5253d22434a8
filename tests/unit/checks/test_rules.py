# SPDX-License-Identifier: Apache-2.0
"""Every rule finds its bad example, and nothing in its good one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.check_models.models import CONFIG, python_model
from tests.unit.checks.repositories import put
from tritonctl.checks import examples
from tritonctl.checks.checker import check_repository
from tritonctl.checks.findings import CheckFinding
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rule import Rule, error
from tritonctl.checks.rules import RULES
from tritonctl.errors import UsageError

TARGET = CheckTarget("2.51.0")


def reported(folder: Path, target: CheckTarget = TARGET) -> list[str]:
    return [finding.rule for finding in check_repository(folder, target).findings]


@pytest.mark.parametrize("family", sorted({name[:3] for name in RULES}))
def test_examples(family: str, tmp_path: Path) -> None:
    """The bad one has this mistake and no other, the good one none; what could be better aside."""
    rules = {name: rule for name, rule in RULES.items() if name.startswith(family)}
    findings = {
        name: (
            without_advice(put(tmp_path / name / "bad", rule.bad_example), rule),
            without_advice(put(tmp_path / name / "good", rule.good_example), rule),
        )
        for name, rule in rules.items()
    }
    assert findings == {name: ([name], []) for name in rules}


def without_advice(folder: Path, rule: Rule) -> list[str]:
    """The findings of an example, without the advice of other rules."""
    findings = check_repository(folder, rule.target).findings
    return [f.rule for f in findings if f.severity != "advice" or f.rule == rule.id]


def test_words() -> None:
    """Ids, names, and texts that can stand in a sentence."""
    for name, each in RULES.items():
        assert re.fullmatch(r"TC\d{3}", each.id), name
        assert each.id == name
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", each.name), name
        assert each.summary[0].islower(), name
        assert not each.summary.endswith("."), name
        assert each.reason.endswith("."), name
        assert each.bad_example != each.good_example, name


def only(folder: Path, config: str) -> CheckFinding:
    put(folder, python_model(config))
    [finding] = check_repository(folder, TARGET).findings
    return finding


def test_a_finding_says_where(tmp_path: Path) -> None:
    """Line, column, the underlined text, and the nearest name."""
    finding = only(tmp_path, CONFIG.replace("data_type: TYPE_FP32", "datatype: TYPE_FP32", 1))
    assert (finding.line, finding.column, finding.end) == (4, 25, 33)
    assert finding.text[finding.column - 1 : finding.end - 1] == "datatype"
    assert finding.path == str(tmp_path / "m" / "config.pbtxt")
    assert finding.fix == "did you mean data_type?"


def test_placeholders(tmp_path: Path) -> None:
    """In strings a warning; not in comments; one finding although the text cannot be read."""
    finding = only(
        tmp_path / "a", CONFIG + 'parameters { key: "k" value { string_value: "${x}" } }'
    )
    assert (finding.rule, finding.line, finding.severity) == ("TC109", 6, "warning")
    assert finding.text[finding.column - 1 : finding.end - 1] == "${x}"
    assert reported(put(tmp_path / "b", python_model(CONFIG + "# ${x} {{ y }}\n"))) == []
    assert only(tmp_path / "c", CONFIG.replace("8", "{{ batch }}")).rule == "TC102"


@pytest.mark.parametrize(
    "config",
    [
        CONFIG + "instance_group { kind: KIND_CPU count: INSTANCE_NUM }",
        CONFIG + "instance_group { kind: KIND_CPU count: INSTANCE_NUM gpus: [ GPU_ID ] }",
        CONFIG.replace("8", "MAX_BATCH") + "dynamic_batching { preferred_batch_size: [ 4 ] }",
        CONFIG + "dynamic_batching { max_queue_delay_microseconds: DELAY_US }",
        CONFIG.replace("[ 4 ]", "[ WIDTH, 4 ]", 1) if "[ 4 ]" in CONFIG else CONFIG,
    ],
)
def test_an_unread_value_is_one_finding(config: str, tmp_path: Path) -> None:
    """It is called what it looks like; rules that would need it say nothing."""
    found = check_repository(put(tmp_path, python_model(config)), TARGET).findings
    assert {finding.rule for finding in found} == {"TC105"}
    for finding in found:
        word = finding.text[finding.column - 1 : finding.end - 1]
        assert f"{word} looks like an unfilled placeholder of a template" in finding.message
        assert f"sed -i 's/\\b{word}\\b/VALUE/' {tmp_path}/m/config.pbtxt" in finding.fix


def test_a_wrong_value_of_an_enum_is_no_placeholder(tmp_path: Path) -> None:
    """As when a tensor's name stands in place of its type."""
    found = only(tmp_path, CONFIG.replace("TYPE_FP32", "INPUT__0", 1))
    assert (found.rule, found.message) == ("TC105", "data_type takes a DataType, without quotes")


def test_what_does_not_depend_on_an_unread_value_stays(tmp_path: Path) -> None:
    """Of the same model and of others."""
    config = CONFIG + "instance_group { count: MANY } instance_group { count: 0 }"
    files = python_model(config) | {"n/config.pbtxt": CONFIG.replace('"m"', '"n"'), "n/1/x": ""}
    found = check_repository(put(tmp_path, files), TARGET).findings
    assert [finding.rule for finding in found] == ["TC105", "TC605", "TC004"]


def test_a_template_that_is_not_filled(tmp_path: Path) -> None:
    """What may stay unset is one finding; what no model loads without is one each."""
    optional = [f"option_{number}" for number in range(50)]
    entries = [
        f'parameters {{ key: "{key}" value {{ string_value: "${{{key}}}" }} }}\n'
        for key in ("tokenizer_dir", *optional)
    ]
    found = check_repository(
        put(tmp_path, python_model(CONFIG + "".join(entries))), TARGET
    ).findings
    assert [finding.rule for finding in found] == ["TC109", "TC109"]
    assert "${tokenizer_dir}" in found[0].message
    listed = ", ".join(optional[:6])
    assert found[1].message == f"50 parameters have not been filled: {listed} and 44 more"
    assert f"tools/fill_template.py -i {tmp_path}/m/config.pbtxt " in found[1].fix


@pytest.mark.parametrize(
    "comment",
    ["# tritonctl: ignore[TC108]", "#tritonctl:ignore", "# tritonctl: ignore[TC1, TC108]"],
)
def test_ignored(comment: str, tmp_path: Path) -> None:
    """On the line itself, or alone on the line above; another rule's id does not help."""
    entry = 'parameters { key: "k" value { string_value: "v" } }'
    twice = f"{CONFIG}{entry}\n{entry} "
    assert reported(put(tmp_path / "same", python_model(twice + comment))) == []
    above = f"{CONFIG}{entry}\n{comment}\n{entry}\n"
    assert reported(put(tmp_path / "above", python_model(above))) == []
    other = twice + comment.replace("ignore", "ignore[TC101]", 1).split("][")[0].rstrip("]") + "]"
    assert reported(put(tmp_path / "other", python_model(other))) == ["TC108"]


def test_a_newer_target_knows_more_fields(tmp_path: Path) -> None:
    """By version or by release; without a target nothing is too new."""
    config = CONFIG + "model_metrics { }\n"
    put(tmp_path, python_model(config))
    rules = [RULES["TC107"]]
    assert (
        len(check_repository(tmp_path, CheckTarget.from_name("24.10"), rules=rules).findings) == 1
    )
    for target in (
        CheckTarget.from_name("24.11"),
        CheckTarget.from_name("2.52"),
        CheckTarget.from_name(None),
    ):
        assert check_repository(tmp_path, target, rules=rules).findings == ()
    with pytest.raises(UsageError, match="unknown version of Triton: latest"):
        CheckTarget.from_name("latest")


def test_junk_is_a_finding(tmp_path: Path) -> None:
    """Bytes, links in a circle, what nobody may read, gigabytes: told, never raised."""
    for name in ("bytes", "circle", "large", "fifo", "newline\nin it"):
        put(tmp_path, {f"{name}/1/model.py": ""})
    (tmp_path / "bytes" / "config.pbtxt").write_bytes(bytes(range(256)))
    (tmp_path / "circle" / "config.pbtxt").symlink_to(tmp_path / "circle" / "config.pbtxt")
    (tmp_path / "circle" / "loop").symlink_to(tmp_path)
    with (tmp_path / "large" / "config.pbtxt").open("wb") as file:
        file.truncate(100 << 20)
    os.mkfifo(tmp_path / "fifo" / "config.pbtxt")
    (tmp_path / "newline\nin it" / "config.pbtxt").write_bytes(b'name: "\xff"\n')
    (tmp_path / "nowhere").symlink_to(tmp_path / "nowhere")
    rules = reported(tmp_path)
    assert rules == ["TC005", "TC103", "TC101", "TC101", "TC101", "TC018", "TC221", "TC105"]


def test_every_rule_has_its_examples_and_every_example_a_rule() -> None:
    """In the folder of its family."""
    folder = Path(examples.__file__).parent
    files = {(path.parent.name, path.stem) for path in folder.glob("*/*.yaml")}
    assert files == {(rule.family, rule.id) for rule in RULES.values()}


def test_what_a_rule_may_take() -> None:
    """A parameter that nothing fills, and an id that is taken, are mistakes at import."""
    for name, check in (("TC999", lambda _unknown: iter(())), ("TC101", lambda _model: iter(()))):
        with pytest.raises(TypeError, match=f"{name} is defined twice, or has an unknown input"):
            error(f"{name} a-name", summary="nothing", reason="None.")(check)
    assert list(RULES) == sorted(RULES)
