# SPDX-License-Identifier: Apache-2.0
"""The page around the figures: verdicts, escaping, self-containment, damaged and empty runs."""

from __future__ import annotations

import base64
import errno
import hashlib
import itertools
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jinja2 import UndefinedError

from tests.loadtest_records import SyntheticRun
from tests.report_page import Reader, finished
from tritonctl.errors import HostError, UsageError
from tritonctl.loadtest.analysis.summary import Summary, read_summary, write_summary
from tritonctl.loadtest.report import page as report_page
from tritonctl.loadtest.report.figures import format_ms
from tritonctl.loadtest.report.run import load_run, restore_summary

SHORT = SyntheticRun(seconds=4, rate=30)
HOSTILE = "</script><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\u2028{{ 7*7 }}"


def read(folder: Path) -> Reader:
    """The report of a folder, made and read back."""
    return Reader.of(report_page.write_report(folder).read_text(encoding="utf-8"))


def badges(page: Reader) -> list[str | None]:
    """Classes of the verdicts at the top."""
    found = [e.attributes.get("class") for e in page.all("span")]
    return [name for name in found if name and name.startswith("badge")]


def with_summary(folder: Path, **changes: Any) -> Summary:
    """The stored summary with other values."""
    changed = replace(read_summary(folder), **changes)
    write_summary(folder, changed)
    return changed


def test_one_file_that_asks_for_nothing(tmp_path: Path) -> None:
    """No address to fetch in any element or style, and a policy that would not let it."""
    folder = finished(SHORT, tmp_path / "run")
    page = read(folder)
    for element in page.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            address = element.attributes.get(name)
            assert address is None or address.startswith(("#", "data:")), element
    assert "url(" not in page.all("style")[0].text
    assert "@import" not in page.all("style")[0].text
    [policy] = [e.attributes["content"] for e in page.all("meta") if "http-equiv" in e.attributes]
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert {p.name for p in folder.iterdir()} >= {"report.html"}
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]


