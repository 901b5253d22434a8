# SPDX-License-Identifier: Apache-2.0
"""The project file, `tritonctl.yaml`: its schema, and how it is read; schemas and YAML as files."""
