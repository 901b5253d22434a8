# SPDX-License-Identifier: Apache-2.0
"""TC3xx: each mistake with its place, one finding for one mistake, nothing where all is well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given

from tests.check_models.ensembles import CLASSIFY, ENSEMBLE, TOKENIZE, composing, ensemble
from tests.examples import examples
from tests.unit.checks.repositories import put
from tests.unit.checks.wiring import Wiring, valid
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import Example, ExampleFile
from tritonctl.checks.findings import CheckFinding
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rules import RULES

OURS = [rule for rule in RULES.values() if rule.family == "ensembles"]

TARGET = CheckTarget("2.51.0")
WRITTEN = 'output_map { key: "IDS" value: "ids" }\n'
READ = 'input_map { key: "IDS" value: "ids" }\n'
MASK = 'output_map { key: "MASK" value: "mask" }'


def findings(files: Example) -> tuple[CheckFinding, ...]:
    """Those of ensembles."""
    with TemporaryDirectory() as folder:
        return check_repository(put(Path(folder), files), TARGET, rules=OURS).findings


def rules(files: Example) -> list[str]:
    return [finding.rule for finding in findings(files)]


def only(files: Example) -> CheckFinding:
    [finding] = findings(files)
    return finding


def underlined(finding: CheckFinding) -> str:
    return finding.text[finding.column - 1 : finding.end - 1]


def changed(old: str, new: str) -> Example:
    assert old in ENSEMBLE
    return ensemble(ENSEMBLE.replace(old, new, 1))


@examples(30)
@given(valid())
def test_valid_ensembles(wiring: Wiring) -> None:
    """No error in any of them."""
    found = findings(wiring.files())
    assert [(f.rule, f.message) for f in found if f.severity == "error"] == []


def _first(said: dict[str, str]) -> str:
    return next(iter(said))


def _unknown_output(w: Wiring) -> Wiring:
    writes = w.steps[0].writes
    first = _first(writes)
    rest = {name: tensor for name, tensor in writes.items() if name != first}
    return w.with_step(0, writes={"NONE": writes[first]} | rest)


def _another(w: Wiring, dtype: str | None = None, dims: str | None = None) -> Wiring:
    """The first input of the first step is declared otherwise."""
    inputs = w.steps[0].inputs
    said_dtype, said_dims = inputs["A0"].split(" ", 1)
    return w.with_step(0, inputs=inputs | {"A0": f"{dtype or said_dtype} {dims or said_dims}"})


def _reads(w: Wiring, name: str, tensor: str) -> Wiring:
    return w.with_step(0, reads=w.steps[0].reads | {name: tensor})


def _own_output(w: Wiring) -> str:
    writes = w.steps[0].writes
    return writes[_first(writes)]


MUTATIONS: dict[str, Callable[[Wiring], Wiring]] = {
    "TC303": lambda w: replace(w, more="optimization { }\n"),
    "TC304": lambda w: w.with_step(0, reads={}),
    "TC305": lambda w: w.with_step(0, absent=True),
    "TC306": lambda w: w.with_step(0, version=7),
    "TC307": lambda w: w.with_step(0, model="m", absent=True),
    "TC311": lambda w: _reads(w, "A0", "nobody"),
    "TC312": lambda w: replace(w, outputs=w.outputs | {"nobody": "INT32 [ 1 ]"}),
    "TC313": lambda w: replace(w, steps=(*w.steps, w.steps[0])),
    "TC314": lambda w: replace(w, outputs={}),
    "TC315": lambda w: replace(w, inputs=w.inputs | {"nobody": "INT32 [ 1 ]"}),
    "TC316": lambda w: _reads(w, "B", _own_output(w)),
    "TC321": lambda w: _reads(w, "NONE", _first(w.inputs)),
    "TC322": _unknown_output,
    "TC323": lambda w: w.with_step(0, inputs=w.steps[0].inputs | {"MORE": "INT32 [ 1 ]"}),
    "TC324": lambda w: _another(w, dtype="UINT8"),
    "TC325": lambda w: _another(w, dims="[ 3, 3, 3, 3, 3 ]"),
    "TC331": lambda w: replace(w, batch=99),
}


@pytest.mark.parametrize("rule", MUTATIONS)
@examples(4)
@given(wiring=valid())
def test_mutations(rule: str, wiring: Wiring) -> None:
    """Each mistake in a valid ensemble is found by the rule that is for it."""
    assume(rule != "TC331" or wiring.batch)
    assert rule in rules(MUTATIONS[rule](wiring).files())


def test_places() -> None:
    """Line, column, what is underlined, and what was meant."""
    finding = only(
        changed(
            'key: "IDS" value: "ids" }\n      output', 'key: "IDS" value: "idz" }\n      output'
        )
    )
    assert (finding.rule, finding.line, underlined(finding)) == ("TC311", 17, '"idz"')
    assert finding.message == "nothing writes idz, which step 2 reads"
    assert finding.fix == "did you mean ids?"
    finding = only(changed('input_map { key: "IDS"', 'input_map { key: "IDDS"'))
    assert (finding.rule, finding.line, underlined(finding)) == ("TC321", 17, '"IDDS"')
    assert finding.fix == "did you mean IDS?"
    finding = only(changed("TYPE_STRING", "TYPE_UINT8"))
    assert (finding.rule, finding.line, underlined(finding)) == ("TC324", 11, '"TEXT"')
    assert finding.message == "TEXT is TYPE_UINT8 in m and TYPE_STRING in tokenize"
    finding = only(changed("dims: [ 2 ]", "dims: [ 3 ]"))
    assert (finding.rule, finding.line, underlined(finding)) == ("TC325", 18, '"SCORES"')
    assert finding.message == "SCORES is [batch, 3] in m and [batch, 2] in classify"


def test_a_model_that_is_not_there() -> None:
    """The nearest name; nothing about its tensors, nor about a model that cannot be read."""
    finding = only(changed('"classify"', '"clasify"'))
    assert (finding.rule, finding.line, underlined(finding)) == ("TC305", 15, '"clasify"')
    assert finding.fix == "did you mean classify?"
    for config in ("nonsense", "inputs { }", "max_batch_size: 1 max_batch_size: 2"):
        assert rules(ensemble() | {"classify/config.pbtxt": config}) == []


def test_what_a_backend_may_complete_is_unknown() -> None:
    """Names, types and batch sizes that are not written down are nobody's mistake."""
    code = TOKENIZE["tokenize/1/model.py"]
    assert isinstance(code, str)
    completing = code.replace(
        "    def execute", "    def auto_complete_config(c):\n        return c\n\n    def execute"
    )
    for config, file in (
        ('backend: "python"', {"tokenize/1/model.py": completing}),
        ('backend: "onnxruntime"', {"tokenize/1/model.onnx": ""}),
        ('platform: "tensorrt_plan"', {"tokenize/1/model.plan": ""}),
        ("", {}),
        ('backend: "mine" input { name: "TEXT" } output { name: "IDS" dims: [ 4 ] }', {}),
    ):
        files = ensemble(ENSEMBLE, CLASSIFY) | {"tokenize/config.pbtxt": config} | file
        assert rules(files) == [], config


