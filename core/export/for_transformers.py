"""transformers: `generate` with an assistant model, or with prompt lookup."""

from __future__ import annotations

from core.export.configurations import Choice, Place, PlaceKind, Recipe, common_problem, coupling_note, places, python

SOURCES = (
    "transformers 5.23.0: generation/configuration_utils.py, generation/candidate_generator.py, generation/utils.py",
)


def recipe(choice: Choice) -> Recipe:
    """How transformers runs this choice."""
    problem = common_problem(choice, "transformers")
    if choice.method == "self-draft":
        problem += " Its assistant_early_exit needs a model that was trained for early exit, which is something else."
    if problem:
        return Recipe(SOURCES, problem=problem)
    target, draft = places(choice)
    lines = ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    lines.append(f"tokenizer = AutoTokenizer.from_pretrained({_source(target)})")
    lines.append(f"target = {_model(target)}")
    options = [f"max_new_tokens={choice.max_new_tokens}", *_law(choice)]
    if draft is not None:
        lines += [
            f"draft = {_model(draft)}",
            "# generate() takes these from the draft's own configuration, not from its arguments.",
            f"draft.generation_config.num_assistant_tokens = {choice.num_draft_tokens}",
            'draft.generation_config.num_assistant_tokens_schedule = "constant"',
            "draft.generation_config.assistant_confidence_threshold = 0.0",
        ]
        options.insert(0, "assistant_model=draft")
    else:
        options.insert(0, f"prompt_lookup_num_tokens={choice.num_draft_tokens}")
        options.insert(1, f"max_matching_ngram_size={choice.option('max_ngram')}")
    lines += ["", 'prompt = "Write your prompt here."', *_inputs(choice)]
    lines.append("output = target.generate(")
    lines += [f"    {option}," for option in ("**inputs", *options)]
    lines += [")", 'new = output[0, inputs["input_ids"].shape[1] :]']
    lines.append("print(tokenizer.decode(new, skip_special_tokens=True))")
    return Recipe(SOURCES, "\n".join(lines) + "\n", _notes(choice, target))


def _source(place: Place) -> str:
    if place.kind is PlaceKind.GGUF:
        folder, _, file = place.name.rpartition("/") if "/" in place.name else place.name.rpartition("\\")
        return f"{python(folder or '.')}, gguf_file={python(file)}"
    return python(place.name)


def _model(place: Place) -> str:
    return f'AutoModelForCausalLM.from_pretrained({_source(place)}, dtype="auto", device_map="auto")'


def _law(choice: Choice) -> list[str]:
    sampling = choice.sampling
    if sampling.is_greedy:
        return ["do_sample=False"]
    law = [
        "do_sample=True",
        f"temperature={python(float(sampling.temperature))}",
        f"top_k={sampling.top_k}",
        f"top_p={python(float(sampling.top_p))}",
    ]
    return [*law, f"min_p={python(float(sampling.min_p))}"] if sampling.min_p else law


def _inputs(choice: Choice) -> list[str]:
    if not choice.chat:
        return ['inputs = tokenizer(prompt, return_tensors="pt").to(target.device)']
    return [
        "inputs = tokenizer.apply_chat_template(",
        '    [{"role": "user", "content": prompt}],',
        "    add_generation_prompt=True,",
        '    return_tensors="pt",',
        "    return_dict=True,",
        ").to(target.device)",
    ]


def _notes(choice: Choice, target: Place) -> tuple[str, ...]:
    notes = ["One sequence at a time: an assistant is refused with a batch, and with stop_strings."]
    if choice.draft:
        notes.append(
            "Left as they are, K is 20, and the draft stops where its confidence falls below 0.4, which is not "
            "Outrider's K. A model whose table has as many rows as the target's is taken to have its tokenizer; "
            "otherwise tokenizer= and assistant_tokenizer= are needed, and the two vocabularies are matched by text."
        )
    else:
        notes.append("Prompt lookup tries n-grams down to one token; Outrider's shortest n-gram can't be set.")
    if not choice.sampling.is_greedy:
        notes.append("top_k has to be written out: left out, it is 50.")
        notes.append(
            "Sampling follows the target's law, by rejection sampling, as long as assistant_ensemble_weight is None."
            if choice.draft
            else "Sampling follows the target's law: its own draw has to equal the token looked up."
        )
    if target.kind is PlaceKind.GGUF:
        notes.append("transformers dequantises a GGUF file when it loads it, and needs the package gguf for that.")
    return (*notes, *coupling_note(choice))
