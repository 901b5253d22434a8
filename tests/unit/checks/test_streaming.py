# SPDX-License-Identifier: Apache-2.0
"""What is said of streams, where, and what is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.check_models.models import CONFIG, MODEL
from tests.check_models.streaming import (
    CALLER,
    DECODER,
    DEMANDING,
    ENSEMBLE,
    IN_EXECUTE,
    NEVER_READY,
    RETURNING,
    SINGLE,
    STREAM,
    STREAM_CONFIG,
    SUMMER,
    WITHOUT_FINAL,
    behind_stream,
    beside,
    edited,
    stream_model,
)
from tests.examples import examples
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import Example
from tritonctl.checks.findings import Finding
from tritonctl.checks.repository import Target
from tritonctl.checks.rules import RULES

OURS = [rule for rule in RULES.values() if rule.id.startswith("TC4")]
BATCHING = "dynamic_batching { }\n"
TWO = "instance_group [ { count: 2 kind: KIND_CPU } ]\n"


def findings(folder: Path, files: Example, version: str = "2.51.0") -> list[Finding]:
    put(folder, files)
    return list(check_repository(folder, Target(version), rules=OURS).findings)


def rules_of(folder: Path, files: Example, version: str = "2.51.0") -> list[str]:
    return [finding.rule for finding in findings(folder, files, version)]


def underlined(finding: Finding) -> str:
    return finding.text[finding.column - 1 : finding.end - 1]


def test_order_is_lost_here(tmp_path: Path) -> None:
    """At the instances of the model behind; the ensemble and the decoupled model are named."""
    [finding] = findings(tmp_path, behind_stream(BATCHING + TWO))
    assert finding.path == str(tmp_path / "m" / "config.pbtxt")
    assert (finding.line, finding.column, underlined(finding)) == (7, 1, "instance_group")
    assert finding.message == (
        "2 instances answer the responses of d in e, in whatever order they finish"
    )


@pytest.mark.parametrize(
    ("groups", "lost"),
    [
        ("instance_group [ { count: 1 } ]", False),
        ("instance_group [ { kind: KIND_CPU } ]", False),
        ("instance_group [ { count: 1 }, { count: 1 } ]", True),
        ("instance_group [ { count: 1 kind: KIND_GPU gpus: [ 0, 1 ] } ]", True),
        ("", False),
    ],
)
def test_how_many_instances(groups: str, lost: bool, tmp_path: Path) -> None:
    """All groups count, and every GPU of a group."""
    assert rules_of(tmp_path, behind_stream(BATCHING + groups)) == (["TC401"] if lost else [])


def ensemble(name: str, *steps: tuple[str, str, str]) -> Example:
    """Steps are a model, the tensor that it reads, and the one that it writes."""
    maps = 'input_map {{ key: "INPUT" value: "{}" }} output_map {{ key: "OUTPUT" value: "{}" }}'
    written = ", ".join(
        f'{{ model_name: "{model}" model_version: -1 {maps.format(reads, writes)} }}'
        for model, reads, writes in steps
    )
    head = CONFIG.replace('"m"', f'"{name}"').replace('backend: "python"', 'platform: "ensemble"')
    config = f"{head}ensemble_scheduling {{ step [ {written} ] }}\n"
    return {f"{name}/config.pbtxt": config, f"{name}/1/.keep": ""}


def test_instances_that_nobody_wrote(tmp_path: Path) -> None:
    """Triton makes one on every GPU, and two of an ONNX model on a CPU."""
    put(tmp_path, behind_stream(BATCHING))
    one, two = (Target("2.51.0", gpus=(1 << 30,) * count) for count in (1, 2))
    assert list(check_repository(tmp_path, one, rules=OURS).findings) == []
    [finding] = check_repository(tmp_path, two, rules=OURS).findings
    assert (finding.rule, finding.message[:11]) == ("TC401", "2 instances")
    config = tmp_path / "m" / "config.pbtxt"
    config.write_text(config.read_text().replace('"python"', '"onnxruntime"'))
    [finding] = check_repository(tmp_path, Target("2.51.0", gpus=()), rules=OURS).findings
    assert (finding.rule, finding.line) == ("TC401", 1)


def test_far_behind_a_stream(tmp_path: Path) -> None:
    """Through another model, and inside another ensemble; what stands before it is left alone."""
    steps = (
        ("before", "INPUT", "a"),
        ("d", "a", "b"),
        ("inner", "b", "c"),
        ("last", "c", "OUTPUT"),
    )
    files = {
        **ensemble("e", *steps),
        **ensemble("inner", ("one", "INPUT", "x"), ("two", "x", "OUTPUT")),
        **DECODER,
    }
    for name in ("before", "one", "two", "last"):
        files |= beside(name, CONFIG + BATCHING + TWO, MODEL)
    found = findings(tmp_path, files)
    assert [(Path(one.path).parent.name, one.rule) for one in found] == [
        ("last", "TC401"),
        ("one", "TC401"),
        ("two", "TC401"),
    ]


def test_an_ensemble_streams_as_its_steps_do(tmp_path: Path) -> None:
    """A decoupled model inside an ensemble that is a step itself."""
    files = {
        **ensemble("e", ("inner", "INPUT", "x"), ("m", "x", "OUTPUT")),
        **ensemble("inner", ("d", "INPUT", "OUTPUT")),
        **DECODER,
        **beside("m", CONFIG + BATCHING + TWO, MODEL),
    }
    [finding] = findings(tmp_path, files)
    assert (finding.rule, "inner in e" in finding.message) == ("TC401", True)


def test_one_response_has_no_order(tmp_path: Path) -> None:
    """A decoupled model that sends one response at most is no stream."""
    files = behind_stream(TWO) | {"d/1/model.py": SINGLE}
    assert rules_of(tmp_path / "once", files) == []
    again = "            sender.send(pb_utils.InferenceResponse(output_tensors=[output]))\n" + AFTER
    files |= {"d/1/model.py": edited(SINGLE, AFTER, again)}
    assert rules_of(tmp_path / "twice", files) == ["TC401"]


def test_an_initialize_that_does_not_return(tmp_path: Path) -> None:
    """A loop in it, or in a thread that it joins without a timeout."""
    assert rules_of(tmp_path / "a", stream_model(NEVER_READY)) == ["TC419"]
    own = NEVER_READY.replace("        self.thread.join()", "        while True:\n            pass")
    [finding] = findings(tmp_path / "b", stream_model(own))
    assert (finding.rule, finding.text.strip()) == ("TC419", "while True:")
    for number, (old, new) in enumerate(
        [
            ("join()", "join(5)"),
            ("while True:", "while self.on:"),
            ("self.wake.wait()", "if self.wake.wait(): break"),
            ("self.wake.wait()", "self.queue.get(timeout=1)"),
            ("target=self.work", "target=work"),
            ("self.thread.join()", "self.other.join()"),
        ]
    ):
        code = edited(NEVER_READY, old, new)
        assert rules_of(tmp_path / str(number), stream_model(code)) == []


def test_circles_of_ensembles_end(tmp_path: Path) -> None:
    """An ensemble within itself is another rule's finding, and no endless loop."""
    circle = ensemble("e", ("e", "INPUT", "x"), ("e", "x", "OUTPUT"))
    assert rules_of(tmp_path, circle) == []


