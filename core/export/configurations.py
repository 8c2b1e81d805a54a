"""Writes configurations that serve a choice with vLLM, transformers, SGLang, llama.cpp or MLX, one function each.

A function returns the command or program and notes on differences from Outrider, or raises `UnsupportedError`.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from core.drafters.registry import get_method
from core.errors import OutriderError, SettingsError
from core.export.choice import Choice, ModelSource, SourceKind
from core.export.run_data import named
from core.models.catalogue import resolve
from core.models.folder.details import read_config
from core.runlog.log import text_of
from core.settings import LOSSY, Coupling, SamplingParams, VerificationRule

CHECKED_ON = "2026-11-22"
"""When the engines' sources were last checked."""
WIDTH = 80
DRAWN_AND_COMPARED = (
    "At temperatures above 0 the target draws its own token at each position, and accepts a draft token if it equals "
    "that draw. The output still follows the target's distribution, but fewer draft tokens are accepted than with "
    "Outrider's rejection sampling: expect less acceptance than measured."
)
PROMPT = "Write your prompt here."
_OUTTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
"""The precisions, and llama.cpp's names for them."""

_VLLM_BLOCK = '"rejection_sample_method": "block"'
_STATEFUL = frozenset({
    "bailing_hybrid", "bamba", "deepseek_v4", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear",
    "mamba", "mamba2", "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text",
    "qwen3_next", "qwen4_exp", "qwen4_exp_text", "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2", "zaya",
})  # fmt: skip
"""Model types that transformers 5.23 marks as stateful."""


class UnsupportedError(Exception):
    """The engine can't serve the choice; the message says why."""


Recipe = tuple[str, list[str]]
"""The command or program, and notes on what differs from Outrider."""


@dataclass(frozen=True, slots=True)
class Project:
    """An engine.

    Attributes:
        name, title: on the command line, and in the window.
        suffix: of its configuration files.
        sources: the project's files that document the flags.
        write: writes the recipe for a choice, given the sources of target and draft.
    """

    name: str
    title: str
    suffix: str
    sources: str
    write: Callable[[Choice, ModelSource, ModelSource | None], Recipe]


@dataclass(frozen=True, slots=True)
class Configuration:
    """What to paste.

    Attributes:
        project: the engine.
        text: the command or program, and comments on what it serves and what differs.
        program: the command or program alone, since some shells (zsh) accept no comments; empty if there is none.
        problem: why the engine can't serve the choice; empty if it can.
    """

    project: Project
    text: str
    program: str
    problem: str = ""


def get_project(name: str) -> Project:
    """Raises:
    SettingsError: there is no such engine; the message lists the engines.
    """
    try:
        return PROJECTS[name]
    except KeyError:
        known = ", ".join(PROJECTS)
        raise SettingsError(f"There is no configuration for {name!r}. Choose one of: {known}.") from None


def configuration(
    choice: Choice, project: Project, models: tuple[ModelSource, ModelSource | None] | None = None
) -> Configuration:
    """An engine's configuration for a choice, with the differences and the sources they were checked against.

    Args:
        models: target and draft, if they are not where the request says.
    """
    target, draft = models or choice.sources
    program, notes, problem = "", list[str](), ""
    try:
        _refuse_what_only_outrider_does(choice, draft, project.title)
        program, notes = project.write(choice, target, draft)
    except UnsupportedError as error:
        problem = str(error)
    if program:
        notes[:0] = [model.note for model in (target, draft) if model is not None and model.note]
        are_gguf = all(model is None or model.kind is SourceKind.GGUF for model in (target, draft))
        if choice.dtype not in _OUTTYPES and not are_gguf:
            notes.append(f"No run says which precision to use, so {project.title} chooses it.")
    if program and choice.request.coupling is Coupling.GUMBEL:
        notes.append(
            "Outrider's Gumbel coupling shares noise between the models. The shared noise does not exist here: "
            "the same seed gives a different text."
        )
    if program and choice.request.is_lossy:
        notes.append(f"{project.title} verifies exactly here: expect lower acceptance than in the lossy run.")
    elif program and choice.request.verification is VerificationRule.BLOCK and _VLLM_BLOCK not in program:
        notes.append(
            "Outrider used block verification, which on average accepts at least as many tokens as token-by-token "
            "verification."
        )
    above = _comment(*_head(project.title, choice), *([problem] if problem else []))
    checked = f"Checked on {CHECKED_ON} against {project.sources}."
    below = _comment(*(f"- {note}" for note in notes), checked)
    return Configuration(project, above + (f"\n{program}\n" if program else "") + below, program, problem)


