# SPDX-License-Identifier: Apache-2.0
"""The TensorRT-LLM engine over a stand-in of the library (tests/fakes), without Triton."""

import importlib
import json
import math
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from textlib.engine.contract import StreamProgress
from textlib.errors import ModelConfigurationError, RequestError
from textlib.tokens.token_chunk import FinishReason
from textlib.triton.parameters import ModelParameters
from textlib.triton.request_tensors import GenerationRequest, GuideSpec
from textlib.triton.sampling import SamplingParams
from tokenizers import Tokenizer

from tests.builders import trtllm
from tests.fakes import copy_tensorrt_llm
from tests.fakes.trtllm_artefact import write_adapter, write_artefact
from tests.modules import module_of

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "examples" / "number-speller" / "checkpoint"
PATIENCE = 60.0
ENGINES, CANDIDATE, LATER = "1.2.1", "1.3.0rc22", "1.3.0rc29"
RELEASES = [("engine", ENGINES), ("pytorch", ENGINES), ("pytorch", CANDIDATE), ("pytorch", LATER)]
COMPLETE = [("engine", ENGINES), ("pytorch", LATER)]
PROMPT = "7342 in English:"
ANSWER = " seven thousand three hundred forty-two"
EOS = 1
TOKENIZER = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


@dataclass
class Made:
    """Everything that one stream brought."""

    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish: FinishReason = FinishReason.NONE
    error: Exception | None = None

    @property
    def over(self) -> bool:
        return bool(self.finish or self.error)

    @property
    def text(self) -> str:
        text: str = TOKENIZER.decode(self.ids)
        return text


@dataclass
class Bench:
    """An engine on the bench."""

    engine: Any
    llm: Any

    def run(self, *requests: GenerationRequest) -> list[Made]:
        """All of them at once, to their ends."""
        made = {number: Made() for number in range(1, len(requests) + 1)}
        for number, request in enumerate(requests, 1):
            self.engine.add(number, request)
        self.until(made, lambda: all(one.over for one in made.values()))
        return list(made.values())

    def until(self, made: dict[int, Made], done: Callable[[], bool]) -> None:
        """Step until it is done."""
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, made
            for progress in self.engine.step():
                note(made[progress.stream_id], progress)


def note(made: Made, progress: StreamProgress) -> None:
    assert not made.over, "news behind the end"
    made.ids += progress.token_ids
    made.log_probs += progress.log_probs
    made.finish, made.error = progress.finish, progress.error


def request(prompt: str = PROMPT, *, max_tokens: int = 40, **sampling: Any) -> GenerationRequest:
    """Greedy unless it says otherwise."""
    ids = np.array(TOKENIZER.encode(prompt).ids, dtype=np.int32)
    params = SamplingParams(max_tokens=max_tokens, **{"end_ids": (EOS,), **sampling})
    return GenerationRequest(ids, params, streaming=True)


def hot(**sampling: Any) -> GenerationRequest:
    """So hot that equal answers are no chance: the shipped checkpoint is sure of itself."""
    return request(greedy=False, temperature=50.0, end_ids=(), max_tokens=24, **sampling)