def test_alone_only_where_nothing_batches(tmp_path: Path) -> None:
    """Not with sequences, not where model.py chooses, not before the stream."""
    files = behind_stream("sequence_batching { }\n")
    assert rules_of(tmp_path / "sequences", files) == []
    chooses = MODEL.replace(
        "    def execute",
        "    @staticmethod\n    def auto_complete_config(config):\n"
        "        config.set_dynamic_batching()\n        return config\n\n    def execute",
    )
    files = behind_stream("") | {"m/1/model.py": chooses}
    assert rules_of(tmp_path / "chooses", files) == []
    swapped = ENSEMBLE.replace('"d"', '"?"').replace('"m"', '"d"').replace('"?"', '"m"')
    files = behind_stream(TWO) | {"e/config.pbtxt": swapped}
    assert rules_of(tmp_path / "before", files) == []


BOTH_WAYS = RETURNING.replace(
    "        return answers",
    "        if self.decoupled:\n            return None\n        return answers",
)


@pytest.mark.parametrize(
    "code",
    [
        BOTH_WAYS,
        RETURNING.replace("return answers", "return self.answers"),
        RETURNING.replace("return answers", "return None"),
        RETURNING.replace("return answers", "return"),
        RETURNING.replace("        return answers\n", ""),
        RETURNING.replace("    def execute", "    async def execute"),
        RETURNING.replace("        answers = []", "        answers = None if self.d else []"),
        RETURNING + "\n# it asks using_decoupled_model_transaction_policy\n",
        "class TritonPythonModel:\n    def execute(self, requests):\n        yield 1\n",
        "class TritonPythonModel:\n    execute = print\n",
        "def execute(self, requests):\n    return []\n",
    ],
)
def test_what_may_return_none(code: str, tmp_path: Path) -> None:
    """Only what surely returns a list is reported."""
    assert "TC411" not in rules_of(tmp_path, stream_model(code))


