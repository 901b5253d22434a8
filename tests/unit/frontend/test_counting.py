# SPDX-License-Identifier: Apache-2.0
"""The counting process: exact, started again when it dies, and done without where it cannot be."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests import sample_tokenizers
from tritonctl.frontend.counting.context import ContextLengthError
from tritonctl.frontend.counting.prompts import PromptCounter
from tritonctl.frontend.counting.sources import tokenizer_source_of
from tritonctl.frontend.counting.worker import CountingWorker, CountRefusedError, TokenizerSource
from tritonctl.host import bundled

pytestmark = pytest.mark.timed

LIBRARY = bundled.find("python_backends")
STEP, MODEL = "m_tokenizer", "m"
CONFIGS: dict[str, dict[str, Any]] = {
    MODEL: {"ensemble_scheduling": {"step": [{"model_name": STEP}, {"model_name": "m_engine"}]}},
    STEP: {
        "parameters": {
            "add_special_tokens": {"string_value": "true"},
            "max_input_len": {"string_value": "63"},
        }
    },
    "m_engine": {"parameters": {"max_seq_len": {"string_value": "64"}}},
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the tokenizer step of one model, in two versions, and an engine's tokenizer."""
    root = tmp_path_factory.mktemp("repository")
    for name, version in ((STEP, "2"), (STEP, "10"), ("m_engine", "1")):
        (root / name / version / "tokenizer").mkdir(parents=True)
    sample_tokenizers.byte_level(root / STEP / "10" / "tokenizer")
    shutil.copytree(
        root / STEP / "10" / "tokenizer", root / "m_engine" / "1" / "tokenizer", dirs_exist_ok=True
    )
    return root


def counting(
    repository: Path | None, test: Callable[[PromptCounter], Awaitable[None]]
) -> list[str]:
    """Run a test with a counter of that model; what it said."""
    said: list[str] = []

    async def run() -> None:
        counter = PromptCounter(repository, LIBRARY, said.append)
        await counter.configure(MODEL, CONFIGS)
        try:
            await test(counter)
        finally:
            await counter.close()

    asyncio.run(run())
    return said


def test_the_source_is_the_step_that_tokenises(repository: Path) -> None:
    """In its newest version; the engine's own tokenizer only where it does that work (fused)."""
    source = tokenizer_source_of(MODEL, CONFIGS, repository)
    assert source == TokenizerSource(repository / STEP / "10", 63, "true")
    fused = {"m_engine": CONFIGS[STEP]}
    assert tokenizer_source_of("m_engine", fused, repository) == TokenizerSource(
        repository / "m_engine" / "1", 63, "true"
    )
    assert tokenizer_source_of("m_engine", CONFIGS, repository) is None
    assert tokenizer_source_of("other", {}, repository) is None


def test_many_at_once_are_counted_each_for_itself(repository: Path) -> None:
    """Prompts, refusals and one that is too long, through one process."""

    async def test(counter: PromptCounter) -> None:
        texts = ["fox " * n for n in range(1, 40)]
        counts = await asyncio.gather(
            *(counter.count(MODEL, {"text_input": [text]}) for text in texts)
        )
        assert all(count.exact for count in counts)
        assert [count.tokens for count in counts] == sorted({count.tokens for count in counts})
        with pytest.raises(CountRefusedError, match="text_input is empty"):
            await counter.count(MODEL, {"text_input": [""]})
        with pytest.raises(ContextLengthError, match=r"is 64 tokens.*more than 504 tokens"):
            await counter.count(MODEL, {"text_input": ["fox " * 5000]})

    assert counting(repository, test) == []


def test_a_process_that_dies_is_started_again(repository: Path) -> None:
    """Requests meanwhile have their length guessed, which is said once."""

    async def test(counter: PromptCounter) -> None:
        exact = await counter.count(MODEL, {"text_input": ["one fox"]})
        [child] = _counting_processes()
        os.kill(child, signal.SIGKILL)
        while (count := await counter.count(MODEL, {"text_input": ["one fox"]})).exact:
            await asyncio.sleep(0.01)
        assert count.tokens == 2  # of 7 bytes
        assert count.upper_bound == 7 + 64
        while not (count := await counter.count(MODEL, {"text_input": ["one fox"]})).exact:
            await asyncio.sleep(0.05)
        assert count == exact

    said = counting(repository, test)
    assert len(said) == 1
    assert f"prompts of {MODEL} are not counted" in said[0]


def _counting_processes() -> list[int]:
    """Of this process."""
    threads = Path("/proc/self/task").glob("*/children")
    children = [int(child) for each in threads for child in each.read_text("ascii").split()]
    return [pid for pid in children if b"countlib" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.parametrize("where", ["nowhere", None])
def test_without_a_tokenizer_lengths_are_guessed_and_that_is_said_once(
    where: str | None, tmp_path: Path
) -> None:
    """Of a foreign server, or one whose repository this process cannot read."""

    async def test(counter: PromptCounter) -> None:
        for _ in range(3):
            count = await counter.count(MODEL, {"messages": ["äääää"]})
            assert (count.tokens, count.upper_bound, count.exact) == (3, 10 + 64, False)

    said = counting(tmp_path / where if where else None, test)
    assert len(said) == 1
    assert "this process cannot read its tokenizer" in said[0]


def test_a_broken_tokenizer_is_said_in_its_words(tmp_path: Path) -> None:
    """And is not tried again at once."""
    folder = tmp_path / STEP / "1" / "tokenizer"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")

    async def test(counter: PromptCounter) -> None:
        await counter.start()
        assert not (await counter.count(MODEL, {"text_input": ["fox"]})).exact

    said = counting(tmp_path, test)
    assert len(said) == 1
    assert "tokenizer.json cannot be read" in said[0]


def test_a_count_that_is_not_the_server_s_reads_the_tokenizer_again(
    repository: Path, tmp_path: Path
) -> None:
    """The model was updated in place: from then on counts are right again."""
    mine = tmp_path / "repository"
    shutil.copytree(repository, mine)

    async def test(counter: PromptCounter) -> None:
        before = await counter.count(MODEL, {"text_input": ["one fox"]})
        assert await counter.compare_with_server(MODEL, before, before.tokens)
        file = mine / STEP / "10" / "tokenizer" / "tokenizer.json"
        record = json.loads(file.read_text(encoding="utf-8"))
        record["model"]["merges"] = []
        file.write_text(json.dumps(record), encoding="utf-8")
        assert not await counter.compare_with_server(MODEL, before, 7)
        assert (await counter.count(MODEL, {"text_input": ["one fox"]})).tokens == 7

    assert counting(mine, test) == []


def test_a_closed_worker_refuses_and_leaves_no_process(repository: Path) -> None:
    """Whatever was under way."""

    async def run() -> None:
        worker = CountingWorker(TokenizerSource(repository / STEP / "10", 63, "true"), LIBRARY)
        assert await worker.count({"text_input": ["fox"]})
        [child] = _counting_processes()
        await worker.close()
        assert not Path(f"/proc/{child}").exists()

    asyncio.run(run())
