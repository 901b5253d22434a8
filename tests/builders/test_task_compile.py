# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint is for, compiled from its own files; what is not known is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders.conftest import BUILDERS, Refusal, modules_of, safetensors, write_json

NAMES = (
    "taskcompile.task",
    "taskcompile.prompts",
    "taskcompile.sentence_modules",
    "taskcompile.scores",
    "taskcompile.compile",
    "taskproof.evaluation_set",
    "taskproof.figures",
)
CONFIG = {"architectures": ["BertModel"], "hidden_size": 8}
OLD = {
    "Transformer": "sentence_transformers.models.Transformer",
    "Pooling": "sentence_transformers.models.Pooling",
    "Dense": "sentence_transformers.models.Dense",
    "Normalize": "sentence_transformers.models.Normalize",
}
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
DENSE = {"in_features": 8, "out_features": 4, "bias": False}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"

Compile = Callable[..., Any]


@pytest.fixture(scope="module")
def builder() -> Iterator[SimpleNamespace]:
    """The modules that compile tasks, and buildlib's."""
    with modules_of("onnxruntime", NAMES) as modules:
        for name in NAMES:
            setattr(modules, name.rpartition(".")[2], vars(modules)[name])
        yield modules


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A plain encoder with its tokenizer."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "tokenizer.json", {})
    write_json(folder / "tokenizer_config.json", {"model_max_length": 50})
    return folder


@pytest.fixture
def compiled(builder: SimpleNamespace, folder: Path) -> Compile:
    """Compile the folder for a task."""

    def compiled(
        task: str = "embedding",
        *,
        pooling: str | None = None,
        normalize: bool = False,
        limits: dict[str, int] | None = None,
        **changes: Any,
    ) -> Any:
        request = builder.request_types.BuilderRequest(
            model="m",
            checkpoint=folder,
            precision="fp32",
            limits=builder.request_types.RequestedLimits(8, **(limits or {})),
            task=task,
            **changes,
        )
        encoder = builder.compile.EncoderFacts("BertModel", 30, 8, 64, 0, INPUTS)
        return builder.compile.compile_task(request, encoder, pooling=pooling, normalize=normalize)

    return compiled


def save(folder: Path, *modules: tuple[str, dict[str, Any]], types: dict[str, str] = OLD) -> None:
    """Write modules.json and the modules' folders; a Dense gets weights."""
    entries = [{"idx": 0, "name": "0", "path": "", "type": types["Transformer"]}]
    for index, (kind, config) in enumerate(modules, start=1):
        path = f"{index}_{kind}"
        (folder / path).mkdir()
        write_json(folder / path / "config.json", config)
        if kind == "Dense":
            safetensors(folder / path / "model.safetensors")
        name = types.get(kind, f"sentence_transformers.models.{kind}")
        entries.append({"idx": index, "name": str(index), "path": path, "type": name})
    write_json(folder / "modules.json", entries)


def configure(folder: Path, **changes: Any) -> None:
    write_json(folder / "config.json", CONFIG | changes)


# Embeddings.

MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@pytest.mark.parametrize("mode", MODES)
def test_pooling_in_both_formats(
    builder: SimpleNamespace, folder: Path, compiled: Compile, mode: str
) -> None:
    """Flags of old saves, the mode's name of new ones: one and the same task."""
    flags = {flag: flag == MODES[mode] for flag in MODES.values()}
    save(folder, ("Pooling", {"word_embedding_dimension": 8, **flags}))
    old = compiled()
    assert old.steps == (builder.task.Pooling((mode,)),)
    assert (old.dimension, old.normalized) == (8, False)
    for path in (folder / "1_Pooling").iterdir():
        path.unlink()
    (folder / "1_Pooling").rmdir()
    save(folder, ("Pooling", {"embedding_dimension": 8, "pooling_mode": mode}), types=NEW)
    assert compiled() == old


