# SPDX-License-Identifier: Apache-2.0
"""Two runs, or several on each side: a difference beyond chance, or none."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.loadtest_records import SyntheticRun
from tritonctl.cli import application
from tritonctl.errors import ConfigurationError, UsageError
from tritonctl.loadtest.analysis.compare import (
    Estimate,
    LoadComparison,
    compare,
    ratio_change,
    share_change,
)

Write = Callable[..., Path]
WORDS = ("slower", "faster")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Makes the folder of a run of that name."""

    def make(name: str, **settings: Any) -> Path:
        return SyntheticRun(**settings).write(tmp_path / name)

    return make


def changes(found: LoadComparison) -> dict[str, str]:
    """The verdicts by name."""
    return {change.name: change.verdict for change in found.changes}


def test_two_equal_servers(write: Write) -> None:
    """Another draw of the same load: no difference, and the seeds are told."""
    found = compare([write("a", seed=1)], [write("b", seed=2)])
    assert found.verdict == "no difference"
    assert set(changes(found).values()) == {"no difference"}
    assert [(s.field, s.left, s.right, s.load) for s in found.settings] == [("seed", 1, 2, False)]
    assert (found.left, found.right) == (("a",), ("b",))
    assert (found.warnings, found.notes) == ((), ())


def test_false_alarms_are_rare(write: Write) -> None:
    """Eight pairs of equal servers, eleven figures each."""
    runs = [write(f"r{seed}", seed=seed, seconds=20) for seed in range(16)]
    pairs = zip(runs[::2], runs[1::2], strict=True)
    found = [change for a, b in pairs for change in compare([a], [b]).changes]
    assert len(found) == 8 * 11
    assert sum(change.differs for change in found) <= 2


def test_a_slower_server(write: Write) -> None:
    """A fifth slower per token: seen where it is, with an interval that holds it."""
    slow = write("b", seed=2, token_ms=2.4, settings={"parameters": {"threads": "1"}})
    found = compare([write("a", seed=1)], [slow])
    told = {change.name: change for change in found.changes}
    itl = told["itl_p50_ms"]
    assert itl.differs
    assert itl.low is not None
    assert itl.high is not None
    assert itl.low < 0.2 < itl.high
    assert itl.verdict.startswith("slower by ")
    assert told["error_share"].verdict == "no difference"
    assert "itl_p50_ms slower by" in found.verdict
    assert "one run per side" in found.notes[0]
    assert [s.field for s in found.settings if s.field != "seed"] == [
        "models.speller_engine.parameters.threads"
    ]
    back = {c.name: c for c in compare([slow], [write("a2", seed=1)]).changes}["itl_p50_ms"]
    assert back.verdict.startswith("faster by ")


def test_errors_and_goodput(write: Write) -> None:
    """Shares are told in points."""
    found = changes(compare([write("a")], [write("b", seed=2, error_share=0.1)]))
    assert found["error_share"].startswith("higher by ")
    assert found["error_share"].split()[3] == "points"
    assert found["goodput_share"].startswith("lower by ")


def test_interleaved_runs(write: Write) -> None:
    """More runs on a side narrow the interval."""
    a = [write(f"a{n}", seed=n) for n in range(3)]
    b = [write(f"b{n}", seed=10 + n) for n in range(3)]

    def width(found: LoadComparison) -> float:
        change = next(c for c in found.changes if c.name == "e2e_p50_ms")
        assert change.low is not None
        assert change.high is not None
        return change.high - change.low

    assert compare(a, b).notes == ()
    assert width(compare(a, b)) < 0.8 * width(compare(a[:1], b[:1]))
    assert compare(a, b).left == ("a0", "a1", "a2")


def test_runs_that_drift(write: Write) -> None:
    """Runs of one side that differ more than by chance make no difference of the sides certain."""
    a = [write(f"a{n}", seed=n, token_ms=ms) for n, ms in enumerate((2.0, 3.0))]
    b = [write(f"b{n}", seed=9 + n, token_ms=ms) for n, ms in enumerate((2.2, 3.3))]
    assert changes(compare(a, b))["itl_p50_ms"] in ("no difference", "too few requests to tell")
    assert changes(compare(a[:1], b[:1]))["itl_p50_ms"].startswith("slower")


