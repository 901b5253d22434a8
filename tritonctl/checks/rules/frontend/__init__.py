# SPDX-License-Identifier: Apache-2.0
"""TC92x: requests that the OpenAI frontend (`frontend:` of the project) would refuse."""

from tritonctl.checks.rules.frontend import models, tenants

__all__ = ["models", "tenants"]