def test_several_modes_are_concatenated_in_their_order(folder: Path, compiled: Compile) -> None:
    """Flags have the library's order, a list has its own; all flags false is the mean."""
    flags = {MODES["mean"]: True, MODES["cls"]: True, MODES["lasttoken"]: True}
    save(folder, ("Pooling", flags))
    assert compiled().steps[0].modes == ("cls", "mean", "lasttoken")
    assert compiled().dimension == 24
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": ["mean", "cls"]})
    assert compiled().steps[0].modes == ("mean", "cls")
    write_json(folder / "1_Pooling" / "config.json", dict.fromkeys(MODES.values(), False))
    assert compiled().steps[0].modes == ("mean",)


@pytest.mark.parametrize("types", [OLD, NEW], ids=["old", "new"])
def test_dense_and_normalize(
    builder: SimpleNamespace, folder: Path, compiled: Compile, types: dict[str, str]
) -> None:
    """Their settings and their order; Tanh is the library's default."""
    new = types is NEW
    others = {"activation_function": IDENTITY, "use_residual": True} if new else {}
    save(folder, ("Pooling", {}), ("Dense", DENSE | others), ("Normalize", {}), types=types)
    task = compiled()
    _, dense, last = task.steps
    assert (dense.out_features, dense.bias, dense.residual) == (4, False, new)
    assert dense.activation == ("Identity" if new else "Tanh")
    assert isinstance(last, builder.task.Normalize)
    assert (task.dimension, task.normalized) == (4, True)


def test_normalize_before_dense_does_not_count(folder: Path, compiled: Compile) -> None:
    save(folder, ("Pooling", {}), ("Normalize", {}), ("Dense", DENSE))
    assert not compiled().normalized


def test_how_texts_are_read(folder: Path, compiled: Compile) -> None:
    """Length, small letters, prompts: each from the library's own file."""
    save(folder, ("Pooling", {"include_prompt": False}))
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 40, "do_lower_case": True})
    prompts = {"query": "find: ", "document": None}
    settings = {"prompts": prompts, "default_prompt_name": "query"}
    write_json(folder / "config_sentence_transformers.json", settings)
    task = compiled()
    assert (task.text.max_seq_len, task.text.lower_case) == (40, True)
    assert task.text.prompts == {"query": "find: ", "document": ""}
    assert task.text.default_prompt == "query"
    assert task.inputs == (*INPUTS, "pooling_mask")
    assert compiled(limits={"max_seq_len": 30}).text.max_seq_len == 30
    record = task.record("1.0")
    assert record["schema"] == "tritonctl.task/1"
    assert record["embedding"] == {"dimension": 8, "normalized": False}
    assert record["reference"]["class"] == "SentenceTransformer"
    assert "activation" not in record
    assert json.loads(json.dumps(record))["text"]["include_prompt"] is False


@pytest.mark.parametrize(("own", "longest"), [(50, 50), (1e30, 64), (100, 64), (None, 64)], ids=str)
def test_the_tokenizer_s_length_within_the_model_s(
    folder: Path, compiled: Compile, own: float | None, longest: int
) -> None:
    """Without a length of sentence-transformers' own."""
    save(folder, ("Pooling", {}))
    write_json(folder / "tokenizer_config.json", {"model_max_length": own})
    assert compiled().text.max_seq_len == longest


def test_a_plain_encoder_needs_to_be_told(
    builder: SimpleNamespace, folder: Path, compiled: Compile, refusal: Refusal
) -> None:
    """Its pooling is not guessed; with modules.json it is not overruled."""
    said = refusal(compiled)
    assert "has no modules.json, so nothing says how BertModel makes one vector" in said
    assert "Set engine.options.pooling as the model's authors say" in said
    task = compiled(pooling="lasttoken", normalize=True)
    assert task.steps == (builder.task.Pooling(("lasttoken",)), builder.task.Normalize())
    save(folder, ("Pooling", {}))
    assert "says how this model makes its vectors" in refusal(lambda: compiled(pooling="cls"))