def test_returned_here(tmp_path: Path) -> None:
    """At the statement, in model.py."""
    [finding] = findings(tmp_path, stream_model(RETURNING))
    assert finding.path == str(tmp_path / "m" / "1" / "model.py")
    assert (finding.line, underlined(finding)) == (11, "return answers")


def test_a_policy_that_initialize_refuses(tmp_path: Path) -> None:
    """Either way round, through a name, and not where model.py sets the policy itself."""
    [finding] = findings(tmp_path / "a", stream_model(DEMANDING, CONFIG))
    assert (finding.rule, finding.line) == ("TC413", 12)
    other = DEMANDING.replace("if not pb_utils", "if pb_utils")
    assert rules_of(tmp_path / "b", stream_model(other)) == ["TC413"]
    assert rules_of(tmp_path / "c", stream_model(other, CONFIG)) == []
    call = "pb_utils.using_decoupled_model_transaction_policy(config)"
    named = DEMANDING.replace(f"        if not {call}", f"        d = {call}\n        if not d")
    assert rules_of(tmp_path / "d", stream_model(named, CONFIG)) == ["TC413"]
    sets = DEMANDING + "\ndef f(c):\n    c.set_model_transaction_policy({'decoupled': True})\n"
    assert rules_of(tmp_path / "e", stream_model(sets, CONFIG)) == []
    logs = DEMANDING.replace("raise pb_utils.TritonModelException", "print")
    assert rules_of(tmp_path / "f", stream_model(logs, CONFIG)) == []


@pytest.mark.parametrize(
    "code",
    [
        WITHOUT_FINAL.replace("import triton", "import helper\n\nimport triton", 1),
        WITHOUT_FINAL.replace("import triton", "from . import helper\nimport triton", 1),
        WITHOUT_FINAL.replace("[output]))", "[output]), flags=self.flags)"),
        WITHOUT_FINAL.replace("[output]))", "[output]), 1)"),
        WITHOUT_FINAL + "\n\ndef end(sender):\n    return partial(sender.send, flags=1)\n",
        WITHOUT_FINAL.replace("[output]))", "[output]), **self.last)"),
        WITHOUT_FINAL.replace("sender.send(", "self.queue.put(sender, "),
        WITHOUT_FINAL.replace("sender = request.get_response_sender()", "sender = self.senders[0]"),
    ],
)
def test_what_may_send_the_final_flag(code: str, tmp_path: Path) -> None:
    """Another module, a flag that is not read, or a sender from elsewhere."""
    assert "TC414" not in rules_of(tmp_path, stream_model(code))


def test_no_final_flag_from_numpy(tmp_path: Path) -> None:
    """Libraries that know nothing of Triton send nothing."""
    code = WITHOUT_FINAL.replace("import triton", "import json, numpy.random\n\nimport triton", 1)
    [finding] = findings(tmp_path, stream_model(code))
    assert (finding.rule, finding.line) == ("TC414", 12)
    assert underlined(finding).startswith("sender.send(")


AFTER = (
    "            sender.send(pb_utils.InferenceResponse(output_tensors=[output]), flags=FINAL)\n"
)


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ("sender.send(flags=FINAL)", ["TC415"]),
        ("if sender.is_cancelled(): pass", ["TC407"]),
        ("while not sender.is_cancelled(): pass", ["TC407"]),
        ("sender.is_cancelled()", ["TC407"]),
        ("request.is_cancelled()", ["TC407"]),
        ("request = requests[0]; request.is_cancelled()", []),
        ("sender = request.get_response_sender(); sender.send(flags=FINAL)", []),
        ("if tensor: sender.send(flags=FINAL)", []),
        ("continue; sender.send(flags=FINAL)", []),
        ("other.send(flags=FINAL)", []),
        ("sender.sent(flags=FINAL)", []),
    ],
)
def test_after_the_final_flag(then: str, told: list[str], tmp_path: Path) -> None:
    """Only what surely runs after it, with the same sender or request."""
    lines = "".join(f"            {line.strip()}\n" for line in then.split(";"))
    code = edited(SINGLE, AFTER, AFTER + lines)
    assert rules_of(tmp_path, stream_model(code)) == told


