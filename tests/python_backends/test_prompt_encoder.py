# SPDX-License-Identifier: Apache-2.0
"""Prompts to ids: equal to the library, one bad prompt never touches its neighbours."""

from pathlib import Path

import numpy as np
import pytest
from textlib.errors import ModelConfigurationError, RequestError
from textlib.tokens.prompt_encoder import PromptEncoder
from textlib.triton.parameters import ModelParameters
from textlib.triton.prompts import RequestEncoder
from tokenizers import Tokenizer, processors

from tests import sample_tokenizers


def encoder(path: Path, **options: int | bool) -> PromptEncoder:
    """With generous defaults."""
    return PromptEncoder(
        path,
        max_input_len=int(options.get("max_input_len", 50)),
        add_special_tokens=bool(options.get("add_special_tokens", True)),
    )


@pytest.fixture
def with_bos(byte_level: Path, tmp_path: Path) -> Path:
    """A tokenizer that puts <s> before every prompt."""
    tokenizer = Tokenizer.from_file(str(byte_level))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=60)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def ids_of(path: Path, prompt: str, **options: int | bool) -> list[int]:
    """The ids of one good prompt."""
    (encoded,) = encoder(path, **options).encode([prompt.encode()])
    assert not isinstance(encoded, RequestError)
    ids: list[int] = encoded.tolist()
    return ids


def test_equal_to_the_library(byte_level: Path) -> None:
    """In order, also when the batch is large."""
    tokenizer = Tokenizer.from_file(str(byte_level))
    prompts = [f"{number} in English: 七千" for number in range(300)]
    encoded = encoder(byte_level).encode([prompt.encode() for prompt in prompts])

    assert [list(ids) for ids in encoded if not isinstance(ids, RequestError)] == [
        tokenizer.encode(prompt).ids for prompt in prompts
    ]


def test_a_panic_of_the_library_fails_alone(tmp_path: Path) -> None:
    """A regular expression that gives up in Rust panics, which is no Exception in Python."""
    path = sample_tokenizers.panicking(tmp_path)
    prompts = [b"good", sample_tokenizers.PANIC.encode(), b"good"]
    encoded = encoder(path).encode(prompts)
    assert [isinstance(item, RequestError) for item in encoded] == [False, True, False]
    assert "text_input cannot be tokenised: " in str(encoded[1])
    assert "retry-limit-in-match over" in str(encoded[1])


def test_bad_prompts_fail_alone(byte_level: Path) -> None:
    """Four kinds of bad prompt between good ones."""
    prompts = [b"good", b"", b"bad \xff byte", b"x" * 10**6, "漢".encode() * 40, b"good"]
    encoded = encoder(byte_level).encode(prompts)

    errors = [str(item) if isinstance(item, RequestError) else None for item in encoded]
    assert errors[0] is errors[5] is None
    assert "text_input is empty" in str(errors[1])
    assert "not valid UTF-8: byte 0xff at offset 4" in str(errors[2])
    assert "1000000 bytes" in str(errors[3])
    assert "the limit is 50 (max_input_len)" in str(errors[4])


def test_special_tokens(with_bos: Path) -> None:
    """Added, not added, and never twice."""
    plain = ids_of(with_bos, "hello", add_special_tokens=False)

    assert plain[0] != 0
    assert ids_of(with_bos, "hello") == [0, *plain]
    assert ids_of(with_bos, "<s>hello") == [0, *plain]
    assert ids_of(with_bos, "<s>hello", add_special_tokens=False) == [0, *plain]


def test_truncation_and_padding_of_the_file_are_off(with_bos: Path) -> None:
    """A prompt is never changed silently."""
    assert 3 < len(ids_of(with_bos, "abcdefgh ijkl mnop")) < 60


def test_longest_prompt(byte_level: Path) -> None:
    """The limit itself is allowed."""
    prompt = "1 in English:"
    length = len(ids_of(byte_level, prompt))

    assert len(ids_of(byte_level, prompt, max_input_len=length)) == length


def test_unreadable_file(tmp_path: Path) -> None:
    """The error says which file and what to do."""
    path = tmp_path / "tokenizer.json"
    path.write_text("{}", encoding="utf-8")

    with pytest.raises(ModelConfigurationError, match=r"tokenizer\.json cannot be read"):
        encoder(path)


def test_nothing_to_encode(byte_level: Path) -> None:
    """An empty execute()."""
    assert encoder(byte_level).encode([]) == []


def test_ids_are_checked_and_stay_as_they_are(byte_level: Path) -> None:
    """No special tokens are added; an id that the vocabulary lacks is named."""
    last = max(Tokenizer.from_file(str(byte_level)).get_vocab().values())
    prompts = [[0, last], [last + 1], [-1], [], [1] * 51]
    arrays = [np.array(ids, dtype=np.int32) for ids in prompts]
    good, beyond, negative, empty, long = encoder(byte_level).check_ids(arrays)
    assert not isinstance(good, RequestError)
    assert good.tolist() == [0, last]
    assert f"prompt_ids has the id {last + 1}, expected ids from 0 to {last}" in str(beyond)
    assert "prompt_ids has the id -1" in str(negative)
    assert "prompt_ids is empty" in str(empty)
    assert "prompt_ids has 51 tokens" in str(long)


def test_a_request_with_ids(byte_level: Path, tmp_path: Path) -> None:
    """Next to requests with text, in order; both at once are refused."""
    (tmp_path / "tokenizer.json").write_bytes(byte_level.read_bytes())
    values = {"max_input_len": "50", "add_special_tokens": "true"}
    requests = RequestEncoder(tmp_path, ModelParameters("m", values))
    ids = np.array([[3, 4, 5]], dtype=np.int32)
    text = np.array([[b"7"]], dtype=np.object_)
    both, alone, other = requests.encode(
        [{"text_input": text, "prompt_ids": ids}, {"prompt_ids": ids}, {"text_input": text}]
    )
    requests.close()
    assert "text_input and prompt_ids are both present" in str(both[0])
    assert [row.tolist() for row in alone if not isinstance(row, Exception)] == [[3, 4, 5]]
    assert [row.tolist() for row in other if not isinstance(row, Exception)] == [
        ids_of(byte_level, "7")
    ]
