# SPDX-License-Identifier: Apache-2.0
"""What differs between two releases, what of it breaks clients, and which ones are removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.json_page import as_documented
from tests.unit.releases.releasing import released_once, releases, uncompiled
from tests.unit.runtimes.test_release_serving import _serve
from tritonctl.host.progress import Silent
from tritonctl.protocol.model_config import Config
from tritonctl.releases.differences import _client_differences, compare_releases
from tritonctl.releases.manifest import release_name, write_release
from tritonctl.releases.store import LINK, StoredRelease, point_link, stored_releases
from tritonctl.runtimes.release_switch import prune_releases

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

__all__ = ["released_once", "releases", "uncompiled"]  # fixtures


def _tensor(name: str = "x", dims: tuple[int, ...] = (-1,), **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": "TYPE_INT32", "dims": list(dims), **more}


def _model(*inputs: Any, outputs: Any = (), **more: Any) -> dict[str, Config]:
    config = {"name": "m", "input": list(inputs), "output": list(outputs), "max_batch_size": 8}
    return {"m": config | more}


OUT = _tensor("y")


@pytest.mark.parametrize(
    ("left", "right", "field", "breaking"),
    [
        (_model(_tensor()), _model(_tensor("z")), "m.input.x", True),
        (_model(_tensor()), _model(_tensor(), _tensor("z")), "m.input.z", True),
        (_model(_tensor()), _model(_tensor(), _tensor("z", optional=True)), "m.input.z", False),
        (_model(_tensor()), _model(_tensor(data_type="TYPE_FP32")), "m.input.x", True),
        (_model(_tensor(dims=(4,))), _model(_tensor()), "m.input.x", False),
        (_model(_tensor()), _model(_tensor(dims=(4,))), "m.input.x", True),
        (_model(_tensor()), _model(_tensor(dims=(-1, 2))), "m.input.x", True),
        (_model(_tensor()), _model(_tensor(optional=True)), "m.input.x", False),
        (_model(_tensor(optional=True)), _model(_tensor()), "m.input.x", True),
        (_model(outputs=[OUT]), _model(), "m.output.y", True),
        (_model(), _model(outputs=[OUT]), "m.output.y", False),
        (_model(outputs=[_tensor("y", (4,))]), _model(outputs=[OUT]), "m.output.y", True),
        (_model(), _model(max_batch_size=16), "m.max_batch_size", False),
        (_model(), _model(max_batch_size=4), "m.max_batch_size", True),
        (_model(max_batch_size=0), _model(), "m.max_batch_size", True),
        (_model(), _model(model_transaction_policy={"decoupled": True}), "m.streams", True),
        (_model(), {}, "m", True),
        ({}, _model(), "m", False),
    ],
)
def test_what_breaks_clients(
    left: dict[str, Config], right: dict[str, Config], field: str, breaking: bool
) -> None:
    """What a client of the left one sends or reads, and cannot any more."""
    found = {each.field: each.breaking for each in _client_differences(left, right)}
    assert found[field] is breaking


def test_two_releases(built: Sandbox, releases: list[StoredRelease], cli: Cli) -> None:
    """Settings and configurations by field, files by path without their version; none of itself."""
    first, second = releases
    found = {(each.section, each.field): each for each in compare_releases(first, second)}
    delay = "dynamic_batching.max_queue_delay_microseconds"
    config = found["config", f"speller_tokenizer.{delay}"]
    assert config.new in (100, "100")
    assert ("project", f"models.speller.serving.config.tokenizer.{delay}") in found
    assert not [each for each in found.values() if each.breaking or each.section == "file"]
    assert compare_releases(first, first) == []
    cli = type(cli)(built.root)
    told = json.loads(cli("releases", "diff", "1", "latest", "--json").stdout)
    assert (told["old"], told["new"], told["breaking"]) == (first.name, second.name, False)
    none = as_documented("releases diff", cli("releases", "diff", "1", "1", "--json").stdout)
    assert none["differences"] == []
    assert "do not differ" in cli("releases", "diff", "1", "1").stdout


def _copied(stored: StoredRelease, number: int) -> None:
    """The same release under another number."""
    name = release_name(number, stored.manifest().hash)
    folder = shutil.copytree(stored.folder, stored.folder.with_name(name))
    parent = release_name(number - 1, stored.manifest().hash)
    release = stored.manifest().model_copy(update={"number": number, "parent": parent})
    folder.chmod(0o755)
    (folder / "release.json").chmod(0o644)
    write_release(folder, release)


def test_what_is_removed(built: Sandbox, releases: list[StoredRelease], cli: Cli) -> None:
    """Never what is served, what a rollback or the link leads to, what a deployment mounts."""
    for number in (3, 4, 5, 6):
        _copied(releases[1], number)
    names = [one.name for one in stored_releases(built.load())]
    project = built.load()

    def doomed(keep: int = 1) -> list[str]:
        return [one.name[0] for one in prune_releases(project, None, keep, Silent()).removed]

    assert doomed() == ["1", "2", "3", "4", "5"]
    assert doomed(keep=4) == ["1", "2"]
    _serve(built, names[2], previous_release=names[0])
    assert doomed() == ["2", "4", "5"]
    _serve(built, names[2])
    assert doomed() == ["1", "4", "5"]
    point_link(built.root / "releases" / LINK, built.root / "releases" / names[4])
    assert doomed() == ["1"]
    deployment = built.root / "deploy" / "compose.yaml"
    deployment.parent.mkdir()
    deployment.write_text(f"source: ../releases/{names[0]}/repository", encoding="utf-8")
    assert doomed() == []
    deployment.unlink()
    cli = type(cli)(built.root)
    assert cli("releases", "prune", "--keep", "1").returncode == 2  # nobody said yes
    planned = cli("releases", "prune", "--keep", "1", "--dry-run", "--json")
    told = as_documented("releases prune", planned.stdout)
    assert told["removed"] == names[:1]
    done = json.loads(cli("releases", "prune", "--keep", "1", "--yes", "--json").stdout)
    assert (done["removed"], done["dry_run"]) == (names[:1], False)
    assert [one.name for one in stored_releases(project)] == names[1:]
    left: list[Path] = list((built.root / "releases").glob(".removed-*"))
    assert left == []
    said = cli("releases", "prune", "--keep", "1").stdout
    assert said.startswith(
        f"nothing to remove: {', '.join(names[1:])} stay (newest, live, or for a rollback)"
    )
