"""The project as a whole: style, types, layers, and a README that says what CI does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


def test_code_is_linted_and_formatted():
    run(sys.executable, "-m", "ruff", "check", ".")
    run(sys.executable, "-m", "ruff", "format", "--check", ".")


@pytest.mark.slow
def test_types_hold():
    run(sys.executable, "-m", "mypy")


def test_layers_hold():
    run(sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")


def readme_commands() -> list[str]:
    """The shell lines of the README's first section, where a newcomer looks."""
    text = (ROOT / "README.md").read_text("utf-8")
    first_section = text.split("\n## ")[1]
    blocks = re.findall(r"```sh\n(.*?)```", first_section, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def test_readme_gives_two_commands_and_ci_runs_the_second():
    commands = readme_commands()
    assert len(commands) == 2
    assert commands[0].endswith("outrider")
    assert commands[1].endswith("pytest")
    assert commands[1] in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()


def test_readme_links_to_files_that_are_here():
    text = (ROOT / "README.md").read_text("utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^)]+)\)", text)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_dependency_is_pinned():
    pins = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if "==" in line
    }
    declared = re.findall(r'^    "([A-Za-z0-9._-]+)[><=]', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert {name.lower().replace("_", "-") for name in declared} <= pins
