# SPDX-License-Identifier: Apache-2.0
"""Find the auto_complete_config method that completes a configuration on load."""

from __future__ import annotations

import ast

from tritonctl.checks.model_py.source import dotted_name
from tritonctl.checks.repository import Model, Repository

METHOD = "auto_complete_config"


def auto_complete_method(model: Model, repository: Repository) -> ast.FunctionDef | None:
    """Return the auto_complete_config of a model.py, if the server calls it unchanged."""
    method = model.code.method(METHOD) if model.code else None
    if not isinstance(method, ast.FunctionDef) or not repository.target.completes:
        return None
    decorators = {dotted_name(decorator) for decorator in method.decorator_list}
    return method if decorators <= {"staticmethod", "classmethod"} else None