Make = Callable[..., Bench]


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder with a release of the stand-in: made, and compiled by Python, once."""
    folder = tmp_path_factory.mktemp("tensorrt_llm")

    def release(version: str) -> Path:
        if not (folder / version).exists():
            copy_tensorrt_llm(folder / version, version)
        return folder / version

    return release


@pytest.fixture
def library(
    releases: Callable[[str], Path], triton_utils: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], None]]:
    """Makes one release of the stand-in importable; what it left running is ended."""

    def choose(version: str) -> None:
        monkeypatch.syspath_prepend(str(releases(version)))

    yield choose
    made = sys.modules.get("tensorrt_llm.llm")
    for llm in made.BaseLLM.loaded if made else ():
        llm.shutdown()
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@pytest.fixture
def make(library: Callable[[str], None], tmp_path: Path) -> Iterator[Make]:
    """Loads an engine: make(world, version, parameter=value, llm_args={}, adapters=())."""
    opened = []

    def build(world: str, version: str, /, **changes: Any) -> Bench:
        library(version)
        folder = tmp_path / "1"
        artefact = {key: changes.pop(key) for key in ("llm_args", "adapters") if key in changes}
        write_artefact(CHECKPOINT, folder, world=world, version=version, **artefact)
        adapters = {name: f"lora/{name}" for name in artefact.get("adapters", ())}
        values = parameters(world, version) | {"lora_adapters": json.dumps(adapters)} | changes
        engine = engine_class()(folder, ModelParameters("speller_engine", values))
        opened.append(engine)
        return Bench(engine, sys.modules["tensorrt_llm.llm"].BaseLLM.loaded[-1])

    yield build
    for engine in opened:
        engine.close()


def engine_class() -> Any:
    """TrtllmEngine, from the model's file."""
    file = ROOT / "python_backends" / "trtllm_engine" / "model.py"
    return module_of(file, "trtllm_engine_model").TrtllmEngine


def parameters(world: str, version: str) -> dict[str, str]:
    """As in config.pbtxt."""
    return {
        "world": world,
        "tensorrt_llm": version,
        "tp_size": "1",
        "pp_size": "1",
        "max_seq_len": "512",
        "max_input_len": "511",
        "max_num_seqs": "4",
        "max_num_batched_tokens": "512",
        "eos_token_ids": "[1]",
        "vocab_size": "512",
        "kv_cache_config": '{"enable_block_reuse": true, "tokens_per_block": 4}',
        "guided_decoding_backend": "",
        "gather_generation_logits": "true",
        "lora_adapters": "{}",
    }


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "version"), RELEASES)
def test_greedy(make: Make, world: str, version: str) -> None:
    """The same ids in every world and release, the end id among them; several at once."""
    bench = make(world, version)
    one, *others = bench.run(*[request() for _ in range(6)])  # two wait for a slot
    assert (one.text, one.ids[-1], one.finish) == (ANSWER, EOS, FinishReason.STOP)
    assert [(other.ids, other.finish) for other in others] == [(one.ids, one.finish)] * 5
    assert bench.llm._executor.active == 0


@pytest.mark.parametrize(("world", "version"), RELEASES)
def test_ends(make: Make, world: str, version: str) -> None:
    """The length, no end id, another one, the first of several; each is part of the answer."""
    bench = make(world, version)
    [whole] = bench.run(request())
    fourth, sixth = whole.ids[3], whole.ids[5]
    short, endless, earlier, several = bench.run(
        request(max_tokens=3),
        request(end_ids=()),
        request(end_ids=(fourth,)),
        request(end_ids=(EOS, sixth)),
    )
    assert (short.ids, short.finish) == (whole.ids[:3], FinishReason.LENGTH)
    assert (len(endless.ids), endless.finish) == (40, FinishReason.LENGTH)
    assert endless.ids[: len(whole.ids)] == whole.ids
    for one, end in ((earlier, fourth), (several, sixth)):
        made = whole.ids[: whole.ids.index(end) + 1]
        assert (one.ids, one.finish) == (made, FinishReason.STOP)


@pytest.mark.parametrize(("world", "version"), RELEASES)
def test_min_tokens(make: Make, world: str, version: str) -> None:
    """No end before them; a reached end counts, although engines leave it out."""
    bench = make(world, version)
    whole, longer, reached = bench.run(
        request(), request(min_tokens=20, max_tokens=20), request(min_tokens=3)
    )
    assert (len(longer.ids), longer.finish) == (20, FinishReason.LENGTH)
    assert EOS not in longer.ids
    assert (reached.ids, reached.finish) == (whole.ids, FinishReason.STOP)
    with pytest.raises(
        RequestError, match=r"^min_tokens: .* can suppress one end id, but the request has 2"
    ):
        bench.engine.add(1, request(min_tokens=3, end_ids=(EOS, 7)))


