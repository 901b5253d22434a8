# SPDX-License-Identifier: Apache-2.0
"""`tritonctl fetch`, with the real huggingface_hub, against a hub on loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.hub_server import TOKEN, Hub, serving
from tritonctl.engines.sources.cache import HubModel
from tritonctl.engines.sources.fetch import hub_recipe
from tritonctl.host.environments import ensure_environment
from tritonctl.host.files import cache_folder
from tritonctl.host.progress import Silent

# A command for each case: seconds of a core, of which a busy machine has a tenth.
pytestmark = pytest.mark.timeout(240)

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox, WaitUntil

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NEWER = COMMIT[::-1]
REPO = "org/name"
STRANGER, NO_TOKEN = "hf_ofAStranger0123456789", "not-a-token"
WEIGHTS = os.urandom(3_000_000)
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b'{"version": "1.0"}',
    "model.safetensors": WEIGHTS,
    "1_Pooling/config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"# a model",
    "pytorch_model.bin": WEIGHTS,
    "flax_model.msgpack": WEIGHTS,
    "consolidated.safetensors": WEIGHTS,
    "onnx/model.onnx": WEIGHTS,
    "openvino/openvino_model.xml": b"<net/>",
    ".gitattributes": b"",
}
NEEDED = {
    "config.json",
    "tokenizer.json",
    "model.safetensors",
    "1_Pooling/config.json",
    "chat_template.jinja",
}


@pytest.fixture(scope="session")
def library() -> Path:
    """The environment that downloads, with the real library: made once, in the user's cache."""
    return ensure_environment(hub_recipe(), Silent())


@pytest.fixture
def hub(
    library: Path, isolated: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Hub]:
    """A hub with one model; commands find its address and the environment."""
    environments = cache_folder() / "environments"
    environments.mkdir(parents=True)
    (environments / library.name).symlink_to(library)
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGINGFACE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.put(REPO, COMMIT, FILES)
        yield hub


@pytest.fixture
def named(sandbox: Sandbox) -> Sandbox:
    """A project whose checkpoint is the hub's."""
    sandbox.data["models"]["speller"]["checkpoint"] = REPO
    sandbox.write()
    return sandbox


