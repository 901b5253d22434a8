# SPDX-License-Identifier: Apache-2.0
"""Build the tenants and their ledger from the frontend's configuration."""

from __future__ import annotations

from pathlib import Path

from tritonctl.errors import HostError
from tritonctl.frontend.budgets.admission import Budgets
from tritonctl.frontend.budgets.keys import Keys
from tritonctl.frontend.budgets.ledger import MemoryLedger
from tritonctl.frontend.budgets.tenant import TenantLimits
from tritonctl.frontend.config import FrontendConfig


def keys_of(config: FrontendConfig) -> Keys:
    """Return the tenants and their keys."""
    tenants = {
        name: TenantLimits(
            name,
            requests_per_minute=fields.requests_per_minute,
            tokens_per_minute=fields.tokens_per_minute,
            concurrency=fields.concurrency,
            priority=fields.priority,
        )
        for name, fields in config.tenants.items()
    }
    files = {name: fields.api_key_file for name, fields in config.tenants.items()}
    return Keys(tenants, files, config.gateway_secret_file)


def budgets_of(config: FrontendConfig) -> Budgets:
    """Return the budgets. Raises HostError for an unreadable password file."""
    settings = config.settings.ledger
    if settings is None:
        return Budgets(MemoryLedger())
    # Redis' client takes 0.2 s: import it only if it is used.
    from tritonctl.frontend.budgets.redis_ledger import RedisLedger

    password = _password(settings.password_file) if settings.password_file else None
    ledger = RedisLedger(settings.redis, password, settings.ca)
    return Budgets(ledger, MemoryLedger() if settings.when_unreachable == "allow" else None)


def _password(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, ValueError) as error:
        detail = error.strerror if isinstance(error, OSError) else "not text"
        raise HostError(
            f"frontend.ledger.password_file: {file} cannot be read: {detail}",
            remedy="check the path and its permissions",
        ) from error
