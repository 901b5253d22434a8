# SPDX-License-Identifier: Apache-2.0
"""Project and artefacts become a plan, the plan becomes config.pbtxt and a published repository."""
