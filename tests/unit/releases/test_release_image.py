# SPDX-License-Identifier: Apache-2.0
"""`tritonctl releases publish --oci-archive`: the archive as the OCI image specification has it."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.json_page import as_documented
from tests.modules import module_of
from tests.unit.conftest import Cli, Sandbox
from tests.unit.releases.releasing import released_once, releases, uncompiled
from tritonctl.errors import HostError, RepositoryError, UsageError
from tritonctl.host.progress import Silent
from tritonctl.releases import image as packing
from tritonctl.releases.image import ReleaseImage, pack
from tritonctl.releases.oci_archive import ImageArchive, ImageLayer, LayerEntry
from tritonctl.releases.store import StoredRelease
from tritonctl.runtimes.kubernetes.chart import release_address

__all__ = ["released_once", "releases", "uncompiled"]  # fixtures

WEIGHTS = Path(__file__).parents[3] / "docker" / "chart" / "files" / "weights.py"


@pytest.fixture(autouse=True)
def every_folder_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted builder's engines have a few bytes."""
    monkeypatch.setattr(packing, "_MIN_PART_BYTES", 1)


def packed(stored: StoredRelease, path: Path) -> ReleaseImage:
    """Its image."""
    return pack(stored, path, "demo-releases", Silent())


def blobs(path: Path) -> dict[str, bytes]:
    """Every member of the archive, by its path."""
    with tarfile.open(path) as archive:
        return {
            member.name: file.read()
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }


def unpacked(image: ReleaseImage, folder: Path) -> Path:
    """What a pod mounts: the layers, one over the other."""
    members = blobs(image.path)
    for layer in image.layers:
        with tarfile.open(fileobj=io.BytesIO(members[layer.path])) as tar:
            tar.extractall(folder, filter="tar")
    return folder


def verifier() -> ModuleType:
    """The chart's program that verifies a release in a pod."""
    return module_of(WEIGHTS, "weights_of_the_chart")


