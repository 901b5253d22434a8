# SPDX-License-Identifier: Apache-2.0
"""A remedy's commands are for the project, profile and settings of the command that failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tritonctl.cli import application
from tritonctl.cli.remedies import with_project_options

GIVEN = (Path("my app"), "h100", ["server.grpc_port=0", "models.a.engine.precision=fp8"])
PLACE = "--project 'my app'"
SETTINGS = "--env h100 --set server.grpc_port=0 --set models.a.engine.precision=fp8"


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        ("run `tritonctl up` again", f"run `tritonctl up {PLACE} {SETTINGS}` again"),
        (
            "`tritonctl build --force speller`, then `tritonctl render`",
            (
                f"`tritonctl build {PLACE} {SETTINGS} --force speller`, then "
                f"`tritonctl render {PLACE} {SETTINGS}`"
            ),
        ),
        ("`tritonctl deploy compose`", f"`tritonctl deploy compose {PLACE} {SETTINGS}`"),
        (
            "`tritonctl up --env cpu --set server.grpc_port=7`",
            (
                "`tritonctl up --project 'my app' --set models.a.engine.precision=fp8 "
                "--env cpu --set server.grpc_port=7`"
            ),
        ),
        ("`tritonctl schema`, or `docker ps`", "`tritonctl schema`, or `docker ps`"),
        ("`tritonctl nonsense up`", "`tritonctl nonsense up`"),
        ("look at --set", "look at --set"),
    ],
)
def test_commands_repeat_what_they_take(remedy: str, expected: str) -> None:
    """In front of their own arguments; their own values count more."""
    assert with_project_options(remedy, *GIVEN) == expected
    assert with_project_options(remedy, None, None, None) == remedy


def test_a_command_that_fails(tmp_path: Path) -> None:
    """Its whole way from the options to the message."""
    engine = {"builder": "openvino", "precision": "int8"}
    models = {"speller": {"checkpoint": "nowhere", "engine": engine}}
    project = {"schema": "tritonctl/v1", "models": models}
    (tmp_path / "tritonctl.yaml").write_text(json.dumps(project))
    arguments = ["status", "-C", str(tmp_path), "--set", "server.grpc_port=0"]
    done = CliRunner().invoke(application(arguments), arguments)
    assert done.exit_code == 7
    command = f"tritonctl up --project {tmp_path} --set server.grpc_port=0"
    assert f"`{command}`" in done.stderr.replace("\n", " ")
