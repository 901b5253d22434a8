# SPDX-License-Identifier: Apache-2.0
"""Prometheus' files, judged by promtool: syntax, and what each rule says about given series."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.promtool import needs_promtool, promtool
from tests.unit.monitoring.rule_cases import STORIES, Story, slow_burn
from tritonctl.monitoring.files import observability_files
from tritonctl.monitoring.prometheus import deployed_models, metric_relabeling
from tritonctl.project.schema import Project

PROMISES = {"ttft_p99_ms": 500, "itl_p99_ms": 60, "e2e_p99_ms": 4000, "error_rate": 0.001}
QUEUE = {"max_queue_size": 7, "priority_levels": 2}
RULES = ("prometheus/rules/recording.yml", "prometheus/rules/alerts.yml")


def model(**more: Any) -> dict[str, Any]:
    """A model of the project file."""
    return {
        "checkpoint": "checkpoint",
        "engine": {"builder": "openvino", "precision": "int8", "max_batch_size": 4},
    } | more


@pytest.fixture(scope="module")
def project() -> Project:
    """Every kind of model that rules tell apart, and a gateway."""
    models = {
        "speller": model(slo=PROMISES),
        "urgent": model(serving={"queue": QUEUE}),
        "encoder": model(task="tensors"),
        "big.one": model(task="text_generation", serving={"backend": "tensorrtllm"}),
    }
    record = {"schema": "tritonctl/v1", "models": models, "gateway": {}, "docker": {"replicas": 2}}
    return Project.at(Path(), record)


@pytest.fixture(scope="module")
def files(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with everything rendered."""
    folder = tmp_path_factory.mktemp("observability")
    for name, text in observability_files(project).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    _without_annotations(folder)
    return folder


def _without_annotations(folder: Path) -> None:
    """bare.yml: promtool wants annotations letter by letter; stories are not about those."""
    groups = yaml.safe_load((folder / RULES[1]).read_text())["groups"]
    for group in groups:
        for rule in group["rules"]:
            del rule["annotations"]
    (folder / "bare.yml").write_text(json.dumps({"groups": groups}), encoding="utf-8")


def rules(files: Path) -> list[dict[str, Any]]:
    """Every rule."""
    groups = [yaml.safe_load((files / name).read_text())["groups"] for name in RULES]
    return [rule for file in groups for group in file for rule in group["rules"]]


@needs_promtool
def test_prometheus_accepts_the_configuration(files: Path) -> None:
    """Syntax of all three files; promtool reads the rules that the configuration names."""
    checked = promtool("check", "config", files / "prometheus" / "prometheus.yml")
    assert checked.returncode == 0, checked.stdout
    found = re.findall(r"SUCCESS: (\d+) rules found", checked.stdout)
    assert sum(map(int, found)) == len(rules(files))


@needs_promtool
@pytest.mark.parametrize(
    "tell",
    [
        # Three days, minute by minute.
        pytest.param(tell, marks=pytest.mark.exhaustive) if tell is slow_burn else tell
        for tell in STORIES
    ],
    ids=lambda tell: tell.__name__,
)
def test_story(tell: Callable[[], Story], files: Path, tmp_path: Path) -> None:
    """Recorded series and alerts at the end of each story."""
    story = tell()
    assert story.samples or story.alerts
    text = json.dumps(_promtool_file(story, files))
    (tmp_path / "case.yml").write_text(text, encoding="utf-8")  # JSON is YAML
    done = promtool("test", "rules", tmp_path / "case.yml")
    assert done.returncode == 0, done.stdout


def _promtool_file(story: Story, files: Path) -> dict[str, Any]:
    long = story.minutes > 24 * 60
    test = {
        "name": story.name,
        "interval": "1m",
        "input_series": story.inputs,
        "promql_expr_test": story.samples,
        "alert_rule_test": [
            {
                "eval_time": f"{story.minutes}m",
                "alertname": alert,
                "exp_alerts": [{"exp_labels": labels} for labels in fired],
            }
            for alert, fired in story.alerts.items()
        ],
    }
    return {
        "rule_files": [str(files / RULES[0]), str(files / "bare.yml")],
        "evaluation_interval": "5m" if long else "1m",
        "tests": [test],
    }


def test_every_rule_has_a_story(files: Path) -> None:
    """A rule that nobody tests is found here, and so is a test of a rule that is gone."""
    stories = [tell() for tell in STORIES]
    said = {re.match(r"round\(([\w:]+)", s["expr"]) for story in stories for s in story.samples}
    recorded = {rule["record"] for rule in rules(files) if "record" in rule}
    assert {found[1] for found in said if found} == recorded
    fired = {alert for story in stories for alert, fired in story.alerts.items() if fired}
    assert fired == {rule["alert"] for rule in rules(files) if "alert" in rule}


def test_alerts_say_what_to_do(files: Path) -> None:
    """Severity, one sentence on what is wrong, one or more on what to type."""
    alerts = [rule for rule in rules(files) if "alert" in rule]
    assert len(alerts) > 15
    for rule in alerts:
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert len(rule["annotations"]["summary"]) > 20
        assert rule["annotations"]["runbook"].endswith(".")


def test_budgets_that_cannot_be_overspent_so_fast_have_no_alert() -> None:
    """14.4 times 10 % is more than all requests: the slower windows remain."""
    promise = {"error_rate": 0.1}
    project = Project.at(Path(), {"schema": "tritonctl/v1", "models": {"a": model(slo=promise)}})
    groups = yaml.safe_load(observability_files(project)[RULES[1]])["groups"]
    burns = [rule for rule in groups[-1]["rules"] if rule["alert"] == "TritonErrorBudgetBurn"]
    assert [rule["labels"]["window"] for rule in burns] == ["6h", "1d", "3d"]


def test_a_project_without_promises() -> None:
    """No SLO, no rules for it."""
    project = Project.at(Path(), {"schema": "tritonctl/v1", "models": {"a": model()}})
    assert "slo" not in observability_files(project)[RULES[0]]
    assert "Burn" not in observability_files(project)[RULES[1]]


def test_every_model_of_the_repository_finds_its_public_model(project: Project) -> None:
    """Names with a dot match themselves only."""
    found = {part.name: (part.public_model, part.step) for part in deployed_models(project)}
    assert found == {
        "big.one_engine": ("big.one", "model"),
        "encoder": ("encoder", "model"),
        **{name: (name, "ensemble") for name in ("speller", "urgent")},
        **{
            f"{name}_{step}": (name, step)
            for name in ("speller", "urgent")
            for step in ("tokenizer", "engine", "detokenizer")
        },
    }
    names = [rule["regex"] for rule in metric_relabeling(project)]
    assert not [name for name in names if re.fullmatch(name, "bigXone_engine")]


def test_targets_are_the_services_of_compose_or_what_is_asked_for(project: Project) -> None:
    """Replicas behind a name, or plain addresses."""
    default = yaml.safe_load(observability_files(project)["prometheus/prometheus.yml"])
    triton, gateway = default["scrape_configs"]
    assert triton["dns_sd_configs"][0]["names"] == ["triton", "triton-gpu"]
    assert gateway["dns_sd_configs"][0]["port"] == 9901
    asked = observability_files(project, targets=["127.0.0.1:1"])["prometheus/prometheus.yml"]
    [static] = yaml.safe_load(asked)["scrape_configs"][0]["static_configs"]
    assert static == {"targets": ["127.0.0.1:1"]}
