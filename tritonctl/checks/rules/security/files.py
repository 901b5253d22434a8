# SPDX-License-Identifier: Apache-2.0
"""TC90x: files that others may change, that lead elsewhere, or that run code when they are read.

Sources: https://docs.python.org/3/library/pickle.html;
https://github.com/triton-inference-server/server/blob/main/docs/customization_guide/deploy.md
"""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tritonctl.checks.analysis.file_tree import Entry, first_bytes, tree
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.imports import called
from tritonctl.checks.model_py.source import PythonSource
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, warning
from tritonctl.checks.rules.security.code import unpickles

_PICKLES = (".pkl", ".pickle", ".joblib", ".dill", ".sav")
_TORCH = (".pt", ".pth", ".bin", ".ckpt")
_PROTOCOLS = tuple(bytes([0x80, number]) for number in range(2, 6))
_COMPRESSED = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda", b"\x1f\x8b", b"BZ", b"\xfd7")
_ZIP = b"PK\x03\x04"
_KEYS = (".pem", ".key")
_KEY_NAMES = ("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519")
_KEY_BYTES = 8192


def _others_write(mode: int) -> bool:
    """Whether everybody may change it. Of a folder with the sticky bit, nobody else's files."""
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


@warning(
    "TC905 writable-by-others",
    summary="files of a model that others on the machine may change",
    why="Whoever can change a model.py runs code in the server; whoever can change weights decides "
    "its answers.",
)
def writable(repository: Repository) -> Iterator[Hit]:
    models = sorted(repository.models.items())
    if models and _others_write(_mode_and_owner(repository.path)[0]):
        yield Hit(
            f"everybody on this machine may put models into {repository.path.name}, or take "
            "them away",
            f"take that right away: chmod -R o-w {repository.path}",
            model=models[0][1],
        )
        return
    for _, model in models:
        exposed = [one.place for one in tree(model) if not one.is_link and _others_write(one.mode)]
        if _others_write(_mode_and_owner(model.path)[0]):
            exposed.insert(0, "")
        if exposed:
            name = f"{model.name}/{exposed[0]}".rstrip("/")
            more = f", and {len(exposed) - 1} more below {model.name}" if len(exposed) > 1 else ""
            yield Hit(
                f"everybody on this machine may change {name}{more}",
                f"take that right away: chmod -R o-w {model.shown}",
                place=exposed[0],
                model=model,
            )
        else:
            yield from _owned_by_another(repository, model)


def _owned_by_another(repository: Repository, model: Model) -> Iterator[Hit]:
    """The first file of somebody who neither serves the repository nor is the administrator."""
    if not hasattr(os, "geteuid"):  # Windows: files have no numbers of users
        return
    owners = {_mode_and_owner(path)[1] for path in (repository.path, model.path)}
    trusted = {0, os.geteuid(), *owners}
    for one in tree(model):
        if one.status.st_uid not in trusted:
            yield Hit(
                f"{model.name}/{one.place} belongs to user {one.status.st_uid}, who may change "
                "it, and the folders around it do not",
                f"give it to their owner: chown -R --reference={model.shown} {model.shown}",
                place=one.place,
                model=model,
            )
            return


def _mode_and_owner(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mode, status.st_uid


@warning(
    "TC906 set-uid",
    summary="a program in a model's folder that runs as its owner (set-uid)",
    why="No model needs it, and a vulnerability in that program is one of the whole machine.",
)
def set_uid(model: Model) -> Iterator[Hit]:
    for one in tree(model):
        if one.is_file and one.mode & stat.S_ISUID:
            yield Hit(
                f"{one.place} runs as its owner, whoever starts it (mode {one.mode:o})",
                f"remove the bit: chmod u-s {model.shown}/{one.place}",
                place=one.place,
            )


@warning(
    "TC907 link-out",
    summary="a symbolic link out of the repository",
    why="A container with only the repository finds nothing there, and whoever can write "
    "to the other place decides what is served.",
)
def outside(model: Model, repository: Repository) -> Iterator[Hit]:
    links = [one for one in tree(model) if one.is_link]
    if not links and not model.path.is_symlink():
        return
    root, base = os.path.realpath(repository.path), os.path.realpath(model.path)
    if not _within(base, root):
        yield _leads(model, "", base)
    for one in links:
        target = os.path.realpath(one.path)
        if not _within(target, root) and not _within(target, base) and Path(target).exists():
            yield _leads(model, one.place, target)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _leads(model: Model, place: str, target: str) -> Hit:
    return Hit(
        f"{place or model.name} is a symbolic link out of the repository, to {target}",
        "put the file itself there, or a hard link",
        place=place,
    )


@advice(
    "TC908 pickled-file",
    summary="a pickled file next to a model.py",
    why="Reading a pickle runs a program: whoever can replace the file runs code in the server.",
)
def pickled(code: PythonSource, model: Model) -> Iterator[Hit]:
    if unpickles(code):
        return
    careful = any(call.keyword_is("weights_only", True) for call in called(code, {"torch.load"}))
    for one in tree(model):
        suffix = Path(one.place).suffix.lower()
        looked_at = suffix in _PICKLES or (suffix in _TORCH and not careful)
        if one.is_file and looked_at and _is_pickle(one, suffix):
            yield Hit(
                f"{one.place} is a pickle, which runs the code inside it when it is read",
                "keep weights as safetensors, NumPy or ONNX, and objects as JSON",
                place=one.place,
            )


def _is_pickle(entry: Entry, suffix: str) -> bool:
    start = first_bytes(entry.path, 4)
    if start.startswith(_PROTOCOLS):
        return True
    if suffix == ".joblib" and start.startswith(_COMPRESSED):
        return True
    return start == _ZIP and suffix in _TORCH and _is_state(entry.path)


def _is_state(path: Path) -> bool:
    """Whether a zip file is what torch.save writes, and not TorchScript."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False
    script = any("/code/" in name or name.endswith("constants.pkl") for name in names)
    return not script and any(name.endswith("data.pkl") for name in names)


@warning(
    "TC909 private-key",
    summary="a private key in a model's folder",
    why="Repositories are copied, backed up and baked into images: the key goes with them.",
)
def private_key(model: Model) -> Iterator[Hit]:
    for one in tree(model):
        name = Path(one.place).name
        if not one.is_file or not (name.lower().endswith(_KEYS) or name in _KEY_NAMES):
            continue
        start = first_bytes(one.path, _KEY_BYTES)
        if b"-----BEGIN " in start and b"PRIVATE KEY-----" in start:
            yield Hit(
                f"{one.place} is a private key",
                "take it out of the repository, and give the server another one",
                place=one.place,
            )
