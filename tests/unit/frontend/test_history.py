# SPDX-License-Identifier: Apache-2.0
"""Earlier messages: what they say of each other, and what a chat template would leave out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.fakes.ensemble_client import FakeEnsemble
from tests.unit.frontend.conftest import MODEL, Served
from tritonctl.errors import RequestRejectedError
from tritonctl.frontend.app import build_app
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.text_models import TextModel, text_models
from tritonctl.project.file import load_project
from tritonctl.protocol.generation import prompt_tensor

USER = {"role": "user", "content": "x"}


@contextmanager
def served(*, reads_names: bool | None = None, script: Any = None) -> Iterator[Served]:
    """The application; its model's template shows names, or does not."""
    ensemble = FakeEnsemble(script=script)
    texts = {MODEL: TextModel(tool_format="hermes", reads_names=reads_names)}
    config = FrontendConfig(servers=("127.0.0.1:1",), models=(MODEL,), texts=texts)
    app = build_app(config, connect=ensemble.connect)
    with TestClient(app, raise_server_exceptions=False) as http:
        yield Served(http, ensemble)


def call(arguments: str = "{}", call_id: str = "c1") -> dict[str, Any]:
    """A message of the assistant with one call."""
    function = {"name": "now", "arguments": arguments}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str = "c1", **fields: Any) -> dict[str, Any]:
    """The result of a call."""
    return {"role": "tool", "tool_call_id": call_id, "content": "noon", **fields}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([USER, result()], "messages[1].tool_call_id"),
        ([USER, call(), result("c2")], "messages[2].tool_call_id"),
        ([result(), call(), USER], "messages[0].tool_call_id"),
    ],
)
def test_a_result_of_no_call(messages: list[Any], param: str) -> None:
    """Its call must come before it."""
    with served() as frontend:
        error = frontend.error(frontend.chat(messages=messages))
        assert error["param"] == param
        assert "no earlier message has a call with the id `c" in error["message"]
        assert frontend.chat(messages=[USER, call(), result(), result()]).status_code == 200


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"city": "Par', "is not JSON"),
        ("noon", "is not JSON"),
        ('{"a": NaN}', "is not JSON"),
        ("[" * 2000, "is not JSON"),
        ("[1]", "is not a JSON object"),
        ("null", "is not a JSON object"),
    ],
)
def test_arguments_that_are_none(arguments: str, problem: str) -> None:
    """They would reach the template as text, or as another type than it reads."""
    with served() as frontend:
        error = frontend.error(frontend.chat(messages=[USER, call(arguments), result()]))
        param = "messages[1].tool_calls[0].function.arguments"
        assert error["param"] == param
        assert error["message"].startswith(f"`{param}` {problem}")
        assert frontend.ensemble.asked == []


def test_arguments_with_too_many_values() -> None:
    """A text within the body has the bounds of the body."""
    with served() as frontend:
        answer = frontend.chat(messages=[USER, call(f"[{'1,' * 140_000}1]"), result()])
        assert "commas, brackets and texts" in frontend.error(answer)["message"]


@pytest.mark.parametrize("arguments", ["", " ", "{}"])
def test_no_arguments(arguments: str) -> None:
    """Some clients write an empty text; templates read an object."""
    with served() as frontend:
        assert frontend.chat(messages=[USER, call(arguments), result()]).status_code == 200
        prompt: Any = frontend.ensemble.asked[0].prompt
        assert json.loads(prompt[1]["tool_calls"][0]["function"]["arguments"]) == {}


@pytest.mark.parametrize(
    ("reads_names", "message", "status"),
    [
        (True, USER | {"name": "ada"}, 200),
        (None, USER | {"name": "ada"}, 200),
        (False, USER | {"name": "ada"}, 400),
        (False, USER, 200),
        (False, result(name="now"), 200),
        (False, result(name="then"), 400),
    ],
)
def test_names(reads_names: bool | None, message: dict[str, Any], status: int) -> None:
    """Refused where the template shows none; a result may repeat the name of its call."""
    with served(reads_names=reads_names) as frontend:
        answer = frontend.chat(messages=[USER, call(), message])
        assert answer.status_code == status
        if status == 400:
            assert frontend.error(answer)["param"] == "messages[2].name"
            assert "shows no names" in frontend.error(answer)["message"]


TEMPLATES = {
    "{% for m in messages %}{{ m.role }}{{ tool.name }}{{ m['names'] }}{% endfor %}": False,
    "{% for m in messages %}{{ m.name }}{% endfor %}": True,
    "{%- for msg in loop_messages %}{{ msg['name'] }}{% endfor %}": True,
    "{% for message in messages %}{{ message.get('name', '') }}{% endfor %}": True,
    "{% for message in messages %}{{ message | tojson }}{% endfor %}": True,
    "{% for message in messages %}{{ message.content | tojson }}{% endfor %}": False,
    "{% macro one(message) %}{{ message['name'] }}{% endmacro %}": True,
    "{% for m in messages %}{% for c in m.tool_calls %}{{ c.name }}{% endfor %}{% endfor %}": False,
}


@pytest.mark.parametrize(("template", "reads"), TEMPLATES.items())
def test_which_templates_show_names(tmp_path: Path, template: str, reads: bool) -> None:
    """Those of messages, not of tools and calls."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    (checkpoint / "chat_template.jinja").write_text(template)
    (tmp_path / "tritonctl.yaml").write_text(
        "schema: tritonctl/v1\nmodels:\n  m:\n    task: text_generation\n"
        "    checkpoint: checkpoint\n    engine: {builder: openvino, precision: fp16}\n"
    )
    assert text_models(load_project(tmp_path / "tritonctl.yaml"))["m"].reads_names is reads


@pytest.mark.parametrize(
    ("roles", "told"),
    [(["developer"], "developer"), (["system"], "system"), (["system", "developer"], "system")],
)
def test_the_role_that_the_client_wrote(roles: list[str], told: str) -> None:
    """Templates know the older name of `developer`; their refusals get the newer one."""
    refusal = RequestRejectedError(
        "Triton refused the request: in ensemble 'speller', messages: unknown role system: use "
        "user or assistant",
        remedy="",
    )
    messages = [{"role": role, "content": "x"} for role in roles]
    for stream in (False, True):
        with served(script=[refusal]) as frontend:
            error = frontend.error(frontend.chat(messages=messages, stream=stream))
            assert f"unknown role {told}: use" in error["message"]


@pytest.mark.parametrize("refuses", [True, False])
def test_the_setting_for_system_messages(refuses: bool) -> None:
    """The step that renders learns it with the conversation that has one."""
    ensemble = FakeEnsemble()
    texts = {MODEL: TextModel(refuses_system=refuses)}
    config = FrontendConfig(servers=("127.0.0.1:1",), models=(MODEL,), texts=texts)
    with TestClient(build_app(config, connect=ensemble.connect)) as http:
        frontend = Served(http, ensemble)
        for role in ("system", "developer"):
            frontend.chat(messages=[{"role": role, "content": "x"}, USER])
        frontend.chat(messages=[USER])
    sent = [json.loads(prompt_tensor(asked.prompt)[1]) for asked in ensemble.asked]
    kinds = [each.get("system_messages") if isinstance(each, dict) else None for each in sent]
    assert kinds == (["refuse", "refuse", None] if refuses else [None] * 3)
