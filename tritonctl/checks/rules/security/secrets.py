# SPDX-License-Identifier: Apache-2.0
"""TC91x: secrets that stand in a repository, and releases with known vulnerabilities.

What is found is never shown: findings point at it, with its text blotted out.

Sources: NVIDIA's security bulletins, by builders/compatibility.toml;
https://docs.github.com/en/code-security/secret-scanning (the forms of tokens)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tritonctl.checks.analysis.small_files import small_files
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.places import Source, Span
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import warning

_FORMS = {
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}",
    "AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub token": r"\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{50,}",
    "GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "NVIDIA API key": r"\bnvapi-[A-Za-z0-9_-]{40,}",
    "Slack token": r"\bxox[abprs]-[A-Za-z0-9-]{20,}",
    "Google API key": r"\bAIza[0-9A-Za-z_-]{35}",
    "private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
}
_STARTS = (
    *("hf_", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"),
    *("nvapi-", "xox", "AIza", "PRIVATE KEY-----"),
)
_SECRET = re.compile("|".join(f"(?P<s{i}>{form})" for i, form in enumerate(_FORMS.values())))
_KINDS = dict(zip((f"s{i}" for i in range(len(_FORMS))), _FORMS, strict=True))
# In machine learning a token is mostly something else.
_NAMED = re.compile(
    r"(?:.*_)?(?:(?:hf|hub|auth|access|api|bearer|github|wandb)_?token|passw(?:or)?d|passphrase"
    r"|secret|secret_?key|api_?key|access_?key)",
    re.IGNORECASE,
)
_SHORTEST = 8
_FEWEST = 6  # different characters, below which it stands for a secret


@warning(
    "TC910 secret-in-repository",
    summary="a token, key or password in a configuration or in code",
    why="Repositories are copied, backed up and baked into images, and a running server shows "
    "the parameters of its models to whoever asks.",
)
def secrets(model: Model) -> Iterator[Hit]:
    texts = [model.file.source] if model.file else []
    texts += [model.code.source] if model.code else []
    for source in (*texts, *small_files(model)):
        hits = [*_known_forms(source.text)]
        if model.file and source is model.file.source:
            hits += _named(model)
        blotted = _blotted(source, [span for _, span in hits])
        for message, span in hits:
            yield Hit(
                message,
                "revoke it and take it out; pass a new one through the server's environment",
                span,
                blotted,
            )


def _known_forms(text: str) -> Iterator[tuple[str, Span]]:
    if not any(start in text for start in _STARTS):
        return
    for match in _SECRET.finditer(text):
        kind = _KINDS[match.lastgroup or ""]
        if kind == "private key" or _is_real(match.group()):
            yield f"{'an' if kind[0] in 'AN' else 'a'} {kind} stands here", Span(*match.span())


def _is_real(text: str) -> bool:
    return len(set(text)) >= _FEWEST and "EXAMPLE" not in text.upper()


def _named(model: Model) -> Iterator[tuple[str, Span]]:
    """Parameters whose name says that they are secret."""
    config = model.config
    for key, value in config.message.parameters.items():
        text = value.string_value
        if not _NAMED.fullmatch(key) or len(text) < _SHORTEST or not _is_real(text):
            continue
        if "${" not in text and text[0] != "/" and not _SECRET.search(text):
            span = config.span("parameters", key, "string_value")
            yield f"the parameter {key} holds a secret", span


def _blotted(source: Source, spans: list[Span]) -> Source:
    """The same file, of the same length, without any of what was found in it."""
    text = source.text
    for span in spans:
        text = text[: span.start] + "*" * (span.end - span.start) + text[span.end :]
    return Source(source.name, text)


@warning(
    "TC911 known-holes",
    summary="a target version with known vulnerabilities",
    why="NVIDIA's bulletins show everybody how to use them; only a later release fixes them.",
    shows="elsewhere",
)
def holes(repository: Repository) -> Iterator[Hit]:
    target = repository.target
    if not target.version or not target.named_by_user:
        return
    # Importing it (pydantic) takes longer than checking a model.
    from tritonctl.project.compatibility.exposure import cves_of, fixed_in, known_holes

    known = known_holes(target.version)
    # The first with a configuration that can be read: the finding is reported there.
    with_config = (model for _, model in sorted(repository.models.items()) if model.has_config)
    model = next(with_config, None) if known else None
    if model is None:
        return
    yield Hit(
        f"Triton {target.version} has known vulnerabilities: {cves_of(known)}; "
        f"the worst: {known[0].summary} (CVSS {known[0].score:g})",
        f"serve with release {fixed_in(known)} or later, or let only this machine reach it",
        model.config.span("name"),
        model=model,
    )


@warning(
    "TC912 shared-environment",
    summary="an EXECUTION_ENV_PATH in a folder that everybody may write to",
    why="Whoever puts an archive there first decides which Python runs the model, with all that "
    "the server may do.",
    shows="elsewhere",
)
def shared_environment(config: ConfigMessage) -> Iterator[Hit]:
    key = "EXECUTION_ENV_PATH"
    if key not in config.message.parameters:
        return
    path = config.message.parameters[key].string_value
    if path.startswith(("/tmp/", "/var/tmp/", "/dev/shm/")):  # noqa: S108 - looked for, not used
        yield Hit(
            f"{key} is {path}, in a folder where everybody on the machine may put files",
            "keep the environment with the model: $$TRITON_MODEL_DIRECTORY/env.tar.gz",
            config.span("parameters", key, "string_value"),
        )