def test_a_model_without_a_configuration() -> None:
    """Its model.py has no tensors, unless it completes them; any other file may have some."""
    files = ensemble(ENSEMBLE, CLASSIFY)
    code = str(TOKENIZE["tokenize/1/model.py"])
    assert rules(files | {"tokenize/1/model.py": code}) == ["TC321", "TC322"]
    completing = code.replace("execute", "auto_complete_config")
    for more in ({"model.py": completing}, {"model.py": code, "model.onnx": ""}, {"model.pt": ""}):
        assert rules(files | {f"tokenize/1/{name}": text for name, text in more.items()}) == []


def test_a_dimension_that_is_added_or_stripped_is_no_difference() -> None:
    """A batch of one suits a step with the first dimension written out, and one without it."""
    whole = composing("whole", {"IDS": "INT32 [ -1, 4 ]"}, {"OUT": "INT32 [ -1, 4 ]"}, batch=0)
    row = composing("classify", {"IDS": "INT32 [ 4 ]"}, {"SCORES": "FP32 [ 2 ]"}, batch=0)
    varying = composing("tokenize", {"TEXT": "STRING [ 1 ]"}, {"IDS": "INT32 [ -1 ]"}, batch=1)
    step = (
        '{ model_name: "whole" model_version: -1 input_map { key: "IDS" value: "ids" } '
        'output_map { key: "OUT" value: "out" } }'
    )
    out = '{ name: "out" data_type: TYPE_INT32 dims: [ 4 ] }'
    config = (
        ENSEMBLE.replace("max_batch_size: 8", "max_batch_size: 1")
        .replace("dims: [ 2 ] }", f"dims: [ 2 ] }}, {out}")
        .replace("},\n    {", f"}},\n    {step},\n    {{")
    )
    assert rules(ensemble(config, whole, varying, row)) == []


