# SPDX-License-Identifier: Apache-2.0
"""The part of the project file that says how the OpenAI API is served."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from tritonctl.project.base import AboveZero, Positive, Strict
from tritonctl.project.server import Port, Tracing

# As OpenAI's own and those of a hub; a colon would separate an adapter.
Alias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]*$", max_length=200)]


class Ledger(Strict):
    """Where several frontends keep one account for each tenant; one frontend needs none.

    Redis 6.2 or later, or Valkey.
    """

    redis: str = Field(
        description="e.g. redis://10.0.0.5:6379/0, rediss:// with TLS; never with a password",
        pattern=r"^rediss?://[^\s]+$",
    )
    password_file: Path | None = Field(
        None, description="a file of one line, Redis' password", strict=False
    )
    ca: Path | None = Field(
        None, description="the authority that signed Redis' certificate", strict=False
    )
    when_unreachable: Literal["refuse", "allow"] = Field(
        "refuse",
        description="refuse: 503 to tenants with limits until it answers again; allow: each "
        "frontend counts for itself meanwhile",
    )

    @model_validator(mode="after")
    def _no_secret(self) -> Self:
        if urlsplit(self.redis).password is not None:
            raise ValueError("redis has a password in it: write it to a file, `password_file`")
        return self


class Upstream(Strict):
    """A server that the frontend sends requests to."""

    host: str = Field(description="name or address; a name with several addresses is several")
    grpc_port: Port = Field(8001, description="of inference over gRPC")
    metrics_port: Port | None = Field(
        8002, description="of its metrics, which say how busy it is; null: they are not read"
    )

    @property
    def url(self) -> str:
        """`host:port` of gRPC."""
        return f"{self.host}:{self.grpc_port}"


class Pool(Strict):
    """Replicas for requests up to a length; each length goes to the tightest pool that takes it."""

    upstreams: list[str] = Field(
        description="of `frontend.upstreams`, as host:grpc_port", min_length=1
    )
    most_tokens: Positive | None = Field(
        None,
        description="of a request, its prompt and the answer that is expected; any when absent",
    )


# The markup of a family of checkpoints; `none`: tools are refused.
ToolFormat = Literal[
    "none",
    "qwen_coder",
    "glm",
    "hermes",
    "deepseek",
    "kimi",
    "mistral",
    "jamba",
    "command_r",
    "granite",
    "internlm",
    "pythonic",
    "llama3",
]


# Where a model's thoughts begin: with <think> in its answer, or in the prompt already.
Reasoning = Literal["tags", "opened"]


class Frontend(Strict):
    """The OpenAI API over the public models: `tritonctl frontend`, and `up` starts it."""

    address: str = Field("127.0.0.1", description="loopback by default")
    port: Port = Field(9000, description="of the HTTP API; 0 lets the system choose a free one")
    aliases: dict[Alias, str] = Field(
        {},
        description="further names of models, e.g. `gpt-4o-mini: speller`; "
        "`MODEL:ADAPTER` for one with a LoRA adapter",
    )
    upstreams: list[Upstream] = Field(
        [], description="the servers; the project's own, or the replicas of compose, when absent"
    )
    prefix_affinity: bool = Field(
        False,
        description="prompts with an equal beginning go to one server, whose cache may have it, "
        "as long as that one is not busier than the others",
    )
    tool_formats: dict[str, ToolFormat] = Field(
        {},
        description="how models call tools, by model; found in its chat template when absent",
    )
    reasoning: dict[str, Reasoning] = Field(
        {},
        description="models whose thoughts go out as `reasoning_content`: `tags`, answers begin "
        "with <think>; `opened`, their chat template has opened it; content when absent",
    )
    max_body_bytes: Positive = Field(
        10_000_000, description="longest request body; beyond: 413. The tokenizer takes as much"
    )
    body_timeout_seconds: AboveZero = Field(
        30.0, description="for a request's head, and again for its body; beyond: 408"
    )
    max_requests: Positive = Field(
        1024, description="in flight; beyond: 429, before anything of the request is read"
    )
    silence_seconds: AboveZero | None = Field(
        60.0,
        description="an answer whose server says nothing for so long goes on at another one, or "
        "fails; null: never",
    )

    access_log: bool = Field(
        True, description="a line of JSON for each request, without what was asked and answered"
    )
    log_prompts: bool = Field(
        False, description="the access log has prompts and answers, too: to debug, not to serve"
    )
    tracing: Tracing | None = Field(
        None, description="where traces go, by OpenTelemetry's GenAI conventions; none when absent"
    )
    ledger: Ledger | None = Field(
        None, description="of tenants' budgets; in the process, for one frontend, when absent"
    )

    @model_validator(mode="after")
    def _upstreams_once(self) -> Self:
        urls = [each.url for each in self.upstreams]
        if twice := next((url for url in urls if urls.count(url) > 1), None):
            raise ValueError(f"upstreams has {twice} twice")
        return self

    def refuse_unknown_upstreams(self, model: str, pools: Mapping[str, Pool]) -> None:
        """Raises ValueError for a pool of servers that are none, or for no long requests."""
        known = [each.url for each in self.upstreams]
        for name, pool in pools.items():
            for url in pool.upstreams:
                if url not in known:
                    expected = f"one of {', '.join(known)}" if known else "none: there are none"
                    raise ValueError(
                        f"models.{model}.serving.pools.{name} names `{url}`; frontend.upstreams "
                        f"has {expected}"
                    )
        if pools and all(pool.most_tokens is not None for pool in pools.values()):
            raise ValueError(
                f"models.{model}.serving.pools: no pool takes the longest requests; leave "
                "`most_tokens` out of one"
            )

    def refuse_unknown_models(self, public: Collection[str]) -> None:
        """Raises ValueError for an alias that is a model's name, or of a model that is none."""
        for field in ("tool_formats", "reasoning"):
            for model in getattr(self, field):
                if model not in public:
                    known = ", ".join(sorted(public))
                    raise ValueError(f"{field} has `{model}`, expected one of {known}")
        for alias, target in self.aliases.items():
            if alias in public:
                raise ValueError(f"the alias `{alias}` is the name of a model")
            if target.partition(":")[0] not in public:
                known = ", ".join(sorted(public))
                raise ValueError(f"the alias `{alias}` is of `{target}`, expected one of {known}")
