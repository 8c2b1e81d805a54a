"""Writes configurations that serve a choice with vLLM, transformers, SGLang, llama.cpp or MLX.

Each has its file in core/export/engines, which writes the command or program and notes on what differs from Outrider.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from core.drafters.registry import get_method
from core.errors import SettingsError
from core.export.choice import Choice, ModelSource, SourceKind
from core.export.engines import llama_cpp, mlx, sglang, transformers, vllm
from core.export.engines.common import OUTTYPES, Project, UnsupportedError, plain
from core.export.run_data import named
from core.settings import LOSSY, Coupling, VerificationRule

CHECKED_ON = "2026-11-22"
"""When the engines' sources were last checked."""
WIDTH = 80
_VLLM_BLOCK = '"rejection_sample_method": "block"'

PROJECTS: dict[str, Project] = {
    project.name: project
    for project in (vllm.PROJECT, transformers.PROJECT, sglang.PROJECT, llama_cpp.PROJECT, mlx.PROJECT)
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """What to paste.

    Attributes:
        project: the engine.
        text: the command or program, and comments on what it serves and what differs.
        program: the command or program alone, since some shells (zsh) accept no comments; empty if there is none.
        problem: why the engine can't serve the choice; empty if it can.
    """

    project: Project
    text: str
    program: str
    problem: str = ""


def get_project(name: str) -> Project:
    """Raises:
    SettingsError: there is no such engine; the message lists the engines.
    """
    try:
        return PROJECTS[name]
    except KeyError:
        known = ", ".join(PROJECTS)
        raise SettingsError(f"There is no configuration for {name!r}. Choose one of: {known}.") from None


def configuration(
    choice: Choice, project: Project, models: tuple[ModelSource, ModelSource | None] | None = None
) -> Configuration:
    """An engine's configuration for a choice, with the differences and the sources they were checked against.

    Args:
        models: target and draft, if they are not where the request says.
    """
    target, draft = models or choice.sources
    program, notes, problem = "", list[str](), ""
    try:
        _refuse_what_only_outrider_does(choice, draft, project.title)
        program, notes = project.write(choice, target, draft)
    except UnsupportedError as error:
        problem = str(error)
    if program:
        notes[:0] = [model.note for model in (target, draft) if model is not None and model.note]
        are_gguf = all(model is None or model.kind is SourceKind.GGUF for model in (target, draft))
        if choice.dtype not in OUTTYPES and not are_gguf:
            notes.append(f"No run says which precision to use, so {project.title} chooses it.")
    if program and choice.request.coupling is Coupling.GUMBEL:
        notes.append(
            "Outrider's Gumbel coupling shares noise between the models. The shared noise does not exist here: "
            "the same seed gives a different text."
        )
    if program and choice.request.is_lossy:
        notes.append(f"{project.title} verifies exactly here: expect lower acceptance than in the lossy run.")
    elif program and choice.request.verification is VerificationRule.BLOCK and _VLLM_BLOCK not in program:
        notes.append(
            "Outrider used block verification, which on average accepts at least as many tokens as token-by-token "
            "verification."
        )
    above = _comment(*_head(project.title, choice), *([problem] if problem else []))
    checked = f"Checked on {CHECKED_ON} against {project.sources}."
    below = _comment(*(f"- {note}" for note in notes), checked)
    return Configuration(project, above + (f"\n{program}\n" if program else "") + below, program, problem)


def _refuse_what_only_outrider_does(choice: Choice, draft: ModelSource | None, title: str) -> None:
    if choice.request.method == "self-draft":
        raise UnsupportedError(
            f"{title} has no equivalent of Outrider's self-draft, which drafts with an int8 copy of the target; "
            "choose a draft model or prompt lookup instead."
        )
    others = {"draft-tree"} if title == PROJECTS["sglang"].title else set()
    if choice.request.method not in {"draft-model", "prompt-lookup", *others}:
        raise UnsupportedError(f"Outrider writes no configuration of {title} for the method {choice.request.method}.")
    if get_method(choice.request.method).needs_draft_model and not choice.request.draft:
        raise UnsupportedError("No draft model is chosen; choose one, or choose prompt lookup.")
    if draft is not None and draft.serves:
        raise UnsupportedError(
            f"The draft borrows the embedding and output head of {named(draft.serves)}, which only Outrider reads: "
            f"{title} needs a draft that is a model of its own, with embedding, head and tokenizer."
        )


def _head(title: str, choice: Choice) -> list[str]:
    """What a configuration serves, and where the settings come from."""
    draft = f" with {named(choice.request.draft)}" if choice.request.draft else ""
    words = "greedy" if choice.request.sampling.is_greedy else choice.request.sampling.text
    origin = f"Outrider's run {choice.run_id}" if choice.run_id else "Outrider's settings"
    lines = [
        f"{title}: {named(choice.request.target)}{draft}, {choice.request.method}, {choice.shape}, {words}.",
        f"From {origin}. {choice.k_note}".strip(),
    ]
    if choice.request.is_lossy:
        lines.append(LOSSY)
    return [*lines, *filter(None, (choice.verdict, choice.measured))]


def _comment(*paragraphs: str) -> str:
    lines: list[str] = []
    for paragraph in paragraphs:
        # JSON in a sentence stays on one line, and so does "K = 3".
        text = re.sub(r"\{.*\}| = ", lambda match: match[0].replace(" ", "\0"), plain(paragraph))
        lines += textwrap.wrap(
            text, WIDTH - 2, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        ) or [""]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines).replace("\0", " ")
