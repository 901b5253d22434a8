# SPDX-License-Identifier: Apache-2.0
"""Programs that ask by themselves: aiperf's load, schemathesis' bodies."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import client_python
from tests.clients.frontend_process import post
from tests.clients.served_models import CHECKPOINT, FINDER, SPELLER

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

REQUESTS = 40
# Of each endpoint; none of the bodies is the same in another run.
BODIES = 60


def test_aiperf_measures_streamed_chats(served: dict[str, Any], tmp_path: Path) -> None:
    """`aiperf profile --endpoint-type chat --streaming`: every request is answered and timed."""
    url = served["url"].removesuffix("/v1")
    command = [
        client_python("aiperf").parent / "aiperf", "profile", "--model", SPELLER, "--url", url,
        "--endpoint-type", "chat", "--streaming", "--tokenizer", CHECKPOINT,
        "--request-count", str(REQUESTS), "--concurrency", "4", "--ui", "none",
        # The model may have nothing to say to random words, and aiperf calls that an error.
        "--extra-inputs", "ignore_eos:true", "--synthetic-input-tokens-mean", "12",
        "--output-tokens-mean", "16",
        "--artifact-dir", tmp_path,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [export] = tmp_path.rglob("profile_export_aiperf.json")
    figures = json.loads(export.read_text(encoding="utf-8"))
    assert figures["request_count"]["avg"] == REQUESTS
    assert figures["time_to_first_token"]["p50"] > 0
    assert not figures.get("error_summary")


def test_no_body_breaks_the_description(served: dict[str, Any], tmp_path: Path) -> None:
    """schemathesis makes bodies of /openapi.json, valid and not: each answer is one it describes.

    The models are named in the description, so that valid bodies reach them.
    """
    url = served["url"].removesuffix("/v1")
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=30) as answer:  # noqa: S310
        described = json.load(answer)
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(with_models(described)), encoding="utf-8")
    command = [
        client_python("schemathesis").parent / "schemathesis", "run", file, "--url", url,
        "--max-examples", str(BODIES), "--phases", "coverage,fuzzing", "--no-color",
        "--request-timeout", "60",
        # What a model takes is not in the description: empty prompts, lengths, roles.
        "--exclude-checks", "positive_data_acceptance",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]
    body = {"model": SPELLER, "messages": [{"role": "user", "content": served["message"]}]}
    status, content = post(f"{url}/v1/chat/completions", body)
    assert (status, content["choices"][0]["message"]["content"]) == (200, served["message_answer"])


def with_models(described: dict[str, Any]) -> dict[str, Any]:
    """The description with the models' names for `model`, and answers that end soon."""
    for path, operations in described["paths"].items():
        for operation in operations.values():
            content = operation.get("requestBody", {}).get("content", {})
            schema = resolved(described, content.get("application/json", {}).get("schema", {}))
            fields = schema.get("properties", {})
            if "model" in fields:
                name = FINDER if "embeddings" in path else SPELLER
                fields["model"] = {"type": "string", "enum": [name]}
            for limit in {"max_tokens", "max_completion_tokens"} & set(fields):
                fields[limit] = {"type": "integer", "minimum": 1, "maximum": 8}
            for few in {"n"} & set(fields):
                fields[few] = {"type": "integer", "minimum": 1, "maximum": 2}
    return dict(described)


def resolved(described: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference means."""
    if "$ref" not in schema:
        return schema
    found: Any = described
    for part in schema["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return dict(found) if not isinstance(found, dict) else found