@pytest.mark.parametrize(("world", "version"), COMPLETE)
def test_seeds(make: Make, world: str, version: str) -> None:
    """Equal seeds, equal text; without one each request draws its own; 64 bits are one."""
    bench = make(world, version)
    one, same, other, largest = bench.run(
        hot(seed=7), hot(seed=7), hot(seed=8), hot(seed=2**64 - 1)
    )
    assert one.ids == same.ids
    assert one.ids != other.ids
    assert len(largest.ids) == 24
    first, second = bench.run(hot(), hot())
    assert first.ids != second.ids


@pytest.mark.parametrize(("world", "version"), COMPLETE)
def test_top_p_and_min_p(make: Make, world: str, version: str) -> None:
    """A tiny top_p and a large min_p leave the most probable id."""
    bench = make(world, version)
    greedy, *others = bench.run(
        request(),
        request(greedy=False, temperature=1.9, top_p=1e-6, seed=1),
        request(greedy=False, temperature=1.9, min_p=0.999, seed=1),
        request(greedy=False, temperature=0.01, seed=1),
    )
    assert [other.ids for other in others] == [greedy.ids] * 3


@pytest.mark.parametrize(("world", "version"), COMPLETE)
def test_penalties(make: Make, world: str, version: str) -> None:
    """Each of them changes an answer that repeats itself."""
    bench = make(world, version)
    plain, *bent = bench.run(
        request(end_ids=()),
        request(end_ids=(), repetition_penalty=5.0),
        request(end_ids=(), presence_penalty=2.0, frequency_penalty=2.0),
    )
    assert all(one.ids != plain.ids for one in bent)


@pytest.mark.parametrize(("world", "version"), RELEASES)
def test_log_probs(make: Make, world: str, version: str) -> None:
    """One per id, of the chosen id, before everything that bends the choice."""
    bench = make(world, version)
    plain, told = bench.run(request(), request(log_probs=True))
    assert told.ids == plain.ids
    assert len(told.log_probs) == len(told.ids)
    assert all(value <= 0 for value in told.log_probs)
    assert math.exp(sum(told.log_probs)) > 0.5  # the shipped checkpoint is sure of itself
    assert plain.log_probs == []


@pytest.mark.parametrize(("world", "version"), COMPLETE)
@pytest.mark.parametrize("word", [b"hundred", b"thousand three", b"forty-two"])
def test_bad_words(make: Make, world: str, version: str, word: bytes) -> None:
    """Of one id and of several, wherever a space stands in front."""
    bench = make(world, version)
    [made] = bench.run(replace(request(), bad_words=(word,)))
    assert word.decode() not in made.text
    assert made.over


@pytest.mark.parametrize(("world", "version"), COMPLETE)
def test_resumed_answers_go_on(make: Make, world: str, version: str) -> None:
    """What another server made is prompt here; sampling does not draw its numbers again."""
    bench = make(world, version)
    [whole] = bench.run(request())
    joined = np.concatenate([request().token_ids, np.array(whole.ids[:4], dtype=np.int32)])
    rest = replace(request(max_tokens=36), token_ids=joined, num_resumed_ids=4)
    again = replace(hot(seed=7), num_resumed_ids=4)
    made, first, second = bench.run(rest, again, hot(seed=7))
    assert made.ids == whole.ids[4:]
    assert first.ids != second.ids


# --- cancellation and ends ------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "version"), COMPLETE)
def test_cancel_aborts(make: Make, world: str, version: str) -> None:
    """The slot is free, nothing more is told of it, the other stream goes on."""
    bench = make(world, version)
    made = {1: Made(), 2: Made()}
    bench.engine.add(1, request(end_ids=(), max_tokens=400))
    bench.engine.add(2, request(end_ids=(), max_tokens=60))
    bench.until(made, lambda: bool(made[1].ids and made[2].ids))
    bench.engine.cancel(1)
    had = list(made[1].ids)
    bench.until(made, lambda: made[2].over)
    assert made[1].ids == had
    assert (len(made[2].ids), made[2].error) == (60, None)
    bench.until(made, lambda: bench.llm._executor.active == 0)
    bench.engine.cancel(1)
    bench.engine.cancel(99)


