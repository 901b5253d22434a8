# SPDX-License-Identifier: Apache-2.0
"""Engine builds: request, fingerprint, stages, runner, builder process, lock."""