def _refuse_what_only_outrider_does(choice: Choice, draft: ModelSource | None, title: str) -> None:
    if choice.request.method == "self-draft":
        raise UnsupportedError(
            f"{title} has no equivalent of Outrider's self-draft, which drafts with an int8 copy of the target; "
            "choose a draft model or prompt lookup instead."
        )
    others = {"draft-tree"} if title == PROJECTS["sglang"].title else set()
    if choice.request.method not in {"draft-model", "prompt-lookup", *others}:
        raise UnsupportedError(f"{title} has no known equivalent of the method {choice.request.method}.")
    if get_method(choice.request.method).needs_draft_model and not choice.request.draft:
        raise UnsupportedError("No draft model is chosen; choose one, or choose prompt lookup.")
    if draft is not None and draft.serves:
        raise UnsupportedError(
            f"The draft borrows the embedding and output head of {named(draft.serves)}, which only Outrider reads: "
            f"{title} needs a draft that is a model of its own, with embedding, head and tokenizer."
        )


def _head(title: str, choice: Choice) -> list[str]:
    """What a configuration serves, and where the settings come from."""
    draft = f" with {named(choice.request.draft)}" if choice.request.draft else ""
    words = "greedy" if choice.request.sampling.is_greedy else choice.request.sampling.text
    origin = f"Outrider's run {choice.run_id}" if choice.run_id else "Outrider's settings"
    lines = [
        f"{title}: {named(choice.request.target)}{draft}, {choice.request.method}, {choice.shape}, {words}.",
        f"From {origin}. {choice.k_note}".strip(),
    ]
    if choice.request.is_lossy:
        lines.append(LOSSY)
    return [*lines, *filter(None, (choice.verdict, choice.measured))]


# --- Text that can't break out of its place -----------------------------------------------------------------------


def _plain(text: str) -> str:
    """Remove characters that end a line or a string in some shell."""
    return "".join(character if character.isprintable() else " " for character in text)


def _comment(*paragraphs: str) -> str:
    lines: list[str] = []
    for paragraph in paragraphs:
        # JSON in a sentence stays on one line.
        text = re.sub(r"\{.*?\}", lambda match: match[0].replace(" ", "\0"), _plain(paragraph))
        lines += textwrap.wrap(
            text, WIDTH - 2, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        ) or [""]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines).replace("\0", " ")


def _command(*words: Iterable[str]) -> str:
    """A POSIX shell command, one group of words per line."""
    return " \\\n    ".join(shlex.join(_plain(word) for word in group) for group in words if group) + "\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _refuse_gguf(reason: str, *models: ModelSource | None) -> None:
    if any(model is not None and model.kind is SourceKind.GGUF for model in models):
        raise UnsupportedError(f"{reason} Use the models that the GGUF files were made from instead.")


# --- The engines --------------------------------------------------------------------------------------------------


