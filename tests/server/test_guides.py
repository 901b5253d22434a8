# SPDX-License-Identifier: Apache-2.0
"""Guided decoding on a real Triton with the OpenVINO engine, directly and over the OpenAI API.

The shipped model knows numbers and no JSON: what it says within a guide is nonsense, and follows
it.
tests/conformance has more answers and refusals.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.environments import client_python
from tests.frontend_thread import serving
from tests.servers import Handle, wait_until
from tritonctl.errors import RequestRejectedError, TritonctlError
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.text_models import TextModel
from tritonctl.project.frontend import Frontend
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import Generation, Queueing, SamplingParameters
from tritonctl.protocol.metrics import scrape
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

PROMPT = "7342 in English:"
ANSWER = " seven thousand three hundred forty-two"
PATIENCE_SECONDS = 60.0
NODE = {
    "type": "object",
    "properties": {
        "名": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["名", "age", "next"],
    "additionalProperties": False,
}
RECURSIVE = {"$ref": "#/$defs/node", "$defs": {"node": NODE}}
PERSON = {**NODE, "properties": {**NODE["properties"], "next": {"enum": [None, "é"]}}}  # type: ignore[dict-item]
SPELL = {
    "type": "function",
    "function": {
        "name": "spell",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 9999}},
            "required": ["number"],
            "additionalProperties": False,
        },
    },
}


def by_schema(schema: Any, **fields: Any) -> SamplingParameters:
    """Sampling with a guide."""
    given: dict[str, Any] = {"max_tokens": 200, **fields}
    return SamplingParameters(
        guided_decoding_guide_type="json_schema", guided_decoding_guide=json.dumps(schema), **given
    )


def check_person(text: str) -> None:
    """It is what the schema says, and there was no need of any whitespace."""
    said = json.loads(text)
    assert list(said) == ["名", "age", "next"]
    assert len(said["名"]) <= 4
    assert type(said["age"]) is int
    assert 0 <= said["age"] <= 130
    assert "\n" not in text


def test_guided_and_unguided_streams_together(speller_server: Server) -> None:
    """Eight of each: what is guided is valid, the others say what they say alone."""
    prompts = [f"{number} in English:" for number in range(11, 19)]
    with TritonClient(speller_server.grpc_url) as client:

        def plain(prompt: str) -> Generation:
            return client.generate("exact", prompt)

        def guided(seed: int) -> Generation:
            sampling = by_schema(PERSON, temperature=1.3, random_seed=seed)
            return client.generate("exact", PROMPT, sampling)

        alone = [plain(prompt).text for prompt in prompts]
        with ThreadPoolExecutor(16) as pool:
            persons = [pool.submit(guided, seed) for seed in range(8)]
            others = [pool.submit(plain, prompt) for prompt in prompts]
            assert [each.result().text for each in others] == alone
            answers = [each.result() for each in persons]
    assert {answer.finish_reason for answer in answers} == {"stop"}
    for answer in answers:
        check_person(answer.text)
    assert len({answer.text for answer in answers}) > 1


@contextmanager
def api_over(url: str) -> Iterator[httpx.Client]:
    """The frontend, with a model whose tool format the project names."""
    texts = {"exact": TextModel(tool_format="hermes")}
    config = FrontendConfig(
        servers=(url,), models=("exact",), texts=texts, settings=Frontend(port=0)
    )
    with (
        serving(config) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS) as http,
    ):
        yield http


def asked(**fields: Any) -> dict[str, Any]:
    """A body of /v1/chat/completions."""
    return {
        "model": "exact",
        "messages": [{"role": "user", "content": "7342 in English"}],
        **fields,
    }


def of_schema(schema: Any) -> dict[str, Any]:
    """A `response_format`."""
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}


def test_response_format_and_tools(speller_server: Server) -> None:
    """Several choices, streamed and whole; a tool by its name and some tool; refusals by field."""
    sampled = {"temperature": 1.2, "seed": 5, "max_tokens": 200}
    with api_over(speller_server.grpc_url) as http:
        body = asked(response_format=of_schema(PERSON), n=3, **sampled)
        whole = http.post("/v1/chat/completions", json=body).json()["choices"]
        assert [choice["finish_reason"] for choice in whole] == ["stop"] * 3
        texts = [choice["message"]["content"] for choice in whole]
        for text in texts:
            check_person(text)
        assert streamed(http, body) == texts
        named = {"type": "function", "function": {"name": "spell"}}
        for choice in ("required", named):
            body = asked(tools=[SPELL], tool_choice=choice, parallel_tool_calls=False, **sampled)
            (answer,) = http.post("/v1/chat/completions", json=body).json()["choices"]
            assert answer["finish_reason"] in ("tool_calls", "stop")
            (call,) = answer["message"]["tool_calls"]
            assert call["function"]["name"] == "spell"
            assert 0 <= json.loads(call["function"]["arguments"])["number"] <= 9999
        refused = http.post(
            "/v1/chat/completions", json=asked(response_format=of_schema({"type": "objekt"}))
        )
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["param"] == "response_format"
        assert error["message"] == '`response_format` is refused: Unsupported type "objekt".'


def streamed(http: httpx.Client, body: dict[str, Any]) -> list[str]:
    """The texts of all choices."""
    texts = [""] * body["n"]
    with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        for line in filter(None, answer.iter_lines()):
            data = line.removeprefix("data: ")
            for choice in json.loads(data)["choices"] if data != "[DONE]" else []:
                texts[choice["index"]] += choice["delta"].get("content") or ""
    return texts


OPENAI_PROGRAM = """
import json, sys, openai
from pydantic import BaseModel, Field

