# SPDX-License-Identifier: Apache-2.0
"""Requirements files and their locks.

The lock of `requirements.txt` is `requirements.lock` in the same folder, written by `make locks`:
the same packages and, unless they are installed with --no-deps, all packages that those need, each
with the SHA-256 of every file of its version. Installers refuse a file with another hash.

torch is in no lock: its CPU wheels, of PyTorch's own index or of a local folder, have other hashes
than the files of the public index. So is TensorRT: the server's image determines its version.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tritonctl.errors import ConfigurationError
from tritonctl.host.files import as_host_error

LOCK_SUFFIX = ".lock"
VERIFY = "--require-hashes"
_HASH = " --hash=sha256:"
_OPTIONS = re.compile(r"\s--\w.*")  # options of a single requirement, such as --hash


def requirement_lines(file: Path, within: tuple[Path, ...] = ()) -> Iterator[tuple[Path, str]]:
    """Yield each line of a requirements file and of its includes, with the line's file.

    Raises ConfigurationError for a file that includes itself, HostError for an unreadable one.
    """
    if not file.is_file():
        yield file, f"-r {file}"  # pip reports the missing file
        return
    if file.resolve() in within:
        raise ConfigurationError(
            f"{file} includes itself", remedy="remove that `-r` line from the requirements"
        )
    for raw in requirements_text(file).replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        if included := re.fullmatch(r"(?:-r|--requirement)[\s=]*(\S+)", line):
            yield from requirement_lines(file.parent / included[1], (*within, file.resolve()))
        elif line:
            yield file, line


def requirements_text(file: Path) -> str:
    """Return the text of a requirements file; "" if it does not exist. Raises HostError."""
    if not file.is_file():
        return ""
    with as_host_error(file):
        return file.read_text(encoding="utf-8", errors="surrogateescape")


def without_options(line: str) -> str:
    """Return a requirement without its options, such as hashes."""
    return _OPTIONS.sub("", line)


def verified_install_arguments(*locks: str | Path) -> tuple[str, ...]:
    """Return the arguments of a `pip install` that installs these locks and nothing else."""
    return ("--no-deps", VERIFY, *(word for lock in locks for word in ("-r", str(lock))))


def lock_of(requirements: Path) -> Path | None:
    """Return the lock of a requirements file; None without one, or if hashes are missing in it."""
    lock = requirements.with_suffix(LOCK_SUFFIX)
    lines = locked_lines(lock) if lock.is_file() else []
    return lock if lines and all(_HASH in line for line in lines) else None


def locks_of(files: Iterable[Path]) -> list[Path]:
    """Return the locks of those requirements files that have one."""
    return [lock for file in files if (lock := lock_of(file))]


def unlocked_requirements(files: Sequence[Path]) -> list[str]:
    """Return the requirements that no lock has, of the files without a lock."""
    versions = set(locked_versions(locks_of(files)))
    lines = [line for file in files if not lock_of(file) for _, line in requirement_lines(file)]
    return [line for line in lines if line not in versions]


def locked_lines(lock: Path) -> list[str]:
    """Return the requirements of a lock with their hashes, each in one line."""
    return [re.sub(r"\s+", " ", line) for _, line in requirement_lines(lock)]


def lock_text(lines: Iterable[str]) -> str:
    """Return the text of a lock with these lines, each of which has hashes."""
    ordered = sorted(lines, key=str.lower)
    return "".join(f"{line}\n" for line in ordered).replace(_HASH, f" \\\n   {_HASH}")


def locked_versions(locks: Iterable[Path]) -> list[str]:
    """Return the sorted requirements of several locks without their hashes."""
    return sorted({without_options(line) for lock in locks for line in locked_lines(lock)})


def lock_digest(lock: Path) -> str:
    """Return a hex digest over a lock's versions.

    Hashes do not count: a version's new file for another system changes no environment.
    """
    return hashlib.sha256("\n".join(locked_versions([lock])).encode()).hexdigest()


def refuse_outdated_lock(lock: Path) -> None:
    """Raise ConfigurationError if a lock lacks a requirement of the file that it belongs to."""
    requirements = lock.with_suffix(".txt")
    if not requirements.is_file():
        return
    locked = [_parsed(line) for line in locked_versions([lock])]
    for _, line in requirement_lines(requirements):
        required = _parsed(line)
        if required and not any(each and _fixes(each, required) for each in locked):
            raise ConfigurationError(
                f"{lock} is out of date: it does not have {without_options(line)} of "
                f"{requirements.name}",
                remedy="write it again: `uv pip compile --universal --generate-hashes "
                f"{requirements} -o {lock}` (in a clone of tritonctl: `make locks`)",
            )


def verified_locks(install: Sequence[str], folder: Path) -> list[Path]:
    """Return the locks among the arguments of a `pip install` that verifies hashes."""
    if VERIFY not in install:
        return []
    files = [
        folder / value for option, value in pairwise(install) if option in {"-r", "--requirement"}
    ]
    return [file for file in files if file.suffix == LOCK_SUFFIX]


def _parsed(line: str) -> Requirement | None:
    try:
        return Requirement(without_options(line))
    except InvalidRequirement:  # an option, a path, a URL
        return None


def _fixes(locked: Requirement, required: Requirement) -> bool:
    """Whether a locked requirement is a version that the other one permits."""
    if canonicalize_name(locked.name) != canonicalize_name(required.name):
        return False
    versions = [each.version for each in locked.specifier if each.operator == "=="]
    return any(required.specifier.contains(version, prereleases=True) for version in versions)