def fetched(cli: Cli, *arguments: str, **environment: str) -> dict[str, Any]:
    done = cli("fetch", "--json", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def names(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def said(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(done.stderr.split())


def pins(sandbox: Sandbox) -> dict[str, str]:
    lock = json.loads((sandbox.root / "tritonctl.lock").read_text(encoding="utf-8"))
    return lock["checkpoints"]  # type: ignore[no-any-return]


def test_what_builders_need(named: Sandbox, cli: Cli, hub: Hub) -> None:
    """Safetensors, JSON, tokenizer; no pickles, no second set of weights; pinned by commit."""
    record = fetched(cli)
    assert record["commit"] == COMMIT
    assert record["downloaded_bytes"] == sum(len(FILES[name]) for name in NEEDED)
    folder = Path(record["folder"])
    assert names(folder) == NEEDED
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert pins(named) == {REPO: COMMIT}
    assert len(hub.downloads()) == 1


def test_then_nothing_asks_the_hub(named: Sandbox, cli: Cli, hub: Hub) -> None:
    """Neither fetch, nor a build, nor one that is told to stay offline."""
    cli("fetch")
    hub.asked.clear()
    assert fetched(cli)["downloaded_bytes"] == 0
    for arguments in (
        ("build",),
        ("build", "--offline"),
        ("build", "--locked"),
        ("fetch", "--offline"),
    ):
        done = cli(*arguments)
        assert done.returncode == 0, done.stderr
    assert hub.asked == []


def test_a_build_fetches(named: Sandbox, cli: Cli, hub: Hub) -> None:
    """What is missing, and says how much; the lock has the commit and the engine's inputs."""
    done = cli("build")
    assert done.returncode == 0, done.stderr
    assert f"{REPO}: 2.9 MiB to download" in said(done)
    assert pins(named) == {REPO: COMMIT}
    lock = json.loads((named.root / "tritonctl.lock").read_text(encoding="utf-8"))
    assert set(lock["profiles"][""]) == {"speller"}


def test_offline_without_it(named: Sandbox, cli: Cli, hub: Hub) -> None:
    """Exit code 4, nothing is asked; the hub's own variable does the same."""
    for arguments, environment in (
        (("fetch", "--offline"), {}),
        (("build", "--offline"), {}),
        (("fetch",), {"HF_HUB_OFFLINE": "1"}),
    ):
        done = cli(*arguments, **environment)
        assert done.returncode == 4
        assert "has not been fetched; --offline forbids asking the hub" in said(done)
        assert "`tritonctl fetch`" in done.stderr
    assert hub.asked == []


def test_the_pin_holds_until_it_is_updated(named: Sandbox, cli: Cli, hub: Hub) -> None:
    """The branch moves on; another machine gets the old commit, --update the new one."""
    fetched(cli)
    hub.put(REPO, NEWER, FILES | {"config.json": b"{}"})
    assert fetched(cli)["commit"] == COMMIT
    assert fetched(cli, HF_HOME=str(named.root / "other"))["commit"] == COMMIT
    assert fetched(cli, "--update")["commit"] == NEWER
    assert pins(named) == {REPO: NEWER}
    assert len(hub.downloads()) == 2  # of the two machines: the weights are the same


def test_a_revision(named: Sandbox, cli: Cli, hub: Hub) -> None:
    """A tag, pinned by its commit; without a project by its name alone."""
    repo = hub.put(REPO, NEWER, FILES)
    repo.references["v1"] = COMMIT
    named.data["models"]["speller"]["revision"] = "v1"
    named.write()
    assert fetched(cli)["commit"] == COMMIT
    assert pins(named) == {f"{REPO}@v1": COMMIT}
    assert fetched(cli, f"{REPO}@{NEWER}")["commit"] == NEWER
    assert fetched(cli, REPO)["commit"] == NEWER


def test_a_download_goes_on(named: Sandbox, cli: Cli, hub: Hub, wait_until: WaitUntil) -> None:
    """Ctrl-C in the middle: 130; then it is half-downloaded; then the rest comes, by a range."""
    large = os.urandom(24 << 20)
    hub.put(REPO, COMMIT, FILES | {"model.safetensors": large})
    hub.stall_after = 22 << 20
    process = cli.start("fetch")
    assert hub.stalled.wait(60)
    blobs = HubModel(REPO).folder / "blobs"
    # The library writes 10 MiB at a time.
    wait_until(lambda: [f.stat().st_size for f in blobs.glob("*.incomplete")] == [20 << 20])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    done = cli("plan")
    assert done.returncode == 3
    assert "is half-downloaded: 1_Pooling/config.json and 4 more files are missing" in said(done)
    assert "`tritonctl fetch`: it resumes the download" in said(done)
    assert pins_or_none(named) is None
    hub.go_on.set()
    done = cli("fetch")
    assert done.returncode == 0, done.stderr
    assert f"{REPO}: 24.0 MiB to download, 20.0 MiB already downloaded" in said(done)
    assert [one.range for one in hub.downloads()] == [None, f"bytes={20 << 20}-"]
    assert (HubModel(REPO).snapshot(COMMIT) / "model.safetensors").read_bytes() == large


def pins_or_none(sandbox: Sandbox) -> dict[str, str] | None:
    return pins(sandbox) if (sandbox.root / "tritonctl.lock").exists() else None


def test_gated(named: Sandbox, cli: Cli, hub: Hub) -> None:
    """Without a token, with one of a stranger, with the right one; the token is never shown."""
    hub.repos[REPO].gated, hub.repos[REPO].readers = True, (TOKEN,)
    done = cli("fetch")
    assert done.returncode == 4
    assert f"{REPO} is gated, and no token was sent" in said(done)
    assert f"accept its conditions at {hub.url}/{REPO}, set HF_TOKEN" in said(done)
    done = cli("fetch", HF_TOKEN=STRANGER)
    assert done.returncode == 4
    assert "is gated, and the account of the token (the one in HF_TOKEN) has no access" in said(
        done
    )
    assert "hf_ofAStranger" not in done.stderr + done.stdout
    done = cli("fetch", HF_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stderr + done.stdout


def test_missing(named: Sandbox, cli: Cli, hub: Hub) -> None:
    """No such model, a private one, no such revision, a token that is none: each by its name."""
    model = named.data["models"]["speller"]
    model["checkpoint"] = "org/nothing"
    named.write()
    done = cli("fetch")
    assert done.returncode == 3
    assert "has no model org/nothing, or it is private: no token was sent" in said(done)
    done = cli("fetch", HF_TOKEN=TOKEN)
    assert "has no model org/nothing, or the token's account may not see it" in said(done)
    model |= {"checkpoint": REPO, "revision": "v9"}
    named.write()
    done = cli("fetch")
    assert done.returncode == 3
    assert f"{REPO} has no revision v9" in said(done)
    done = cli("fetch", HF_TOKEN=NO_TOKEN)
    assert done.returncode == 4
    assert "refuses the token (the one in HF_TOKEN): HTTP 401" in said(done)
    hub.repos[REPO].private, hub.repos[REPO].readers = True, (TOKEN,)
    del model["revision"]
    named.write()
    assert cli("fetch").returncode == 3
    assert fetched(cli, HF_TOKEN=TOKEN)["commit"] == COMMIT


def test_only_pickles(named: Sandbox, cli: Cli, hub: Hub) -> None:
    """Refused before anything is downloaded."""
    hub.put(REPO, NEWER, {"config.json": b"{}", "pytorch_model.bin": WEIGHTS})
    done = cli("fetch")
    assert done.returncode == 3
    assert "has neither safetensors nor an ONNX graph" in said(done)
    assert "pytorch_model.bin" in done.stderr
    assert hub.downloads() == []


def test_damaged_on_the_way(named: Sandbox, cli: Cli, hub: Hub) -> None:
    """The right size and the wrong bytes: removed, told, fetched again."""
    hub.corrupt = True
    done = cli("fetch")
    assert done.returncode == 4
    assert "model.safetensors differs from the hub's description and was removed" in said(done)
    assert cli("plan").returncode == 3
    hub.corrupt = False
    record = fetched(cli)
    assert (Path(record["folder"]) / "model.safetensors").read_bytes() == WEIGHTS


def tree(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and "environments" not in file.parts and file.suffix != ".lock"
    }


@pytest.mark.parametrize(
    "name",
    [
        *("../../victim.json", "/TMP/victim.json", "1_Pooling/../../../../victim.json", "..", "."),
        *("", "a//b.json", "./config.json", "a\\..\\b.json", "a\x1b[2Jb.json", "a\nb.json"),
        pytest.param("a" * 256, id="long name"),
        pytest.param("a/" * 1100 + "b.json", id="long path"),
    ],
)
def test_names_that_are_no_inner_paths(
    named: Sandbox, cli: Cli, hub: Hub, tmp_path: Path, name: str
) -> None:
    """Exit code 4 before any file of them is written or removed."""
    name = name.replace("/TMP", str(tmp_path))
    (tmp_path / "victim.json").write_text("precious", encoding="utf-8")
    previous = tree(tmp_path)
    hub.put(REPO, COMMIT, FILES | {name: b"{}"})
    done = cli("fetch")
    assert done.returncode == 4, done.stderr
    assert f"the hub at {hub.url} lists the file" in said(done)
    assert "\x1b" not in done.stderr
    assert tree(tmp_path) == previous
    assert hub.downloads() == []


@pytest.mark.parametrize("sha", ["../../../victim", "/victim", "main", COMMIT.upper(), ""])
def test_a_commit_that_is_none(
    named: Sandbox, cli: Cli, hub: Hub, tmp_path: Path, sha: str
) -> None:
    """It would become a path of the cache and a pin of the lock."""
    previous = tree(tmp_path)
    hub.sha = sha
    done = cli("fetch")
    assert done.returncode == 4, done.stderr
    assert f"names the commit of {REPO} {sha!r}" in said(done)
    assert tree(tmp_path) == previous


def test_another_commit_than_the_pinned_one(named: Sandbox, cli: Cli, hub: Hub) -> None:
    """The lock decides, or the commit in `revision:`: an error, and the lock stays."""
    fetched(cli)
    shutil.rmtree(HubModel(REPO).folder)
    hub.put(REPO, NEWER, FILES)
    hub.sha = NEWER
    done = cli("fetch")
    assert done.returncode == 4, done.stderr
    assert f"sent commit {NEWER} of {REPO}, and {COMMIT} was requested" in said(done)
    assert pins(named) == {REPO: COMMIT}
    assert cli("fetch", f"{REPO}@{COMMIT}").returncode == 4


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"ETag": '"../../../../victim"'}, "sent the ETag"),
        ({"ETag": '"/nonexistent/victim"'}, "sent the ETag"),
        ({"X-Linked-Etag": '"../../victim"'}, "sent the ETag"),
        ({"ETag": '".."'}, "sent the ETag"),
        ({"ETag": 'W/"' + "a" * 300 + '"'}, "sent the ETag"),
        ({"X-Repo-Commit": "../../victim"}, "sent a file of commit '../../victim'"),
        ({"X-Repo-Commit": NEWER}, f"sent a file of commit '{NEWER}'"),
    ],
)
def test_headers_that_become_paths(
    named: Sandbox, cli: Cli, hub: Hub, tmp_path: Path, headers: dict[str, str], words: str
) -> None:
    """ETag and X-Repo-Commit, of small files and large ones: the library joins them to paths."""
    hub.file_headers = headers
    done = cli("fetch")
    assert done.returncode == 4, done.stderr
    assert words in said(done)
    assert not list(tmp_path.rglob("victim*"))
    assert pins_or_none(named) is None
    assert not any((HubModel(REPO).folder / "snapshots").glob("*/*.json"))