def test_a_step_without_news_returns(make: Make) -> None:
    """So that a stream that makes none can be cancelled."""
    bench = make("engine", ENGINES)
    assert bench.engine.step() == []


def test_close_ends_the_runtime(make: Make) -> None:
    """With requests under way; it takes no more."""
    bench = make("engine", ENGINES)
    thread = bench.llm._executor.thread
    bench.engine.add(1, request(end_ids=(), max_tokens=400))
    bench.engine.close()
    assert not thread.is_alive()
    assert bench.llm._executor is None
    bench.engine.close = lambda: None


def test_an_error_of_the_runtime_ends_one_stream(make: Make) -> None:
    """With the runtime's own words; the other is none the worse."""
    bench = make("engine", ENGINES, guided_decoding_backend="xgrammar")
    strange = replace(request(), guide=GuideSpec("regex", "[0-9]+(nothing)"))
    with pytest.raises(RequestError, match="TensorRT-LLM rejects the request: the stand-in has no"):
        bench.engine.add(1, strange)
    stuck = replace(request(), guide=GuideSpec("regex", "(\ue000)"))  # no id begins it
    broken, whole = bench.run(stuck, request())
    assert whole.text == ANSWER
    assert "TensorRT-LLM gave the request up: Request failed" in str(broken.error)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ENGINES, CANDIDATE])
def test_what_the_torch_sampler_ignores_is_refused(make: Make, version: str) -> None:
    """By name. A seed that nobody needs is none."""
    bench = make("pytorch", version)
    for bent in (
        request(repetition_penalty=1.5),
        request(presence_penalty=1.5),
        request(frequency_penalty=1.5),
    ):
        with pytest.raises(RequestError, match=r"^[a-z]+_penalty: the PyTorch runtime of Tens"):
            bench.engine.add(1, bent)
    with pytest.raises(RequestError, match=r"^bad_words: .* ignores it"):
        bench.engine.add(1, replace(request(), bad_words=(b"seven",)))
    with pytest.raises(RequestError, match=r"^random_seed: .* ignores it"):
        bench.engine.add(1, hot(seed=1))
    with pytest.raises(RequestError, match=r"^min_p: .* ignores it"):
        bench.engine.add(1, hot(min_p=0.1))
    seeded, sampled = bench.run(request(seed=1), hot())
    assert seeded.text == ANSWER
    assert len(sampled.ids) == 24


def test_the_c_sampler_honours_everything(make: Make) -> None:
    """Where the artefact asks for it."""
    bench = make("pytorch", ENGINES, llm_args={"sampler_type": "TRTLLMSampler"})
    one, same = bench.run(hot(seed=7), hot(seed=7))
    assert one.ids == same.ids
    assert bench.run(replace(request(), bad_words=(b"seven",)))[0].text != ANSWER


def test_engines_without_logits_refuse_log_probs(make: Make) -> None:
    """By name, with the setting that helps."""
    bench = make("engine", ENGINES, gather_generation_logits="false")
    with pytest.raises(RequestError, match=r"^return_log_probs: .*gather_generation_logits to tru"):
        bench.engine.add(1, request(log_probs=True))
    assert bench.run(request())[0].text == ANSWER


def test_engines_take_no_large_top_k(make: Make) -> None:
    """They would cut it down without a word."""
    bench = make("engine", ENGINES)
    with pytest.raises(RequestError, match=r"top_k is 1025, .* at most 1024"):
        bench.engine.add(1, hot(top_k=1025))
    assert bench.run(hot(top_k=1024))[0].finish is FinishReason.LENGTH


# --- LoRA and guides ------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "version"), RELEASES)
def test_lora_by_name(make: Make, world: str, version: str) -> None:
    """Each adapter has its own answer, beside the model's; an unknown one is refused."""
    bench = make(world, version, adapters=("french", "german"))
    plain, french, german, again = bench.run(
        request(),
        replace(request(), lora_name="french"),
        replace(request(), lora_name="german"),
        replace(request(), lora_name="french"),
    )
    assert plain.text == ANSWER
    assert len({tuple(one.ids) for one in (plain, french, german)}) == 3
    assert again.ids == french.ids
    with pytest.raises(RequestError, match="lora_name is 'dutch', the model has french, german"):
        bench.engine.add(1, replace(request(), lora_name="dutch"))


