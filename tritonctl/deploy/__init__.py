# SPDX-License-Identifier: Apache-2.0
"""Runs the project's servers elsewhere than in this environment: containers of Docker Compose."""