def write_modules(folder: Path, **changes: Any) -> None:
    """Change the last module of modules.json."""
    file = folder / "modules.json"
    entries = json.loads(file.read_text(encoding="utf-8"))
    entries[-1] |= changes
    write_json(file, entries)


POOL: tuple[str, dict[str, Any]] = ("Pooling", {})


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ([], "has no Pooling"),
        ([POOL, ("WeightedLayerPooling", {})], "the module sentence_transformers.models.Weighted"),
        ([POOL, ("Poolin", {})], "did you mean Pooling?"),
        ([("Dense", DENSE), POOL], "Dense stands where one Pooling"),
        ([POOL, POOL], "Pooling stands where one Pooling"),
        ([("Pooling", {"pooling_mode": "media"})], "pooling_mode 'media' is not known"),
        ([("Pooling", {"word_embedding_dimension": 9})], "word_embedding_dimension is 9, and the"),
        ([("Pooling", {"pooling_mode_median": True})], "pooling_mode_median is True, which this"),
        ([POOL, ("Dense", DENSE | {"in_features": 7})], "takes 7 values and gives 4"),
        ([POOL, ("Dense", DENSE | {"activation_function": "my.Swish"})], "activation my.Swish"),
        ([POOL, ("Dense", DENSE | {"activation_function": "torch.nn.Tan"})], "mean Tanh?"),
        ([POOL, ("Dense", DENSE | {"module_input_name": "token_embeddings"})], "module_input_name"),
        ([POOL, ("Normalize", {"axis": 0})], "axis is 0, which this builder does not know"),
    ],
)
def test_modules_that_are_not_known(
    folder: Path,
    compiled: Compile,
    refusal: Refusal,
    modules: list[tuple[str, dict[str, Any]]],
    words: str,
) -> None:
    save(folder, *modules)
    assert words in refusal(compiled)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "my_code.Pooling"}, "the module my_code.Pooling is not known"),
        ({"kwargs": ["task"]}, "is called with kwargs ['task']"),
        ({"path": "../elsewhere"}, "lies outside the checkpoint"),
    ],
)
def test_entries_that_are_not_known(
    folder: Path, compiled: Compile, refusal: Refusal, change: dict[str, Any], words: str
) -> None:
    save(folder, POOL)
    write_modules(folder, **change)
    assert words in refusal(compiled)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("sentence_bert_config.json", {"max_seq_length": "512"}, "max_seq_length is '512'"),
        ("sentence_bert_config.json", {"query_expansion": {"length": 3}}, "query_expansion is"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task is"),
        (
            "sentence_bert_config.json",
            {"modality_config": {"image": {"method_output_name": "pooler_output"}}},
            "modality_config is",
        ),
        ("config_sentence_transformers.json", {"default_prompt_name": "q"}, "and its prompts are"),
        ("config_sentence_transformers.json", {"prompts": {"q": 3}}, "expected texts by name"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "SparseEncoder"),
        ("tokenizer_config.json", {"truncation_side": "middle"}, "truncation_side is 'middle'"),
    ],
)
def test_settings_that_are_not_known(
    folder: Path,
    compiled: Compile,
    refusal: Refusal,
    file: str,
    content: dict[str, Any],
    words: str,
) -> None:
    save(folder, POOL)
    write_json(folder / file, content)
    assert words in refusal(compiled)


def test_settings_that_change_nothing(folder: Path, compiled: Compile) -> None:
    """What new saves always write."""
    save(folder, POOL, types=NEW)
    text = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    settings = {
        "transformer_task": "feature-extraction",
        "modality_config": text,
        "module_output_name": "token_embeddings",
        "processing_kwargs": {},
        "unpad_inputs": None,
    }
    write_json(folder / "sentence_bert_config.json", settings)
    assert compiled().text.max_seq_len == 50


