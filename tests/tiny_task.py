# SPDX-License-Identifier: Apache-2.0
"""Writes small checkpoints of tasks with random weights and tokenizers of their own; run in the
ONNX Runtime builder's environment.

python tiny_task.py FOLDER < SPECIFICATION

SPECIFICATION, JSON: `class` of transformers, and optionally `config`, `steps` of an embedding,
`settings` (sentence_bert_config.json), `prompts`, `default_prompt`, `format` (`old`, `new`),
`cross_encoder` (its activation's name or null), `length` of the tokenizer.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.append(str(Path(__file__).resolve().parents[1]))

import sentence_transformers
import torch  # noqa: TID251 - same
import transformers  # noqa: TID251 - same
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.base.modules import Transformer as First
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from tests.tiny_encoder import DISTIL_SIZES, SIZES

TEXTS = [
    "What is the capital of France? Paris is the capital and the largest city of France.",
    "The quick brown fox number 0123456789 jumps over a lazy dog near the river bank.",
    "Angela Merkel met Emmanuel Macron in New York on 3 May 2019, says Reuters.",
    "東京は日本の首都です。人口は約1400万人。 북 кошка 👩 🎂 café",
] * 4
VOCABULARY = 300
UNKNOWN = "[UNK]"
# Two texts one after the other, as their families join them; the id of padding.
BERT = ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
ROBERTA = ("<s> $A </s>", "<s> $A </s> </s> $B </s>", ["<s>", "<pad>", "</s>", "<unk>"])
PADS = {"[PAD]": 0, "<pad>": 1}
TYPED = ("Bert", "Albert", "Electra")


def tokenizer_for(name: str, length: int) -> Any:
    """A tokenizer trained on TEXTS: word pieces, or bytes for the RoBERTa family."""
    roberta = "Roberta" in name or name.startswith(("Camembert", "MPNet"))
    single, pair, special = ROBERTA if roberta else BERT
    made = Tokenizer(models.BPE() if roberta else models.WordPiece(unk_token=UNKNOWN))
    if roberta:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet
        )
    else:
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special)
    made.train_from_iterator(TEXTS, trainer)
    ids = [(token, made.token_to_id(token)) for token in special]
    made.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=ids
    )
    names = {"<s>": "bos_token", "</s>": "eos_token", "[CLS]": "cls_token", "[SEP]": "sep_token"}
    inputs = ["input_ids", "attention_mask"]
    if name.startswith(TYPED):
        inputs.insert(1, "token_type_ids")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=length,
        model_input_names=inputs,
        pad_token=next(token for token in special if token in PADS),
        unk_token="<unk>" if roberta else UNKNOWN,
        **{names[token]: token for token in special if token in names},
    )


def encoder(name: str, config: dict[str, Any]) -> Any:
    """A small model of the class, with weights large enough to tell inputs apart."""
    kind = getattr(transformers, name)
    sizes = {**(DISTIL_SIZES if name.startswith("DistilBert") else SIZES)}
    sizes["vocab_size"] = VOCABULARY
    if "Roberta" in name or name.startswith(("Camembert", "MPNet")):
        sizes |= {"pad_token_id": 1, "type_vocab_size": 1, "bos_token_id": 0, "eos_token_id": 2}
    if "ModernBert" in name:
        special = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
        sizes |= special | {"local_attention": 8, "global_attn_every_n_layers": 2}
    if "Deberta" in name:
        sizes |= {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True}
        sizes |= {"position_buckets": 16, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0}
        sizes |= {"position_biased_input": False}
    model = kind(kind.config_class(**sizes | config))
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.2)
    return model.eval()


def sentence_modules(folder: Path, steps: list[list[Any]], width: int) -> list[Any]:
    """The modules of sentence-transformers: [kind, settings] by [kind, settings]."""
    made: list[Any] = [First(str(folder))]
    for kind, settings in steps:
        if kind == "Pooling":
            made.append(Pooling(width, **settings))
            width = made[-1].get_embedding_dimension()
        elif kind == "Dense":
            options = {**settings}
            activation = getattr(torch.nn, options.pop("activation", "Tanh"))()
            made.append(Dense(width, activation_function=activation, **options))
            width = options["out_features"]
        else:
            made.append(Normalize())
    return made


def as_before(folder: Path) -> None:
    """modules.json, pooling and settings in the form of old releases."""
    file = folder / "modules.json"
    entries = json.loads(file.read_text(encoding="utf-8"))
    for entry in entries:
        name = entry["type"].rpartition(".")[2]
        entry["type"] = f"sentence_transformers.models.{name}"
        config = folder / entry["path"] / "config.json"
        if name == "Pooling":
            new = json.loads(config.read_text(encoding="utf-8"))
            modes = new["pooling_mode"]
            modes = [modes] if isinstance(modes, str) else modes
            old = {
                f"pooling_mode_{mode}_token{'s' if mode != 'cls' else ''}": True
                for mode in modes
                if mode in ("cls", "mean", "max", "weightedmean")
            }
            old |= {f"pooling_mode_{mode}": True for mode in modes if "len_tokens" in mode}
            old |= {"pooling_mode_lasttoken": True} if "lasttoken" in modes else {}
            old |= {"word_embedding_dimension": new["embedding_dimension"]}
            old |= {"include_prompt": new["include_prompt"]}
            config.write_text(json.dumps(old), encoding="utf-8")
    file.write_text(json.dumps(entries), encoding="utf-8")


def write_sentence_model(folder: Path, asked: dict[str, Any], width: int) -> None:
    """Save the folder's encoder with steps behind it."""
    modules = sentence_modules(folder, asked["steps"], width)
    model = sentence_transformers.SentenceTransformer(
        modules=modules,
        device="cpu",
        prompts=asked.get("prompts"),
        default_prompt_name=asked.get("default_prompt"),
    )
    model.save_pretrained(str(folder), create_model_card=False)
    if asked.get("format") == "old":
        as_before(folder)
        (folder / "sentence_bert_config.json").unlink()
    if "settings" in asked:
        text = json.dumps(asked["settings"])
        (folder / "sentence_bert_config.json").write_text(text, encoding="utf-8")


def write(folder: Path, asked: dict[str, Any]) -> None:
    """Make and save a checkpoint."""
    torch.manual_seed(7)
    model = encoder(asked["class"], asked.get("config", {}))
    model.save_pretrained(folder)
    tokenizer_for(asked["class"], asked.get("length", 64)).save_pretrained(folder)
    if "steps" in asked:
        write_sentence_model(folder, asked, model.config.hidden_size)
    if "cross_encoder" in asked:
        config = folder / "config.json"
        record = json.loads(config.read_text(encoding="utf-8"))
        record["sentence_transformers"] = {"activation_fn": asked["cross_encoder"]}
        config.write_text(json.dumps(record), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), json.load(sys.stdin))
