# SPDX-License-Identifier: Apache-2.0
"""Other models than the shipped one, tiny and random: biases, shared tables, other positions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.builders.exported import tensors_of
from tests.builders.quantising import EXAMPLE, environment, ok, run
from tests.engine_cache import kept

pytestmark = pytest.mark.engine

# In the stage's environment. The norms and biases are not what a new model has (1 and 0): a lost or
# doubled one must show.
MAKE = """
import sys, torch, transformers
from pathlib import Path
torch.manual_seed(0)
sizes = dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             bos_token_id=0, eos_token_id=1, pad_token_id=2)
plain = {"rope_type": "default", "rope_theta": 1e6}
llama3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
models = {
    "Llama": dict(tie_word_embeddings=True, rope_parameters=llama3),
    "Mistral": dict(rope_parameters=plain),
    "Qwen2": dict(rope_parameters=plain),
}
for name, more in models.items():
    config = getattr(transformers, f"{name}Config")(**sizes, **more)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(torch.bfloat16)
    for key, parameter in model.named_parameters():
        if "norm" in key:
            parameter.data = 1 + 0.2 * torch.randn_like(parameter)
        if "bias" in key:
            parameter.data = 0.1 * torch.randn_like(parameter)
    model.save_pretrained(Path(sys.argv[1]) / name)
"""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny checkpoint of each architecture."""

    def write(folder: Path) -> None:
        done = subprocess.run(
            [str(environment()), "-c", MAKE, str(folder)],
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr

    inputs = {"script": MAKE, "python": environment().parents[1].name}
    folder = kept("checkpoints", inputs, write, tmp_path_factory.mktemp("made") / "architectures")
    for name in ("Llama", "Mistral", "Qwen2"):
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(EXAMPLE / "checkpoint" / file, folder / name / file)
    return folder


@pytest.mark.exhaustive
def test_llama_with_a_shared_table_in_a_pipeline(checkpoints: Path, tmp_path: Path) -> None:
    source = checkpoints / "Llama"
    done = ok(run(environment(), tmp_path, checkpoint=str(source), limits={"pp_size": 2}))
    config = done.config()
    assert (config["dtype"], config["rotary_base"]) == ("bfloat16", 500000.0)
    assert config["rotary_scaling"]["type"] == "llama3"
    assert config["rotary_scaling"]["factor"] == 8.0
    # Two ranks cannot share one table: the last one has its own copy.
    table = tensors_of(source / "model.safetensors")["model.embed_tokens.weight"]
    assert np.array_equal(done.tensors(0)["transformer.vocab_embedding.weight"], table)
    assert np.array_equal(done.tensors(1)["lm_head.weight"], table)


@pytest.mark.exhaustive
def test_mistral_in_int4_on_two_gpus(checkpoints: Path, tmp_path: Path) -> None:
    source = str(checkpoints / "Mistral")
    done = ok(
        run(
            environment(),
            tmp_path,
            checkpoint=source,
            precision="int4_awq",
            limits={"tp_size": 2},
            options={"awq_block_size": 64},
        )
    )
    assert done.config()["architecture"] == "MistralForCausalLM"
    assert done.config()["rotary_base"] == 1000000.0
    assert done.tensors(1)["transformer.layers.1.mlp.proj.weight"].shape == (64, 128)


def test_the_biases_of_qwen2(checkpoints: Path, tmp_path: Path) -> None:
    source = checkpoints / "Qwen2"
    done = ok(run(environment(), tmp_path, checkpoint=str(source), precision="int8_sq"))
    assert done.config()["qwen_type"] == "qwen2"
    theirs = tensors_of(source / "model.safetensors")
    biases = [theirs[f"model.layers.1.self_attn.{name}_proj.bias"] for name in "qkv"]
    ours = done.tensors()["transformer.layers.1.attention.qkv.bias"]
    assert np.array_equal(ours, np.concatenate(biases))


@pytest.mark.exhaustive
def test_qwen2_for_the_pytorch_runtime(checkpoints: Path, tmp_path: Path) -> None:
    source = checkpoints / "Qwen2"
    done = ok(
        run(environment(), tmp_path, checkpoint=str(source), precision="w4a8_awq", world="pytorch")
    )
    name = "model.layers.0.self_attn.k_proj.bias"
    theirs = tensors_of(source / "model.safetensors")[name]
    assert np.array_equal(done.tensors(None)[name], theirs)
    assert done.config()["architectures"] == ["Qwen2ForCausalLM"]
