# SPDX-License-Identifier: Apache-2.0
"""One real Triton with a frontend, and what its ensembles answer directly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.clients.frontend_process import frontend
from tests.clients.served_models import CHECKPOINT, FINDER, PERSON, SPELLER, TOOLS, client_project
from tests.servers import Handle
from tritonctl.frontend.config import FrontendConfig
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters

PROMPT, MESSAGE = "7342 in English:", "Write 7342 in English"
TEXT = "seven thousand three hundred forty-two"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-clients`: write the table of docs/reference/clients.md."""
    parser.addoption("--update-clients", action="store_true", help="write the table of clients")


@pytest.fixture(scope="session")
def client_handle(
    onnxruntime_environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Handle]:
    """The server."""
    handle = Handle(client_project(tmp_path_factory.mktemp("clients")), SPELLER)
    yield handle
    handle.stop()


@pytest.fixture(scope="session")
def served(
    client_handle: Handle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """The frontend's process in front of it: the Facts of programs/client_features.py."""
    client_handle.fresh()
    server = client_handle.state
    config = FrontendConfig.of(client_handle.project, [server.grpc_url])
    # Its template shows no tools; what must be called is guided, and is called all the same.
    speller = config.texts[SPELLER].model_copy(update={"tool_format": "hermes"})
    config = config.model_copy(update={"texts": {**config.texts, SPELLER: speller}})
    with (
        TritonClient(server.grpc_url) as client,
        frontend(config, tmp_path_factory.mktemp("frontend")) as url,
    ):
        conversation = [{"role": "user", "content": MESSAGE}]
        most = SamplingParameters(max_tokens=100)
        said = client.generate(SPELLER, conversation, most)
        yield {
            "url": f"{url}/v1",
            "speller": SPELLER,
            "finder": FINDER,
            "tools": TOOLS,
            "prompt": PROMPT,
            "prompt_ids": Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
            .encode(PROMPT)
            .ids,
            # OpenAI's own limit of /v1/completions, where a client sends none.
            "answer": client.generate(SPELLER, PROMPT, SamplingParameters(max_tokens=16)).text,
            "message": MESSAGE,
            "message_answer": said.text,
            "message_tokens": [said.num_input_tokens, said.num_output_tokens],
            "text": TEXT,
            "vector": client.embed(FINDER, [TEXT])[0].vector.tolist(),
            "person": PERSON,
        }