def _ids(written: str, *read: str, batch: int = 8) -> Example:
    """Step tokenize writes `ids` so; each further step reads it so."""
    text, ids = {"TEXT": "STRING [ 1 ]"}, {"IDS": f"INT32 {written}"}
    tokenize = composing("tokenize", text, ids, batch=batch)
    first, *others = (
        composing(name, {"IDS": f"INT32 {dims}"}, {"SCORES": "FP32 [ 2 ]"}, batch=batch)
        for name, dims in zip(("classify", "rank"), read, strict=False)
    )
    config = ENSEMBLE.replace("max_batch_size: 8", f"max_batch_size: {batch}")
    if others:
        step = '{ model_name: "rank" model_version: -1 input_map { key: "IDS" value: "ids" } '
        step += 'output_map { key: "SCORES" value: "ranks" } }'
        out = '{ name: "ranks" data_type: TYPE_FP32 dims: [ 2 ] }'
        config = config.replace("dims: [ 2 ] }", f"dims: [ 2 ] }}, {out}")
        config = config.replace("    }\n  ]", f"    }},\n    {step}\n  ]")
    return ensemble(config, tokenize, first, *others)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("[ -1 ]", "[ 4 ]"),
        ("[ 4 ]", "[ -1 ]"),
        ("[ -1 ]", "[ -1 ]"),
        ("[ -1, 4 ]", "[ 2, -1 ]"),
        ("[ 2, -1 ]", "[ 2, 4 ]"),
    ],
)
def test_a_variable_size_fits_any_whoever_says_it(written: str, read: str) -> None:
    """The step that writes, or the one that reads."""
    assert rules(_ids(written, read)) == []


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("[ -1 ]", "[ 4, 4 ]"),
        ("[ -1 ]", "[ -1, -1 ]"),
        ("[ -1, 4 ]", "[ -1 ]"),
        ("[ -1, 4 ]", "[ 2, 5 ]"),
        ("[ 4, -1 ]", "[ 5, -1 ]"),
    ],
)
def test_a_variable_size_fits_no_other_rank(written: str, read: str) -> None:
    """Nor does it excuse the sizes beside it."""
    finding = only(_ids(written, read))
    assert finding.rule == "TC325"
    batched = [f"[batch, {dims.strip('[] ')}]" for dims in (written, read)]
    assert finding.message == f"ids is {batched[0]} in tokenize and {batched[1]} in classify"


def test_a_variable_size_hides_that_its_readers_differ() -> None:
    """Triton compares each of them with the writer alone; the last one is underlined."""
    finding = only(_ids("[ -1 ]", "[ 4 ]", "[ 5 ]"))
    assert (finding.rule, finding.severity) == ("TC326", "warning")
    assert finding.message == (
        "ids is [batch, 4] in classify and [batch, 5] in rank; "
        "[batch, -1] in tokenize hides it from Triton"
    )
    assert (finding.line, underlined(finding)) == (20, '"ids"')
    [finding] = findings(_ids("[ -1 ]", "[ 4 ]", "[ 5 ]", batch=0))
    assert finding.message.startswith("ids is [4] in classify and [5] in rank; ")
    for same in (("[ 4 ]", "[ 4 ]"), ("[ 4 ]", "[ -1 ]"), ("[ -1 ]", "[ 5 ]")):
        assert rules(_ids("[ -1 ]", *same)) == []
    assert rules(_ids("[ 4 ]", "[ 4 ]", "[ 5 ]")) == ["TC325"]


def test_one_mistake_is_told_once() -> None:
    """Not also by what follows from it."""
    assert rules(changed('value: "SCORES"', 'value: "scores"')) == ["TC312"]
    assert rules(changed('key: "TEXT" value: "TEXT"', 'key: "TEXT" value: "text"')) == ["TC311"]
    assert rules(changed('key: "TEXT" value', 'key: "text" value')) == ["TC321"]
    assert rules(changed('platform: "ensemble"', 'platform: "python"')) == ["TC301"]
    for field in ('backend: "python"', 'default_model_filename: "model.py"'):
        more = changed('platform: "ensemble"', f'platform: "ensemble"\n{field}')
        assert rules(more) == ["TC301"]
    assert rules(changed(READ, "")) == ["TC304"]
    assert rules(changed(WRITTEN, "")) == ["TC304"]
    elsewhere = changed('platform: "ensemble"', 'backend: "python"\ninstance_group { }')
    assert rules(elsewhere) == ["TC301"]
    more = composing(
        "classify", {"IDS": "INT32 [ 4 ]", "MASK": "INT32 [ 4 ]"}, {"SCORES": "FP32 [ 2 ]"}
    )
    mapped = ENSEMBLE.replace('value: "ids" }\n    }', f'value: "ids" }} {MASK}\n    }}')
    two = composing(
        "tokenize", {"TEXT": "STRING [ 1 ]"}, {"IDS": "INT32 [ 4 ]", "MASK": "INT32 [ 4 ]"}
    )
    assert rules(ensemble(mapped, two, more)) == ["TC323"]


