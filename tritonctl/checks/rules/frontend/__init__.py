# SPDX-License-Identifier: Apache-2.0
"""TC92x: what clients of the OpenAI API, `frontend:` of the project, would find refused."""

from tritonctl.checks.rules.frontend import models, tenants

__all__ = ["models", "tenants"]
