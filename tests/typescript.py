# SPDX-License-Identifier: Apache-2.0
"""Literals against the TypeScript types of npm's packages: an unknown field is a mistake, too."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_COMPILER = "typescript@5.9.3"
_FLAGS = ("--strict", "--skipLibCheck", "--target", "es2022", "--module", "esnext")
_PROGRAM = "check.mts"


class TypeScript:
    """Packages in a folder of their own. Skips where npm cannot install them."""

    def __init__(self, folder: Path, *packages: str) -> None:
        npm, node = shutil.which("npm"), shutil.which("node")
        if npm is None or node is None:
            pytest.skip(f"NO NPM: apt-get install npm; nobody asked {' '.join(packages)}")
        self._folder, self._node = folder, node
        install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", _COMPILER]
        done = self._run(*install, *packages)
        if done.returncode:
            told = f"npm cannot install {' '.join(packages)}: {done.stderr[-300:]}"
            pytest.skip(f"NO PACKAGES: {told}")

    def problems(self, program: str) -> str:
        """What the compiler says; nothing, if every type is right."""
        (self._folder / _PROGRAM).write_text(program, encoding="utf-8")
        compiler = "node_modules/typescript/bin/tsc"
        done = self._run(self._node, compiler, *_FLAGS, "--moduleResolution", "bundler", _PROGRAM)
        assert bool(done.returncode) == bool(done.stdout), done.stderr
        return done.stdout

    def output(self) -> str:
        """What the program prints that was compiled last. Raises CalledProcessError."""
        done = self._run(self._node, str(Path(_PROGRAM).with_suffix(".mjs")))
        done.check_returncode()
        return done.stdout

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self._folder, capture_output=True, text=True, check=False
        )
