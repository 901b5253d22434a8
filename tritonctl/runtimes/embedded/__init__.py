# SPDX-License-Identifier: Apache-2.0
"""A project's Triton in this environment: installed from a wheel, started under a supervisor."""
