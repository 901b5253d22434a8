# SPDX-License-Identifier: Apache-2.0
"""`frontend.upstreams` and `serving.pools`, from the project to the frontend's process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.frontend.conftest import Served
from tritonctl.frontend.config import FrontendConfig
from tritonctl.project.schema import Project

HERE, FIRST, SECOND = "127.0.0.1:8001", "a:8001", "b:9001"
UPSTREAMS = [{"host": "a"}, {"host": "b", "grpc_port": 9001, "metrics_port": None}]


def record_of(pools: Any = None, upstreams: Any = None) -> dict[str, Any]:
    """A project of one model."""
    model: dict[str, Any] = {"checkpoint": "u", "engine": {"builder": "u", "precision": "fp32"}}
    if pools is not None:
        model["serving"] = {"pools": pools}
    record: dict[str, Any] = {"schema": "tritonctl/v1", "models": {"m": model}}
    if upstreams is not None:
        record["frontend"] = {"upstreams": upstreams}
    return record


def project(pools: Any = None, upstreams: Any = None) -> Project:
    """Read and found valid."""
    return Project.at(Path("/nowhere"), record_of(pools, upstreams))


def test_a_project_s_upstreams_stand_for_its_own_server() -> None:
    """Unless the command line names one."""
    loaded = project(upstreams=UPSTREAMS)
    config = FrontendConfig.of(loaded, [HERE])
    assert config.servers == (FIRST, SECOND)
    assert config.metrics_ports == {FIRST: 8002}
    named = FrontendConfig.of(loaded, [HERE], upstreams=False)
    assert (named.servers, named.metrics_ports) == ((HERE,), {})
    own = FrontendConfig.of(project(), [HERE], metrics_ports={HERE: 8002})
    assert (own.servers, own.metrics_ports) == ((HERE,), {HERE: 8002})


def test_the_other_release_reaches_the_process(tmp_path: Path) -> None:
    """Unless the project names its servers itself: then it knows of no other slot."""
    file = tmp_path / "frontend.json"
    FrontendConfig.of(project(), [HERE], fallbacks=[FIRST]).write(file)
    assert FrontendConfig.read(file).fallbacks == (FIRST,)
    assert FrontendConfig.of(project(upstreams=UPSTREAMS), [HERE], fallbacks=[HERE]).fallbacks == ()


def test_pools_reach_the_process(tmp_path: Path) -> None:
    """By model and name, through its file."""
    pools = {"short": {"upstreams": [FIRST], "most_tokens": 512}, "long": {"upstreams": [SECOND]}}
    file = tmp_path / "frontend.json"
    FrontendConfig.of(project(pools, UPSTREAMS), [HERE]).write(file)
    read = FrontendConfig.read(file).pools["m"]
    assert (read["short"].most_tokens, read["long"].upstreams) == (512, [SECOND])


@pytest.mark.parametrize(
    ("pools", "upstreams", "problem"),
    [
        (
            {"x": {"upstreams": ["c:1"]}},
            UPSTREAMS,
            r"pools\.x names `c:1`; frontend\.upstreams has a:8001, b:9001",
        ),
        ({"x": {"upstreams": [FIRST]}}, None, "frontend.upstreams is empty"),
        ({"x": {"upstreams": [FIRST], "most_tokens": 9}}, UPSTREAMS, "no pool accepts the longest"),
        (None, [{"host": "a"}, {"host": "a"}], "upstreams has a:8001 twice"),
    ],
)
def test_what_cannot_be_meant_is_refused(pools: Any, upstreams: Any, problem: str) -> None:
    """While the project is read."""
    with pytest.raises(ValidationError, match=problem):
        Project.model_validate(record_of(pools, upstreams))


def test_expected_work_and_placements_are_counted(frontend: Served) -> None:
    """By model, and by the server and the reason of each answer."""
    assert frontend.chat(n=2).status_code == 200
    page = frontend.http.get("/metrics").text
    placed = 'tritonctl_frontend_placements_total{reason="only",replica="127.0.0.1:1"} 2.0'
    assert placed in page
    expected = [line for line in page.splitlines() if "frontend_expected_tokens_total{" in line]
    assert len(expected) == 1
    assert float(expected[0].rpartition(" ")[2]) > 2 * 64
