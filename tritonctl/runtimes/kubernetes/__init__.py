# SPDX-License-Identifier: Apache-2.0
"""The project on Kubernetes: a Helm chart, and the manifests that it becomes."""
