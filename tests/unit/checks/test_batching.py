# SPDX-License-Identifier: Apache-2.0
"""What is said of batches, queues and sequences, where, and what is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.check_models.models import CONFIG, MODEL, python_model
from tests.check_models.streaming import behind_stream
from tests.examples import examples
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import Example
from tritonctl.checks.findings import Finding
from tritonctl.checks.repository import Target
from tritonctl.checks.rules import RULES

OURS = [rule for rule in RULES.values() if rule.id.startswith("TC5")]
ANY = Target("2.51.0")


def findings(folder: Path, files: Example, target: Target = ANY) -> list[Finding]:
    put(folder, files)
    return list(check_repository(folder, target, rules=OURS).findings)


def rules_of(folder: Path, config: str, code: str = MODEL, target: Target = ANY) -> list[str]:
    files = python_model(config, **{"1__model.py": code})
    return [finding.rule for finding in findings(folder, files, target)]


def sized(size: int) -> str:
    return CONFIG.replace("max_batch_size: 8", f"max_batch_size: {size}")


def dynamic(inside: str, size: int = 8) -> str:
    return f"{sized(size)}dynamic_batching {{ {inside} }}\n"


def policy(inside: str, more: str = "") -> str:
    return dynamic(f"{more} default_queue_policy {{ {inside} }}")


def underlined(finding: Finding) -> str:
    return finding.text[finding.column - 1 : finding.end - 1]


def test_a_batcher_without_a_batch(tmp_path: Path) -> None:
    """At its name; a queue policy and an order are reasons for one, and 2 is a batch."""
    [finding] = findings(tmp_path, python_model(dynamic("", 0)))
    assert (finding.rule, finding.line, underlined(finding)) == ("TC501", 6, "dynamic_batching")
    assert finding.message == "dynamic_batching does nothing while max_batch_size is 0"
    for number, inside in enumerate(("preserve_ordering: true", "default_queue_policy { }")):
        assert rules_of(tmp_path / str(number), dynamic(inside, 1)) == []
    assert rules_of(tmp_path / "two", dynamic("", 2)) == []


def test_a_batch_that_the_backend_may_choose(tmp_path: Path) -> None:
    """Where max_batch_size is left out, model.py or a backend that knows the model may set it."""
    chooses = MODEL + "\n\ndef f(config):\n    config.set_max_batch_size(8)\n"
    assert rules_of(tmp_path / "python", dynamic("", 0), chooses) == []
    onnx = dynamic("", 0).replace('"python"', '"onnxruntime"')
    assert rules_of(tmp_path / "onnx", onnx) == []
    one = dynamic("", 1).replace('"python"', '"onnxruntime"')
    assert rules_of(tmp_path / "one", one) == ["TC501"]


@pytest.mark.parametrize(
    ("inside", "told"),
    [
        ("preferred_batch_size: [ 8 ]", []),
        ("preferred_batch_size: [ 4, 8 ]", ["TC503"]),
        ("preferred_batch_size: [ 2, 4 ]", ["TC502"]),
        ("preferred_batch_size: 4 max_queue_delay_microseconds: 100", ["TC503"]),
        ("preferred_batch_size: [ 1, 8 ]", []),
        ("preferred_batch_size: [ 1, 8 ] max_queue_delay_microseconds: 100", ["TC506"]),
        ("preferred_batch_size: [ 1, 8 ] max_queue_delay_microseconds: 9000000", ["TC506"]),
        ("preferred_batch_size: [ 4, 9 ]", []),
    ],
)
def test_preferred_sizes(inside: str, told: list[str], tmp_path: Path) -> None:
    """One finding for each mistake."""
    assert rules_of(tmp_path / "python", dynamic(inside)) == told
    tensorrt = dynamic(inside).replace('backend: "python"', 'platform: "tensorrt_plan"')
    others = [rule for rule in told if rule != "TC503"]
    assert rules_of(tmp_path / "tensorrt", tensorrt) == others


def test_delays_and_promises(tmp_path: Path) -> None:
    """Without a promise a second is long, with one its half is; batches of one never wait."""
    delay = "max_queue_delay_microseconds: {}"
    assert rules_of(tmp_path, dynamic(delay.format(999_999))) == []
    assert rules_of(tmp_path, dynamic(delay.format(1_000_000))) == ["TC504"]
    assert rules_of(tmp_path, dynamic(delay.format(1_000_000), 1)) == ["TC501"]
    promised = Target("2.51.0", slo_ms={"m": 10.0, "nobody": 1.0})
    assert rules_of(tmp_path, dynamic(delay.format(4_999)), target=promised) == []
    assert rules_of(tmp_path, dynamic(delay.format(5_000)), target=promised) == ["TC505"]
    relaxed = Target("2.51.0", slo_ms={"m": 10_000.0})
    assert rules_of(tmp_path, dynamic(delay.format(2_000_000)), target=relaxed) == []


def test_the_promise_of_an_ensemble(tmp_path: Path) -> None:
    """Its steps' delays are on the way, each told at its step."""
    files = behind_stream("dynamic_batching { max_queue_delay_microseconds: 5000 }\n")
    [finding] = findings(tmp_path, files, Target("2.51.0", slo_ms={"e": 10.0}))
    assert (finding.rule, underlined(finding)) == ("TC505", "5000")
    assert finding.path == str(tmp_path / "m" / "config.pbtxt")
    assert finding.message.startswith("a request to e may wait 5 ms here")


