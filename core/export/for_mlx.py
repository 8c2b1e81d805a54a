"""MLX: `mlx_lm.generate` and `mlx_lm.server` with a draft model."""

from __future__ import annotations

from core.export.configurations import (
    DRAWN_AND_COMPARED,
    Choice,
    PlaceKind,
    Recipe,
    command,
    common_problem,
    coupling_note,
    number,
    places,
)

SOURCES = ("mlx-lm's mlx_lm/generate.py and mlx_lm/sample_utils.py (copies of 2026, which name no release)",)


def recipe(choice: Choice) -> Recipe:
    """How MLX serves this choice."""
    problem = common_problem(choice, "MLX") or _problem(choice)
    if problem:
        return Recipe(SOURCES, problem=problem)
    target, draft = places(choice)
    sampling = choice.sampling
    words = [["mlx_lm.generate"], ["--model", target.name], ["--draft-model", draft.name if draft else ""]]
    words.append(["--num-draft-tokens", str(choice.num_draft_tokens), "--temp", number(sampling.temperature)])
    if not sampling.is_greedy:
        words.append(
            ["--top-p", number(sampling.top_p), "--top-k", str(sampling.top_k), "--min-p", number(sampling.min_p)]
        )
    words.append(["--max-tokens", str(choice.max_new_tokens), "--prompt", "Write your prompt here."])
    return Recipe(SOURCES, command(*words), _notes(choice))


def _problem(choice: Choice) -> str:
    if choice.method == "prompt-lookup":
        return "mlx-lm drafts with a model only: it has no prompt lookup."
    target, draft = places(choice)
    if PlaceKind.GGUF in {target.kind, draft.kind if draft else target.kind}:
        return "mlx-lm reads safetensors, not GGUF files. Name the models that the files were made of instead."
    return ""


def _notes(choice: Choice) -> tuple[str, ...]:
    notes = [
        "Draft and target must share a tokenizer, and both caches must be ones that can be cut back: models with "
        "recurrent or rotating caches are refused. The default K is 3.",
    ]
    sampling = choice.sampling
    if not sampling.is_greedy:
        notes.append(DRAWN_AND_COMPARED)
        if not sampling.is_unfiltered and sampling.temperature != 1.0:
            notes.append(
                "mlx-lm filters before it applies the temperature, Outrider after: with these filters its law is "
                "another than the one measured."
            )
    if choice.chat is False:
        notes.append("The run's prompt was raw; add --ignore-chat-template for the same.")
    return (*notes, *coupling_note(choice))
