# SPDX-License-Identifier: Apache-2.0
"""Conversations to ids as Hugging Face makes them; templates that run wild fail alone."""

import json
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from textlib.chat.files import has_chat_template, special_tokens, template_source
from textlib.chat.messages import MAX_BYTES, parse_messages
from textlib.chat.renderer import ChatRenderer
from textlib.errors import ModelConfigurationError, RequestError, TextPathError
from textlib.tokens.prompt_encoder import PromptEncoder
from tokenizers import Tokenizer, processors

HERE = Path(__file__).parent
SHIPPED = HERE.parents[1] / "examples" / "number-speller" / "checkpoint"
TEMPLATES = sorted(path.stem for path in (HERE / "chat_templates").glob("*.jinja"))
MARKS = ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "[INST]", "[/INST]", "<start_of_turn>"]
PAD = {"__type": "AddedToken", "content": "<pad>", "lstrip": False, "special": True}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": PAD}

Message = dict[str, str]


def user(text: str) -> Message:
    """What the user says."""
    return {"role": "user", "content": text}


def model(text: str) -> Message:
    """What the model says."""
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "Be brief.\n"}
CONVERSATIONS = [
    [user("7342 in English")],
    [user("  spaced \n"), model(" answer </s> "), user("and again?")],
    [SYSTEM, user("hello"), model("hi"), user("{{ 7 * 7 }} <s> & <b>\"quoted\"</b> 'x'")],
    [SYSTEM, user("七千 👩‍👩‍👧‍👦 שלום \u0000 e\u0301")],
    [user("one"), user("two")],
    [model("I begin"), user("you do?")],
    [user("")],
    [{"role": "judge", "content": "order"}, user("?")],
]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Today's <weather> & more",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def calls(arguments: object, content: str | None = None) -> dict[str, object]:
    """What the model says when it calls a tool."""
    function = {"name": "weather", "arguments": arguments}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


RESULT = {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "rain"}
WITH_TOOLS = [
    [user("Weather in Paris?")],
    [SYSTEM, user("Weather?"), calls({"city": "Paris"}), RESULT],
    [user("Weather?"), calls({"city": "巴黎 <\"'>"}, "I look."), RESULT, model("Rain."), user("?")],
]

MakeFolder = Callable[..., Path]
Start = Callable[[Path], ChatRenderer]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts renderers and ends them after the test."""
    with ExitStack() as running:
        yield lambda folder: running.enter_context(closing(ChatRenderer(folder)))


@pytest.fixture(scope="session")
def make_folder(byte_level: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeFolder:
    """Writes a tokenizer folder that puts a BOS before every plain prompt."""
    tokenizer = Tokenizer.from_file(str(byte_level))
    tokenizer.add_special_tokens(MARKS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )

    def make(template: str, **config: object) -> Path:
        folder = tmp_path_factory.mktemp("chat")
        tokenizer.save(str(folder / "tokenizer.json"))
        settings: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", **TOKENS}
        settings |= {"chat_template": template, **config}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        return folder

    return make


@pytest.fixture(scope="session")
def folders(make_folder: MakeFolder) -> dict[str, Path]:
    """Every template, in each of the forms in which a checkpoint can bring one."""
    texts = {
        name: (HERE / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
        for name in TEMPLATES
    }
    made = {name: make_folder(text) for name, text in texts.items()}
    named = [
        {"name": "rag", "template": "-"},
        {"name": "default", "template": texts["llama3"]},
        {"name": "tool_use", "template": texts["hermes"]},
    ]
    made["list"] = make_folder(named)
    made["file"] = make_folder("not this one", added_tokens_decoder={})
    (made["file"] / "chat_template.jinja").write_text(texts["mistral"], encoding="utf-8")
    made["old"] = make_folder(texts["mistral"])
    (made["old"] / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": {"content": "<pad>"}, "eos_token": "<s>"}), encoding="utf-8"
    )
    made["shipped"] = SHIPPED
    return made


def ids_of(start: Start, folder: Path, conversations: Sequence[Any]) -> list[list[int] | str]:
    """Ids of each conversation, or the error's text."""
    encoder = PromptEncoder(
        folder / "tokenizer.json", max_input_len=10_000, add_special_tokens=True
    )
    renderer = start(folder)
    found: list[list[int] | str] = []
    for conversation in conversations:
        text = renderer.render(json.dumps(conversation).encode())
        if isinstance(text, bytes):
            (ids,) = encoder.encode_rendered([text])
            found.append(str(ids) if isinstance(ids, RequestError) else ids.tolist())
        else:
            found.append(str(text))
    return found