def test_it_is_an_image_layout(releases: list[StoredRelease], tmp_path: Path) -> None:
    """Every blob has the digest and the size that is said of it, down from index.json."""
    image = packed(releases[-1], tmp_path / "image.tar")
    members = blobs(image.path)
    for name, content in members.items():
        folder, _, digest = name.rpartition("/")
        if folder:
            assert folder == "blobs/sha256"
            assert hashlib.sha256(content).hexdigest() == digest

    def read(descriptor: dict[str, Any], kind: str) -> Any:
        assert descriptor["mediaType"] == f"application/vnd.oci.image.{kind}.v1+json"
        content = members["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
        assert len(content) == descriptor["size"]
        return json.loads(content)

    assert json.loads(members["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(members["index.json"])
    assert index["schemaVersion"] == 2
    [described] = index["manifests"]
    assert described["digest"] == image.digest
    assert described["annotations"]["org.opencontainers.image.ref.name"] == releases[-1].name
    manifest = read(described, "manifest")
    config = read(manifest["config"], "config")
    assert (config["os"], config["rootfs"]["type"]) == ("linux", "layers")
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
    for layer in manifest["layers"]:
        assert layer["mediaType"] == "application/vnd.oci.image.layer.v1.tar"
        assert (
            len(members["blobs/sha256/" + layer["digest"].removeprefix("sha256:")])
            == (layer["size"])
        )
    [saved] = json.loads(members["manifest.json"])  # of `docker load`
    assert saved["RepoTags"] == [f"demo-releases:{releases[-1].name}"]
    assert {saved["Config"], *saved["Layers"]} <= members.keys()


def test_a_pod_finds_the_release_in_it(releases: list[StoredRelease], tmp_path: Path) -> None:
    """Whole, as the program that verifies it there says, mounted or copied; and nothing else."""
    stored = releases[-1]
    root = unpacked(packed(stored, tmp_path / "image.tar"), tmp_path / "mounted")
    name, _, digest = release_address(stored).partition("@sha256:")
    program = verifier()
    count, size = program.provide(name, digest, root, None, "*")
    files = stored.manifest().files
    assert (count, size) == (len(files), sum(file.size for file in files))
    target = tmp_path / "cache"
    target.mkdir()
    assert program.provide(name, digest, root, target, "*") == (count, size)
    assert not [path for path in target.rglob("*") if path.is_symlink()]
    for model in stored.manifest().models:  # an ensemble's has no file
        for place in (root, target):
            assert (place / name / "repository" / model.name / str(model.version)).is_dir()
    (root / name / "repository" / "stray.txt").write_text("other", encoding="utf-8")
    with pytest.raises(program.WeightsError, match=r"stray\.txt is not part of the release"):
        program.provide(name, digest, root, None, "*")


def test_a_file_too_many_in_a_part_is_seen(releases: list[StoredRelease], tmp_path: Path) -> None:
    """The verifying program follows the links to the parts."""
    root = unpacked(packed(releases[-1], tmp_path / "image.tar"), tmp_path / "mounted")
    part = next((root / "parts").iterdir())
    (part / "more.bin").write_bytes(b"x")
    name, _, digest = release_address(releases[-1]).partition("@sha256:")
    program = verifier()
    with pytest.raises(program.WeightsError, match=r"more\.bin is not part of the release"):
        program.provide(name, digest, root, None, "*")


def test_the_same_release_is_the_same_bytes(releases: list[StoredRelease], tmp_path: Path) -> None:
    """Whatever the times of its files are; all belong to the user of the pods."""
    first = packed(releases[-1], tmp_path / "first.tar")
    copy = tmp_path / "elsewhere" / releases[-1].name
    shutil.copytree(releases[-1].folder, copy, copy_function=shutil.copyfile)
    second = packed(StoredRelease(copy, releases[-1].record), tmp_path / "second.tar")
    assert first.digest == second.digest
    assert first.path.read_bytes() == second.path.read_bytes()
    members = blobs(first.path)
    for layer in first.layers:
        with tarfile.open(fileobj=io.BytesIO(members[layer.path])) as tar:
            found = tar.getmembers()
        assert [each.name for each in found] == sorted(
            (each.name for each in found), key=lambda name: (not _is_folder(found, name), name)
        )
        assert {(m.uid, m.gid, m.mtime, m.uname, m.gname) for m in found} == {
            (1000, 1000, 0, "", "")
        }


def _is_folder(members: list[tarfile.TarInfo], name: str) -> bool:
    return next(each for each in members if each.name == name).isdir()


def test_an_engine_that_is_kept_keeps_its_layer(
    releases: list[StoredRelease], tmp_path: Path
) -> None:
    """Under another number: only what differs has another digest."""
    first, second = (packed(each, tmp_path / f"{each.number}.tar") for each in releases)
    engines = [layer for layer in first.layers if layer in second.layers]
    assert len(engines) == len(first.layers) - 1
    assert first.digest != second.digest


def test_small_folders_share_the_last_layer(
    releases: list[StoredRelease], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where there are too many large ones, the largest get layers of their own."""
    monkeypatch.setattr(packing, "_MIN_PART_BYTES", 1 << 30)
    assert len(packed(releases[-1], tmp_path / "small.tar").layers) == 1
    monkeypatch.setattr(packing, "_MIN_PART_BYTES", 1)
    monkeypatch.setattr(packing, "_MAX_PARTS", 1)
    image = packed(releases[-1], tmp_path / "few.tar")
    assert len(image.layers) == 2
    sizes: dict[str, int] = {}
    for file in releases[-1].manifest().files:
        if file.path.count("/") >= 3:
            folder = "/".join(file.path.split("/")[:3])
            sizes[folder] = sizes.get(folder, 0) + file.size
    root = unpacked(image, tmp_path / "mounted")
    [link] = [path for path in root.rglob("*") if path.is_symlink()]
    assert sizes[link.relative_to(root / releases[-1].name).as_posix()] == max(sizes.values())


def test_a_release_that_is_damaged_is_not_packed(
    releases: list[StoredRelease], tmp_path: Path
) -> None:
    """Exit 6; nothing is left of it. A file that grew or shrank, too."""
    file = next(releases[-1].repository.rglob("*.bin"))
    file.chmod(0o644)
    content = file.read_bytes()
    for damaged in (content[:-1] + b"!", content[:-1]):
        file.write_bytes(damaged)
        with pytest.raises(RepositoryError, match="not as it was published"):
            packed(releases[-1], tmp_path / "image.tar")
        assert not [path for path in tmp_path.iterdir() if "image" in path.name]


def test_a_path_that_is_taken(releases: list[StoredRelease], tmp_path: Path) -> None:
    """Exit 2: nothing is overwritten."""
    (tmp_path / "image.tar").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="exists"):
        packed(releases[-1], tmp_path / "image.tar")
    assert (tmp_path / "image.tar").read_text(encoding="utf-8") == "mine"


def test_a_disk_that_is_full(
    releases: list[StoredRelease], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 4, before the first byte."""
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(HostError, match=r"1000 B free"):
        packed(releases[-1], tmp_path / "image.tar")
    assert not (tmp_path / "image.tar").exists()


def test_an_interrupt_leaves_nothing(
    releases: list[StoredRelease], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a layer is written."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ImageArchive, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        packed(releases[-1], tmp_path / "out" / "image.tar")
    assert not list((tmp_path / "out").iterdir())


def test_long_names_and_large_files_have_headers_of_known_length() -> None:
    """A path of 300 letters and 9 GiB: two more blocks each, counted before anything is read."""
    entries = [LayerEntry(f"{'x' * 300}/ü", 3, content=lambda: [b"abc"]), LayerEntry("a/empty")]
    layer = ImageLayer(entries)
    content = b"".join(layer.chunks())
    assert len(content) == layer.size
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert tar.getnames() == ["a", "x" * 300, "a/empty", f"{'x' * 300}/ü"]
    large = 9 << 30
    assert (
        ImageLayer([LayerEntry("engine", large)]).size
        == large + ImageLayer([LayerEntry("engine")]).size + 1024
    )


def test_a_blob_larger_than_a_plain_header_can_say(tmp_path: Path) -> None:
    """Its name is written after its content, in one block whatever its size is."""
    with (tmp_path / "archive").open("w+b") as file:
        archive = ImageArchive(file)
        with pytest.raises(ValueError, match="3 bytes instead of 9663676416"):
            archive.add("text/plain", 9 << 30, [b"abc"])
        archive.add("text/plain", 3, iter([b"a", b"bc"]))


def test_the_command(built: Sandbox, releases: list[StoredRelease], cli: Cli) -> None:
    """It packs the release that has the content, and tells what the chart wants."""
    done = cli(
        "releases", "publish", "--no-smoke", "--oci-archive", "out/demo.tar", "--json", "--quiet"
    )
    assert done.returncode == 0, done.stderr
    image = as_documented("releases publish", done.stdout)["image"]
    members = blobs(built.root / "out" / "demo.tar")
    assert "blobs/sha256/" + image["digest"].removeprefix("sha256:") in members
    told = cli("releases", "publish", "--no-smoke", "--oci-archive", "again.tar", "--quiet")
    assert told.returncode == 0
    assert f"-releases@{image['digest']}" in told.stdout.replace("\n", "")
    older = cli("releases", "image", "1", "older.tar", "--json", "--quiet")
    assert older.returncode == 0, older.stderr
    assert as_documented("releases image", older.stdout)["release"] == releases[0].name
    assert blobs(built.root / "older.tar")
    again = cli("releases", "image", "latest", "again.tar", "--quiet")
    assert again.returncode == 2
    assert "again.tar exists" in again.stderr
