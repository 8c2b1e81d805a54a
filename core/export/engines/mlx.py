"""Writes the command that generates a text for a choice with MLX."""

from __future__ import annotations

from core.export.choice import Choice, ModelSource
from core.export.engines.common import (
    DRAWN_AND_COMPARED,
    OUTTYPES,
    PROMPT,
    Project,
    Recipe,
    UnsupportedError,
    as_json,
    plain,
    refuse_gguf,
    sampling_flags,
    shell_command,
)


def _write(choice: Choice, target: ModelSource, draft: ModelSource | None) -> Recipe:
    if draft is None:
        raise UnsupportedError("mlx-lm only drafts with a model: it has no prompt lookup.")
    refuse_gguf("mlx-lm reads safetensors, not GGUF files.", target, draft)
    sampling = choice.request.sampling
    notes = [
        "Draft and target must share a tokenizer. A target with a recurrent state is refused. One with a sliding "
        "window isn't, but once the text is longer than the window, rejected tokens stay in its cache and change the "
        "output: draft only for shorter texts. The default K is 3.",
    ]
    if not sampling.is_greedy:
        notes.append(DRAWN_AND_COMPARED)
        if not sampling.is_unfiltered:
            notes.append(
                "mlx-lm filters before it applies the temperature, and by top-p and min-p before top-k; Outrider "
                "filters after the temperature, and by top-k first: with these filters the distribution may not be "
                "the one measured."
            )
    if choice.dtype in OUTTYPES:
        notes.append(
            f"mlx-lm computes in the precision of the stored weights, Outrider in {choice.dtype}: mlx_lm.convert "
            "--dtype stores them in another one."
        )
    system = "" if choice.request.chat is False else choice.request.system
    if system != plain(system):
        notes.append("Line ends and other characters of the run's system prompt that don't print are spaces here.")
    if choice.request.chat is False:
        notes.append("The run's prompt was raw; add --ignore-chat-template to match it.")
    if choice.request.stop:
        stop = as_json({"stop": choice.request.stop})
        notes.append(f"mlx_lm.generate takes no stop texts, so the text goes on past those of the run: {stop}.")
    program = shell_command(
        ["mlx_lm.generate"],
        ["--model", target.name],
        ["--draft-model", draft.name],
        ["--num-draft-tokens", str(choice.k), *sampling_flags(sampling)],
        # Joined, since it may begin with a dash.
        [f"--system-prompt={system}"] if system else [],
        ["--max-tokens", str(choice.request.max_new_tokens), "--prompt", PROMPT],
    )
    return program, notes


PROJECT = Project(
    "mlx",
    "MLX",
    ".sh",
    "mlx-lm's mlx_lm/generate.py and mlx_lm/sample_utils.py (2026 sources, release unknown)",
    _write,
)
