# SPDX-License-Identifier: Apache-2.0
"""What clients are tried against: the shipped speller and finder, a scripted model with tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests.conftest import speller_model
from tests.engine_cache import build_cached
from tests.server.replay import ReplayModel, replay_models
from tests.servers import CHECKOUT
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project

SPELLER, FINDER, TOOLS = "speller", "finder", "tools"
EXAMPLES = CHECKOUT / "examples"
CHECKPOINT = EXAMPLES / "number-speller" / "checkpoint"
CALL = {"name": "spell", "arguments": {"number": 7342}}
PERSON = {"name": "Ada", "age": 36}
# By seed: a call of a tool in Hermes' markup, an object of JSON, an answer without an end.
SCRIPTS = (
    {"text": f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>"},
    {"text": json.dumps(PERSON)},
    {"text": " on", "repeat": True, "step_ms": 20},
)
CHAT_TEMPLATE = """\
{%- if tools %}<|user|>Tools: {{ tools | tojson }}
Call one by <tool_call>
{"name": ..., "arguments": ...}
</tool_call>
{% endif %}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}<|assistant|><tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>{% endfor %}
{%- else %}<|user|>{{ message.role }}: {{ message.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""


def client_project(folder: Path) -> Project:
    """The three models, built, in a new project on free ports."""
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    scripts = [
        {**script, "ids": tokenizer.encode(str(script["text"]), add_special_tokens=False).ids}
        for script in SCRIPTS
    ]
    scripted = ReplayModel(CHECKPOINT / "tokenizer.json", scripts, chat_template=CHAT_TEMPLATE)
    replay_models(folder, {TOOLS: scripted})
    file = folder / "tritonctl.yaml"
    record = json.loads(file.read_text(encoding="utf-8"))
    record["models"] |= {SPELLER: speller_model(), FINDER: _finder()}
    file.write_text(json.dumps(record), encoding="utf-8")
    project = load_project(file)
    build_cached(project, SPELLER, FINDER)
    return project


def _finder() -> dict[str, Any]:
    engine = {"builder": "onnxruntime", "precision": "fp32", "max_batch_size": 32}
    checkpoint = EXAMPLES / "number-finder" / "checkpoint"
    return {"task": "embedding", "checkpoint": str(checkpoint), "engine": engine}