def test_other_flags_do_not_end_it(tmp_path: Path) -> None:
    """0 is no final flag; 1 is the number of the name."""
    again = AFTER + "            sender.send(flags=FINAL)\n"
    code = edited(SINGLE, AFTER, again.replace("flags=FINAL", "flags=0", 1))
    assert rules_of(tmp_path / "a", stream_model(code)) == []
    code = edited(SINGLE, AFTER, again.replace("flags=FINAL", "flags=1", 1))
    assert rules_of(tmp_path / "b", stream_model(code)) == ["TC415"]


def test_loops_that_send(tmp_path: Path) -> None:
    """A new sender in each turn is no loop over one stream; a break may end it in time."""
    assert rules_of(tmp_path / "a", stream_model(SINGLE)) == []
    zipped = edited(
        SINGLE,
        "for request in requests:\n            sender = request.get_response_sender()",
        ""
        "senders = [one.get_response_sender() for one in requests]\n"
        "        for request, sender in zip(requests, senders):",
    )
    assert rules_of(tmp_path / "b", stream_model(zipped)) == []
    assert rules_of(tmp_path / "c", stream_model(IN_EXECUTE, CONFIG)) == []
    forever = IN_EXECUTE.replace("break", "pass")
    assert rules_of(tmp_path / "d", stream_model(forever, CONFIG)) == ["TC412"]
    several = STREAM_CONFIG + TWO
    assert rules_of(tmp_path / "e", stream_model(IN_EXECUTE, several)) == []
    concurrent = IN_EXECUTE.replace("def execute", "async def execute")
    assert rules_of(tmp_path / "f", stream_model(concurrent)) == []


def test_cancellation_inside_an_ensemble(tmp_path: Path) -> None:
    """A step learns nothing of it, so that asking would not help."""
    deaf = STREAM.replace("        if sender.is_cancelled():\n            break\n", "")
    assert rules_of(tmp_path / "alone", stream_model(deaf)) == ["TC417"]
    files = behind_stream(BATCHING) | {"d/1/model.py": deaf}
    assert rules_of(tmp_path / "step", files) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("call.exec()", "call.exec(decoupled=True)"),
        ("call.exec()", "call.exec(decoupled=self.streams)"),
        ("call.exec()", "call.exec(**self.options)"),
        ("call.exec()", "self.call.exec()"),
        ('model_name="d"', "model_name=self.name"),
        ('model_name="d"', 'model_name="nobody"'),
        ("answer = call.exec()", "call = other()\n            answer = call.exec()"),
    ],
)
def test_calls_that_may_be_right(old: str, new: str, tmp_path: Path) -> None:
    """Another model, or one that is not known, or decoupled=True."""
    files = stream_model(edited(CALLER, old, new), CONFIG) | DECODER
    assert rules_of(tmp_path, files) == []


def test_calls_of_ensembles(tmp_path: Path) -> None:
    """An ensemble with a decoupled step is decoupled; async_exec and a chain are calls, too."""
    code = CALLER.replace('"d"', '"e"').replace(
        "answer = call.exec()", "answer = call.async_exec()"
    )
    files = {**ensemble("e", ("d", "INPUT", "OUTPUT")), **DECODER, **beside("c", CONFIG, code)}
    [finding] = findings(tmp_path, files)
    assert (finding.rule, underlined(finding)) == ("TC421", "call.async_exec()")
    chained = 'pb_utils.InferenceRequest(model_name="e", inputs=[]).exec()\n'
    files |= {"c/1/model.py": f"import x\n\ndef f():\n    {chained}"}
    [finding] = findings(tmp_path, files)
    assert (finding.rule, finding.line) == ("TC421", 4)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if not answer.output_tensors():", "if len(answer.output_tensors()) == 0:"),
        ("for answer in call.exec(decoupled=True):", "for answer in self.answers():"),
        ("for answer in call.exec(decoupled=True):", "for answer in [call.exec()]:"),
    ],
)
def test_loops_that_expect_an_empty_response(old: str, new: str, tmp_path: Path) -> None:
    """Those that look at the outputs first, and those over other things."""
    files = stream_model(edited(SUMMER, old, new), CONFIG)
    assert "TC422" not in rules_of(tmp_path, files)


PIECES = [*STREAM.splitlines(), *SUMMER.splitlines(), *DEMANDING.splitlines(), *CALLER.splitlines()]


@examples(150)
@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_any_code_is_read(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """Whatever stands in a model.py, the rules end and raise nothing."""
    folder = tmp_path_factory.mktemp("any")
    findings(folder, stream_model("\n".join(lines)))