def test_adapters_of_nemo_say_so(make: Make, tmp_path: Path) -> None:
    """Engines have them as files; the library looks for a folder of PEFT unless it is told."""
    make("engine", ENGINES)
    file = tmp_path / "0.nemo"
    file.write_bytes(b"an archive")
    module = importlib.import_module("trtllmlib.runtime")
    runtime = module.TrtllmRuntime("engine", ENGINES, adapters={"fr": file, "de": tmp_path})
    asked = [runtime.lora_request(name) for name in ("fr", "de")]
    assert [one.lora_ckpt_source for one in asked] == ["nemo", "hf"]


# --- speculative decoding -------------------------------------------------------------------------

DRAFT = {"decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 2}


@pytest.mark.parametrize("version", [ENGINES, CANDIDATE, LATER])
def test_speculative_decoding_loads(make: Make, version: str) -> None:
    """Before 1.3 as an object of its class, from then on as it is; the file stays as it was."""
    bench = make("pytorch", version, llm_args={"speculative_config": DRAFT})
    given = bench.llm.kwargs["speculative_config"]
    kind = given["decoding_type"] if version != ENGINES else given.decoding_type
    assert kind == "NGram"
    [made] = bench.run(request())
    assert made.text == ANSWER


@pytest.mark.parametrize("version", [ENGINES, CANDIDATE])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decoding_type": "Unknown"}, "Invalid decoding type: Unknown"),
        ({"max_draft_len": None}, "max_draft_len is required for NGram"),
        ({"decoding_type": "Medusa", "max_matching_ngram_size": None}, "speculative_config|Extra"),
    ],
)
def test_speculative_decoding_that_is_refused(
    make: Make, version: str, changes: dict[str, Any], said: str
) -> None:
    """At load, in the library's own words, with where it comes from."""
    with pytest.raises(ModelConfigurationError, match=said):
        make("pytorch", version, llm_args={"speculative_config": DRAFT | changes})


# --- the stand-in is as strict as the library -----------------------------------------------------


@pytest.mark.parametrize(
    ("version", "settings"),
    [
        (ENGINES, {"top_p": 1.5}),
        (ENGINES, {"top_p": -0.1}),
        (ENGINES, {"top_k": -1}),
        (ENGINES, {"temperature": -1.0}),
        (ENGINES, {"n": 2}),
        (ENGINES, {"n": 2, "temperature": 0.5}),
        (LATER, {"best_of": 2, "temperature": 0.0}),
        (LATER, {"n": 2, "top_k": 1, "temperature": 1.0}),
        (LATER, {"n": 2, "best_of": 1, "top_k": 5}),
        (LATER, {"truncate_prompt_tokens": 0}),
    ],
)
def test_sampling_out_of_range(
    library: Callable[[str], None], version: str, settings: dict[str, Any]
) -> None:
    """Ranges, and several answers of a request that has only one."""
    library(version)
    with pytest.raises(ValueError, match=r"range|Greedy|best_of"):
        importlib.import_module("tensorrt_llm").SamplingParams(**settings)


@pytest.mark.parametrize(
    ("version", "settings"),
    [
        (ENGINES, {"n": 2, "top_k": 5}),
        (LATER, {"n": 2, "temperature": 0.5}),
        (LATER, {"n": 2, "use_beam_search": True}),
        (ENGINES, {"top_p": 0.0, "top_k": 0, "temperature": 0.0}),
    ],
)
def test_sampling_in_range(
    library: Callable[[str], None], version: str, settings: dict[str, Any]
) -> None:
    """What the library takes; greedy is another thing before 1.3."""
    library(version)
    importlib.import_module("tensorrt_llm").SamplingParams(**settings)