def test_a_pickled_dense(folder: Path, compiled: Compile, refusal: Refusal) -> None:
    save(folder, POOL, ("Dense", DENSE))
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    assert "as a Python pickle only" in refusal(compiled)
    assert compiled(allow_pickle=True).dimension == 4


def test_code_of_the_checkpoint_s_own(folder: Path, compiled: Compile, refusal: Refusal) -> None:
    """It cannot be compiled, so it is refused; so is trusting it."""
    save(folder, POOL)
    assert "engine.trust_remote_code is true" in refusal(lambda: compiled(trust_remote_code=True))
    configure(folder, auto_map={"AutoModel": "modeling.Own"})
    assert "brings its own code (auto_map)" in refusal(compiled)


def test_lengths_that_contradict(folder: Path, compiled: Compile, refusal: Refusal) -> None:
    save(folder, POOL)
    said = refusal(lambda: compiled(limits={"max_seq_len": 51}))
    assert "engine.max_seq_len is 51, and" in said
    assert "reads 50 tokens of a text" in said
    said = refusal(lambda: compiled(limits={"max_num_tokens": 49}))
    assert "engine.max_num_tokens is 49, and one text may have 50 tokens" in said


def test_without_a_tokenizer(folder: Path, compiled: Compile, refusal: Refusal) -> None:
    save(folder, POOL)
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in refusal(compiled)


def test_a_tokenizer_of_another_model(folder: Path, compiled: Compile, refusal: Refusal) -> None:
    save(folder, POOL)
    write_json(folder / "tokenizer.json", {"model": {"vocab": {"a": 0, "b": 30}}})
    assert "has token ids up to 30, and the model knows 30" in refusal(compiled)


# Scores.


@pytest.mark.parametrize(
    ("problem_type", "labels", "activation"),
    [
        (None, 3, "softmax"),
        (None, 1, "sigmoid"),
        ("single_label_classification", 3, "softmax"),
        ("multi_label_classification", 3, "sigmoid"),
        ("regression", 1, "none"),
        ("regression", 2, "none"),
    ],
)
def test_the_activation_of_a_classifier(
    folder: Path, compiled: Compile, problem_type: str | None, labels: int, activation: str
) -> None:
    """As transformers' pipeline chooses it."""
    names = {str(n): f"label {n}" for n in range(labels)}
    configure(folder, problem_type=problem_type, id2label=names)
    task = compiled("classification")
    assert (task.activation, task.labels) == (activation, tuple(names.values()))
    assert not task.text.pair  # a second text is optional
    assert task.record("1")["activation"] == activation
    assert task.output == "scores"


def test_labels_that_transformers_leaves_out(folder: Path, compiled: Compile) -> None:
    """Two of them, and nothing in config.json."""
    assert compiled("classification").labels == ("LABEL_0", "LABEL_1")
    configure(folder, num_labels=3)
    assert compiled("token_classification").labels == ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"problem_type": "ranking"}, "problem_type is 'ranking'"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label has the numbers 0, 2, expected 0 to 1"),
        ({"id2label": {"0": "a", "1": "a"}}, "id2label has 'a' more than once"),
        ({"id2label": ["a", "b"]}, "id2label is ['a', 'b'], expected names by number"),
        ({"id2label": {"0": "a"}, "num_labels": 2}, "num_labels is 2, and id2label has 1"),
    ],
)
def test_labels_that_cannot_be_read(
    folder: Path, compiled: Compile, refusal: Refusal, config: dict[str, Any], words: str
) -> None:
    configure(folder, **config)
    assert words in refusal(lambda: compiled("classification"))


ONE = {"id2label": {"0": "LABEL_0"}}


