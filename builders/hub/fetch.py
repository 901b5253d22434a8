# SPDX-License-Identifier: Apache-2.0
"""Downloads a model of the Hugging Face Hub: `fetch.py --request R.json --result S.json`.

R: `repo`, `revision`, `records`: a folder, in which COMMIT.json says what has to come before it
comes. S: `status` ok with `commit`, `files`, `bytes`; or failed with `kind`, `problem`, `remedy`.
Lines of standard output: `@size WANTED BEGUN`, `@bytes HERE ALL`. The token is in HF_TOKEN.
"""

import argparse
import json
import os
import shutil
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.hf_api import ModelInfo

import blobs
from refusals import AGAIN, Refusal, endpoint, explained
from selection import PICKLES, has_weights, needed

_SECONDS_BETWEEN = 0.5
_ANSWER_SECONDS = 30.0


def say(line: str) -> None:
    """Write one line to stdout at once: the host shows it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def write(file: Path, record: dict[str, Any]) -> None:
    """Write a whole JSON file or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")
    os.replace(temporary, file)


def fetch(request: dict[str, Any]) -> dict[str, Any]:
    """Download what is missing of a model. Raises Refusal, or what the library raises."""
    repo, revision = request["repo"], request["revision"]
    info = HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=_ANSWER_SECONDS)
    commit = str(info.sha)
    sizes = _chosen(repo, info)
    folder = Path(constants.HF_HUB_CACHE, f"models--{repo.replace('/', '--')}")
    snapshot = folder / "snapshots" / commit
    write(Path(request["records"], f"{commit}.json"), {"revision": revision, "files": sizes})
    missing = [name for name, size in sizes.items() if _size(snapshot / name) != size]
    if missing:
        _check_space(folder, repo, sum(sizes[name] for name in missing))
        here = sum(sizes.values()) - sum(sizes[name] for name in missing)
        with _progress(folder / "blobs", here, sum(sizes.values())):
            blobs.download(repo, commit, _digests(info, missing), folder / "blobs")
            snapshot_download(repo, revision=commit, allow_patterns=missing, max_workers=4)
    _verify(snapshot, sizes)
    if revision != commit:
        _refer(folder / "refs" / revision, commit)
    return {"commit": commit, "files": sizes, "bytes": sum(sizes[name] for name in missing)}


def _digests(info: ModelInfo, names: list[str]) -> dict[str, str]:
    """SHA-256 of the large ones among files; the hub knows it of no other."""
    large = {one.rfilename: one.lfs.sha256 for one in info.siblings or () if one.lfs}
    return {name: large[name] for name in names if name in large}


def _chosen(repo: str, info: ModelInfo) -> dict[str, int]:
    sizes = {one.rfilename: one.size or 0 for one in info.siblings or ()}
    chosen = needed(sizes)
    if not has_weights(chosen):
        pickles = [name for name in sizes if any(fnmatch(name, like) for like in PICKLES)]
        also = f": its weights are pickles ({pickles[0]})" if pickles else ""
        raise Refusal(
            "weights",
            f"{repo} has neither safetensors nor an ONNX graph at {endpoint()}{also}",
            "choose a model or a `revision:` that has safetensors; pickles are never fetched: "
            "convert them (`save_pretrained()`), and name the folder in `checkpoint:`",
        )
    return {name: sizes[name] for name in chosen}


def _check_space(folder: Path, repo: str, wanted: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    begun = sum(filter(None, map(_size, (folder / "blobs").glob("*.incomplete"))))
    free = shutil.disk_usage(folder).free
    say(f"@size {wanted} {begun}")
    if wanted - begun > free:
        raise Refusal(
            "disk",
            f"{repo} takes {(wanted - begun) / 1e9:.1f} GB more, and {folder} has "
            f"{free / 1e9:.1f} GB left",
            f"free space, or set HF_HOME to a folder on another disk; then {AGAIN}",
        )


@contextmanager
def _progress(blobs: Path, here: int, whole: int) -> Iterator[None]:
    """Say every half second how many bytes are there; what was there before counts."""
    before = _sum_of(blobs, complete=True)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_SECONDS_BETWEEN):
            say(f"@bytes {min(whole, here + _sum_of(blobs) - before)} {whole}")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _sum_of(blobs: Path, *, complete: bool = False) -> int:
    with suppress(FileNotFoundError):
        files = [file for file in blobs.iterdir() if not complete or file.suffix != ".incomplete"]
        return sum(filter(None, map(_size, files)))
    return 0


def _verify(snapshot: Path, sizes: dict[str, int]) -> None:
    wrong = [name for name, size in sizes.items() if _size(snapshot / name) != size]
    for file in (snapshot / name for name in wrong):
        for damaged in (file.resolve(), file):
            damaged.unlink(missing_ok=True)
    if wrong:
        raise Refusal(
            "damaged",
            f"{wrong[0]} did not come in the size that the hub names, and was removed",
            f"{AGAIN}; check HF_ENDPOINT and the proxy if it happens twice",
        )


def _refer(reference: Path, commit: str) -> None:
    """What the revision is now, where the library and other tools look without the network."""
    reference.parent.mkdir(parents=True, exist_ok=True)
    temporary = reference.with_name(f".{reference.name}.{os.getpid()}")
    temporary.write_text(commit, encoding="utf-8")
    os.replace(temporary, reference)


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None


def main() -> int:
    """Run the program: exit status 0 if and only if the result says ok."""
    parser = argparse.ArgumentParser(description="Download a model of the Hugging Face Hub.")
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    request = json.loads(given.request.read_text(encoding="utf-8"))
    try:
        write(given.result, {"status": "ok", **fetch(request)})
    except Exception as error:
        traceback.print_exc()
        refusal = explained(error, request["repo"], request["revision"])
        record = {"kind": refusal.kind, "problem": refusal.problem, "remedy": refusal.remedy}
        write(given.result, {"status": "failed", **record})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