def test_an_adapter_without_a_name(library: Callable[[str], None], tmp_path: Path) -> None:
    """Is refused before its folder is looked at."""
    library(ENGINES)
    executor = importlib.import_module("tensorrt_llm.executor")
    with pytest.raises(ValueError, match="must not be empty"):
        executor.LoRARequest("", 1, str(tmp_path))


def test_arguments_that_the_library_has(make: Make) -> None:
    """Waiting for batches, and the mode for one user."""
    waits = {"batch_wait_timeout_ms": 1.0, "batch_wait_timeout_iters": 2}
    waits |= {"batch_wait_max_tokens_ratio": 0.5}
    bench = make("pytorch", LATER, llm_args={**waits, "enable_min_latency": True})
    assert bench.llm.kwargs["batch_wait_timeout_ms"] == 1.0


@pytest.fixture
def packaged(tmp_path: Path) -> Path:
    """What the stage package of builders/tensorrt_llm makes of the shipped checkpoint, two
    adapters named; the adapters' sources are gone afterwards."""
    source, staging = tmp_path / "source", tmp_path / "packaged" / "1"
    shutil.copytree(CHECKPOINT, source / "checkpoint")
    config = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    sources = [tmp_path / "adapters" / name for name in ("german", "french")]
    for number, folder in enumerate(sources):
        write_adapter(folder, config, random.Random(number))  # noqa: S311
    lora = {"lora_dir": [str(folder) for folder in sources], "max_lora_rank": 8}
    request = trtllm.request(
        CHECKPOINT,
        source,
        stage="package",
        precision="bf16",
        target={"world": "pytorch", "tensorrt_llm": LATER},
        options={"lora_config": lora},
        limits={"max_seq_len": 512},
    )
    staging.parent.mkdir()
    done = trtllm.run_stage("package.py", staging, request, tmp_path)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "adapters")
    return staging


