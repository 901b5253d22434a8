# SPDX-License-Identifier: Apache-2.0
"""Runners of a stage: this interpreter, the stage's cached environment, or a container."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tritonctl.engines.builds.catalog import Builder, BuilderEnvironment, BuilderStage
from tritonctl.engines.builds.fingerprint import external_data_files
from tritonctl.engines.builds.image_probe import ImageFacts, check_image
from tritonctl.engines.builds.option_files import option_files
from tritonctl.engines.builds.stages import StageBuild
from tritonctl.errors import ConfigurationError, HostError
from tritonctl.host import containers
from tritonctl.host.containers import ContainerEngine
from tritonctl.host.environments import (
    EnvironmentRecipe,
    ensure_environment,
    environment_python,
    is_installed,
    packages_folder,
)
from tritonctl.host.files import as_host_error, write_atomically
from tritonctl.host.installer import installer
from tritonctl.host.interpreters import require_interpreter
from tritonctl.host.process import without_python_variables
from tritonctl.host.progress import Progress
from tritonctl.project.compatibility.table import BuildTarget

# Builders run offline.
_SETTINGS = {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Workplace:
    """A place where a builder's program runs."""

    prefix: tuple[str, ...]  # start of the command line, before the script
    environment: Mapping[str, str]
    versions: Mapping[str, str] = field(default_factory=dict)  # of the runner, e.g. an image's id
    clean_up: Callable[[], None] = lambda: None  # removes the leftovers of a killed program

    def command(self, build: StageBuild, request: Path, result: Path) -> list[str]:
        """Return the command line of a stage."""
        script = build.builder.program(build.stage)
        return [*self.prefix, str(script), "--request", str(request), "--result", str(result)]


Runner = Callable[[StageBuild, Path, Progress], Workplace]


def _current_interpreter(build: StageBuild, staging: Path, progress: Progress) -> Workplace:  # noqa: ARG001
    """Use this interpreter: for machines with the stage's packages, such as an NGC image."""
    return _local_workplace(Path(sys.executable))


def _venv(build: StageBuild, staging: Path, progress: Progress) -> Workplace:  # noqa: ARG001
    """Use the stage's cached environment, created on first use."""
    return _local_workplace(venv_python(build.builder, progress, build.stage, build.request.target))


def _container(build: StageBuild, staging: Path, progress: Progress) -> Workplace:
    """Use a container of the target's image with the build's folders and without a network.

    Raises HostError when the image, or a package that the stage imports, is missing.
    """
    image = container_image(build)
    engine = containers.find_engine()
    digest = containers.local_image(engine, image)
    for folder in _persistent_folders(build):
        with as_host_error(folder):
            folder.mkdir(parents=True, exist_ok=True)  # Docker does not mount a missing folder
    name = f"tritonctl-build-{build.fingerprint.digest[:16]}-{os.getpid()}"
    with progress.step(f"Looking into the image {image}"):
        facts = _check_image(build, staging, engine, image)
    packages = _task_packages(build, facts, progress) if facts else None
    command = container_command(engine.program, build, staging, name, packages)
    prefix = [*command, image, "python3"]
    return Workplace(
        prefix=tuple(prefix),
        environment=os.environ,
        versions={"image": image, "image_id": digest, engine.name: engine.version},
        clean_up=lambda: containers.remove_container(engine, name),
    )


def _check_image(
    build: StageBuild, staging: Path, engine: ContainerEngine, image: str
) -> ImageFacts | None:
    environment = _environment_of(build)
    if environment is None or not environment.probe:
        return None
    other_runners = [name for name in build.stage.runners if name != "container"]
    name = f"tritonctl-probe-{build.fingerprint.digest[:16]}-{os.getpid()}"
    probe = []
    for statement in environment.probe:
        with suppress(ConfigurationError):  # the target's version is unknown
            probe.append(_fill_versions(build.builder.name, build.request.target, statement))
    try:
        return check_image(
            image,
            [*container_command(engine.program, build, staging, name), image, "python3"],
            probe,
            requires_python=environment.requires_python,
            log=staging / "build.log",
            remedy="name an image that has it in `engine.target.image`"
            + (f", or build with `--runner {other_runners[0]}`" if other_runners else ""),
            extras=environment.task_probe if build.request.task else (),
        )
    except BaseException:
        containers.remove_container(engine, name)
        raise


