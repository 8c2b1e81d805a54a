"""The project as a whole: style, types, layers, and a README that says what CI does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from core.decode import speculative
from core.drafters.base import Drafter
from core.experiments.api import check as check_exact
from core.experiments.check_plan import Verdict
from core.settings import SamplingParams
from tests.fakes import greedy_reference, play, tiny_model

ROOT = Path(__file__).resolve().parents[1]


def check(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


def test_code_is_linted_and_formatted():
    check(sys.executable, "-m", "ruff", "check", ".")
    check(sys.executable, "-m", "ruff", "format", "--check", ".")


@pytest.mark.slow
def test_types_hold():
    check(sys.executable, "-m", "mypy")


def test_layers_hold():
    check(sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")


# --- Documents --------------------------------------------------------------------------------------------------

DOCUMENTS = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + sorted(
    (ROOT / "resources" / "docs").glob("*.md")
)


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_readme_gives_two_commands_first_and_ci_runs_the_second():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 150
    commands = [line for block in code_blocks(text.split("\n## ")[1], "sh") for line in block.splitlines() if line]
    assert len(commands) == 2
    assert commands[0].endswith("outrider")
    assert commands[1].endswith("pytest")
    assert commands[1] in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_link_to_files_and_sections_that_are_here(document):
    for link in re.findall(r'(?:\]\(|src(?:set)?=")(?!https?:)([^)"]+)', document.read_text("utf-8")):
        path, _, anchor = link.partition("#")
        linked = (document.parent / path).resolve() if path else document
        assert linked.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in headings], link


def test_the_architecture_names_files_that_are_here():
    text = (ROOT / "resources" / "docs" / "architecture.md").read_text("utf-8")
    paths = re.findall(r"`((?:app|core|tests|resources)/[\w./]*)`", text)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_drafter_in_the_document_drafts_and_stays_exact(monkeypatch):
    examples = code_blocks((ROOT / "resources" / "docs" / "drafters.md").read_text("utf-8"), "python")
    names: dict = {}
    exec(examples[0], names)
    drafter = names["BigramDrafter"]()
    assert isinstance(drafter, Drafter)
    target, prompt = tiny_model(is_fused=True), list(b"abcabcabd abcabc")
    for _ in range(2):  # A second run begins anew.
        events = speculative(target, drafter, prompt, sampling=SamplingParams(temperature=0.0), max_new_tokens=60)
        run = play(events)
        assert run.ids == greedy_reference(target, prompt, 60)[: len(run.ids)]
        assert run.finished.summary.num_accepted_tokens > 0
    monkeypatch.setattr("core.models.loading.load", lambda ref: target)
    exec(examples[1], names)
    assert names["report"].verdict is Verdict.EXACT
    assert names["result"].text
    assert len(names["speed"].speedup.values) == 3


def test_the_tree_drafter_in_the_document_branches_and_stays_exact():
    examples = code_blocks((ROOT / "resources" / "docs" / "drafters.md").read_text("utf-8"), "python")
    names: dict = {}
    exec(next(text for text in examples if "proposes_trees" in text), names)
    drafter = names["BigramTreeDrafter"]()
    assert isinstance(drafter, Drafter)
    target, prompt = tiny_model(), list(b"abcabcabd abcabc")
    settings = {"sampling": SamplingParams(temperature=0.0), "num_draft_tokens": 12, "max_new_tokens": 60}
    run, again = (play(speculative(target, drafter, prompt, **settings)) for _ in range(2))
    assert run.ids == greedy_reference(target, prompt, 60)[: len(run.ids)]
    assert any(step.path != tuple(range(step.num_accepted)) for step in run.steps), "a later candidate is accepted"
    assert max(step.num_accepted for step in run.steps) > 1, "a path of several nodes is accepted"
    assert [step.drafted for step in again.steps] == [step.drafted for step in run.steps], "a second run begins anew"
    report = check_exact(target, drafter, [bytes(prompt).decode()], num_draft_tokens=6, num_samples=200, num_tokens=16)
    assert report.verdict is Verdict.EXACT


def test_every_dependency_is_pinned():
    pins = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if "==" in line
    }
    declared = re.findall(r'^    "([A-Za-z0-9._-]+)[><=]', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert {name.lower().replace("_", "-") for name in declared} <= pins


def test_what_programs_outside_import_is_there():
    from core.decode import autoregressive, speculative
    from core.models import load
    from core.sampling import probabilities
    from core.types import SamplingParams, TokenKind
    from core.verify import verify

    assert SamplingParams() == SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    assert {"CORRECTION", "BONUS"} <= set(TokenKind.__members__)
    assert all(map(callable, (autoregressive, speculative, load, probabilities, verify)))
