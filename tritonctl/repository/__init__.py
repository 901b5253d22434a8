# SPDX-License-Identifier: Apache-2.0
"""Plans a model repository from project and artefacts, renders its config.pbtxt, publishes it."""