def _environment_of(build: StageBuild) -> BuilderEnvironment | None:
    return build.stage.environment or build.builder.owner(build.stage).environment


def _task_packages(build: StageBuild, facts: ImageFacts, progress: Progress) -> Path | None:
    """Install the task's packages that the image lacks, for its Python; return their folder."""
    environment = _environment_of(build)
    if environment is None or not facts.failed_extras:
        return None
    owner = build.builder.owner(build.stage)
    recipe = EnvironmentRecipe(
        name=f"task-{owner.name}",
        installs=(tuple(environment.task_install),),
        folder=owner.folder,
        reader=f"{facts.python.major}.{facts.python.minor}",
    )
    return packages_folder(ensure_environment(recipe, progress))


def require_environments(builds: Iterable[StageBuild]) -> None:
    """Raise HostError for an offline build whose environments are not installed.

    An environment of local wheels (pip's `no-index`) needs no network and may be missing.
    """
    for build in builds:
        if build.runner != "venv":
            continue
        recipe = builder_recipe(build.builder, build.stage, build.request.target)
        if not is_installed(recipe) and not installer(recipe.python.path).no_index:
            raise HostError(
                f"--offline, but the environment {recipe.name} is not installed on this machine",
                remedy=f"run `tritonctl build {build.name}` once where there is a network, or "
                "bring the wheels in a bundle: `tritonctl bundle FOLDER --builders` there",
            )


def require_images(builds: Iterable[StageBuild]) -> None:
    """Require the container images of all stages before the first one starts and runs for hours.

    Raises ConfigurationError when no image is configured, HostError without a container engine or
    when the image is not on this machine.
    """
    for build in builds:
        if build.runner != "container":
            continue
        image = container_image(build)
        try:
            containers.local_image(containers.find_engine(), image)
        except HostError as error:
            raise HostError(
                f"{build.location}: {error.problem}", remedy=error.remedy, details=error.details
            ) from error


def container_image(build: StageBuild) -> str:
    """Return the image that a stage runs in. Raises ConfigurationError if none is configured."""
    target = build.request.target
    image = target.image if target else build.model.engine.target.image
    if image is None:
        raise ConfigurationError(
            f"models.{build.name}: the runner `container` needs an image",
            remedy="set `engine.target.image`, or an `engine.target.release` that has one",
        )
    return image


def container_command(
    program: str, build: StageBuild, staging: Path, name: str, packages: Path | None = None
) -> list[str]:
    """Return `docker run` for a stage; paths inside and outside are the same.

    `packages` is a folder that comes first on PYTHONPATH.
    """
    checkpoint = Path(build.request.checkpoint)
    folders = [*build.builder.owner(build.stage).folders, *build.builder.tables, checkpoint]
    folders += external_data_files(checkpoint) if checkpoint.is_file() else []
    if checkpoint.parent.name == "snapshots":  # the files of a hub cache are links
        folders.append(checkpoint.parents[1])
    folders += [build.source] if build.source else []
    if build.request.evaluation:
        folders.append(Path(build.request.evaluation.prompts))
    if build.request.calibration:
        folders.append(Path(build.request.calibration.data))
    folders += option_files(build.stage, build.request.options).values()
    folders += [packages] if packages else []
    python_path = {"PYTHONPATH": str(packages)} if packages else {}
    return containers.run_command(
        program,
        name=name,
        read_only=folders,
        writable=[staging, *_persistent_folders(build)],
        workdir=staging,
        environment={**_SETTINGS, "HOME": str(staging), **python_path},
        gpus=build.stage.needs_gpu or _can_use_gpus(build),
    )


def _can_use_gpus(build: StageBuild) -> bool:
    """Whether a stage that needs no GPU gets one: Docker refuses `--gpus` without a GPU."""
    target = build.request.target
    return target is not None and target.gpu is not None and bool(shutil.which("nvidia-smi"))


def _persistent_folders(build: StageBuild) -> list[Path]:
    folders = (build.request.options.get(option) for option in build.stage.writes)
    return [Path(folder) for folder in folders if isinstance(folder, str)]


