# SPDX-License-Identifier: Apache-2.0
"""Where a Triton runs: embedded, in containers, in a Kubernetes cluster."""