@pytest.mark.engine
def test_ids_equal_those_of_transformers(
    start: Start, folders: dict[str, Path], openvino_environment: Path, tmp_path: Path
) -> None:
    """Every template on every conversation, tools included; what transformers refuses, so do we."""
    cases = [
        {"folder": str(folder), "messages": conversation, "tools": tools}
        for folder in folders.values()
        for conversations, tools in ((CONVERSATIONS, None), (WITH_TOOLS, TOOLS))
        for conversation in conversations
    ]
    (tmp_path / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    subprocess.run(
        [
            openvino_environment,
            HERE.parent / "chat_reference.py",
            tmp_path / "cases.json",
            tmp_path / "answers.json",
        ],
        check=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    answers = json.loads((tmp_path / "answers.json").read_text(encoding="utf-8"))
    refusing = {"system_messages": "refuse"}  # as transformers
    with_tools = [{"messages": each, "tools": TOOLS} | refusing for each in WITH_TOOLS]
    asked = [*({"messages": each} | refusing for each in CONVERSATIONS), *with_tools]
    found = [ids for folder in folders.values() for ids in ids_of(start, folder, asked)]
    assert len(found) == len(answers) == len(folders) * len(asked)
    for case, ours, theirs in zip(cases, found, answers, strict=True):
        if isinstance(theirs, str):
            assert isinstance(ours, str), case
            assert theirs in ours, case
        else:
            assert ours == theirs, case
    assert sum(isinstance(answer, str) for answer in answers) > 5


def test_no_double_bos(start: Start, make_folder: MakeFolder) -> None:
    """The template wrote the BOS; the tokenizer does not add another, nor one of its own."""
    marked = make_folder("{{ bos_token }}{{ messages[0].content }}")
    bare = make_folder("{{ messages[0].content }}")
    bos = Tokenizer.from_file(str(bare / "tokenizer.json")).token_to_id("<s>")
    (once,) = ids_of(start, marked, [[user("x")]])
    assert list(once)[:2].count(bos) == 1
    (never,) = ids_of(start, bare, [[user("x")]])
    assert bos not in list(never)


WILD = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "one long C call": "{% set n = 10 %}{{ n ** (n ** 9) }}",
    "sorts for ever": "{% for i in range(99999) %}{{ range(99999) | sort | length }}{% endfor %}",
    "memory": "{% set n = 10 %}{{ 'a' * n ** 11 }}",
    "doubles": "{% set n = namespace(x='aaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}"
    "{% endfor %}",
    "too long": "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "range": "{% for i in range(10 ** 12) %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "raises": "{{ raise_exception('no ' ~ messages[0].content) }}",
    "type error": "{{ messages[0].content + 1 }}",
    "escapes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "mutates": "{{ messages.append(1) }}",
    "imports": "{% include '/etc/passwd' %}",
    "surrogate": "{{ '\\ud800' }}",
}


@pytest.mark.parametrize("case", WILD)
def test_wild_template_fails_one_request(start: Start, make_folder: MakeFolder, case: str) -> None:
    """Refused by name before it has cost much, and the next conversation is rendered."""
    guarded = "{% if messages[0].content == 'good' %}fine{% else %}" + WILD[case] + "{% endif %}"
    renderer = start(make_folder(guarded))
    assert renderer.render(json.dumps([user("good")]).encode()) == b"fine"
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    refused = renderer.render(json.dumps([user("bad")]).encode())
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert isinstance(refused, RequestError), refused
    assert str(refused).startswith("messages: the checkpoint's chat template")
    assert len(str(refused)) < 1000
    assert cpu < 3  # of whoever had to be killed: the bound is 0.5 s, starting costs some, too
    assert renderer.render(json.dumps([user("good")]).encode()) == b"fine"


def test_template_that_is_none(start: Start, make_folder: MakeFolder) -> None:
    """Text still works with such a checkpoint; messages are refused with the template's line."""
    renderer = start(make_folder("\n{% for %}"))
    answer = renderer.render(b'[{"role": "user", "content": "x"}]')
    assert "messages cannot be used: line 2 of the checkpoint's chat template" in str(answer)
    assert not has_chat_template(Path("/nowhere"))
    with pytest.raises(ModelConfigurationError, match="no chat template called default"):
        template_source(make_folder([{"name": "rag", "template": "x"}]))


def test_only_the_named_tokens_of_the_checkpoint(make_folder: MakeFolder) -> None:
    """As transformers 5 passes them; nothing else of the file gets into a template."""
    config = {"unk_token": None, "image_token": "<i>", "sep_token": {"content": "|"}}
    folder = make_folder("x", **config)
    assert special_tokens(folder) == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "sep_token": "|",
        "pad_token": "<pad>",
    }


def test_a_killed_worker_is_replaced(start: Start, make_folder: MakeFolder) -> None:
    """An accident is INTERNAL for one request, not the client's fault, and over with it."""
    renderer = start(make_folder("fine"))
    raw = json.dumps([user("x")]).encode()
    assert renderer.render(raw) == b"fine"
    renderer._worker.kill()
    answer = renderer.render(raw)
    assert isinstance(answer, TextPathError)
    assert answer.code == "INTERNAL"
    assert renderer.render(raw) == b"fine"


def test_a_worker_that_gets_no_processor_time(start: Start, make_folder: MakeFolder) -> None:
    """It is replaced, and the error says that it was silent, not how it was ended."""
    renderer = start(make_folder("fine"))
    raw = json.dumps([user("x")]).encode()
    renderer._socket.settimeout(0.2)
    os.kill(renderer._worker.pid, signal.SIGSTOP)
    assert "the chat template's process did not answer for" in str(renderer.render(raw))
    assert renderer.render(raw) == b"fine"


def rendered(start: Start, folder: Path, messages: list[Any], tools: object = None) -> str:
    """The prompt, or the refusal."""
    conversation = {"messages": messages} | ({"tools": tools} if tools else {})
    answer = start(folder).render(json.dumps(conversation).encode())
    return answer.decode() if isinstance(answer, bytes) else str(answer)


def test_arguments_as_clients_send_them(start: Start, folders: dict[str, Path]) -> None:
    """OpenAI's JSON text of earlier calls is the prompt of the value itself, as transformers'."""
    as_value = [user("?"), calls({"city": "Paris", "days": 1}), RESULT]
    as_text = [user("?"), calls('{"city":"Paris",  "days":1}'), RESULT]
    hermes = folders["hermes"]
    prompt = rendered(start, hermes, as_value, TOOLS)
    assert prompt == rendered(start, hermes, as_text, TOOLS)
    assert '{"name": "weather", "arguments": {"city": "Paris", "days": 1}}' in prompt
    assert "<tool_response>\nrain" in prompt
    # What is no object stays as it is.
    assert '"arguments": "Paris"' in rendered(start, hermes, [user("?"), calls("Paris")], TOOLS)


def test_templates_that_want_arguments_as_text(start: Start, make_folder: MakeFolder) -> None:
    """DeepSeek's family adds them to its own text: they reach it as they were sent."""
    folder = make_folder(
        "{% for m in messages %}{% for c in m.tool_calls %}"
        "{{ 'call ' + c.function.arguments }}{% endfor %}{% endfor %}"
    )
    assert rendered(start, folder, [calls('{"city":  1}')]) == 'call {"city":  1}'
    assert "the checkpoint's chat template cannot" in rendered(start, folder, [calls({"a": 1})])


def test_the_template_for_tools(start: Start, make_folder: MakeFolder) -> None:
    """A checkpoint may have one of its own for conversations with tools."""
    folder = make_folder(
        [
            {"name": "default", "template": "plain"},
            {"name": "tool_use", "template": "{{ tools[0].function.name }}"},
        ]
    )
    assert rendered(start, folder, [user("?")]) == "plain"
    assert rendered(start, folder, [user("?")], TOOLS) == "weather"
    alone = make_folder("{{ 'none' if tools is none else tools[0].type }}")
    assert rendered(start, alone, [user("?")]) == "none"
    assert rendered(start, alone, [user("?")], TOOLS) == "function"


def test_variables_of_the_template(start: Start, make_folder: MakeFolder) -> None:
    """What a template reads besides: enable_thinking and the like, with tools or without."""
    template = "{{ messages[0].content }}|{{ thinking }}|{{ tools is none }}"
    renderer = start(make_folder(template))
    for tools in (None, TOOLS):
        asked = {"messages": [user("a")], "chat_template_kwargs": {"thinking": {"budget": 3}}}
        asked |= {} if tools is None else {"tools": tools}
        prompt = renderer.render(json.dumps(asked).encode())
        assert prompt == f"a|{{'budget': 3}}|{tools is None}".encode()


def test_content_in_parts(start: Start, make_folder: MakeFolder) -> None:
    """Parts reach a template that goes through them; others get one text, a part a line."""
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "user", "content": parts}]
    plain = make_folder("{% for m in messages %}{{ m.content + '.' }}{% endfor %}")
    assert rendered(start, plain, messages) == "one\ntwo."
    for each in ("m.content", "m['content']"):
        folder = make_folder(
            f"{{% for m in messages %}}{{% for part in {each} %}}({{{{ part.text }}}})"
            "{% endfor %}{% endfor %}"
        )
        assert rendered(start, folder, messages) == "(one)(two)"


