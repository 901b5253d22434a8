# SPDX-License-Identifier: Apache-2.0
"""Two commands at the end of each verb's help: the usual one, and one with an option."""

EXAMPLES = {
    "quickstart": ("", "my-folder --quiet"),
    "init": ("checkpoint", "checkpoint --target h100"),
    "new example": ("number-finder", "digit-reader --into reader"),
    "new step": ("my_filter", "my_filter --json"),
    "new ensemble": ("guarded", "guarded --step my_filter --model speller"),
    "fetch": ("", "--json"),
    "doctor": ("", "--bundle report.tar.gz"),
    "schema": ("", "> tritonctl.schema.json"),
    "plan": ("", "speller --memory 80GiB"),
    "build": ("", "speller --dry-run"),
    "render": ("", "--models speller"),
    "check": ("models/", "models/ --fix"),
    "graph": ("speller", "speller --format mermaid"),
    "artefacts list": ("", "--json"),
    "artefacts show": ("speller", "speller --json"),
    "artefacts diff": ("3f2a 91bc", "3f2a 91bc --json"),
    "artefacts verify": ("", "speller --json"),
    "artefacts prune": ("--dry-run", "--keep 2 --yes"),
    "release": ("", "--no-smoke"),
    "releases list": ("", "--json"),
    "releases show": ("3", "latest --json"),
    "releases diff": ("2 3", "2 latest --json"),
    "releases verify": ("", "3 --json"),
    "releases prune": ("--dry-run", "--keep 3 --yes"),
    "up": ("", "--release 3"),
    "reload": ("speller", "speller --no-smoke"),
    "rollback": ("", "3"),
    "status": ("", "--json"),
    "logs": ("", "--lines 200 --follow"),
    "frontend": ("", "--url 127.0.0.1:8001 --port 9000"),
    "down": ("", "--json"),
    "generate": ('speller "515 in Thai:"', 'speller "7 in English:" --max-tokens 8'),
    "chat": ("speller", 'speller --system "Answer briefly."'),
    "embed": ("encoder texts.txt -o vectors.jsonl", 'encoder --text "a short text"'),
    "classify": ("sentiment reviews.txt", "vision --image cat.jpg --top-k 1"),
    "rerank": ('reranker --query "a question" texts.txt', "reranker --jsonl asked.jsonl"),
    "infer": ("encoder --input x=@x.npy", "encoder --input x=@x.json --json"),
    "smoke": ("", "--url 127.0.0.1:8001 --models speller"),
    "top": ("", "--metrics-url 127.0.0.1:8002"),
    "tune": ("", "steady --budget 10 --apply"),
    "loadtest run": ("", "steady --rate 5 --duration 60"),
    "loadtest capacity": ("", "steady --budget 10"),
    "loadtest compare": ("monday tuesday", "127.0.0.1:8001 127.0.0.1:9001 --rounds 6"),
    "loadtest report": ("", "monday --csv"),
    "loadtest mock": ("", "--port 8001 --ttft exponential:20"),
    "rollout start": ("2", "latest --breaking"),
    "rollout status": ("", "--page rollout.html"),
    "rollout watch": ("", "--json"),
    "rollout pause": ("", "--json"),
    "rollout resume": ("", "--json"),
    "rollout promote": ("", "--json"),
    "rollout abort": ("", "--at-once"),
    "rollout differences": (
        (
            "Examples of what differs, on a page",
            "tritonctl rollout differences -o differences.html",
        ),
    ),
    "rollout compare": (
        "127.0.0.1:8001 127.0.0.1:8101 --prompts asked.txt",
        "a:8001 b:8001 --prompts asked.jsonl -o report.html",
    ),
    "bundle": ("out", "out --json"),
    "certs": ("", "certs --host triton.example --days 30"),
    "deploy compose": ("", "--output deploy --force"),
    "deploy kubernetes": ("--release 3", "--manifests --kubernetes 1.31"),
}


def epilog(verb: str) -> str | None:
    """The examples of a verb, as Typer takes them: an empty line keeps lines apart."""
    given = EXAMPLES.get(verb, ())
    lines = [f"  tritonctl {verb} {arguments}".rstrip() for arguments in given]
    return "\n\n".join(["Examples:", *lines]) if lines else None
