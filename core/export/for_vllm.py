"""vLLM: `vllm serve` with --speculative-config."""

from __future__ import annotations

from typing import Any

from core.export.configurations import (
    Choice,
    PlaceKind,
    Recipe,
    as_json,
    command,
    common_problem,
    coupling_note,
    number,
    places,
)

SOURCES = (
    "vLLM's docs/features/speculative_decoding/README.md, draft_model.md and acceptance_metrics.md",
    "docs/features/quantization/gguf.md",
    "vllm/config/speculative.py and vllm/sampling_params.py (copies of 2026, which name no release)",
)


def recipe(choice: Choice) -> Recipe:
    """How vLLM serves this choice."""
    problem = common_problem(choice, "vLLM") or _gguf_problem(choice)
    if problem:
        return Recipe(SOURCES, problem=problem)
    target, _ = places(choice)
    words = [["vllm", "serve", target.name]]
    words.append(["--speculative-config", as_json(_speculation(choice))])
    return Recipe(SOURCES, command(*words), _notes(choice))


def _gguf_problem(choice: Choice) -> str:
    target, draft = places(choice)
    if PlaceKind.GGUF not in {target.kind, draft.kind if draft else target.kind}:
        return ""
    return (
        "vLLM reads GGUF files only with the plugin vllm-gguf-plugin, which its documentation calls highly "
        "experimental and possibly incompatible with other features; drafting with them is not documented. Name the "
        "models that the files were made of instead."
    )


def _speculation(choice: Choice) -> dict[str, Any]:
    if choice.method == "prompt-lookup":
        return {
            "method": "ngram",
            "num_speculative_tokens": choice.num_draft_tokens,
            "prompt_lookup_max": choice.option("max_ngram"),
            "prompt_lookup_min": choice.option("min_ngram"),
        }
    _, draft = places(choice)
    settings: dict[str, Any] = {
        "method": "draft_model",
        "model": draft.name if draft else "",
        "num_speculative_tokens": choice.num_draft_tokens,
    }
    if not choice.sampling.is_greedy:
        settings["draft_sample_method"] = "probabilistic"
    return settings


def _notes(choice: Choice) -> tuple[str, ...]:
    sampling = choice.sampling
    asked = {"temperature": sampling.temperature}
    if not sampling.is_greedy:
        asked |= {"top_p": sampling.top_p, "top_k": sampling.top_k}
    notes = [f"Sampling is each request's own; send {as_json(asked)}."]
    if sampling.min_p and not sampling.is_greedy:
        notes.append(
            f"vLLM refuses min-p (here {number(sampling.min_p)}) and logit_bias together with speculation; without it "
            "the law is another than the one measured."
        )
    if choice.method == "draft-model":
        notes += [
            "Draft models need a vLLM later than 0.10.0, and up to 0.15.0 exclude pipeline parallelism. Draft and "
            "target must share a vocabulary; use_heterogeneous_vocab drafts in what two vocabularies have in common, "
            "with greedy drafting only.",
        ]
        if not sampling.is_greedy:
            notes.append(
                "draft_sample_method: the default, greedy, drafts the likeliest token and takes it for certain. "
                "probabilistic draws drafts as Outrider does, so that acceptance is comparable, and takes more "
                "memory. Leave the key out where an older vLLM does not know it. Both keep the target's law; of "
                "rejection_sample_method, the default does, synthetic does not."
            )
    else:
        notes.append(
            "vLLM's default n-grams are 5 tokens long, both bounds; here they are Outrider's. It looks for them in the "
            "prompt and in what was written."
        )
    notes.append(
        "K is fixed for a batch of requests: what pays for one request at a time may not pay for many. To compare, "
        "vllm:spec_decode_num_accepted_tokens / vllm:spec_decode_num_draft_tokens at /metrics is Outrider's "
        "draft_acceptance_rate."
    )
    return (*notes, *coupling_note(choice))
