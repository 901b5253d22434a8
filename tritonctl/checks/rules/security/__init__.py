# SPDX-License-Identifier: Apache-2.0
"""TC9xx: whether what lies in a repository opens the server to others."""

from tritonctl.checks.rules.security import code, files, requests, secrets

__all__ = ["code", "files", "requests", "secrets"]