LEVELS = "priority_levels: 3 default_priority_level: 2"
TIMED = "default_timeout_microseconds: 100000"


@pytest.mark.parametrize(
    ("inside", "told"),
    [
        (LEVELS, ["TC511"]),
        ("priority_levels: 1 default_priority_level: 1", []),
        (f"{LEVELS} default_queue_policy {{ {TIMED} }}", []),
        (f"{LEVELS} priority_queue_policy {{ key: 3 value {{ {TIMED} }} }}", []),
        (f"{LEVELS} priority_queue_policy {{ key: 2 value {{ {TIMED} }} }}", ["TC511"]),
        (f"{LEVELS} default_queue_policy {{ timeout_action: REJECT }}", ["TC513"]),
        (f"{LEVELS} default_queue_policy {{ timeout_action: DELAY {TIMED} }}", ["TC514"]),
        (f"priority_queue_policy {{ key: 2 value {{ {TIMED} }} }}", ["TC512"]),
        ("priority_queue_policy { key: 2 value { max_queue_size: 0 } }", ["TC512"]),
    ],
)
def test_priorities(inside: str, told: list[str], tmp_path: Path) -> None:
    """What bounds the lowest level, and what is ignored."""
    assert rules_of(tmp_path, dynamic(inside)) == told


def test_policies_are_told_where_they_stand(tmp_path: Path) -> None:
    """In the default policy and in that of a level."""
    level = "priority_queue_policy { key: 2 value { allow_timeout_override: true } }"
    [finding] = findings(tmp_path, python_model(dynamic(f"{LEVELS}\n{level}")))
    assert (finding.rule, finding.line) == ("TC513", 7)
    assert underlined(finding) == "allow_timeout_override"
    files = python_model(policy(f"max_queue_size: 0\n{TIMED}"))
    [finding] = findings(tmp_path / "bound", files)
    assert (finding.rule, finding.line, underlined(finding)) == ("TC515", 6, "0")


@pytest.mark.parametrize(
    ("timeout", "delay", "more", "told"),
    [
        (1000, 1000, "", ["TC516"]),
        (1001, 1000, "", []),
        (1000, 0, "", []),
        (1000, 2000, "timeout_action: DELAY", ["TC514"]),
    ],
)
def test_timeouts_against_delays(
    timeout: int, delay: int, more: str, told: list[str], tmp_path: Path
) -> None:
    """Rejected while it waits for others to make up a batch."""
    inside = f"default_timeout_microseconds: {timeout} {more}"
    config = policy(inside, f"max_queue_delay_microseconds: {delay}")
    assert rules_of(tmp_path, config) == told


def sequences(inside: str, size: int = 8, more: str = "") -> str:
    return f"{sized(size)}sequence_batching {{ {inside} }}\n{more}"


IDLE = "max_sequence_idle_microseconds: 60000000"


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (sequences(""), ["TC522"]),
        (sequences("max_sequence_idle_microseconds: 0"), ["TC522"]),
        (sequences("max_sequence_idle_microseconds: 200000"), ["TC522"]),
        (sequences("max_sequence_idle_microseconds: 1000000"), []),
        (sequences("iterative_sequence: true"), []),
        (sequences(f"{IDLE} oldest {{ }}"), []),
        (sequences(f"{IDLE} oldest {{ max_candidate_sequences: 8 }}"), []),
        (sequences(f"{IDLE} oldest {{ max_candidate_sequences: 7 }}"), ["TC523"]),
        (sequences(f"{IDLE} oldest {{ max_candidate_sequences: 4 }}", 0), []),
        (sequences(IDLE, 0), ["TC524"]),
        (sequences(IDLE, 1, "instance_group [ { count: 2 } ]"), []),
    ],
)
def test_sequences(config: str, told: list[str], tmp_path: Path) -> None:
    """Pauses, candidates, places."""
    assert rules_of(tmp_path, config) == told