def test_a_pattern_as_a_name(named: Sandbox, cli: Cli, hub: Hub) -> None:
    """It is one file: it selects no others."""
    hub.put(REPO, COMMIT, FILES | {"[a-z]*.json": b"{}"})
    assert names(Path(fetched(cli)["folder"])) == NEEDED | {"[a-z]*.json"}


def test_a_link_of_somebody_else(named: Sandbox, cli: Cli, hub: Hub, tmp_path: Path) -> None:
    """A file that the snapshot links from elsewhere is not removed with the wrong link."""
    victim = tmp_path / "victim.json"
    victim.write_text("precious", encoding="utf-8")
    snapshot = HubModel(REPO).snapshot(COMMIT)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to(victim)
    done = cli("fetch")
    assert done.returncode == 4
    assert "config.json differs in size" in said(done)
    assert victim.read_text(encoding="utf-8") == "precious"
    assert fetched(cli)["commit"] == COMMIT


def test_a_revision_that_is_a_path(named: Sandbox, cli: Cli, hub: Hub, tmp_path: Path) -> None:
    """It would be written as refs/REVISION."""
    hub.repos[REPO].references["../../../victim"] = COMMIT
    named.data["models"]["speller"]["revision"] = "../../../victim"
    named.write()
    done = cli("fetch")
    assert done.returncode == 3, done.stderr
    assert "is not a branch, a tag or a commit" in said(done)
    assert not list(tmp_path.rglob("victim"))


