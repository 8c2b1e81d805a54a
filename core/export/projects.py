"""The engines that there are configurations for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core.errors import SettingsError
from core.export import for_llama_cpp, for_mlx, for_sglang, for_transformers, for_vllm
from core.export.configurations import Choice, Recipe, checked, choice_from_log, choice_from_request, comment, head

__all__ = [
    "PROJECTS",
    "Choice",
    "Configuration",
    "Project",
    "choice_from_log",
    "choice_from_request",
    "configuration",
    "get_project",
]


@dataclass(frozen=True, slots=True)
class Project:
    """An engine.

    Attributes:
        name: what the command line calls it.
        title: what the window calls it.
        suffix: of a file that holds its configuration.
        write: what it takes to serve a choice with it.
    """

    name: str
    title: str
    suffix: str
    write: Callable[[Choice], Recipe]


PROJECTS: dict[str, Project] = {
    project.name: project
    for project in (
        Project("vllm", "vLLM", ".sh", for_vllm.recipe),
        Project("transformers", "transformers", ".py", for_transformers.recipe),
        Project("sglang", "SGLang", ".sh", for_sglang.recipe),
        Project("llama.cpp", "llama.cpp", ".sh", for_llama_cpp.recipe),
        Project("mlx", "MLX", ".sh", for_mlx.recipe),
    )
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """What to paste.

    Attributes:
        project: whose it is.
        text: what it is of, the command or program, and what differs, as comments; those alone where it can't do it.
        program: the command or program alone: a shell that is typed into may not know comments (zsh does not).
        problem: why the engine can't do it, in a sentence or two; empty where it can.
    """

    project: Project
    text: str
    program: str
    problem: str = ""


def get_project(name: str) -> Project:
    """Raises:
    SettingsError: if there is no such project, with the names that there are.
    """
    try:
        return PROJECTS[name]
    except KeyError:
        known = ", ".join(PROJECTS)
        raise SettingsError(f"There is no configuration for {name!r}. Choose one of: {known}.") from None


def configuration(choice: Choice, project: Project) -> Configuration:
    """A choice in the words of an engine, with what differs there and what that was checked against."""
    recipe = project.write(choice)
    above = comment(*head(project.title, choice), *([recipe.problem] if recipe.problem else []))
    # What is pasted stands before what is read once.
    program = f"\n{recipe.program}\n" if recipe.program else ""
    below = comment(*(f"- {note}" for note in recipe.notes), checked(recipe.sources))
    return Configuration(project, above + program + below, recipe.program, recipe.problem)