def _vllm(choice: Choice, target: ModelSource, draft: ModelSource | None) -> Recipe:
    _refuse_gguf(
        "vLLM reads GGUF files only with the plugin vllm-gguf-plugin, which its documentation calls highly "
        "experimental; drafting with them is not documented.",
        target,
        draft,
    )
    sampling, k = choice.request.sampling, choice.k
    request = {"temperature": sampling.temperature}
    if not sampling.is_greedy:
        request |= {"top_p": sampling.top_p, "top_k": sampling.top_k}
    notes = [f"Each request has its own sampling parameters; send {_json(request)}."]
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
            "and target must share a vocabulary, unless use_heterogeneous_vocab is set: then only tokens that both "
            "have are drafted, greedily."
        )
        if not sampling.is_greedy:
            settings["draft_sample_method"] = "probabilistic"
            notes.append(
                "draft_sample_method: the default, greedy, drafts the most likely token and treats it as certain. "
                "probabilistic samples drafts as Outrider does, so that acceptance is comparable, and takes more "
                "memory. Leave the key out if an older vLLM does not know it. Both keep the target's distribution; "
                "of the values of rejection_sample_method, standard (the default) and block keep it, not synthetic."
            )
            if choice.request.verification is VerificationRule.BLOCK:
                settings["rejection_sample_method"] = "block"
                notes.append(
                    "rejection_sample_method: block is the block verification that Outrider used. vLLM has it since "
                    "2026, in its newer model runner only; leave the key out if yours refuses it."
                )
    notes.append(
        "K is fixed for a batch of requests: a K that pays for one request at a time may not pay for many. To compare, "
        "divide vllm:spec_decode_num_accepted_tokens by vllm:spec_decode_num_draft_tokens at /metrics; Outrider shows "
        "the same figure as acceptance (draft_acceptance_rate in its logs)."
    )
    pairs = (f'"{name}": {_plain(_json(value))}' for name, value in settings.items())
    config = "{" + ",\n        ".join(pairs) + "}"
    notes.append(
        "--generation-config vllm: otherwise penalties and filters in the target's generation_config.json apply to "
        "requests that don't set them."
    )
    words = [["vllm", "serve", target.name], ["--generation-config", "vllm"], *_dtype_flag(choice, target, notes)]
    command = _command(*words).rstrip("\n")
    return f"{command} \\\n    --speculative-config {shlex.quote(config)}\n", notes


def _dtype_flag(choice: Choice, target: ModelSource, notes: list[str]) -> list[list[str]]:
    """The precision as a flag for vLLM and SGLang, whose drafts follow their target; none if it isn't known."""
    if choice.dtype not in _OUTTYPES:
        return []
    if "quantization_config" in _config_of(target):
        notes.append(
            f"Outrider computed in {choice.dtype}; the server chooses a precision that suits the quantised target."
        )
        return []
    notes.append(_precision_note(choice, "--dtype auto"))
    return [["--dtype", choice.dtype]]


def _precision_note(choice: Choice, auto: str) -> str:
    return (
        f"{choice.dtype} is Outrider's precision here. {auto} takes that of the weights, which may need less memory, "
        "but then greedy texts may differ, too."
    )


def _sglang(choice: Choice, target: ModelSource, draft: ModelSource | None) -> Recipe:
    _refuse_gguf("Whether SGLang speculates with GGUF files is not documented.", target, draft)
    sampling, k = choice.request.sampling, choice.k
    request = {"temperature": sampling.temperature, "repetition_penalty": 1.0}
    if not sampling.is_greedy:
        request |= {"top_p": sampling.top_p, "top_k": sampling.top_k or -1, "min_p": sampling.min_p}
    notes = [
        f"Each request has its own sampling parameters; send {_json(request)}. What is left out comes from the "
        "target's generation_config.json."
    ]
    words = [["python3", "-m", "sglang.launch_server"], ["--model-path", target.name, "--enable-metrics"]]
    words += _dtype_flag(choice, target, notes)
    if draft is not None:
        is_tree = choice.request.method == "draft-tree"
        depth, branching = (choice.option("depth"), choice.option("branching")) if is_tree else (k, 1)
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
            "NGRAM runs on CUDA only, excludes --enable-dp-attention, and switches the overlap scheduler off. It looks "
            "in a cache that all requests share, of suffixes up to --speculative-ngram-max-trie-depth (18); Outrider "
            "looks in the current text. The breadth of 1 makes one chain of what is otherwise a tree; "
            f"num-draft-tokens counts the text's last token too, so it is K + 1 for K = {k}."
        )
    # The last token of the text is verified too.
    words.append(["--speculative-num-draft-tokens", str(k + 1)])
    if not sampling.is_greedy:
        notes += [
            "At temperatures above 0 the draft proposes its most likely token, which is accepted with the target's "
            "probability of it: the output follows the target's distribution, but acceptance differs from the one "
            "measured. --speculative-use-rejection-sampling is for EAGLE models only. On CPUs and on AMD, Intel and "
            "NPU devices, drafts are verified greedily at any temperature: there the text is not a sample.",
            "--speculative-accept-threshold-single and -acc below 1 accept more, and are lossy.",
        ]
        if sampling.min_p:
            notes.append(f"During verification, min-p (here {sampling.min_p:g}) is not applied.")
    return _command(*words), notes