def test_circles_through_others() -> None:
    """Each ensemble of a circle is reported; one outside it, which leads there, is not."""

    def around(name: str, inner: str) -> dict[str, str | ExampleFile]:
        config = ENSEMBLE.replace('"m"', f'"{name}"').replace('"classify"', f'"{inner}"')
        return {f"{name}/config.pbtxt": config, f"{name}/1/.keep": ""}

    files = TOKENIZE | around("m", "a") | around("a", "b") | around("b", "a")
    found = [f for f in findings(files) if f.rule == "TC307"]
    assert [f.message for f in found] == [
        "a contains itself: a → b → a",
        "b contains itself: b → a → b",
    ]


def test_many_inside_each_other(tmp_path: Path) -> None:
    """Four hundred ensembles, each the only step of the next, are no recursion too deep.

    In a circle, neither.
    """
    config = ENSEMBLE[: ENSEMBLE.index("ensemble_scheduling")]
    step = 'model_name: "{}" model_version: -1 input_map {{ key: "TEXT" value: "TEXT" }} '
    step += 'output_map {{ key: "SCORES" value: "SCORES" }}'
    files = ensemble()
    for number in range(400):
        name, inner = f"e{number}", f"e{number - 1}" if number else "m"
        steps = "ensemble_scheduling { step { " + step.format(inner) + " } }\n"
        files |= {f"{name}/config.pbtxt": config.replace('"m"', f'"{name}"') + steps}
        files |= {f"{name}/1/.keep": ""}
    assert check_repository(put(tmp_path, files), TARGET, rules=OURS).findings == ()
    first = str(files["e0/config.pbtxt"])
    put(tmp_path, {"e0/config.pbtxt": first.replace('model_name: "m"', 'model_name: "e399"')})
    found = check_repository(tmp_path, TARGET, rules=OURS).findings
    assert {finding.rule for finding in found} == {"TC307"}
    assert len(found) == 400
    assert found[0].message == "e0 contains itself: e0 → e399 → e398 → e397 → e396 → e395 → … → e0"


def without(rule: str, *changes: tuple[str, str, str]) -> list[str]:
    """What is found in the bad example of a rule with pieces of its files exchanged."""
    files = dict(RULES[rule].bad_example)
    for name, old, new in changes:
        text = files[name]
        assert isinstance(text, str)
        assert old in text
        files[name] = text.replace(old, new)
    return rules(files)


def test_a_mask_that_nobody_needs() -> None:
    """Nothing is taken for text without padding or a batch; a mask may be optional."""
    config = "encoder/config.pbtxt"
    ids = '"input_ids" data_type: TYPE_INT64 dims: [ -1 ]'
    assert without("TC351") == ["TC351"]
    alone = [
        (name, "max_batch_size: 8", "max_batch_size: 1") for name in (config, "m/config.pbtxt")
    ]
    assert without("TC351", *alone) == []
    assert without("TC351", (config, ids, ids.replace("-1", "8"))) == []
    mask = ids.replace("input_ids", "attention_mask").replace("[ -1 ]", "[ -1 ] optional: true")
    optional = (config, f"[ {{ name: {ids} }} ]", f"[ {{ name: {ids} }}, {{ name: {mask} }} ]")
    assert without("TC351", optional) == ["TC351"]


def test_task_files_that_say_nothing() -> None:
    """One that is no JSON, without labels or a size, or of a size that varies."""
    labels, image = "label/1/task/task.json", "image/1/task/task.json"
    for old, new in (('"labels"', '"label"'), ("{", "{{"), ('["bad", "good"]', "[]")):
        assert without("TC352", (labels, old, new)) == [], new
    for old, new in (('"height": 256', '"height": "256"'), ('"image":', '"picture":')):
        assert without("TC353", (image, old, new)) == [], new
    assert without("TC353", ("engine/config.pbtxt", "224, 224", "-1, -1")) == []
