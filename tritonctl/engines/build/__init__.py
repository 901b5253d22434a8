# SPDX-License-Identifier: Apache-2.0
"""A builder process makes the engine: request, fingerprint, runner, stages, lock."""