def code(*lines: str) -> str:
    body = "".join(f"        {line}\n" for line in lines)
    return f"class TritonPythonModel:\n    def execute(self, requests):\n{body}"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (("for one in requests:", "    self.model(one)"), ["TC532"]),
        (("for one in requests:", "    self.session.run(one)"), ["TC532"]),
        (("for one in requests:", "    self.run(one)"), []),
        (("for one in requests:", "    f(one)", "self.model(requests)"), []),
        (("for one in requests:", "    def f():", "        self.model(one)"), []),
    ],
)
def test_what_execute_makes_of_a_batch(
    lines: tuple[str, ...], told: list[str], tmp_path: Path
) -> None:
    """Only what is sure; and nothing of it without dynamic batching."""
    assert rules_of(tmp_path, dynamic(""), code(*lines)) == told
    assert rules_of(tmp_path, CONFIG, code(*lines)) == []


def test_shapes_that_vary(tmp_path: Path) -> None:
    """At the dims of the first such input; arrays that are joined must be equal anyway."""
    varying = dynamic("").replace("dims: [ 4 ]", "dims: [ 2, -1 ]", 1)
    [finding] = findings(tmp_path, python_model(varying))
    assert (finding.rule, finding.line) == ("TC533", 4)
    assert finding.message == "only requests whose INPUT has the same shape share a batch"
    joined = MODEL + "\n\ndef f(arrays):\n    return np.concatenate(arrays)\n"
    assert rules_of(tmp_path, varying, joined) == []
    fixed = dynamic("").replace("dims: [ 4 ] } ]\noutput", "dims: [ 4 ] } ]\noutput")
    assert rules_of(tmp_path, fixed) == []


FIELDS = [
    "max_queue_delay_microseconds: 5000000",
    "preferred_batch_size: [ 0, -3 ]",
    "preferred_batch_size: [ ]",
    "preserve_ordering: true",
    "priority_levels: 4294967295",
    "default_priority_level: 7",
    "default_queue_policy { timeout_action: 77 default_timeout_microseconds: 1 }",
    "priority_queue_policy { key: 9 value { allow_timeout_override: true } }",
    "priority_queue_policy { key: 0 }",
    "default_queue_policy: { max_queue_size: 0 }",
    "oldest { max_candidate_sequences: -5 }",
    "direct { }",
    "}",
]


@examples(150)
@given(
    st.sampled_from(["dynamic_batching", "sequence_batching"]),
    st.lists(st.sampled_from(FIELDS), max_size=8),
    st.integers(-2, 9),
)
def test_any_configuration_is_read(
    tmp_path_factory: pytest.TempPathFactory, block: str, fields: list[str], size: int
) -> None:
    """Whatever stands there, the rules end and raise nothing."""
    inside = "\n".join(fields)
    config = f"{sized(size)}{block} {{ {inside} }}\n"
    rules_of(tmp_path_factory.mktemp("any"), config)


CACHED = CONFIG + "response_cache { enable: true }\n"
TWO_OUTPUTS = CACHED + 'output [ { name: "MORE" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'


def test_what_the_cache_s_key_lacks(tmp_path: Path) -> None:
    """At the dims of the input; a batch of one has no shape but its own."""
    open_shape = CACHED.replace("dims: [ 4 ]", "dims: [ -1 ]")
    [finding] = findings(tmp_path / "open", python_model(open_shape))
    assert (finding.rule, finding.severity, underlined(finding)) == ("TC541", "error", "-1")
    assert rules_of(tmp_path / "one", open_shape.replace("batch_size: 8", "batch_size: 1")) == []
    assert rules_of(tmp_path / "fixed", CACHED) == []
    reads = MODEL + "\n\ndef f(request):\n    return request.parameters()\n"
    assert rules_of(tmp_path / "parameters", CACHED, reads) == ["TC543"]
    assert rules_of(tmp_path / "uncached", CONFIG, reads) == []


def test_outputs_of_a_cached_model(tmp_path: Path) -> None:
    """Asked directly they get mixed up; as a step it is asked for all of them."""
    assert rules_of(tmp_path / "alone", TWO_OUTPUTS) == ["TC544"]
    ensemble = (
        'name: "all" platform: "ensemble" max_batch_size: 8\n'
        'input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        'output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        'ensemble_scheduling { step [ { model_name: "m" model_version: -1 '
        'input_map { key: "INPUT" value: "INPUT" } output_map { key: "OUTPUT" value: "OUTPUT" } '
        "} ] }\n"
    )
    files = {**python_model(TWO_OUTPUTS), "all/config.pbtxt": ensemble, "all/1/.keep": ""}
    assert [finding.rule for finding in findings(tmp_path / "step", files)] == []
    cached = ensemble + "response_cache { enable: true }\n"
    reads = MODEL + "\n\ndef f(request):\n    return request.parameters()\n"
    inner = python_model(CONFIG, **{"1__model.py": reads})
    files = {**inner, "all/config.pbtxt": cached, "all/1/.keep": ""}
    assert [finding.rule for finding in findings(tmp_path / "behind", files)] == ["TC543"]