def test_runs_that_have_nothing_in_common(write: Write) -> None:
    """Two of them leave room for anything: no bounds, rather than some of a thousand years."""
    a = [write(f"a{n}", seed=n, token_ms=ms) for n, ms in enumerate((2.0, 20.0))]
    b = [write(f"b{n}", seed=9 + n, token_ms=ms) for n, ms in enumerate((2.2, 22.0))]
    [itl] = [change for change in compare(a, b).changes if change.name == "itl_p50_ms"]
    assert (itl.left.low, itl.left.high, itl.low, itl.high) == (None, None, None, None)
    assert itl.verdict == "too few requests to tell"


def test_runs_that_drift_little(write: Write) -> None:
    """More than by chance, yet a hundredth: no doubt about what is ten times slower."""
    a = [write(f"a{n}", seed=n, token_ms=ms) for n, ms in enumerate((2.0, 2.02))]
    b = [write(f"b{n}", seed=9 + n, token_ms=ms) for n, ms in enumerate((20.0, 20.2))]
    change = next(c for c in compare(a, b).changes if c.name == "itl_p50_ms")
    assert change.verdict.startswith("slower by 9")
    assert change.low is not None
    assert change.high is not None
    assert 2 < change.low < 9.1 < change.high < 30


def test_different_loads(write: Write) -> None:
    """Refused with what differs; compared when that is wanted."""
    a, b = write("a"), write("b", rate=60.0, timeout_seconds=5.0)
    with pytest.raises(UsageError) as caught:
        compare([a], [b])
    assert caught.value.problem == (
        "the runs cannot be compared: load.arrivals.rate: 40.0 and 60.0; load.timeout_seconds: "
        "60.0 and 5.0"
    )
    assert "--allow-different-loads" in caught.value.remedy
    found = compare([a], [b], force=True)
    assert [s.field for s in found.settings if s.load] == [
        "load.arrivals.rate",
        "load.timeout_seconds",
    ]
    assert changes(found)["requests_per_s"].startswith("higher by")


def test_a_side_of_different_servers(write: Write) -> None:
    """Runs that are put together must be of one server."""
    a = [write("a1"), write("a2", servers=8)]
    with pytest.raises(UsageError, match=r"models\.speller_engine\.max_batch_size: 4 and 8"):
        compare(a, [write("b")])