BAD = {
    b"": "not valid JSON",
    b"{": "not valid JSON",
    b"\xff\xfe": "not valid UTF-8: byte 0xff at offset 0",
    b"null": "messages is missing or null, expected a JSON array",
    b'"hello"': "messages is text, expected a JSON array",
    b"{}": "messages is missing or null, expected a JSON array",
    b'{"messages": [], "tools": null}': "messages is empty",
    b'{"tool": []}': "messages has the key 'tool', expected",
    b'{"messages": [], "chat_template_kwargs": []}': "messages: chat_template_kwargs is an array",
    b'{"messages": [], "chat_template_kwargs": {"tools": 1}}': "tools is reserved",
    b'{"messages": [], "chat_template_kwargs": {"bos_token": 1}}': "bos_token is reserved",
    b'{"messages": [], "chat_template_kwargs": {"a-b": 1}}': "has 'a-b', expected a name",
    b'{"messages": [{"role": "user", "content": "x"}], "tools": []}': "messages: tools is an array",
    b'{"messages": [{"role": "user", "content": "x"}], "tools": [1]}': "messages: tools[0] is a nu",
    b"[]": "messages is empty",
    b"[1]": "messages[0] is a number, expected an object",
    b'[{"role": "user"}]': "messages[0].content is missing or null, expected text",
    b'[{"role": "user", "content": null}]': "messages[0].content is missing or null",
    b'[{"role": "user", "content": 1}]': "messages[0].content is a number, expected text",
    b'[{"role": "user", "content": ["x"]}]': "messages[0].content[0] is text, expected an object",
    b'[{"role": "user", "content": [{"type": "image_url"}]}]': "messages[0].content[0] is of type",
    b'[{"role": "user", "content": [{"type": "text"}]}]': "messages[0].content[0].text is missing",
    b'[{"role": "assistant", "content": null, "tool_calls": []}]': "messages[0].content is missing",
    b'[{"role": "assistant", "tool_calls": {}}]': "messages[0].tool_calls is an object, expected",
    b'[{"role": "assistant", "tool_calls": [1]}]': "messages[0].tool_calls[0] is a number",
    b'[{"role": 1, "content": "x"}]': "messages[0].role is a number, expected text",
    b'[{"role": true, "content": "x"}]': "messages[0].role is a boolean, expected text",
    b'[{"role": "", "content": "x"}]': "messages[0].role is empty",
    b'[{"role": "user", "content": "x", "nam": "y"}]': "messages[0] has the key 'nam'",
    b'[{"role": "user", "content": "\\ud83d"}]': "messages[0].content has half a surrogate pair",
    b"[" * 100_000: "messages is nested too deeply",
    b"[" + b"1" * 10_000 + b"]": "messages is not valid JSON",
    b"[" + b" " * MAX_BYTES + b"]": f"the limit is {MAX_BYTES}",
}


@pytest.mark.parametrize("raw", BAD, ids=[str(raw[:40]) for raw in BAD])
def test_bad_messages(raw: bytes) -> None:
    """Each refusal names `messages` and the place in it."""
    with pytest.raises(RequestError) as caught:
        parse_messages(raw)
    assert BAD[raw] in str(caught.value)
    assert str(caught.value).startswith("messages")


@pytest.fixture
def echo(start: Start, make_folder: MakeFolder) -> ChatRenderer:
    """A template that repeats the first message."""
    return start(make_folder("{{ messages[0].content }}"))


def test_bad_messages_between_good_ones(echo: ChatRenderer) -> None:
    """The worker survives each of them."""
    for raw, problem in BAD.items():
        answer = echo.render(raw)
        assert isinstance(answer, RequestError)
        assert problem in str(answer)
        assert echo.render(b'[{"role": "user", "content": "x"}]') == b"x"


def test_large_messages(echo: ChatRenderer) -> None:
    """Nine megabytes pass through unchanged, whatever the socket's buffer."""
    text = "七 " * 2_000_000
    raw = json.dumps([user(text)], ensure_ascii=False).encode()
    assert echo.render(raw) == text.encode()
