# SPDX-License-Identifier: Apache-2.0
"""Makes `textlib` importable, as it is in Triton's stub; small tokenizers of four kinds."""

import sys
from pathlib import Path

import pytest

from tests import sample_tokenizers

sys.path.insert(0, str(Path(__file__).parents[2] / "python_backends"))


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tokenizer.json of a byte-level BPE with special and ordinary added tokens."""
    return sample_tokenizers.byte_level(tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="session")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tokenizer.json in the style of Llama 2: Prepend, byte tokens, Strip of one space."""
    return sample_tokenizers.byte_fallback(tmp_path_factory.mktemp("byte_fallback"))


@pytest.fixture(scope="session")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tokenizer.json of a Unigram model with the Metaspace decoder (T5's kind)."""
    return sample_tokenizers.unigram(tmp_path_factory.mktemp("metaspace"))


@pytest.fixture(scope="session")
def bpe_suffix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tokenizer.json of a BPE whose words end in </w>: the last one is known at the end."""
    return sample_tokenizers.bpe_suffix(tmp_path_factory.mktemp("bpe_suffix"))
