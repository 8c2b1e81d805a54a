"""Writes the program that generates a text for a choice with transformers."""

from __future__ import annotations

from core.export.choice import Choice, ModelSource, SourceKind
from core.export.engines.common import OUTTYPES, PROMPT, Project, Recipe, UnsupportedError, config_of, precision_note
from core.runlog.reading import text_of

_STATEFUL = frozenset({
    "bailing_hybrid", "bamba", "deepseek_v4", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear",
    "mamba", "mamba2", "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text",
    "qwen3_next", "qwen4_exp", "qwen4_exp_text", "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2", "zaya",
})  # fmt: skip
"""Model types that transformers 5.23 marks as stateful."""
_NO_DRAFTS = frozenset({"falcon_mamba", "mamba", "mamba2", "recurrent_gemma", "rwkv", "xlstm"})
"""Model types whose cache doesn't count its tokens, so that drafting with them ends in a traceback."""


def _write(choice: Choice, target: ModelSource, draft: ModelSource | None) -> Recipe:
    for model, refused, why in (
        (target, _STATEFUL, "speculate with a target that keeps a recurrent state, such as this one"),
        (draft, _NO_DRAFTS, "draft with a model of this kind"),
    ):
        if model is not None and (kind := text_of(config_of(model).get("model_type"))) in refused:
            raise UnsupportedError(f"transformers can't {why} ({kind}).")
    sampling, k = choice.request.sampling, choice.k
    lines = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({_python_source(target)})",
        f"target = {_python_model(target, choice.dtype)}",
    ]
    notes = [
        "One sequence at a time: drafting is refused with a batch, with stop_strings, and with a target that keeps a "
        "recurrent state, such as Mamba and hybrids with it."
    ]
    if choice.dtype in OUTTYPES:
        notes.append(precision_note(choice, 'dtype="auto"'))
    if draft is not None:
        lines += [
            f"draft = {_python_model(draft, choice.dtype)}",
            "# generate() takes these from the draft's own configuration, not from its arguments.",
            f"draft.generation_config.num_assistant_tokens = {k}",
            'draft.generation_config.num_assistant_tokens_schedule = "constant"',
            "draft.generation_config.assistant_confidence_threshold = 0.0",
            "# To generate(), a table of another size is another tokenizer, even if only its padding differs.",
            "draft.resize_token_embeddings(target.config.get_text_config().vocab_size, mean_resizing=False)",
        ]
        options = ["assistant_model=draft"]
        notes.append(
            "By default K is 20, and the draft stops when its confidence falls below 0.4, which is not Outrider's K. "
            "Draft and target must share a tokenizer."
        )
    else:
        options = [f"prompt_lookup_num_tokens={k}", f"max_matching_ngram_size={choice.option('max_ngram')}"]
        notes.append("Prompt lookup tries n-grams down to one token; Outrider's shortest n-gram can't be set.")
    options.append(f"max_new_tokens={choice.request.max_new_tokens}")
    options += ["repetition_penalty=1.0", "no_repeat_ngram_size=0"]
    notes.append("What generate() isn't given, it takes from the target's generation_config.json, penalties included.")
    if sampling.is_greedy:
        options.append("do_sample=False")
    else:
        options += ["do_sample=True", f"temperature={float(sampling.temperature)!r}", f"top_k={sampling.top_k}"]
        options += [
            f"top_p={float(sampling.top_p)!r}",
            f"min_p={float(sampling.min_p) or None!r}",
        ]
        notes.append("top_k must be given: its default is 50.")
        notes.append(
            "The output follows the target's distribution, by rejection sampling, as long as assistant_ensemble_weight "
            "is None."
            if draft is not None
            else "The output follows the target's distribution: its own draw has to equal the token looked up."
        )
    lines += ["", f'prompt = "{PROMPT}"', *_python_inputs(choice.request.chat, choice.request.system)]
    lines += ["output = target.generate(", *(f"    {option}," for option in ("**inputs", *options)), ")"]
    lines += [
        'new = output[0, inputs["input_ids"].shape[1] :]',
        "text = tokenizer.decode(new, skip_special_tokens=True)",
    ]
    if choice.request.stop:
        lines += [f"for stop in {choice.request.stop!r}:", "    text = text.partition(stop)[0]"]
        notes.append("The program cuts the text at its stop texts; generate() also takes the time for what follows.")
    lines.append("print(text)")
    if target.kind is SourceKind.GGUF:
        notes.append("transformers dequantises a GGUF file when it loads it, and needs the package gguf for that.")
    return "\n".join(lines) + "\n", notes


def _python_inputs(chat: bool | None, system: str) -> list[str]:
    """The lines that turn the prompt into ids; a chat of None is left to the tokenizer, which may have a template."""
    said = f'{{"role": "system", "content": {system!r}}}, ' if system else ""
    templated = [
        "inputs = tokenizer.apply_chat_template(",
        f'    [{said}{{"role": "user", "content": prompt}}],',
        "    add_generation_prompt=True,",
        '    return_tensors="pt",',
        "    return_dict=True,",
        ").to(target.device)",
    ]
    raw = ['inputs = tokenizer(prompt, return_tensors="pt").to(target.device)']
    if chat is not None:
        return templated if chat else raw
    indented = [[f"    {line}" for line in lines] for lines in (templated, raw)]
    return ["if tokenizer.chat_template:", *indented[0], "else:", *indented[1]]


def _python_source(source: ModelSource) -> str:
    if source.kind is SourceKind.GGUF:
        folder, _, file = source.name.rpartition("/") if "/" in source.name else source.name.rpartition("\\")
        return f"{folder or '.'!r}, gguf_file={file!r}"
    return repr(source.name)


def _python_model(source: ModelSource, dtype: str) -> str:
    dtype = dtype if dtype in OUTTYPES else "auto"
    return f'AutoModelForCausalLM.from_pretrained({_python_source(source)}, dtype="{dtype}", device_map="auto")'


PROJECT = Project(
    "transformers",
    "transformers",
    ".py",
    "transformers 5.23.0: generation/configuration_utils.py, generation/candidate_generator.py, generation/utils.py",
    _write,
)