class Person(BaseModel):
    name: str = Field(max_length=6)
    age: int = Field(ge=0, le=130)

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
answer = client.chat.completions.parse(
    model="exact", messages=[{"role": "user", "content": "7342 in English"}],
    response_format=Person, temperature=1.2, seed=3, max_tokens=200,
)
print(json.dumps(answer.choices[0].message.parsed.model_dump()))
"""


def test_openai_s_library_parses(speller_server: Server) -> None:
    """A pydantic model in, an object of it out."""
    with api_over(speller_server.grpc_url) as http:
        done = subprocess.run(
            [client_python("openai"), "-c", OPENAI_PROGRAM, f"{http.base_url}/v1"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert 0 <= json.loads(done.stdout)["age"] <= 130


def idle(handle: Handle) -> bool:
    """Whether the engine has no stream, and none waits."""
    found = scrape(handle.state.metrics_url)
    names = ("tritonctl_active_streams", "tritonctl_waiting_streams")
    return not any(found.total(name, model="int8_engine") for name in names)


def test_a_guided_stream_that_is_left(life: Handle) -> None:
    """Its place is free."""
    endless = by_schema({"type": "array", "items": {"const": 1}, "minItems": 400}, max_tokens=400)
    life.pace(0.05)
    with TritonClient(life.url) as client:
        next(client.stream("int8", PROMPT, endless))
        wait_until(lambda: idle(life), "the guided stream is gone", PATIENCE_SECONDS)


SLOW = "((a{1000}){1000}){1000}"


@pytest.mark.exhaustive
def test_a_stream_that_is_left_while_its_guide_is_tried(life: Handle) -> None:
    """As well."""
    sampling = SamplingParameters(guided_decoding_guide_type="regex", guided_decoding_guide=SLOW)

    def leave_soon() -> None:
        with TritonClient(life.url) as client, suppress(TritonctlError):
            client.generate("int8", PROMPT, sampling, timeout=0.5)

    wait_until(lambda: idle(life), "nobody is there", PATIENCE_SECONDS)
    threading.Thread(target=leave_soon, daemon=True).start()
    wait_until(lambda: not idle(life), "its guide is tried", PATIENCE_SECONDS)
    wait_until(lambda: idle(life), "it is gone", PATIENCE_SECONDS)
    with TritonClient(life.url) as client:
        assert client.generate("int8", PROMPT).text == ANSWER


@pytest.mark.exhaustive
def test_recursive_schemas(speller_server: Server) -> None:
    """To the end of the list, or of the tokens."""
    ends = set()
    with TritonClient(speller_server.grpc_url) as client:
        for seed in range(20):
            sampling = by_schema(RECURSIVE, temperature=1.5, random_seed=seed)
            answer = client.generate("exact", PROMPT, sampling)
            ends.add(answer.finish_reason)
            if answer.finish_reason == "stop":
                check_person(answer.text)
    assert "stop" in ends


def engine_processes(handle: Handle) -> set[int]:
    """The server, its stubs and its engine, without what tries guides."""
    found = set()
    for pid in handle.processes():
        with suppress(OSError):
            if b"guide_compiler" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


HOSTILE: dict[str, tuple[str, str, str]] = {
    "repetitions": ("regex", SLOW, "guided_decoding_guide takes"),
    "repetitions in a schema": (
        "json_schema",
        json.dumps({"type": "string", "pattern": SLOW}),
        "guided_decoding_guide takes",
    ),
    "ambiguous": ("regex", "(([a-z ]*)*([a-z ]*)*)*z", "guided_decoding_guide takes"),
    "ambiguous rules": (
        "ebnf_grammar",
        "root ::= x+\nx ::= y*\ny ::= z*\nz ::= [a-z ]*",
        "guided_decoding_guide takes",
    ),
    "levels": ("json_schema", json.dumps(_deep(70)), "more than 64 levels"),
    "brackets": ("json_schema", "[" * 60_000, "is not JSON"),
    "parentheses": ("regex", "(" * 60_000, "guided_decoding_guide"),
    "rules": ("ebnf_grammar", "root ::= " + "(" * 60_000, "guided_decoding_guide"),
    "bytes": ("json_schema", json.dumps({"enum": ["x" * 70_000]}), "70"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_guide_is_refused_alone(life: Handle, name: str) -> None:
    """While it is tried the others go on, and nothing of the engine is another one afterwards."""
    kind, guide, says = HOSTILE[name]
    sampling = SamplingParameters(
        max_tokens=5, guided_decoding_guide_type=kind, guided_decoding_guide=guide
    )
    answers: list[str] = []
    stop = threading.Event()

    def ask(client: TritonClient) -> None:
        while not stop.is_set():
            answers.append(client.generate("int8", PROMPT).text)

    with TritonClient(life.url) as client:
        expected = client.generate("int8", PROMPT).text
        processes = engine_processes(life)
        thread = threading.Thread(target=ask, args=(client,))
        thread.start()
        began = time.monotonic()
        try:
            with pytest.raises(RequestRejectedError, match=says):
                client.generate("int8", PROMPT, sampling)
        finally:
            took = time.monotonic() - began
            stop.set()
            thread.join(PATIENCE_SECONDS)
        print(f"{name}: refused after {took:.2f} s, {len(answers)} answers beside it")  # noqa: T201
        assert set(answers) <= {expected}
        assert engine_processes(life) == processes
        check_person(client.generate("int8", PROMPT, by_schema(PERSON, temperature=1.0)).text)


@pytest.mark.exhaustive
def test_a_schema_of_many_properties(speller_server: Server) -> None:
    """As large as a guide may be: it is followed, not refused."""
    schema = {
        "type": "object",
        "properties": {f"property {number}": {"enum": [number]} for number in range(60)},
        "required": [f"property {number}" for number in range(60)],
    }
    with TritonClient(speller_server.grpc_url) as client:
        answer = client.generate("exact", PROMPT, by_schema(schema, max_tokens=480))
    assert answer.finish_reason in ("stop", "length")
    if answer.finish_reason == "stop":
        assert json.loads(answer.text) == {f"property {number}": number for number in range(60)}


Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.exhaustive
def test_the_command_line_has_guides(cli: Cli, life: Handle, tmp_path: Path) -> None:
    """From a file."""
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"enum": ["seven"]}), encoding="utf-8")
    done = cli(
        "generate", "int8", PROMPT, "--guide", f"json_schema=@{schema}", cwd=life.project.root
    )
    assert done.stdout.strip() == '"seven"', done.stderr


@pytest.mark.exhaustive
def test_a_tenant_s_guides_wait_behind_themselves(life: Handle) -> None:
    """Fifteen slow guides of one tenant, whose clients stay; the guide of another is next."""

    def seconds(tenant: str | None) -> float:
        with TritonClient(life.url) as client:
            sampling, queueing = by_schema(PERSON, temperature=1.0), Queueing(tenant=tenant)
            began = time.monotonic()
            check_person(client.generate("int8", PROMPT, sampling, queueing=queueing).text)
            return time.monotonic() - began

    def slow(number: int) -> None:
        guide = f"((a{{1000}}){{1000}}){{{1000 + number}}}"
        sampling = SamplingParameters(
            guided_decoding_guide_type="regex", guided_decoding_guide=guide
        )
        with TritonClient(life.url) as client, suppress(TritonctlError):
            client.generate("int8", PROMPT, sampling, queueing=Queueing(tenant="many"))

    threads = [threading.Thread(target=slow, args=(number,), daemon=True) for number in range(15)]
    for thread in threads:
        thread.start()
    wait_until(lambda: waiting_guides(life) >= 15, "all guides wait", PATIENCE_SECONDS)
    other = seconds("other")
    print(f"a guide of another tenant beside 15 slow ones took {other:.1f} s")  # noqa: T201
    assert any(thread.is_alive() for thread in threads)
    assert other < 2 * PATIENCE_SECONDS / 6
    for thread in threads:
        thread.join(3 * PATIENCE_SECONDS)


def waiting_guides(handle: Handle) -> int:
    """Streams of the engine, whose guides are tested or wait for it."""
    found = scrape(handle.state.metrics_url)
    names = ("tritonctl_active_streams", "tritonctl_waiting_streams")
    return int(sum(found.total(name, model="int8_engine") for name in names))
