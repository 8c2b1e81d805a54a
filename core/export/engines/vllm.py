"""Writes the command that serves a choice with vLLM."""

from __future__ import annotations

import shlex
from typing import Any

from core.export.choice import Choice, ModelSource
from core.export.engines.common import (
    Project,
    Recipe,
    as_json,
    dtype_flag,
    plain,
    refuse_gguf,
    shell_command,
    tables_differ,
)
from core.settings import VerificationRule


def _write(choice: Choice, target: ModelSource, draft: ModelSource | None) -> Recipe:
    refuse_gguf(
        "vLLM reads GGUF files only with the plugin vllm-gguf-plugin, which its documentation calls highly "
        "experimental; drafting with them is not documented.",
        target,
        draft,
    )
    sampling, k = choice.request.sampling, choice.k
    request: dict[str, Any] = {"temperature": sampling.temperature}
    if not sampling.is_greedy:
        request |= {"top_p": sampling.top_p, "top_k": sampling.top_k}
    if choice.request.stop:
        request["stop"] = list(choice.request.stop)
    notes = [f"Each request has its own sampling parameters; send {as_json(request)}."]
    if sampling.min_p and not sampling.is_greedy:
        notes.append(
            f"vLLM refuses min-p (here {sampling.min_p:g}) and logit_bias together with speculation; without min-p, "
            "the distribution is not the one measured."
        )
    settings: dict[str, Any]
    if draft is None:
        settings = {
            "method": "ngram",
            "num_speculative_tokens": k,
            "prompt_lookup_max": choice.option("max_ngram"),
            "prompt_lookup_min": choice.option("min_ngram"),
        }
        notes.append(
            "vLLM's n-grams have 5 tokens by default; here they have Outrider's lengths. It looks for "
            "them in the prompt and in the generated text."
        )
    else:
        settings = {"method": "draft_model", "model": draft.name, "num_speculative_tokens": k}
        notes.append(
            "Draft models need a vLLM later than 0.10.0, and up to 0.15.0 they rule out pipeline parallelism. Draft "
            "and target must have tables of the same size, unless use_heterogeneous_vocab is set: then only tokens "
            "that both have are drafted, greedily."
        )
        if any(name in draft.name.lower() for name in ("eagle-", "eagle3", "dflash", "dspark")):
            notes.append(
                "vLLM takes a draft for one of EAGLE, DFlash or DSpark, whatever the method, if its name or path holds "
                "eagle-, eagle3, dflash or dspark, as here. Serve a copy of another name."
            )
        if tables_differ(choice):
            settings["use_heterogeneous_vocab"] = True
            notes.append(
                "The tables of this pair have different sizes, so the key is set; vLLM has had it since July 2026. "
                "Acceptance is then not comparable with the one measured at temperatures above 0."
            )
        elif not sampling.is_greedy:
            settings["draft_sample_method"] = "probabilistic"
            notes.append(
                'draft_sample_method: "greedy", the default, drafts the most likely token and treats it as certain. '
                '"probabilistic" samples drafts as Outrider does, so that acceptance is comparable, and takes more '
                "memory; leave the key out if an older vLLM does not know it. Both keep the target's distribution. So "
                'do "standard", the default, and "block" for rejection_sample_method; "synthetic" does not.'
            )
            if choice.request.verification is VerificationRule.BLOCK:
                settings["rejection_sample_method"] = "block"
                notes.append(
                    "rejection_sample_method: block is the block verification that Outrider used. vLLM has had it "
                    "since 2026, but only in its newer model runner; leave the key out if yours refuses it."
                )
    notes.append(
        "K is fixed for a batch of requests: a K that pays for one request at a time may not pay for many. To compare, "
        "divide vllm:spec_decode_num_accepted_tokens by vllm:spec_decode_num_draft_tokens at /metrics; Outrider shows "
        "the same figure as acceptance (draft_acceptance_rate in its logs)."
    )
    pairs = (f'"{name}": {plain(as_json(value))}' for name, value in settings.items())
    config = "{" + ",\n        ".join(pairs) + "}"
    notes.append(
        "--generation-config vllm: otherwise penalties and filters in the target's generation_config.json apply to "
        "requests that don't set them."
    )
    words = [["vllm", "serve", target.name], ["--generation-config", "vllm"], *dtype_flag(choice, target, notes)]
    command = shell_command(*words).rstrip("\n")
    return f"{command} \\\n    --speculative-config {shlex.quote(config)}\n", notes


PROJECT = Project(
    "vllm",
    "vLLM",
    ".sh",
    "vLLM's docs/features/speculative_decoding/README.md, draft_model.md and acceptance_metrics.md; "
    "docs/features/quantization/gguf.md; vllm/config/speculative.py and vllm/sampling_params.py (2026 "
    "sources, release unknown)",
    _write,
)
