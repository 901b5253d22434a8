# SPDX-License-Identifier: Apache-2.0
"""TC037: packages that model.py imports and nothing installs.

The images of Triton and the embedded server have Python's standard library, numpy, and what the
models' requirements.txt name.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from tritonctl.checks.analysis.placement import join_some
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.memoize import memoized
from tritonctl.checks.model_py.source import PythonSource
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import warning
from tritonctl.checks.rules.layout.files import environment_value
from tritonctl.checks.small_file import UnreadableError, exists, read_small

_REQUIREMENTS = "requirements.txt"
_MAX_BYTES = 1 << 20
_PROVIDED = {"numpy", "triton_python_backend_utils", "c_python_backend_utils"}
# Images of their own have these engines, with all that they need; trtllmlib is tritonctl's, of
# rendered models.
_ENGINES = {"vllm", "tensorrt_llm", "sglang", "trtllmlib"}
# Code with one of these decides at run time where it imports from.
_PATH_CHANGES = ("sys.path", "site.addsitedir", "importlib", "pip")
# Packages whose import has another name.
_DISTRIBUTIONS = {
    "PIL": ("pillow",),
    "cv2": ("opencv-python", "opencv-python-headless", "opencv-contrib-python"),
    "sklearn": ("scikit-learn",),
    "yaml": ("pyyaml",),
    "bs4": ("beautifulsoup4",),
    "google": ("protobuf",),
    "skimage": ("scikit-image",),
}
_NAME = re.compile(r"^\s*([A-Za-z0-9][\w.-]*)", re.MULTILINE)
_RENDERED = "# Rendered by tritonctl"


@warning(
    "TC037 package-not-installed",
    summary="a package that model.py imports and nothing installs",
    reason="Triton's image has numpy and Python's standard library only: the import fails, and the "
    "backend refuses the model.",
    answers=("server#6467", "server#7012", "server#5133", "server#8290"),
)
def package_not_installed(
    config: ConfigMessage, code: PythonSource, model: Model, repository: Repository
) -> Iterator[Hit]:
    if _has_own_environment(config, code, model):
        return
    imports = dict(_imported_packages(code))
    if _ENGINES & set(imports):
        return
    installed = memoized(repository, "installed", lambda: _installed_names(repository))
    version = model.served_version
    own_files = model.version_files(version) if version is not None else {}
    missing = {
        name: node
        for name, node in imports.items()
        if name not in _PROVIDED
        and name not in sys.stdlib_module_names
        and not {name, f"{name}.py", f"{name}.so"} & set(own_files)
        and not any(file.startswith(f"{name}.cpython") for file in own_files)
        and installed.isdisjoint(map(_normalized, (name, *_DISTRIBUTIONS.get(name, ()))))
    }
    if missing:
        node = next(iter(missing.values()))
        packages = " and ".join(_DISTRIBUTIONS.get(each, (each,))[0] for each in list(missing)[:3])
        yield Hit(
            f"nothing installs {join_some(missing)}",
            f"write {packages}, with the version, into {model.display_path}/{_REQUIREMENTS}, which "
            "tritonctl installs, put your own module next to model.py, or serve with an image that "
            "has it",
            *code.node_location(node),
        )


def _has_own_environment(config: ConfigMessage, code: PythonSource, model: Model) -> bool:
    """Whether the model brings its packages, or finds them at run time."""
    places = (model.path, *(model.path / str(version) for version in model.versions))
    return (
        environment_value(config, model) is not None
        or any(exists(place / _REQUIREMENTS) for place in places)
        or "triton_python_backend_stub" in model.entries
        or any(change in code.source.text for change in _PATH_CHANGES)
        or (model.file is not None and model.file.source.text.startswith(_RENDERED))
    )


def _imported_packages(code: PythonSource) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the packages that the top of the file certainly imports."""
    for node in code.tree.body if code.tree else ():
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], node
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0], node


def _installed_names(repository: Repository) -> set[str]:
    """Return what the requirements of all models name: they share the server's environment."""
    names: set[str] = set()
    for model in repository.models.values():
        for place in (model.path, *(model.path / folder for folder in model.folders)):
            try:
                text = read_small(place / _REQUIREMENTS, _MAX_BYTES).decode("utf-8", "replace")
            except UnreadableError:
                continue
            names.update(_normalized(name) for name in _NAME.findall(text))
    return names


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