def test_adapters_that_the_builder_packaged(
    library: Callable[[str], None], packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From lora_config.lora_dir to the LoRARequest of LLM.generate_async; unknown: refused."""
    library(LATER)
    runtime = json.loads((packaged.parent / "S.json").read_text(encoding="utf-8"))["runtime"]
    assert runtime["lora_adapters"] == {"german": "lora/german", "french": "lora/french"}
    values = parameters("pytorch", LATER) | {
        "lora_adapters": json.dumps(runtime["lora_adapters"]),
        "kv_cache_config": json.dumps(runtime["kv_cache_config"]),
    }
    with closing(engine_class()(packaged, ModelParameters("speller_engine", values))) as engine:
        bench = Bench(engine, sys.modules["tensorrt_llm.llm"].BaseLLM.loaded[-1])
        config = bench.llm.kwargs["lora_config"]
        assert config.lora_dir == [str(packaged / "lora" / name) for name in ("french", "german")]
        assert (config.max_lora_rank, config.max_loras, config.max_cpu_loras) == (8, 2, 2)
        assert config.lora_target_modules == ["attn_q", "attn_k", "attn_v"]
        asked: list[Any] = []
        through = bench.llm.generate_async

        def listening(*positional: Any, **named: Any) -> Any:
            asked.append(named.get("lora_request"))
            return through(*positional, **named)

        monkeypatch.setattr(bench.llm, "generate_async", listening)
        plain, french, german = bench.run(
            request(),
            replace(request(), lora_name="french"),
            replace(request(), lora_name="german"),
        )
        assert asked[0] is None
        for made, name in zip(asked[1:], ("french", "german"), strict=True):
            assert (made.lora_name, made.lora_path) == (name, str(packaged / "lora" / name))
        assert len({made.lora_int_id for made in asked[1:]}) == 2
        assert plain.text == ANSWER
        assert len({tuple(one.ids) for one in (plain, french, german)}) == 3
        with pytest.raises(
            RequestError, match="lora_name is 'dutch', the model has french, german"
        ):
            engine.add(9, replace(request(), lora_name="dutch"))


def test_lora_settings_that_the_runtime_refuses(make: Make) -> None:
    """Named with the field that they come from."""
    llm_args = {"lora_config": {"max_lora_rank": "8"}}
    with pytest.raises(ModelConfigurationError, match=r"max_lora_rank.*engine\.options\.package"):
        make("pytorch", LATER, adapters=("french",), llm_args=llm_args)


def test_lora_without_adapters(make: Make) -> None:
    """Refused by name."""
    bench = make("engine", ENGINES)
    with pytest.raises(RequestError, match="lora_name is 'french', the model has no adapters"):
        bench.engine.add(1, replace(request(), lora_name="french"))


@pytest.mark.parametrize(("world", "version"), RELEASES)
def test_guides(make: Make, world: str, version: str) -> None:
    """The answer is one of those that the guide allows, whatever else ends it."""
    bench = make(world, version, guided_decoding_backend="xgrammar")
    guide = GuideSpec("regex", "( seven million| eight)")
    made, endless = bench.run(
        replace(request(), guide=guide), replace(request(end_ids=()), guide=guide)
    )
    assert (made.text, made.finish) == (" seven million", FinishReason.STOP)
    assert endless.ids == made.ids
    with pytest.raises(RequestError, match=r"guided_decoding_guide_type: .* after resume_ids"):
        bench.engine.add(1, replace(request(), guide=guide, num_resumed_ids=2))


def test_guides_of_every_type(make: Make) -> None:
    """Each in its own field."""
    make("engine", ENGINES)
    module = importlib.import_module("trtllmlib.sampling_params")
    runtime = importlib.import_module("trtllmlib.runtime").TrtllmRuntime(
        "engine", ENGINES, guided=True
    )
    translator = module.SamplingTranslator(runtime, (EOS,), lambda _: [])
    guides = {
        GuideSpec("json"): ("json_object", True),
        GuideSpec("json_schema", '{"type": "object"}'): ("json", '{"type": "object"}'),
        GuideSpec("regex", "[0-9]+"): ("regex", "[0-9]+"),
        GuideSpec("ebnf_grammar", 'root ::= "a"'): ("grammar", 'root ::= "a"'),
    }
    for guide, (name, value) in guides.items():
        made = translator.translate(replace(request(), guide=guide))
        assert getattr(made.guided_decoding, name) == value


def test_guides_need_a_backend(make: Make) -> None:
    """Else the runtime would ignore them."""
    bench = make("engine", ENGINES)
    with pytest.raises(RequestError, match=r"guided_decoding_guide_type: .*without guided"):
        bench.engine.add(1, replace(request(), guide=GuideSpec("json")))


# --- settings -------------------------------------------------------------------------------------


def test_kv_cache_settings(make: Make) -> None:
    """Those of the artefact under those of config.pbtxt."""
    bench = make(
        "pytorch",
        LATER,
        llm_args={"kv_cache_config": {"dtype": "fp8", "max_tokens": 64}},
        kv_cache_config='{"max_tokens": 2048, "free_gpu_memory_fraction": 0.5}',
    )
    config = bench.llm.kwargs["kv_cache_config"]
    assert (config.dtype, config.max_tokens) == ("fp8", 2048)
    assert config.free_gpu_memory_fraction == 0.5


@pytest.mark.parametrize(("world", "version"), COMPLETE)
def test_arguments_of_the_builder_reach_the_runtime(make: Make, world: str, version: str) -> None:
    """In both worlds: how long prompts are processed was decided when the engine was built."""
    bench = make(world, version, llm_args={"enable_chunked_prefill": True})
    assert bench.llm.kwargs["enable_chunked_prefill"] is True


@pytest.mark.parametrize(("world", "version"), COMPLETE)
def test_kv_cache_metrics(
    make: Make, world: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks in use while a stream runs, none later; what the prefix cache had."""
    bench = make(world, version)
    assert bench.engine.kv_cache().used is None
    made = {1: Made(), 2: Made()}
    with monkeypatch.context() as hurried:  # an end waits as long as statistics do
        hurried.setattr("trtllmlib.llm_streams._STATS_SECONDS", 0.02)
        bench.engine.add(1, request(end_ids=(), max_tokens=250))
        bench.until(made, lambda: bool(bench.engine.kv_cache().used))
        bench.until(made, lambda: made[1].over)
        bench.engine.add(2, request())
        bench.until(made, lambda: made[2].over and bool(bench.engine.kv_cache().reused))
    cache = bench.engine.kv_cache()
    assert (cache.used, cache.free) == (0, 1000)
    assert cache.missed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kv_cache_config": '{"max_tokenz": 1}'}, "max_tokenz.*Correct serving.runtime.kv_cache"),
        ({"kv_cache_config": '{"free_gpu_memory_fraction": 2.0}'}, "between 0 and 1"),
        (
            {"kv_cache_config": '{"dtype": "fp8"}'},
            "dtype is fp8, but compiling fixes an engine's dtype",
        ),
        ({"world": "both"}, "'world' in config.pbtxt is 'both', expected one of engine, pytorch"),
        ({"tensorrt_llm": "1.1.0"}, "compiled by TensorRT-LLM 1.1.0, this is 1.2.1, and engines"),
        ({"guided_decoding_backend": "llguidance"}, "cannot load .* Unsupported guided decoding"),
        ({"lora_adapters": '{"french": "lora/french"}'}, "french is missing"),
        ({"tp_size": "2"}, "the engine is of 1 ranks, 2 were asked for"),
    ],
)
def test_settings_that_cannot_be_served(make: Make, changes: dict[str, str], said: str) -> None:
    """At load, with what to correct."""
    with pytest.raises(ModelConfigurationError, match=said):
        make("engine", ENGINES, **changes)


