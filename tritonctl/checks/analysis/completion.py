# SPDX-License-Identifier: Apache-2.0
"""What completes a configuration when its model is loaded."""

from __future__ import annotations

import ast

from tritonctl.checks.model_py.source import dotted_name
from tritonctl.checks.repository import Model, Repository

METHOD = "auto_complete_config"


def completing(model: Model, repository: Repository) -> ast.FunctionDef | None:
    """A model.py's auto_complete_config, if the server calls it as it is written."""
    method = model.code.method(METHOD) if model.code else None
    if not isinstance(method, ast.FunctionDef) or not repository.target.completes:
        return None
    decorators = {dotted_name(one) for one in method.decorator_list}
    return method if decorators <= {"staticmethod", "classmethod"} else None
