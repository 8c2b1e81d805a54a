"""SGLang: `sglang.launch_server` with a standalone draft model, or with its n-gram cache."""

from __future__ import annotations

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
    "SGLang's docs_new/docs/advanced_features/speculative_decoding.mdx",
    "the verification of drafts in python/sglang/srt/speculative (copies of 2026, which name no release)",
)


def recipe(choice: Choice) -> Recipe:
    """How SGLang serves this choice."""
    target, draft = places(choice)
    problem = common_problem(choice, "SGLang")
    if not problem and PlaceKind.GGUF in {target.kind, draft.kind if draft else target.kind}:
        problem = (
            "Whether SGLang speculates with GGUF files is not documented. Name the models that the files were made of "
            "instead."
        )
    if problem:
        return Recipe(SOURCES, problem=problem)
    # What is verified counts the last token of the text too, which the drafts stand behind.
    k, verified = str(choice.num_draft_tokens), str(choice.num_draft_tokens + 1)
    words = [["python3", "-m", "sglang.launch_server"], ["--model-path", target.name]]
    if draft is not None:
        words += [
            ["--speculative-algorithm", "STANDALONE"],
            ["--speculative-draft-model-path", draft.name],
            ["--speculative-num-steps", k],
            ["--speculative-eagle-topk", "1"],
        ]
    else:
        words += [["--speculative-algorithm", "NGRAM"], ["--speculative-ngram-max-bfs-breadth", "1"]]
    words.append(["--speculative-num-draft-tokens", verified])
    return Recipe(SOURCES, command(*words), _notes(choice))


def _notes(choice: Choice) -> tuple[str, ...]:
    sampling, k = choice.sampling, choice.num_draft_tokens
    asked = {"temperature": sampling.temperature}
    if not sampling.is_greedy:
        asked |= {"top_p": sampling.top_p, "top_k": sampling.top_k or -1}
    notes = [f"Sampling is each request's own; send {as_json(asked)}."]
    if choice.method == "draft-model":
        notes += [
            f"One chain of K = {k}: topk 1, num-steps K, num-draft-tokens K + 1. Set all three, or none. STANDALONE "
            "excludes --enable-dp-attention, and the overlap scheduler takes topk 1 only.",
        ]
    else:
        notes += [
            "NGRAM runs on CUDA only, excludes --enable-dp-attention, and switches the overlap scheduler off. It looks "
            "in a cache that all requests share, of suffixes up to --speculative-ngram-max-trie-depth (18); "
            "Outrider looks in the text at hand. The breadth of 1 makes one chain of what is otherwise a tree; "
            f"num-draft-tokens counts the text's last token too, so it is K + 1 for K = {k}.",
        ]
    if not sampling.is_greedy:
        notes += [
            "At temperatures above 0 a draft is the draft's likeliest token, kept with the target's probability of it: "
            "the law is the target's, but acceptance is not the one measured. --speculative-use-rejection-sampling "
            "is for EAGLE models only. On CPUs and on AMD, Intel and NPU devices, drafts are verified greedily "
            "whatever the temperature: there the text is not a sample.",
            "--speculative-accept-threshold-single and -acc below 1 accept more, and are lossy.",
        ]
        if sampling.min_p:
            notes.append(f"Where drafts are verified, min-p (here {number(sampling.min_p)}) is not applied.")
    return (*notes, *coupling_note(choice))
