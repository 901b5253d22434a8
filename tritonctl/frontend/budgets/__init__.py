# SPDX-License-Identifier: Apache-2.0
"""Tenants and their token budgets: identification, ledgers, admission."""
