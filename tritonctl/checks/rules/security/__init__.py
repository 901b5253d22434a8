# SPDX-License-Identifier: Apache-2.0
"""TC9xx: files of a repository that expose the server to attackers."""

from tritonctl.checks.rules.security import code, files, requests, secrets

__all__ = ["code", "files", "requests", "secrets"]