@pytest.mark.parametrize(
    ("config", "settings", "activation"),
    [
        ({}, {}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, {}, "none"),
        ({"sbert_ce_default_activation_function": IDENTITY}, {}, "none"),
        ({"sbert_ce_default_activation_function": IDENTITY}, {"activation_fn": SIGMOID}, "sigmoid"),
    ],
)
def test_the_activation_of_a_reranker(
    folder: Path,
    compiled: Compile,
    config: dict[str, Any],
    settings: dict[str, Any],
    activation: str,
) -> None:
    """Each of the keys that sentence-transformers has used; Sigmoid without one."""
    configure(folder, **ONE, **config)
    write_json(folder / "config_sentence_transformers.json", settings)
    task = compiled("rerank")
    assert (task.activation, task.text.pair, task.reference) == (activation, True, "CrossEncoder")


@pytest.mark.parametrize(
    ("config", "settings", "words"),
    [
        ({"id2label": {"0": "no", "1": "yes"}}, {}, "has 2 labels (no, yes), and a reranker"),
        (ONE | {"sbert_ce_default_activation_function": "torch.nn.ReLU"}, {}, "torch.nn.ReLU"),
        (ONE, {"activation_fn": "my.Scale"}, "activation_fn is my.Scale, which is not known"),
        (ONE, {"model_type": "SentenceTransformer"}, "is for a CrossEncoder"),
        (ONE, {"prompts": {"q": "find "}, "default_prompt_name": "q"}, "puts the prompt 'q' in"),
    ],
)
def test_rerankers_that_are_refused(
    folder: Path,
    compiled: Compile,
    refusal: Refusal,
    config: dict[str, Any],
    settings: dict[str, Any],
    words: str,
) -> None:
    configure(folder, **config)
    write_json(folder / "config_sentence_transformers.json", settings)
    assert words in refusal(lambda: compiled("rerank"))


def test_a_cross_encoder_of_several_modules(
    folder: Path, compiled: Compile, refusal: Refusal
) -> None:
    configure(folder, **ONE)
    save(folder, POOL, ("Dense", DENSE), types=NEW)
    assert "its modules are Transformer, Pooling, Dense" in refusal(lambda: compiled("rerank"))


def test_pooling_of_what_has_no_vectors(compiled: Compile, refusal: Refusal) -> None:
    said = refusal(lambda: compiled("classification", pooling="cls"))
    assert "the task classification has no vectors" in said


@pytest.mark.parametrize(
    ("task", "name", "head"),
    [
        ("embedding", "MPNetForMaskedLM", "MPNetModel"),
        ("embedding", "BertModel", "BertModel"),
        ("rerank", "BertForSequenceClassification", "BertForSequenceClassification"),
        (None, "BertForTokenClassification", "BertForTokenClassification"),
    ],
)
def test_the_class_that_is_exported(
    builder: SimpleNamespace, task: str | None, name: str, head: str
) -> None:
    """Many an encoder was saved with the head that it was trained with."""
    assert builder.compile.exported_class(task, name) == head


def test_a_class_of_another_task(builder: SimpleNamespace, refusal: Refusal) -> None:
    said = refusal(lambda: builder.compile.exported_class("classification", "BertModel"))
    assert "needs a checkpoint of a class ...ForSequenceClassification" in said
    assert "Set task to embedding" in said
    name = "BertForSequenceClassification"
    said = refusal(lambda: builder.compile.exported_class("token_classification", name))
    assert "Set task to classification or rerank" in said


# A set of the user's own.


def own_set(builder: SimpleNamespace, task: Any, file: Path, text: str) -> Any:
    file.write_text(text, encoding="utf-8")
    asked = builder.request_types.RequestedEvaluation(file, 1, max_prompts=2)
    return builder.evaluation_set.read_evaluation_set(asked, task)


def test_a_set_of_pairs_and_one_with_labels(
    builder: SimpleNamespace, folder: Path, compiled: Compile, tmp_path: Path
) -> None:
    """As many lines as are asked for; empty ones do not count."""
    save(folder, POOL)
    pairs = '{"query": "a", "text": "b"}\n\n' * 3
    own = own_set(builder, compiled(), tmp_path / "set.jsonl", pairs)
    assert (own.inputs, own.targets) == (["a", "a"], ["b", "b"])
    (folder / "modules.json").unlink()
    labelled = '{"text_input": "a", "label": "LABEL_1"}'
    own = own_set(builder, compiled("classification"), tmp_path / "set.jsonl", labelled)
    assert (own.inputs, own.targets) == (["a"], ["LABEL_1"])