def _llama_cpp(choice: Choice, target: ModelSource, draft: ModelSource | None) -> Recipe:
    sampling, k = choice.request.sampling, str(choice.k)
    conversion, file = _as_gguf(target, "target", choice.dtype)
    words = [["llama-server", "--metrics"], ["-m", file]]
    notes = []
    if choice.dtype in _OUTTYPES and any(
        model is not None and model.kind is SourceKind.GGUF for model in (target, draft)
    ):
        notes.append(f"A GGUF file keeps the precision that it is stored in; Outrider computed in {choice.dtype}.")
    if any(model is not None and model.kind is not SourceKind.GGUF for model in (target, draft)):
        notes.append(
            "llama.cpp reads GGUF files only. convert_hf_to_gguf.py is in its repository and does not know every "
            "architecture; quantising the files afterwards changes both distributions, and thus the acceptance."
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
        longest = str(choice.option("max_ngram"))
        words.append(["--spec-type", "ngram-simple"])
        words.append(["--spec-ngram-simple-size-n", longest, "--spec-ngram-simple-size-m", k])
        notes.append(
            "ngram-simple looks for n-grams of exactly size-n tokens, Outrider for every length from its longest down "
            "to its shortest. Older builds call the sizes --spec-ngram-size-n and --spec-ngram-size-m."
        )
    # A GGUF file may hold a penalty of its own.
    words.append(["--repeat-penalty", "1.0"])
    if sampling.is_greedy:
        words.append(["--temp", "0"])
    else:
        words.append(["--samplers", "temperature;top_k;top_p;min_p", *_sampling_flags(sampling)])
        notes += [
            DRAWN_AND_COMPARED,
            "A request may have its own sampling. By default llama.cpp filters before it applies the temperature; "
            "--samplers puts them in Outrider's order, which is that of transformers.",
        ]
    return conversion + _command(*words), notes


def _as_gguf(source: ModelSource, role: str, dtype: str) -> tuple[str, str]:
    """The commands that convert a model to GGUF, in a precision if it is known, and the file's name."""
    if source.kind is SourceKind.GGUF:
        return "", source.name
    fetch, folder = "", source.name
    if source.kind is SourceKind.HUB:
        fetch, folder = _command(["hf", "download", source.name, "--local-dir", role]), role
    file = f"{role}.gguf"
    outtype = ["--outtype", _OUTTYPES[dtype]] if dtype in _OUTTYPES else []
    return fetch + _command(["python3", "convert_hf_to_gguf.py", folder, "--outfile", file, *outtype]), file


def _sampling_flags(sampling: SamplingParams) -> list[str]:
    filters = ["--top-k", str(sampling.top_k), "--top-p", f"{sampling.top_p:g}", "--min-p", f"{sampling.min_p:g}"]
    return ["--temp", f"{sampling.temperature:g}", *([] if sampling.is_greedy else filters)]


def _mlx(choice: Choice, target: ModelSource, draft: ModelSource | None) -> Recipe:
    if draft is None:
        raise UnsupportedError("mlx-lm only drafts with a model: it has no prompt lookup.")
    _refuse_gguf("mlx-lm reads safetensors, not GGUF files.", target, draft)
    sampling = choice.request.sampling
    notes = [
        "Draft and target must share a tokenizer, and both need caches that can be trimmed: models with recurrent or "
        "rotating caches are refused. The default K is 3.",
    ]
    if not sampling.is_greedy:
        notes.append(DRAWN_AND_COMPARED)
        if not sampling.is_unfiltered and sampling.temperature != 1.0:
            notes.append(
                "mlx-lm filters before it applies the temperature, Outrider after it: with these filters the "
                "distribution is not the one measured."
            )
    if choice.dtype in _OUTTYPES:
        notes.append(
            f"mlx-lm computes in the precision of the stored weights, Outrider in {choice.dtype}: mlx_lm.convert "
            "--dtype stores them in another one."
        )
    if choice.request.chat is False:
        notes.append("The run's prompt was raw; add --ignore-chat-template to match it.")
    program = _command(
        ["mlx_lm.generate"],
        ["--model", target.name],
        ["--draft-model", draft.name],
        ["--num-draft-tokens", str(choice.k), *_sampling_flags(sampling)],
        ["--max-tokens", str(choice.request.max_new_tokens), "--prompt", PROMPT],
    )
    return program, notes


def _transformers(choice: Choice, target: ModelSource, draft: ModelSource | None) -> Recipe:
    if (kind := text_of(_config_of(target).get("model_type"))) in _STATEFUL:
        raise UnsupportedError(
            f"transformers refuses to speculate with a target that keeps a recurrent state, such as this one ({kind})."
        )
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
    if choice.dtype in _OUTTYPES:
        notes.append(_precision_note(choice, 'dtype="auto"'))
    if draft is not None:
        lines += [
            f"draft = {_python_model(draft, choice.dtype)}",
            "# generate() takes these from the draft's own configuration, not from its arguments.",
            f"draft.generation_config.num_assistant_tokens = {k}",
            'draft.generation_config.num_assistant_tokens_schedule = "constant"',
            "draft.generation_config.assistant_confidence_threshold = 0.0",
        ]
        options = ["assistant_model=draft"]
        notes.append(
            "By default K is 20, and the draft stops when its confidence falls below 0.4, which is not Outrider's K. A "
            "model whose table has as many rows as the target's is assumed to have its tokenizer; otherwise tokenizer= "
            "and assistant_tokenizer= are needed, and the two vocabularies are matched by text."
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
        "print(tokenizer.decode(new, skip_special_tokens=True))",
    ]
    if target.kind is SourceKind.GGUF:
        notes.append("transformers dequantises a GGUF file when it loads it, and needs the package gguf for that.")
    return "\n".join(lines) + "\n", notes


def _config_of(source: ModelSource) -> dict[str, Any]:
    """A model's config.json; empty if it isn't on this machine."""
    try:
        return read_config(resolve(source.name).path)
    except OutriderError:
        return {}


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
    dtype = dtype if dtype in _OUTTYPES else "auto"
    return f'AutoModelForCausalLM.from_pretrained({_python_source(source)}, dtype="{dtype}", device_map="auto")'


PROJECTS: dict[str, Project] = {
    project.name: project
    for project in (
        Project(
            "vllm",
            "vLLM",
            ".sh",
            "vLLM's docs/features/speculative_decoding/README.md, draft_model.md and acceptance_metrics.md; "
            "docs/features/quantization/gguf.md; vllm/config/speculative.py and vllm/sampling_params.py (2026 "
            "sources, release unknown)",
            _vllm,
        ),
        Project(
            "transformers",
            "transformers",
            ".py",
            "transformers 5.23.0: generation/configuration_utils.py, generation/candidate_generator.py, "
            "generation/utils.py",
            _transformers,
        ),
        Project(
            "sglang",
            "SGLang",
            ".sh",
            "SGLang's docs_new/docs/advanced_features/speculative_decoding.mdx; the verification of drafts in "
            "python/sglang/srt/speculative (2026 sources, release unknown)",
            _sglang,
        ),
        Project(
            "llama.cpp",
            "llama.cpp",
            ".sh",
            "llama.cpp's docs/speculative.md, and the --help of llama-server as quoted by others (builds of 2026); "
            "common/speculative.cpp and common/sampling.h (2026 sources)",
            _llama_cpp,
        ),
        Project(
            "mlx",
            "MLX",
            ".sh",
            "mlx-lm's mlx_lm/generate.py and mlx_lm/sample_utils.py (2026 sources, release unknown)",
            _mlx,
        ),
    )
}
