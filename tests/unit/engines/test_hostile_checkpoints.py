# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that hang a command, leak a file, take all memory or end as a bug of ours."""

from __future__ import annotations

import json
import os
import resource
import socket
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.engines.estimates.checkpoints import json_object, read_decoder_sizes
from tritonctl.engines.estimates.pickled import read_pickled
from tritonctl.engines.sources.cache import HubModel
from tritonctl.engines.sources.entries import refuse_foreign_entries
from tritonctl.errors import ConfigurationError

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 32,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "head_dim": None,
    "num_experts_per_tok": None,
    "kv_lora_rank": None,
    "qk_rope_head_dim": None,
    "text_config": None,
}
VALUES: list[Any] = ["x", [], {}, None, 0, -1, 1.5, True, 10**30, [1, "a"], {"a": 1}, float("nan")]


@pytest.mark.parametrize("command", ["plan", "build", "init"])
def test_a_fifo(command: str, sandbox: Sandbox, cli: Cli) -> None:
    """Nobody writes to it: opening it would wait for ever."""
    for name in ("config.json", "model.safetensors", "chat_template.jinja", "1_Pooling/x.json"):
        path = sandbox.checkpoint / name
        previous = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        os.mkfifo(path)
        done = cli(*(("init", "checkpoint", "-o", "new") if command == "init" else (command,)))
        assert done.returncode == 3, done.stderr
        assert f"{path.name} is a FIFO, not a file" in " ".join(done.stderr.split())
        path.unlink()
        if previous is not None:
            path.write_bytes(previous)


def test_a_socket_and_a_device(tmp_path: Path) -> None:
    """Reading either may never end."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "config.json"))
        with pytest.raises(ConfigurationError, match="is a socket"):
            refuse_foreign_entries(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").symlink_to("/dev/zero")
    with pytest.raises(ConfigurationError, match="is a device"):
        refuse_foreign_entries(tmp_path)


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer.json", "a/b.txt"])
def test_a_text_that_is_linked_from_elsewhere(name: str, tmp_path: Path) -> None:
    """It would be copied into the artefact, and served; weights and links within may be."""
    secret = tmp_path / "id_rsa"
    secret.write_text("secret", encoding="utf-8")
    folder = tmp_path / "checkpoint"
    (folder / "a").mkdir(parents=True)
    (folder / "model.safetensors").symlink_to(secret)
    (folder / "inner.json").symlink_to("config.json")
    (folder / "config.json").write_text("{}", encoding="utf-8")
    refuse_foreign_entries(folder)
    (folder / name).symlink_to(os.path.relpath(secret, (folder / name).parent))
    with pytest.raises(ConfigurationError, match=r"a link out of the checkpoint, to .*id_rsa"):
        refuse_foreign_entries(folder)


def test_a_snapshot_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are links to blobs, wherever the snapshot lies; so are those of a local copy."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    model = HubModel("org/name")
    for root in (model.folder, tmp_path / "mirror" / "models--org--name"):
        (root / "blobs").mkdir(parents=True)
        (root / "blobs" / "1").write_text("{}", encoding="utf-8")
        snapshot = root / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").symlink_to("../../blobs/1")
        refuse_foreign_entries(snapshot)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "config.json").symlink_to(model.folder / "blobs" / "1")
    refuse_foreign_entries(tmp_path / "copy")


def test_sizes_of_every_kind(tmp_path: Path) -> None:
    """Each is a size or is refused by its name: no division by zero, no type error."""
    for name in SIZES:
        for value in VALUES:
            config = {**SIZES, name: value}
            (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
            try:
                sizes = read_decoder_sizes(tmp_path)
            except ConfigurationError as error:
                assert "config.json" in error.problem  # noqa: PT017 - either is right
            else:
                assert sizes.num_hidden_layers > 0
                assert sizes.head_dim >= 0


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a": ' + "1" * 5000 + "}"])
def test_json_that_python_cannot_read(text: str, tmp_path: Path) -> None:
    """Too deep, or a number of too many digits: a mistake of the file, not a bug."""
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"config\.json cannot be read"):
        json_object(tmp_path / "config.json")


def test_a_zip_bomb(tmp_path: Path) -> None:
    """A gibibyte of zeros in a megabyte: refused by its entry, without being unpacked."""
    bomb = tmp_path / "pytorch_model.bin"
    with (
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("archive/data.pkl", "w") as record,
    ):
        for _ in range(1024):
            record.write(bytes(1 << 20))
    assert bomb.stat().st_size < 2 << 20
    previous = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigurationError, match="compressed or too long"):
        read_pickled(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - previous < 100 << 10  # KiB
