"""Writes the command that serves a choice with SGLang."""

from __future__ import annotations

from typing import Any

from core.export.choice import Choice, ModelSource
from core.export.engines.common import Project, Recipe, as_json, dtype_flag, refuse_gguf, shell_command


def _write(choice: Choice, target: ModelSource, draft: ModelSource | None) -> Recipe:
    refuse_gguf("Whether SGLang speculates with GGUF files is not documented.", target, draft)
    sampling, k = choice.request.sampling, choice.k
    request: dict[str, Any] = {"temperature": sampling.temperature, "repetition_penalty": 1.0}
    if not sampling.is_greedy:
        request |= {"top_p": sampling.top_p, "top_k": sampling.top_k or -1, "min_p": sampling.min_p}
    if choice.request.stop:
        request["stop"] = list(choice.request.stop)
    notes = [
        f"Each request has its own sampling parameters; send {as_json(request)}. What is left out comes from the "
        "target's generation_config.json."
    ]
    words = [["python3", "-m", "sglang.launch_server"], ["--model-path", target.name, "--enable-metrics"]]
    words += dtype_flag(choice, target, notes)
    if draft is not None:
        is_tree = choice.request.method == "draft-tree"
        depth, branching = (choice.option("depth"), choice.option("branching")) if is_tree else (k, 1)
        depth = min(depth, k)  # With topk 1, SGLang drafts num-steps tokens whatever num-draft-tokens says.
        most = branching + (depth - 1) * branching**2
        words += [
            ["--speculative-algorithm", "STANDALONE"],
            ["--speculative-draft-model-path", draft.name],
            ["--speculative-num-steps", str(depth)],
            ["--speculative-eagle-topk", str(branching)],
        ]
        notes.append(
            f"A tree of K = {k} nodes: topk is the branching, num-steps the depth, num-draft-tokens K + 1; its "
            "candidates are always the most likely ones (best)."
            if is_tree
            else f"One chain of K = {k}: topk 1, num-steps K, num-draft-tokens K + 1."
        )
        if k > most:
            notes.append(
                f"SGLang has only {most} candidates in a tree of this depth and branching, so K is lowered to that."
            )
            k = most
        notes.append(
            "Set all three or none. STANDALONE excludes --enable-dp-attention, and the overlap scheduler supports "
            "only topk 1."
        )
    else:
        words += [["--speculative-algorithm", "NGRAM"], ["--speculative-ngram-max-bfs-breadth", "1"]]
        notes.append(
            "NGRAM excludes --enable-dp-attention; older versions run it on CUDA only. It looks in a cache that all "
            "requests share, of suffixes up to --speculative-ngram-max-trie-depth (18); Outrider "
            "looks in the current text. The breadth of 1 makes one chain of what is otherwise a tree; "
            f"num-draft-tokens counts the text's last token too, so it is K + 1 for K = {k}."
        )
    # The last token of the text is verified too.
    words.append(["--speculative-num-draft-tokens", str(k + 1)])
    if not sampling.is_greedy:
        notes += [
            "At temperatures above 0 the draft proposes its most likely token, which is accepted with the "
            "probability that the target gives it: the output follows the target's distribution, but acceptance "
            "differs from the one measured. --speculative-use-rejection-sampling is for EAGLE models only. On CPUs "
            "and on AMD, Intel and NPU devices, drafts are verified greedily at any temperature: there the text is not "
            "a sample.",
            "--speculative-accept-threshold-single and -acc below 1 accept more, and are lossy.",
        ]
        if sampling.min_p:
            notes.append(f"During verification, min-p (here {sampling.min_p:g}) is not applied.")
    return shell_command(*words), notes


PROJECT = Project(
    "sglang",
    "SGLang",
    ".sh",
    "SGLang's docs_new/docs/advanced_features/speculative_decoding.mdx; the verification of drafts in "
    "python/sglang/srt/speculative (2026 sources, release unknown)",
    _write,
)
