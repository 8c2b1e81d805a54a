"""Writes the commands that convert a choice's models to GGUF and serve them with llama.cpp."""

from __future__ import annotations

from core.export.choice import Choice, ModelSource, SourceKind
from core.export.engines.common import (
    OUTTYPES,
    Project,
    Recipe,
    as_json,
    local_command,
    sampling_flags,
)

REJECTION_SAMPLING = (
    "Add --spec-draft-sampling probabilistic where llama-server --help names it: the draft then draws from its ten "
    "likeliest tokens, and rejection sampling tests the draws. Otherwise the draft proposes its likeliest token, and "
    "the target accepts it if it draws the same one. Either way, expect less acceptance than measured."
)


def _write(choice: Choice, target: ModelSource, draft: ModelSource | None) -> Recipe:
    sampling, k = choice.request.sampling, str(choice.k)
    conversion, file = _as_gguf(target, "target", choice.dtype)
    words = [["llama-server", "--metrics"], ["-m", file]]
    notes = []
    if choice.dtype in OUTTYPES and any(
        model is not None and model.kind is SourceKind.GGUF for model in (target, draft)
    ):
        notes.append(f"A GGUF file keeps the precision that it is stored in; Outrider computed in {choice.dtype}.")
    if any(model is not None and model.kind is not SourceKind.GGUF for model in (target, draft)):
        notes.append(
            "llama.cpp reads GGUF files only. convert_hf_to_gguf.py is in its repository and does not know every "
            "architecture or tokenizer, such as that of Outrider's own pair; quantising the "
            "files afterwards changes both distributions, and thus the acceptance."
        )
    if draft is not None:
        draft_conversion, file = _as_gguf(draft, "draft", choice.dtype)
        conversion += draft_conversion
        words += [["--spec-type", "draft-simple"], ["-md", file]]
        words.append(["--spec-draft-n-max", k, "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"])
        notes += [
            "These are the flags of 2026. Older builds call them --draft-max, --draft-min and --draft-p-min, and "
            "need no --spec-type; newer ones refuse the old names. The defaults were 16 and 0.75 there, and are 3 and "
            "0 now: K is n-max, and a p-min above 0 stops drafting sooner.",
            "The vocabularies must have the same type and special tokens, differ by 128 entries at most, "
            "and agree in the text of every entry from id 5 on.",
        ]
    else:
        longest = str(min(choice.option("max_ngram"), choice.k))
        words.append(["--spec-type", "ngram-simple"])
        words.append(["--spec-ngram-simple-size-n", longest, "--spec-ngram-simple-size-m", k])
        notes.append(
            "ngram-simple looks for n-grams of exactly size-n tokens, Outrider for every length from its longest down "
            "to its shortest. llama.cpp drops drafts shorter than size-n, so size-n is at most K. Older builds call "
            "the sizes --spec-ngram-size-n and --spec-ngram-size-m."
        )
    # A GGUF file may hold a penalty of its own.
    words.append(["--repeat-penalty", "1.0"])
    if sampling.is_greedy:
        words.append(["--temp", "0"])
    else:
        words.append(["--samplers", "temperature;top_k;top_p;min_p", *sampling_flags(sampling)])
        notes += [] if draft is None else [REJECTION_SAMPLING]
        notes += [
            "A request may have its own sampling. By default llama.cpp filters before it applies the temperature; "
            "--samplers puts them in Outrider's order, which is that of transformers.",
        ]
    if choice.request.stop:
        notes.append(f"Each request has its own stop texts; send {as_json({'stop': choice.request.stop})}.")
    return conversion + local_command(*words), notes


def _as_gguf(source: ModelSource, role: str, dtype: str) -> tuple[str, str]:
    """The commands that convert a model to GGUF, in a precision if it is known, and the file's name."""
    if source.kind is SourceKind.GGUF:
        return "", source.name
    fetch, folder = "", source.name
    if source.kind is SourceKind.HUB:
        fetch, folder = local_command(["hf", "download", source.name, "--local-dir", role]), role
    file = f"{role}.gguf"
    outtype = ["--outtype", OUTTYPES[dtype]] if dtype in OUTTYPES else []
    return fetch + local_command(["python3", "convert_hf_to_gguf.py", folder, "--outfile", file, *outtype]), file


PROJECT = Project(
    "llama.cpp",
    "llama.cpp",
    ".sh",
    "llama.cpp's docs/speculative.md, and the --help of llama-server as quoted by others (builds of 2026); "
    "common/speculative.cpp and common/sampling.h (2026 sources)",
    _write,
)
