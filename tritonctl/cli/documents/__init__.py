# SPDX-License-Identifier: Apache-2.0
"""The JSON documents that verbs print with `--json`; docs/reference/json-output.md lists them.

Each has also `schema`, which names its form and its version. A document that is the record of a
library's result has that result's type: `tritonctl.cli.documents.table`. Verbs import these modules
only for type checking.
"""