@pytest.mark.parametrize(
    ("task", "text", "words"),
    [
        ("classification", '{"text_input": "a", "label": "x"}', "the label 'x', which the model"),
        (
            "classification",
            '{"query": "a", "text": "x"}',
            "set.jsonl:1: needs text_input and label",
        ),
        ("classification", "", "holds no lines"),
        ("classification", "{", "set.jsonl:1: is not valid JSON"),
        ("token_classification", "", "the task token_classification has no measure"),
    ],
)
def test_a_set_that_cannot_be_read(
    builder: SimpleNamespace,
    compiled: Compile,
    refusal: Refusal,
    tmp_path: Path,
    task: str,
    text: str,
    words: str,
) -> None:
    file = tmp_path / "set.jsonl"
    assert words in refusal(lambda: own_set(builder, compiled(task), file, text))


def test_compiling_needs_no_library() -> None:
    """`plan` asks in an interpreter that has the standard library alone."""
    folder = BUILDERS / "shared" / "taskcompile"
    for file in folder.glob("*.py"):
        lines = file.read_text(encoding="utf-8").splitlines()
        imports = [line.split()[1] for line in lines if line.startswith(("from ", "import "))]
        known = {"buildlib", "taskcompile", "collections", "dataclasses", "json", "pathlib"}
        known |= {"tasklib"}  # task_file alone, which has no dependencies
        assert {name.partition(".")[0] for name in imports} <= known | {"typing"}, file


# Token types.


@pytest.mark.parametrize(
    ("settings", "reads_types"),
    [
        ({}, True),
        ({"tokenizer_class": "BertTokenizer"}, True),
        ({"tokenizer_class": "BertTokenizerFast"}, True),
        ({"tokenizer_class": "TokenizersBackend"}, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, False),
        ({"tokenizer_class": "TokenizersBackend", "model_input_names": [*INPUTS]}, True),
        ({"tokenizer_class": "BertTokenizer", "model_input_names": [*INPUTS[:2]]}, False),
        ({"model_input_names": [*INPUTS[:2]]}, False),
        ({"tokenizer_class": "TokenizersBackend", "model_input_names": None}, False),
    ],
)
@pytest.mark.parametrize("task", ["embedding", "rerank"])
def test_token_types_as_the_library_gives_them(
    folder: Path, compiled: Compile, settings: dict[str, Any], reads_types: bool, task: str
) -> None:
    """As transformers 5.5 was seen to: a class for any tokenizer gives none of its own accord."""
    if task == "embedding":
        save(folder, POOL)
    else:
        configure(folder, architectures=["BertForSequenceClassification"], num_labels=1)
    write_json(folder / "tokenizer_config.json", {"model_max_length": 50} | settings)
    inputs = compiled(task).text.inputs
    assert inputs == (INPUTS if reads_types else INPUTS[:2])


def test_scores_that_saturate(builder: SimpleNamespace) -> None:
    """They hide mistakes, and the remedy says so; of a ranking also what to do."""
    explain = builder.figures.saturation_remedy
    assert explain("sigmoid", [1.0, 1.0, 0.5], is_ranking=True) is None
    assert explain("none", [1.0, 1.0], is_ranking=True) is None
    assert explain("sigmoid", [], is_ranking=True) is None
    said = explain("sigmoid", [1.0, 0.0, 1.0], is_ranking=True)
    assert said.startswith("All 3 scores of the checkpoint are exactly 0 or 1: its sigmoid satur")
    assert "torch.nn.modules.linear.Identity" in said
    assert "Identity" not in explain("softmax", [1.0, 0.0], is_ranking=False)
