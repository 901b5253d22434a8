# SPDX-License-Identifier: Apache-2.0
"""Tools of /v1/chat/completions: what the chat template is given, and what the model calls.

The template writes the tools into the prompt; the model calls them in the markup it was trained
on, inside its text. `formats` knows the markup of each family of checkpoints, `stream` takes it
out of the text while it comes.
"""