@pytest.mark.parametrize("version", [CANDIDATE, LATER])
def test_later_releases_run_no_engines(make: Make, version: str) -> None:
    """Said at load, with the last that can."""
    with pytest.raises(
        ModelConfigurationError, match=r"cannot run compiled engines: .* is 1\.2\.1"
    ):
        make("engine", version)


def test_unknown_arguments_of_the_artefact(make: Make) -> None:
    """The library's own words."""
    with pytest.raises(ModelConfigurationError, match="LLM got invalid argument: max_batchsize"):
        make("pytorch", LATER, llm_args={"max_batchsize": 3})


def test_without_the_library(library: Callable[[str], None], tmp_path: Path) -> None:
    """Which image has it."""
    write_artefact(CHECKPOINT, tmp_path / "1", world="engine", version=ENGINES)
    values = ModelParameters("speller_engine", parameters("engine", ENGINES))
    with pytest.raises(ModelConfigurationError, match=r"needs a Triton image with TensorRT-LLM"):
        engine_class()(tmp_path / "1", values)


def test_incomplete_artefact(library: Callable[[str], None], tmp_path: Path) -> None:
    """The missing file is named."""
    library(LATER)
    write_artefact(CHECKPOINT, tmp_path / "1", world="pytorch", version=LATER)
    (tmp_path / "1" / "llm_args.json").unlink()
    values = ModelParameters("speller_engine", parameters("pytorch", LATER))
    with pytest.raises(ModelConfigurationError, match=r"llm_args\.json is missing"):
        engine_class()(tmp_path / "1", values)


@pytest.mark.parametrize(
    ("version", "since", "is_later"),
    [
        ("1.3.0rc29", "1.3.0rc29", True),
        ("1.3.0rc9", "1.3.0rc29", False),
        ("1.3.0", "1.3.0rc29", True),
        ("1.4.0rc1", "1.3.0rc29", True),
        ("1.2.1", "1.3.0rc29", False),
        ("1.10.0", "1.3.0rc29", True),
    ],
)
def test_order_of_versions(
    library: Callable[[str], None], version: str, since: str, is_later: bool
) -> None:
    """Candidates come before their release, numbers are numbers."""
    runtime = importlib.import_module("trtllmlib.runtime")
    assert runtime.is_same_or_later(version, since) is is_later