def test_no_hub(named: Sandbox, cli: Cli, hub: Hub) -> None:
    """Nothing listens there, or it is broken: exit code 4, and where it was looked for."""
    done = cli("fetch", HF_ENDPOINT="http://user:secret@127.0.0.1:9")
    assert done.returncode == 4
    assert f"the download of {REPO} from http://127.0.0.1:9 failed" in said(done)
    assert "secret" not in done.stderr
    assert "HTTPS_PROXY, HF_ENDPOINT" in done.stderr


def test_a_folder_wins(named: Sandbox, cli: Cli, hub: Hub) -> None:
    """Nothing is asked; said where the hub's model was fetched before, or a revision is named."""
    cli("fetch")
    hub.asked.clear()
    folder = named.root / REPO
    folder.parent.mkdir()
    named.checkpoint.rename(folder)
    done = cli("build")
    assert done.returncode == 0
    assert said(done).count("not the hub model of that name") == 1
    named.data["models"]["speller"]["revision"] = "v1"
    named.write()
    assert "`revision:` applies to hub models only" in said(cli("fetch"))
    assert hub.asked == []


def test_the_token_is_on_no_command_line(
    named: Sandbox, cli: Cli, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process that runs while the hub keeps us waiting, and every file left behind."""
    hub.stall_after = 1000
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    process = cli.start("fetch")
    assert hub.stalled.wait(60)
    assert any(one.token == TOKEN for one in hub.asked)
    lines = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert any(b"fetch.py" in line for line in lines)
    assert not any(TOKEN.encode() in line for line in lines)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    for folder in (named.root, cache_folder(), HubModel(REPO).folder):
        for file in folder.rglob("*"):
            assert not file.is_file() or TOKEN.encode() not in file.read_bytes()