def test_prompts_of_a_copied_project(write: Write, tmp_path: Path) -> None:
    """Equal files elsewhere are the same load, others are not."""
    runs = [write(name) for name in ("a", "b")]
    for number, run in enumerate(runs):
        prompts = tmp_path / f"p{number}.jsonl"
        prompts.write_text('{"text_input": "1 in English:"}\n', encoding="utf-8")
        plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
        plan["classes"][0]["prompts"] = str(prompts)
        (run / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    assert compare(runs[:1], runs[1:]).settings == ()
    (tmp_path / "p1.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"load\.classes\.short\.prompts: .*p0\.jsonl and "):
        compare(runs[:1], runs[1:])


def test_runs_that_measured_nothing(write: Write) -> None:
    """Invalid and unsettled runs are compared, and said to be what they are."""
    found = compare([write("a", lag_us=9000.0)], [write("b", rate=40.0, seed=2, cpu=0.95)])
    assert [text.split(":")[0] for text in found.warnings] == [
        "a is not a valid measurement",
        "b is not a valid measurement",
    ]


def test_short_runs(write: Write) -> None:
    """Too few requests for a 99th percentile have none to compare."""
    found = compare([write("a", seconds=5)], [write("b", seconds=5, seed=2)])
    assert "e2e_p99_ms" not in changes(found)
    assert "e2e_p50_ms" in changes(found)


def test_an_empty_side(write: Write, tmp_path: Path) -> None:
    """A run that sent nothing has nothing to compare, and is named."""
    empty = write("b")
    (empty / "records.jsonl").write_text("", encoding="utf-8")
    found = compare([write("a")], [empty])
    assert "b measured no request" in found.warnings
    assert (found.changes, found.verdict) == ((), "too few requests to tell")


def test_no_folder_of_a_run(tmp_path: Path, write: Write) -> None:
    """What is missing is said of the side where it is."""
    with pytest.raises(ConfigurationError, match="has no records"):
        compare([write("a")], [tmp_path])


def test_bounds_that_nobody_knows() -> None:
    """A side without a bound can still be surely different; without any, nothing is said."""
    a = Estimate(10.0, 9.0, 11.0)
    worse = ratio_change("e2e_p99_ms", "ms", a, Estimate(30.0, 25.0, None), words=WORDS)
    assert (worse.differs, worse.high) == (True, None)
    assert worse.verdict.startswith("slower by 200 % [")
    assert worse.verdict.endswith(", ?]")
    same = ratio_change("e2e_p99_ms", "ms", a, Estimate(10.5, 9.0, None), words=WORDS)
    assert (same.differs, same.verdict) == (False, "too few requests to tell")
    none = ratio_change("e2e_p99_ms", "ms", Estimate(0.0, 0.0, 0.0), a, words=WORDS)
    assert (none.change, none.verdict) == (None, "too few requests to tell")


def test_the_interval_of_a_ratio() -> None:
    """Margins of both sides add up in squares, on a logarithmic scale."""
    one, other = Estimate(100.0, 90.0, 110.0), Estimate(80.0, 72.0, 88.0)
    change = ratio_change("e2e_p50_ms", "ms", one, other, words=WORDS)
    assert change.change == pytest.approx(-0.2)
    margin = math.hypot(math.log(110 / 100), math.log(80 / 72))
    assert change.low == pytest.approx(0.8 * math.exp(-margin) - 1)
    assert change.verdict.startswith("faster by 20 % [")
    shares = share_change("error_share", Estimate(0.1, 0.08, 0.13), Estimate(0.3, 0.25, 0.36))
    assert shares.low == pytest.approx(0.2 - math.hypot(0.05, 0.03))
    assert shares.verdict == "higher by 20 points [14.2, 26.3]"


@pytest.fixture
def command() -> Callable[..., tuple[int, str, str]]:
    """Runs `compare` as the command line does."""
    words = ["loadtest", "compare"]

    def run(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(application(words), [*words, *arguments])
        return result.exit_code, result.stdout, result.stderr

    return run


def test_the_command(
    write: Write,
    command: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table for people, an object for programs, several folders to a side."""
    monkeypatch.setenv("COLUMNS", "160")
    a, b, c = (str(write(f"r{n}", seed=n)) for n in range(3))
    code, out, err = command(a, b)
    assert (code, err) == (0, "differs: seed: 0 | 1\n")
    lines = out.splitlines()
    assert lines[0].split() == ["r0", "r1", "the", "second", "is"]
    assert len(lines) == 12
    assert all("no difference [-" in line for line in lines[1:])  # and how large a one was missed
    assert all(line.endswith((" %]", " points]")) for line in lines[1:])
    code, out, _ = command(f"{a},{b}", c, "--json", "--quiet")
    record = json.loads(out)
    assert code == 0
    assert (record["left"], record["right"]) == (["r0", "r1"], ["r2"])
    assert record["verdict"] == "no difference"
    assert {"name", "unit", "left", "right", "change", "low", "high", "differs", "verdict"} == set(
        record["changes"][0]
    )


def test_the_command_refuses(write: Write, command: Callable[..., tuple[int, str, str]]) -> None:
    """Another load: exit code 2 unless forced; a run that is not there."""
    a, b = str(write("a")), str(write("b", rate=80.0))
    code, _, err = command(a, b)
    assert code == 2
    assert "load.arrivals.rate: 40.0 and 80.0" in err
    assert command(a, b, "--allow-different-loads")[0] == 0
    code, _, err = command(a, "nowhere")
    assert code == 2
    assert "no load test `nowhere`" in err


def test_runs_by_name(
    write: Write, command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Names of the project's own folder do, and are listed when one is not there."""
    project = tmp_path / "project"
    stored = project / ".tritonctl" / "loadtests"
    for name in ("20270101-080000-speller", "20270101-090000-speller"):
        SyntheticRun(seconds=5).write(stored / name)
    engine = "{builder: openvino, precision: int8, max_batch_size: 4, max_seq_len: 64}"
    text = f"schema: tritonctl/v1\nmodels: {{m: {{checkpoint: c, engine: {engine}}}}}\n"
    (project / "tritonctl.yaml").write_text(text, encoding="utf-8")
    first, second = "20270101-080000-speller", "20270101-090000-speller"
    code, out, err = command(first, second, "-C", str(project))
    assert (code, err) == (0, "")
    assert first in out
    code, _, err = command(first, "2027", "-C", str(project))
    assert code == 2
    assert f"the latest: {second}, {first}" in " ".join(err.split())
    (project / "tritonctl.yaml").write_text("schema: v0\n", encoding="utf-8")
    code, _, err = command(first, second, "-C", str(project))
    assert code == 2
    assert "tritonctl.yaml" in err  # why its runs could not be looked for