def test_policy_lets_only_our_scripts_run(tmp_path: Path) -> None:
    """Chart.js, the page's script and style by their hashes; nothing else, nothing unsafe."""
    page = read(finished(SHORT, tmp_path / "run"))
    kinds = {e.attributes.get("type") for e in page.all("script")}
    assert kinds == {"application/json", None}
    scripts = [e.text for e in page.all("script") if "type" not in e.attributes]
    assert len(scripts) == 2
    policy = next(e.attributes["content"] for e in page.all("meta") if "http-equiv" in e.attributes)
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (*scripts, page.all("style")[0].text)
    ]
    first, second, style = (f"'sha256-{digest}'" for digest in hashes)
    assert policy == (
        f"default-src 'none'; script-src {first} {second}; style-src {style}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert not [e for e in page.elements if "style" in e.attributes], "the policy forbids it"


def test_chart_library_is_the_released_one() -> None:
    """The file of the npm package, byte for byte; it has a licence and compiles no text."""
    folder = Path(report_page.__file__).parent / "chartjs"
    content = (folder / "chart.umd.min.js").read_bytes()
    origin = (folder / "README.md").read_text(encoding="utf-8")
    assert f"SHA-256: `{hashlib.sha256(content).hexdigest()}`" in origin
    version = re.search(rb"Chart\.js v([\d.]+)\n", content)
    assert version
    assert f"`chart.js` {version[1].decode()}" in origin
    assert (folder / "LICENSE.md").read_text(encoding="utf-8").count("The MIT License (MIT)") == 2
    assert not re.search(rb"\beval\s*\(|\bnew Function\b|[^\w$.]Function\s*\(", content)


def test_same_run_same_page(tmp_path: Path) -> None:
    """Nothing of the moment in it."""
    folder = finished(SHORT, tmp_path / "run")
    first = report_page.write_report(folder).read_bytes()
    assert report_page.write_report(folder, tmp_path / "again.html").read_bytes() == first


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """Model, class, message, settings: shown as they are, never as elements, never run."""
    run = replace(SHORT, classes={"plain": 1.0, HOSTILE: 1.0}, error_share=0.2, scenario=HOSTILE)
    folder = run.write(tmp_path / "run")
    lines = (folder / "records.jsonl").read_text(encoding="utf-8")
    hostile = json.dumps(HOSTILE)[1:-1]
    text = lines.replace("Exceeds maximum queue size", hostile)
    (folder / "records.jsonl").write_text(text, encoding="utf-8")
    server = (folder / "server.jsonl").read_text(encoding="utf-8")
    text = server.replace("speller_engine", hostile).replace("tritonctl_active_streams", hostile)
    (folder / "server.jsonl").write_text(text, encoding="utf-8")
    for name in ("plan.json", "facts.json"):
        text = (folder / name).read_text(encoding="utf-8").replace("speller", hostile)
        (folder / name).write_text(text, encoding="utf-8")
    clean = read(finished(SHORT, tmp_path / "clean"))
    page = read(folder)
    assert len(page.all("script")) == len(clean.all("script"))
    assert page.all("img") == []
    handlers = [name for e in page.elements for name in e.attributes if name.startswith("on")]
    assert handlers == []
    assert page.all("h1")[0].text == f"Load test of {HOSTILE}"
    assert page.table("Failures of the whole run")[1][2] == HOSTILE
    assert HOSTILE in [row[0] for row in page.table("The scenario's classes")[1:]]
    assert HOSTILE in [row[1] for row in page.table("The 10 slowest")[1:]]
    told = [text for s in page.figures()["latency"]["series"] for text in s["texts"]]
    assert any(HOSTILE in text for text in told)


def test_embedded_json_ends_nothing() -> None:
    """What could end the script element or the line is written as an escape."""
    text = report_page.embedded_json({"a": HOSTILE})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": HOSTILE}
    with pytest.raises(ValueError, match="Out of range"):
        report_page.embedded_json(float("nan"))


def test_an_undefined_name_is_an_error() -> None:
    """A template that asks for more than it is given fails instead of leaving a hole."""
    with pytest.raises(UndefinedError):
        report_page.render_page(sections=[], title="a")


def test_headings_form_a_tree_and_everything_is_named(tmp_path: Path) -> None:
    """One h1, no level left out; figures and tables say in words what they are."""
    page = read(finished(SHORT, tmp_path / "run"))
    levels = [int(e.tag[1]) for e in page.elements if re.fullmatch(r"h\d", e.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    for chart in [e for e in page.all("div") if e.attributes.get("class") == "plot"]:
        assert len(chart.attributes["aria-label"] or "") > 40
    assert len(page.tables) == len(page.all("table"))
    assert all(caption for caption in page.tables)
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    for link in page.all("a"):
        assert str(link.attributes["href"]).removeprefix("#") in ids


@pytest.mark.parametrize("verdict", ["met", "missed", "undecided"])
def test_verdict_at_the_top(tmp_path: Path, verdict: str) -> None:
    """The SLO's verdict in words and in a sign, not in colour alone."""
    folder = finished(SHORT, tmp_path / "run")
    with_summary(folder, slo_verdict=verdict)
    page = read(folder)
    assert badges(page)[0] == f"badge {verdict}"
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert f"SLO {verdict}" in text
    assert {"met": "✓", "missed": "✗", "undecided": "?"}[verdict] in text


def test_a_run_that_is_not_valid_says_so_first(tmp_path: Path) -> None:
    """Its figures judge nothing, whatever the SLO's verdict, and it says why."""
    folder = finished(SHORT, tmp_path / "run")
    with_summary(folder, valid=False, invalid_because=("the generator lagged",), slo_verdict="met")
    page = read(folder)
    assert badges(page)[0] == "badge invalid"
    assert "the generator lagged" in [item.text for item in page.all("li")]


def test_without_an_slo_nothing_is_judged(tmp_path: Path) -> None:
    """No promises, no table of them."""
    page = read(finished(replace(SHORT, slo={}), tmp_path / "run"))
    assert badges(page) == ["badge unjudged"]
    assert not [caption for caption in page.tables if caption.startswith("The service level")]


def test_tables_are_the_summary_s(tmp_path: Path) -> None:
    """SLO, percentiles, classes and server, cell by cell."""
    folder = finished(SyntheticRun(seconds=15, slo={"ttft_p99_ms": 200.0}), tmp_path / "run")
    page, summary = read(folder), read_summary(folder)
    [promise] = page.table("The service level")[1:]
    assert promise[0] == "ttft_p99_ms"
    assert promise[1] == "200 ms"
    assert summary.slo[0].verdict in promise[5]
    assert promise[6] == summary.slo[0].why
    rows = {row[0]: row for row in page.table("Percentiles of the window")[1:]}
    for name, metric in (("TTFT", "ttft"), ("end to end", "e2e"), ("ITL", "itl")):
        found = summary.metrics[metric]
        assert rows[name][1] == f"{found.n:,}"
        assert rows[name][3] == format_ms(found.mean_ms)
        assert rows[name][-1] == format_ms(found.max_ms)
        median = found.percentile(0.5)
        assert median is not None
        assert rows[name][4].startswith(format_ms(median.ms))
    assert {row[0] for row in page.table("The scenario's classes")[1:]} == set(summary.classes)
    assert summary.server is not None
    models = {row[0]: row for row in page.table("The server's figures")[1:]}
    for name, figures in summary.server.models.items():
        own = figures.engine
        assert (own is None) == (name != "speller_engine")
        waited = figures.queue_ms + ((own.queue_ms or 0) if own else 0)
        assert models[name][4] == format_ms(waited)
        assert models[name][8] == format_ms(own.prefill_ms if own else None)
        assert models[name][9] == format_ms(own.decode_ms if own else None)
        assert models[name][10] == format_ms(figures.total_ms)
    slow = page.table("The 10 slowest")[1:]
    assert slow[0][7] == format_ms(max(r.e2e_ms for r in load_run(folder).requests))


def test_settings_are_there_word_for_word(tmp_path: Path) -> None:
    """Plan and model configurations, as they were."""
    folder = finished(SHORT, tmp_path / "run")
    texts = [json.loads(e.text) for e in read(folder).all("pre")]
    assert json.loads((folder / "plan.json").read_text(encoding="utf-8")) in texts
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    assert all(config in texts for config in facts["models"].values())


def test_versions_that_are_known(tmp_path: Path) -> None:
    """What the facts say, and no row for what they do not."""
    page = read(finished(SHORT, tmp_path / "run"))
    rows = dict(page.table("Versions and machine")[1:])
    assert rows["server"] == "triton 2.51.0"
    assert rows["generator"] == "asyncio 0.1.0"
    assert (rows["CPUs"], rows["memory"]) == ("4", "8.0 GiB")
    assert "profile" not in rows


def test_tensors_have_no_tokens(tmp_path: Path) -> None:
    """One answer each: no TTFT, no gaps, no tokens."""
    page = read(finished(replace(SHORT, kind="tensors"), tmp_path / "run"))
    figures = page.figures()
    assert "gaps" not in figures
    assert [s["name"] for s in figures["latency"]["series"]] == ["end to end"]
    assert "tokens" not in [s["name"] for s in figures["throughput"]["series"]]


def test_an_interrupted_run_has_a_report(tmp_path: Path) -> None:
    """Killed: no summary, records per worker, the last line cut in the middle."""
    run = replace(SHORT, merged=False, finished=False, workers=2)
    folder = run.write(tmp_path / "run")
    with (folder / "records-1.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"i": 99, "class": "sho')
    page = read(folder)
    drawn = sum(len(s["x"]) for s in page.figures()["latency"]["series"] if s["name"] != "TTFT")
    lines = [p.read_text(encoding="utf-8").count("\n") for p in folder.glob("records-*.jsonl")]
    assert drawn == sum(lines)
    assert "The run ended early" in (folder / "report.html").read_text(encoding="utf-8")
    assert not (folder / "summary.json").exists()


def test_a_run_without_a_request_has_a_report(tmp_path: Path) -> None:
    """Only the plan: the server was down. No chart, no crash."""
    folder = SHORT.write(tmp_path / "run")
    for path in folder.iterdir():
        if path.name != "plan.json":
            path.unlink()
    page = read(folder)
    assert page.figures() == {}
    assert page.tables == {}
    assert page.all("h1")[0].text == "Load test of speller"


def test_no_folder_of_a_run(tmp_path: Path) -> None:
    """Said, with what to name instead; nothing is written."""
    with pytest.raises(UsageError, match=r"no plan\.json") as caught:
        report_page.write_report(tmp_path)
    assert "loadtest run" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ['{"schema": "tritonctl/loadsummary/v0"}', '{"schema": "tr'])
def test_a_summary_that_cannot_be_read_is_made_anew(tmp_path: Path, damage: str) -> None:
    """From the records: another version's, or damaged; the page is the same."""
    folder = finished(SHORT, tmp_path / "run")
    before = report_page.write_report(folder).read_bytes()
    whole = (folder / "summary.json").read_bytes()
    (folder / "summary.json").write_text(damage, encoding="utf-8")
    assert report_page.write_report(folder).read_bytes() == before
    assert restore_summary(folder)
    assert (folder / "summary.json").read_bytes() == whole
    assert not restore_summary(folder)


def test_a_run_that_may_still_go_on_gets_no_summary(tmp_path: Path) -> None:
    """A summary says that a run is whole; while each worker has its own file it may not be."""
    folder = replace(SHORT, merged=False).write(tmp_path / "run")
    assert not restore_summary(folder)
    assert not (folder / "summary.json").exists()


def test_a_full_disk_leaves_the_old_report(tmp_path: Path) -> None:
    """Staged and renamed: whole or not at all."""
    folder = finished(SHORT, tmp_path / "run")
    (folder / "report.html").write_text("the old one", encoding="utf-8")
    before = sorted(folder.iterdir())
    with pytest.MonkeyPatch.context() as patch:

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "replace", refuse)
        with pytest.raises(HostError, match="no space left"):
            report_page.write_report(folder)
    assert sorted(folder.iterdir()) == before
    assert (folder / "report.html").read_text(encoding="utf-8") == "the old one"


def card(page: Reader) -> str:
    """The text of the card at the top."""
    [found] = [e for e in page.all("dl") if e.attributes.get("class") == "card"]
    at = page.elements.index(found)
    inside = itertools.takewhile(lambda e: e.tag in ("div", "dt", "dd"), page.elements[at + 1 :])
    return " | ".join(e.text for e in inside if e.tag != "div")


def test_the_card_says_what_was_measured(tmp_path: Path) -> None:
    """Model, engine with its versions, limits, processor, server."""
    folder = finished(SHORT, tmp_path / "run")
    told = card(read(folder))
    for part in (
        "Model | speller | LlamaForCausalLM · from checkpoint",
        "Engine | openvino · int8 | openvino 2026.4.1 · openvino-genai 2026.4.1.0",
        "Batch | 4 at once | of 512 tokens at most",
        "CPU, no GPU | A Processor | 4 cores · 8",
        "Server | triton 2.51.0 | tritonctl 0.1.0",
    ):
        assert part in told


def test_the_card_names_gpus_and_leaves_out_what_nobody_knows(tmp_path: Path) -> None:
    """Two GPUs with their memory; of a server elsewhere no engine and no processor."""
    folder = finished(SHORT, tmp_path / "run")
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    gpu = {"name": "NVIDIA H100 80GB HBM3", "driver": "580.65", "memory_mib": 81559}
    (folder / "facts.json").write_text(json.dumps(facts | {"gpus": [gpu, gpu]}), encoding="utf-8")
    told = card(read(folder))
    assert "GPU | 2 × NVIDIA H100 80GB HBM3 | 79.6 GiB each · driver 580.65" in told
    assert "CPU" not in told
    for name in ("gpus", "engine", "cpu"):
        del facts[name]
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    assert card(read(folder)) == "Model | speller | Server | triton 2.51.0 | tritonctl 0.1.0"
