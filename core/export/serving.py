"""Writes a script and a compose file that serve a choice, on one machine or several, with vLLM or SGLang.

The files name no path of this machine and no key: local models are named by their folders, below MODELS, and a key is
taken from the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from core.errors import SettingsError
from core.export.choice import Choice, ModelSource, SourceKind
from core.export.configurations import configuration
from core.export.engines.common import Project
from core.files import write_atomically


@dataclass(frozen=True, slots=True)
class _Server:
    """What a project needs besides its command.

    Attributes:
        flags: added to the command; the shell's variables are set by the script.
        machines: the arguments for one of several machines.
        others: the arguments for every machine but the first; empty if they are the first's.
        image: for the compose file.
        key: the variable that the server reads its key from; empty if it takes none from the environment.
    """

    flags: tuple[str, ...]
    machines: str
    others: str
    image: str
    key: str


SERVERS: Mapping[str, _Server] = {
    "vllm": _Server(
        flags=(
            '--host "$OUTRIDER_HOST" --port "$PORT"',
            '--tensor-parallel-size "$((GPUS * MACHINES))"',
            "--per-request-spec-decode-metrics detailed",
        ),
        machines='--nnodes "$MACHINES" --node-rank "$RANK" --master-addr "$HEAD"',
        others="--headless",
        image="vllm/vllm-openai:${VLLM_TAG:-latest}",
        key="VLLM_API_KEY",
    ),
    "sglang": _Server(
        flags=('--host "$OUTRIDER_HOST" --port "$PORT"', '--tp-size "$((GPUS * MACHINES))"'),
        machines='--nnodes "$MACHINES" --node-rank "$RANK" --dist-init-addr "$HEAD:20000"',
        others="",
        image="lmsysorg/sglang:${SGLANG_TAG:-latest}",
        key="",
    ),
}
_FOLDERS = "Put the models in one folder, as {names}, and set MODELS to it."
_SCRIPT = """#!/bin/sh
{head}#
# OUTRIDER_HOST=0.0.0.0 opens the server to the network; {key}.
# More arguments of the server may follow the script's name.
# Several machines: MACHINES is their number, GPUS the number of GPUs in each. Start the script on every machine with
# RANK=0, 1, ... and HEAD, the address of machine 0. They communicate without encryption, so use a private network.
# Each needs the models, in the same versions.
set -eu
OUTRIDER_HOST=${{OUTRIDER_HOST:-127.0.0.1}} PORT=${{PORT:-8000}}
GPUS=${{GPUS:-{gpus}}} MACHINES=${{MACHINES:-{machines}}} RANK=${{RANK:-0}}
{folder}if [ "$MACHINES" -gt 1 ]; then
    : "${{HEAD:?Set HEAD to the address of machine 0.}}"
    set -- {arguments} "$@"
{others}fi
exec {command}
"""
_COMPOSE = """# Runs {script}, which describes what is served. For one of several machines, set MACHINES, RANK and HEAD.
services:
  {name}:
    image: {image}
    entrypoint: ["sh", "/{script}"]
    volumes:
      - ./{script}:/{script}:ro
      - ${{HF_HOME:-~/.cache/huggingface}}:/root/.cache/huggingface
{volume}    environment: [{variables}]
    network_mode: host
    ipc: host
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: all
              capabilities: [gpu]
"""


def serving_files(choice: Choice, project: Project, *, gpus: int = 1, machines: int = 1) -> dict[str, str]:
    """The script and the compose file, by their names.

    Args:
        gpus: of each machine; both models are split over all of them.
        machines: how many serve together; this number and `gpus` can be changed when the script is started.

    Raises:
        SettingsError: the project can't serve the choice, or no files are written for it.
    """
    if project.name not in SERVERS:
        known = " and ".join(SERVERS)
        raise SettingsError(f"--serve writes files for {known}, not for {project.name}; leave out --serve.")
    server = SERVERS[project.name]
    target, draft = _named(choice)
    # The comments name the models, too.
    request = replace(choice.request, target=target.name, draft=draft.name if draft else None)
    found = configuration(replace(choice, request=request, models=choice.sources), project, (target, draft))
    if found.problem:
        raise SettingsError(found.problem)
    names = list(dict.fromkeys(model.name for model in (target, draft) if model and model.kind is not SourceKind.HUB))
    folder = ""
    if names:
        folder = f"# {_FOLDERS.format(names=' and '.join(map(ascii, names)))}\n"
        folder += 'cd "${MODELS:?Set MODELS to the folder that holds the models.}"\n'
    script = f"serve-{project.name}.sh"
    first, _, rest = found.text.partition(f"\n{found.program}\n")
    command = " \\\n    ".join([found.program.rstrip("\n"), *server.flags, '"$@"'])
    key = f"with {server.key} set, it asks for that key" if server.key else "then give it a key with --api-key"
    others = f'    [ "$RANK" -eq 0 ] || set -- {server.others} "$@"\n' if server.others else ""
    text = _SCRIPT.format(
        **{"head": first + rest, "gpus": gpus, "machines": machines, "folder": folder, "key": key},
        **{"arguments": server.machines, "others": others, "command": command},
    )
    variables = ["OUTRIDER_HOST", "PORT", "GPUS", "MACHINES", "RANK", "HEAD", "HF_TOKEN", *filter(None, [server.key])]
    compose = _COMPOSE.format(
        **{"script": script, "name": project.name, "image": server.image},
        volume="      - ${MODELS:?Set MODELS to the folder that holds the models.}:/models:ro\n" if names else "",
        variables=", ".join([*variables, *(["MODELS=/models"] if names else [])]),
    )
    return {script: text, f"compose-{project.name}.yaml": compose}


def write_serving_files(folder: Path, files: Mapping[str, str], *, force: bool = False) -> None:
    """Write the files into a folder, which is made if there is none: each is complete or not written.

    Raises:
        SettingsError: one is there already, and `force` is not set; then none is written.
        RunLogError: a file can't be written.
    """
    if there := next((name for name in files if (folder / name).exists() and not force), None):
        raise SettingsError(f"{str(folder / there)!r} already exists; add --force to replace it.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{str(folder)!r} can't be created: {error.strerror}.") from None
    for name, text in files.items():
        write_atomically(folder / name, text)


def _named(choice: Choice) -> tuple[ModelSource, ModelSource | None]:
    """The models as the files name them: by the Hub's id, or by the folder's own name."""
    target, draft = choice.sources

    def named(source: ModelSource, role: str, other: ModelSource | None) -> ModelSource:
        if source.kind is SourceKind.HUB:
            return source
        name = Path(source.name).name
        is_taken = other is not None and other.name != source.name and Path(other.name).name == name
        return replace(source, name=role if is_taken or not name else name, note="")

    return named(target, "target", draft), named(draft, "draft", target) if draft else None