def _local_workplace(python: Path) -> Workplace:
    # A builder sees only the packages of its environment.
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return Workplace((str(python),), without_python_variables() | {"PATH": path} | _SETTINGS)


def venv_python(
    builder: Builder,
    progress: Progress,
    stage: BuilderStage | None = None,
    target: BuildTarget | None = None,
) -> Path:
    """Return the interpreter of a builder's or stage's environment, created on first use."""
    return environment_python(ensure_environment(builder_recipe(builder, stage, target), progress))


def builder_recipe(
    builder: Builder, stage: BuilderStage | None = None, target: BuildTarget | None = None
) -> EnvironmentRecipe:
    """Return the environment of `builder.toml` with the target's versions filled in.

    Raises ConfigurationError for a version that the target lacks, HostError without a suitable
    Python.
    """
    if stage is not None and stage.of:
        return builder_recipe(builder.owner(stage))
    environment = _environment(builder, stage)
    fill = partial(_fill_versions, builder.name, target)
    has_own_environment = (
        stage is not None and stage.environment is not None and stage in builder.stages
    )
    return EnvironmentRecipe(
        name=f"builder-{builder.name}-{stage.name}"
        if has_own_environment and stage
        else f"builder-{builder.name}",
        installs=tuple(tuple(map(fill, arguments)) for arguments in environment.install),
        folder=builder.folder,
        probe="\n".join(map(fill, environment.probe)) or "pass",
        gpu=_uses_gpus(builder, stage),
        python=require_interpreter(environment.requires_python, f"builder {builder.name}"),
    )


def _uses_gpus(builder: Builder, stage: BuilderStage | None) -> bool:
    """Whether PyTorch must support CUDA: the stage needs a GPU, or one is installed."""
    needs_gpu = stage.needs_gpu if stage else builder.needs_gpu
    return needs_gpu or (builder.targets is not None and bool(shutil.which("nvidia-smi")))


def _fill_versions(builder: str, target: BuildTarget | None, text: str) -> str:
    """Replace version placeholders in a text of builder.toml. Raises ConfigurationError."""
    versions = {
        "{tensorrt}": target.tensorrt if target else None,
        "{cuda_major}": target.cuda.split(".")[0] if target and target.cuda else None,
    }
    for name, version in versions.items():
        if name in text and version is None:
            raise ConfigurationError(
                f"the environment of builder {builder} depends on the server's {name}, which is "
                "unknown",
                remedy="set engine.target.release and engine.target.tensorrt, or use another "
                "runner",
            )
        text = text.replace(name, version or "")
    return text


def _environment(builder: Builder, stage: BuilderStage | None) -> BuilderEnvironment:
    environment = (stage.environment if stage else None) or builder.environment
    if environment is None:
        raise HostError(
            f"builder {builder.name} declares no environment",
            remedy="use another runner, or add [environment] to its builder.toml",
        )
    return environment


RUNNERS: dict[str, Runner] = {
    "current": _current_interpreter,
    "venv": _venv,
    "container": _container,
}


def write_reproduce_script(staging: Path, workplace: Workplace, build: StageBuild) -> None:
    """Write `reproduce.sh` into the artefact: the same build by hand, in an empty folder."""
    argv = [*workplace.prefix, str(build.builder.program(build.stage))]
    script = " ".join(_shell_quoted(argument, staging) for argument in argv)
    settings = " ".join(f"{key}={value}" for key, value in _SETTINGS.items())
    text = (
        "#!/bin/sh\n# The command that made this engine; run it in an empty folder.\n"
        'cp "$(cd "$(dirname "$0")" && pwd)/request.json" request.json\n'
        f"export {settings}\n"
        f'exec {script} --request "$PWD/request.json" --result "$PWD/result.json"\n'
    )
    write_atomically(staging / "reproduce.sh", text)
    (staging / "reproduce.sh").chmod(0o755)


def _shell_quoted(argument: str, staging: Path) -> str:
    """Quote an argument for a shell, with `$PWD` in place of the staging folder."""
    prefix, *suffixes = argument.split(str(staging))
    return (
        shlex.quote(prefix) * bool(prefix)
        + "".join(f'"$PWD"{shlex.quote(suffix) if suffix else ""}' for suffix in suffixes)
        or "''"
    )
