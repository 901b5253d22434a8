# SPDX-License-Identifier: Apache-2.0
"""What plain Locust's options mean with a plan and without one."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from loadlib.locust_options import default_users, plan_content, share_of
from loadlib.refusal import RunRefusedError

CLOSED = {"process": "closed", "concurrency": 5}


def options(**given: Any) -> Namespace:
    """As Locust parses an empty command line, with these changes."""
    empty = dict.fromkeys(("plan", "share", "host", "model", "prompts", "max_tokens"), "")
    numbers = {"num_users": None, "spawn_rate": None, "run_time": None, "expect_workers": 1}
    ours = {"kind": "text", "protocol": "grpc", "arrivals": "poisson", "rate": "5", "cv": "2"}
    return Namespace(**empty | numbers | ours | {"seed": "1", "master": False} | given)


@pytest.fixture
def written(plan: dict[str, Any], tmp_path: Path) -> str:
    """The file of a plan for a closed loop of five users."""
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan | {"arrivals": CLOSED}), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("given", "users"),
    [({}, 5), ({"share": "0/2"}, 3), ({"share": "1/2"}, 2), ({"num_users": 7}, 7)],
)
def test_users_of_a_closed_loop(written: str, given: dict[str, Any], users: int) -> None:
    """The plan's concurrency, shared among processes that are started apart; `-u` goes first."""
    parsed = options(plan=written, **given)
    default_users(parsed)
    assert (parsed.num_users, parsed.spawn_rate) == (users, users)


def test_users_of_an_open_loop() -> None:
    """They send nothing: one for each worker, so that Locust starts it."""
    parsed = options(master=True, expect_workers=3)
    default_users(parsed)
    assert parsed.num_users == 3


def test_run_time(written: str, prompts: Path) -> None:
    """Without a plan it is the schedule's duration; a plan is ended by Locust."""
    planned = options(plan=written, run_time=8)
    default_users(planned)
    assert planned.run_time == 8
    parsed = options(run_time=8, host="127.0.0.1:1", model="text", prompts=str(prompts))
    default_users(parsed)
    assert parsed.run_time is None
    assert plan_content(parsed, None)["duration_seconds"] == 8


def test_the_host_replaces_the_endpoint_of_the_plan(written: str) -> None:
    """And nothing else of it."""
    content = plan_content(options(plan=written, host="127.0.0.1:7"), None)
    assert content["endpoint"] == {"protocol": "grpc", "url": "127.0.0.1:7"}


@pytest.mark.parametrize("share", ["2/2", "x/2", "1", "1/"])
def test_refused_shares(share: str) -> None:
    """Only K of N, from 0."""
    with pytest.raises(RunRefusedError, match="is not K/N"):
        share_of(options(share=share))


@pytest.mark.parametrize("missing", ["host", "model", "prompts"])
def test_refused_without_a_plan(missing: str) -> None:
    """Each of the three is needed."""
    given = {"host": "127.0.0.1:1", "model": "text", "prompts": "p.txt", missing: ""}
    with pytest.raises(RunRefusedError, match=f"--plan, or --{missing}"):
        plan_content(options(**given), None)
