"""llama.cpp: `llama-server` with a draft model or n-grams, from GGUF files."""

from __future__ import annotations

from core.export.configurations import (
    DRAWN_AND_COMPARED,
    Choice,
    Place,
    PlaceKind,
    Recipe,
    command,
    common_problem,
    coupling_note,
    number,
    places,
)

SOURCES = (
    "llama.cpp's docs/speculative.md, and the --help of llama-server as others quote it (builds of 2026)",
    "common/speculative.cpp and common/sampling.h (copies of 2026)",
)


def recipe(choice: Choice) -> Recipe:
    """How llama.cpp serves this choice."""
    problem = common_problem(choice, "llama.cpp")
    if problem:
        return Recipe(SOURCES, problem=problem)
    target, draft = places(choice)
    program, names = "", []
    for place, role in ((target, "target"), (draft, "draft")):
        if place is not None:
            converted, name = _as_gguf(place, role)
            program += converted
            names.append(name)
    k = str(choice.num_draft_tokens)
    words = [["llama-server"], ["-m", names[0]]]
    if draft is not None:
        words += [["--spec-type", "draft-simple"], ["-md", names[1]]]
        words.append(["--spec-draft-n-max", k, "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"])
    else:
        words.append(["--spec-type", "ngram-simple"])
        words.append(["--spec-ngram-simple-size-n", str(choice.option("max_ngram")), "--spec-ngram-simple-size-m", k])
    words += _sampling(choice)
    return Recipe(SOURCES, program + command(*words), _notes(choice, target, draft))


def _as_gguf(place: Place, role: str) -> tuple[str, str]:
    """The commands that make a GGUF file of a model, and the file's name."""
    if place.kind is PlaceKind.GGUF:
        return "", place.name
    file, folder, fetch = f"{role}.gguf", place.name, ""
    if place.kind is PlaceKind.HUB:
        folder = role
        fetch = command(["hf", "download", place.name, "--local-dir", folder])
    return fetch + command(["python3", "convert_hf_to_gguf.py", folder, "--outfile", file]), file


def _sampling(choice: Choice) -> list[list[str]]:
    sampling = choice.sampling
    if sampling.is_greedy:
        return [["--temp", "0"]]
    return [
        ["--samplers", "temperature;top_k;top_p;min_p", "--temp", number(sampling.temperature)],
        ["--top-k", str(sampling.top_k), "--top-p", number(sampling.top_p), "--min-p", number(sampling.min_p)],
    ]


def _notes(choice: Choice, target: Place, draft: Place | None) -> tuple[str, ...]:
    notes = []
    if any(place is not None and place.kind is not PlaceKind.GGUF for place in (target, draft)):
        notes.append(
            "llama.cpp reads GGUF files only. convert_hf_to_gguf.py is in its repository and does not know every "
            "architecture; quantising the files afterwards changes both laws, and so the acceptance."
        )
    if draft is not None:
        notes += [
            "These flags are those of 2026. Older builds call them --draft-max, --draft-min and --draft-p-min, and "
            "need no --spec-type; newer ones refuse the old names. Defaults were 16 and 0.75 there, and are 3 and 0 "
            "now: K is n-max, and a p-min above 0 stops drafting sooner.",
            "The vocabularies must be of one type, with the same first and last tokens, differ by 128 entries at most, "
            "and agree in the text of every entry from id 5 on.",
        ]
    else:
        notes.append(
            "ngram-simple looks for n-grams of exactly size-n tokens, Outrider for the longest from its longest to its "
            "shortest. Older builds call the sizes --spec-ngram-size-n and --spec-ngram-size-m."
        )
    if not choice.sampling.is_greedy:
        notes += [
            DRAWN_AND_COMPARED,
            "A request may bring its own sampling. By default llama.cpp filters before it applies the temperature; "
            "--samplers puts them in Outrider's order, which is transformers'.",
        ]
    return (*notes, *coupling_note(choice))
