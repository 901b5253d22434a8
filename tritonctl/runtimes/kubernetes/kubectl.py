# SPDX-License-Identifier: Apache-2.0
"""Run the user's kubectl, the only way to a cluster: argument lists in, JSON and typed errors out.

It has the user's permissions: no credentials are read, stored or forwarded here.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from tritonctl.errors import UsageError
from tritonctl.host.process import terminate_group
from tritonctl.runtimes.kubernetes.api_errors import ClusterError, ClusterErrorReason, kubectl_error
from tritonctl.supervision.exec_launcher import launcher_command

Object = dict[str, Any]  # a Kubernetes object as JSON

REQUEST_SECONDS = 20.0
_MARGIN_SECONDS = 10.0  # kubectl may send two requests, and a credentials plugin takes time
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_DEFAULT = "default"
_MAX_ERROR_LINES = 10  # for the error


@dataclass(frozen=True)
class Kubectl:
    """kubectl with a context and a namespace; None: as configured in kubectl.

    Every method raises ClusterError with a `reason`, and ManifestRefusedError for objects that the
    cluster rejects.
    """

    context: str | None = None
    namespace: str | None = None
    seconds: float = REQUEST_SECONDS  # for a request

    def __post_init__(self) -> None:
        if self.namespace is not None:
            require_name("--namespace", self.namespace)

    @cached_property
    def program(self) -> str:
        """Path of kubectl."""
        if path := shutil.which("kubectl"):
            return path
        raise ClusterError(
            "kubectl is not installed, and tritonctl reaches clusters through it",
            remedy="install it (https://kubernetes.io/docs/tasks/tools/), within one minor version "
            "of the cluster; then `kubectl version`",
            reason=ClusterErrorReason.NO_KUBECTL,
        )

    @property
    def flags(self) -> str:
        """Context and namespace options with a leading space, for messages."""
        options = (("--context", self.context), ("--namespace", self.namespace))
        return "".join(f" {option} {shlex.quote(value)}" for option, value in options if value)

    @cached_property
    def effective_namespace(self) -> str:
        """The namespace of requests."""
        if self.namespace:
            return self.namespace
        view = self.json("config", "view", "--minify")
        contexts = view.get("contexts") or [{}]
        return str((contexts[0].get("context") or {}).get("namespace") or _DEFAULT)

    def command(self, *arguments: str, timeout: bool = True) -> list[str]:
        """Return the full command line; timeout=False for commands that run on, such as logs."""
        options = [f"--request-timeout={self.seconds:g}s"] if timeout else []
        if self.context is not None:
            options.append(f"--context={self.context}")
        if self.namespace is not None:
            options.append(f"--namespace={self.namespace}")
        return [self.program, *options, *arguments]

    def run(self, *arguments: str, stdin: str | None = None, seconds: float | None = None) -> str:
        """Run kubectl and return its standard output; seconds: overrides the time limit."""
        status, out, err = self._run_captured(arguments, stdin, seconds)
        if status != 0:
            raise kubectl_error(err or out, flags=self.flags)
        return out

    def json(self, *arguments: str, stdin: str | None = None) -> Object:
        """Run kubectl and return its JSON output."""
        text = self.run(*arguments, "--output=json", stdin=stdin)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ClusterError(
                f"`kubectl {shlex.join(arguments)}` did not print JSON: {text[:100]!r}",
                remedy="`kubectl version` shows whether it is kubectl",
                reason=ClusterErrorReason.OTHER,
                details=text[-2000:],
            )
        return answer

    def get(
        self, kind: str, *, selector: Mapping[str, str] | None = None, all_namespaces: bool = False
    ) -> list[Object]:
        """Return the objects of a kind (`pods`, `hpa.v2beta2.autoscaling`) with these labels.

        A missing namespace has no objects: `require_namespace` checks for it.
        """
        options = ["--all-namespaces"] if all_namespaces else []
        if selector:
            options.append(selector_option(selector))
        return list(self.json("get", kind, *options).get("items") or [])

    def find(self, kind: str, name: str) -> Object | None:
        """Return one object; None if the cluster lacks the object or its kind."""
        try:
            return self.json("get", kind, _object_name(name))
        except ClusterError as error:
            if error.reason in (ClusterErrorReason.NOT_FOUND, ClusterErrorReason.NO_KIND):
                return None
            raise

    def apply(self, objects: Iterable[Mapping[str, Any]], *, dry_run: bool = False) -> list[Object]:
        """Create or change objects and return them; dry_run: only validate in the cluster."""
        manifest = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        options = ["--dry-run=server"] if dry_run else []
        answer = self.json("apply", "--filename=-", *options, stdin=json.dumps(manifest))
        return list(answer["items"]) if answer.get("kind") == "List" else [answer]

    def patch(
        self,
        kind: str,
        name: str,
        change: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        patch_type: Literal["merge", "strategic", "json"] = "merge",
    ) -> Object:
        """Patch an object and return it.

        patch_type: `json` takes a sequence of operations; a failed `test` is a conflict.
        """
        options = (f"--type={patch_type}", f"--patch={json.dumps(change)}")
        return self.json("patch", kind, _object_name(name), *options)

    def delete(self, kind: str, name: str, *, seconds: float = 60) -> None:
        """Delete an object and wait until it is gone; a missing object is not an error."""
        options = ("--ignore-not-found", f"--timeout={seconds:g}s")
        self.run("delete", kind, _object_name(name), *options, seconds=seconds)

    def execute(
        self, pod: str, *command: str, container: str | None = None, stdin: str | None = None
    ) -> str:
        """Run a command in a pod's container and return its output."""
        options = [f"--container={container}"] if container else []
        options += ["--stdin"] if stdin is not None else []
        return self.run("exec", _object_name(pod), *options, "--", *command, stdin=stdin)

    def is_allowed(self, verb: str, kind: str) -> bool:
        """Whether the user has a permission, such as `create` `deployments.apps`."""
        status, out, err = self._run_captured(("auth", "can-i", verb, kind, "--quiet"), None, None)
        if status == 0:
            return True
        # `no` is exit code 1 without output, except warnings about the kind.
        output_lines = [line for line in (out + err).splitlines() if line and not _is_warning(line)]
        if status == 1 and not output_lines:
            return False
        raise kubectl_error(err or out, flags=self.flags)

    def require_namespace(self) -> None:
        """Raise ClusterError if the namespace does not exist; pass if the user may not look."""
        try:
            self.json("get", "namespace", self.effective_namespace)
        except ClusterError as error:
            if error.reason not in (ClusterErrorReason.NOT_FOUND, ClusterErrorReason.NO_NAMESPACE):
                if error.reason is ClusterErrorReason.FORBIDDEN:
                    return
                raise
            raise ClusterError(
                f"the cluster has no namespace `{self.effective_namespace}`",
                remedy="`kubectl get namespaces` lists them; name one: --namespace NAME",
                reason=ClusterErrorReason.NO_NAMESPACE,
            ) from error

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a kubectl that keeps running; `stdout` has both output streams.

        On Linux it exits with the thread that started it. The terminal's Ctrl-C does not reach it,
        so that its traffic may finish.
        """
        command = self.command(*arguments, timeout=False)
        with ExitStack() as resources:
            inherited_fds: list[int] = []
            if sys.platform == "linux":
                command, record_fd = resources.enter_context(launcher_command(command))
                inherited_fds = [record_fd]
            try:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    encoding="utf-8",
                    errors="replace",
                    start_new_session=True,
                    pass_fds=inherited_fds,
                )
            except OSError as error:
                raise _start_error(self.program, error) from error

    def lines(self, *arguments: str) -> Iterator[str]:
        """Yield the output line by line until kubectl exits; leaving the iteration stops it."""
        process = self.start(*arguments)
        try:
            last_lines: deque[str] = deque(maxlen=_MAX_ERROR_LINES)
            with process.stdout or io.StringIO() as lines:
                for text in lines:
                    last_lines.append(text.rstrip("\r\n"))
                    yield last_lines[-1]
            if process.wait() != 0:
                raise kubectl_error("\n".join(last_lines), flags=self.flags)
        finally:
            with suppress(OSError):
                terminate_group(process)

    def _run_captured(
        self, arguments: Sequence[str], stdin: str | None, seconds: float | None
    ) -> tuple[int, str, str]:
        try:
            result = subprocess.run(
                self.command(*arguments, timeout=seconds is None),
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=(seconds or self.seconds) + _MARGIN_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(
                f"`kubectl {shlex.join(arguments)}` did not finish within {error.timeout:g} s",
                remedy=f"try `kubectl{self.flags} cluster-info`; a credentials plugin has no "
                "terminal for a password here: log in first",
                reason=ClusterErrorReason.TIMEOUT,
            ) from error
        except OSError as error:
            raise _start_error(self.program, error) from error
        return result.returncode, result.stdout, result.stderr.strip()


def require_name(option: str, value: str) -> str:
    """Return a valid Kubernetes name, so never an option. Raises UsageError for another value."""
    if _NAME.fullmatch(value) is None:
        raise UsageError(
            f"{option} {value[:80]!r} is not a valid Kubernetes name",
            remedy="use lower-case letters, digits and `-`, such as demo-1",
        )
    return value


def selector_option(labels: Mapping[str, str], *more: str) -> str:
    """Return kubectl's option to select by all of these labels; `more`: further conditions."""
    equal = [f"{key}={value}" for key, value in labels.items()]
    return f"--selector={','.join([*equal, *more])}"


def _object_name(value: str) -> str:
    return require_name("the object's name", value)


def _is_warning(line: str) -> bool:
    return line.startswith("Warning:") or line in ("no", "yes")


def _start_error(program: str, error: OSError) -> ClusterError:
    return ClusterError(
        f"cannot start {program}: {error.strerror}",
        remedy="`kubectl version` shows the cause",
        reason=ClusterErrorReason.NO_KUBECTL,
    )
