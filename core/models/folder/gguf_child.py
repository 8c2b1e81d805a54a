"""The child process that unpacks one GGUF file: `python -m core.models.folder.gguf_child SOURCE SCRATCH MEMORY TIME`.

It takes at most MEMORY bytes besides the libraries, and TIME seconds of processor time. It writes the folder
SCRATCH/model, and to SCRATCH/progress a line for each tensor, such as "3 20": the tensors done, and all. It ends with a
`core.models.child.ChildExit` code and the reason on its last line of output, or when its parent is gone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from core.models.child import ChildExit, end_with_parent, exit_code, limit
from core.models.folder.weight_files import GgufHeader, read_gguf_header

_LLAMA3 = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
"""Of Llama 3.1 to 3.3; a file has only the factors that they give."""
_LLAMA3_TEXTS = (
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken",
)  # fmt: skip
"""Pre-tokenizers that, as llama.cpp reads them, begin with BOS if the file doesn't say, and don't merge known words."""
_KEPT_WORDS = (*_LLAMA3_TEXTS, "minicpm5", "youtu")
"""Those that don't merge known words."""
_CONTROL, _USER_DEFINED = 3, 4


def main(arguments: list[str]) -> int:
    source, scratch = Path(arguments[0]), Path(arguments[1])
    memory_bytes, seconds = map(int, arguments[2:])
    threading.Thread(target=end_with_parent, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(5)
    try:
        with (scratch / "progress").open("w", encoding="utf-8", buffering=1) as progress:
            from transformers import AutoModelForCausalLM  # noqa: F401 - before the limits, which spare the libraries

            limit(memory_bytes=memory_bytes, processor_s=seconds)
            unpack(source, scratch / "model", lambda done, total: print(done, total, file=progress))
    except Exception as error:
        traceback.print_exc()
        code = exit_code(error)
        return ChildExit.UNSUPPORTED if isinstance(error, NotImplementedError) else code
    return 0


def unpack(source: Path, destination: Path, on_progress: Callable[[int, int], None]) -> None:
    """Write the model and tokenizer of a .gguf file as a folder of float32 safetensors."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    options: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True, "trust_remote_code": False}
    config, header = AutoConfig.from_pretrained(source.parent, **options), read_gguf_header(source)
    begins = {"add_bos_token": True} if header.fields.get("tokenizer.ggml.pre") in _LLAMA3_TEXTS else {}
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **begins, **options)
    if config.model_type in ("gemma2", "gemma3_text"):  # By llama.cpp's rule, which knows the 27B by its layers.
        wide = config.hidden_size // config.num_attention_heads
        config.query_pre_attn_scalar = wide if config.num_hidden_layers in (46, 62) else config.head_dim
    factors = _rotary_factors(source, header)
    _set_rotary(config, header, factors)
    options["quantization_config"] = GgufConfig(dequantize=True)
    logging.set_tqdm_hook(lambda _factory, items, settings: _Counted(items, settings, on_progress))
    model, info = AutoModelForCausalLM.from_pretrained(
        source.parent, config=config, dtype=torch.float32, output_loading_info=True, **options
    )
    # transformers fills missing tensors with random numbers.
    if lacking := sorted(info.get("missing_keys") or ()):
        raise ValueError(f"it lacks {lacking[0]!r} and {len(lacking) - 1} more")
    _check_rotary(model, header, factors)
    # The weights are dequantised; a leftover quantisation config would prevent saving.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # Chat models end a turn, or a message, with tokens that transformers doesn't read.
    ends = [header.fields.get(f"tokenizer.ggml.{role}_token_id") for role in ("eos", "eot", "eom")]
    known = model.generation_config.eos_token_id
    ends += known if isinstance(known, list) else []
    if valid := {end for end in ends if type(end) is int and 0 <= end < config.vocab_size}:
        model.generation_config.eos_token_id = sorted(valid)
    tokenizer.save_pretrained(destination)
    _mend_tokenizer(destination / "tokenizer.json", header)
    model.save_pretrained(destination)


def _mend_tokenizer(path: Path, header: GgufHeader) -> None:
    """Leave only the file's own tokens in a tokenizer.json, as spelt there; without the paddings of its table."""
    tokenizer, fields = json.loads(path.read_text("utf-8")), header.fields
    model, kinds = tokenizer["model"], fields.get("tokenizer.ggml.token_type") or ()
    if isinstance(model["vocab"], list):  # A unigram model, whose paddings stand for tokens.
        return
    tokens = {index: token for index, token in enumerate(fields["tokenizer.ggml.tokens"]) if token != f"[PAD{index}]"}
    added = {token["id"]: token for token in tokenizer["added_tokens"] if token["id"] in tokens}
    # In a byte-level vocabulary, transformers spells `<｜User｜>` as bytes, so that it would be cut into pieces.
    is_byte_level = fields.get("tokenizer.ggml.model") == "gpt2"
    for index, kind in enumerate(kinds if is_byte_level else ()):
        if kind in (_CONTROL, _USER_DEFINED) and index in tokens:
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            added[index] = {"id": index, "content": tokens[index], "special": kind == _CONTROL, **flags}
    # So spelt, an added token may also have taken the place of another one.
    spelt = tokens if is_byte_level else {index: token for token, index in model["vocab"].items() if index in tokens}
    model["vocab"] = {added[index]["content"] if index in added else token: index for index, token in spelt.items()}
    tokenizer["added_tokens"] = [added[index] for index in sorted(added)]
    # BOS and EOS, which transformers may have added again beyond the file's table.
    ids = {token: index for index, token in tokens.items()}
    for token, special in ((tokenizer.get("post_processor") or {}).get("special_tokens") or {}).items():
        if token in ids:
            special["ids"] = [ids[token]]
    if fields.get("tokenizer.ggml.pre") in _KEPT_WORDS:
        model["ignore_merges"] = True
    if fields.get("tokenizer.ggml.add_space_prefix") is False:
        splitter = tokenizer.get("pre_tokenizer") or {}
        if splitter.get("type") == "Metaspace":
            splitter["prepend_scheme"] = "never"
        # Phi-3's is normalised instead. Nor does a text then lose a space of its own when it is decoded.
        for part, steps, kind in (("normalizer", "normalizers", "Prepend"), ("decoder", "decoders", "Strip")):
            listed = (tokenizer.get(part) or {}).get(steps, [])
            listed[:] = [step for step in listed if step["type"] != kind]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")


# --- Rotary embedding -------------------------------------------------------------------------------------------


def _rotary_factors(source: Path, header: GgufHeader) -> dict[str, list[float]]:
    """What divides each rotary frequency, by tensor: `freqs`, or `factors_short` and `factors_long`."""
    names = {f"rope_{name}.weight": name for name in ("freqs", "factors_short", "factors_long")}
    if not any(tensor.name in names for tensor in header.tensors):
        return {}
    from gguf import GGUFReader

    return {names[tensor.name]: tensor.data.tolist() for tensor in GGUFReader(source).tensors if tensor.name in names}


def _set_rotary(config: Any, header: GgufHeader, factors: dict[str, list[float]]) -> None:
    """Configure the rotary embedding as the file describes it; transformers reads only its base.

    Raises:
        NotImplementedError: transformers can't express it.
        ValueError: a tensor is missing.
    """

    def given(key: str, default: Any = None) -> Any:
        return header.fields.get(f"{header.architecture}.rope.{key}", default)

    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)  # Of Gemma's layers, only those that see the whole text are scaled.
    if not rope:
        return
    rope["rope_theta"] = given("freq_base", rope["rope_theta"])
    if rope["rope_type"] == "default" and "partial_rotary_factor" in rope and (width := given("dimension_count")):
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        rope["partial_rotary_factor"] = width / head_dim
    kind, factor = given("scaling.type", "linear"), given("scaling.factor", given("scale_linear", 0.0))
    original = given("scaling.original_context_length", config.max_position_embeddings)
    attention = given("scaling.attn_factor", 1.0)
    if kind == "yarn" and factor in (0.0, 1.0):  # As llama.cpp reads it: only the attention may be scaled.
        kind, attention = "none", attention * given("scaling.yarn_attn_factor", 1.0)
    is_yarn = kind == "yarn"
    if ("factors_long" in factors) != ("factors_short" in factors):
        raise ValueError("one of its tensors rope_factors_long and rope_factors_short is missing")
    if "factors_long" in factors and not is_yarn:
        long, short = factors["factors_long"], factors["factors_short"]
        rope.update(rope_type="longrope", long_factor=long, short_factor=short, attention_factor=attention)
        rope["original_max_position_embeddings"] = config.original_max_position_embeddings = original
    elif (
        attention != 1.0
        or given("scaling.yarn_log_multiplier")
        or (is_yarn and (factors or given("scaling.yarn_ext_factor", 1.0) != 1.0))
    ):
        raise NotImplementedError("transformers can't scale its rotary embedding as the file says")
    elif is_yarn:
        rope.update(rope_type="yarn", factor=factor, original_max_position_embeddings=original)
        keys = {"attention_factor": "attn_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow"}
        rope.update({key: given(f"scaling.yarn_{name}") for key, name in keys.items() if given(f"scaling.yarn_{name}")})
    elif kind not in ("linear", "none"):
        raise NotImplementedError(f"its rotary scaling, {str(kind)[:40]!r}, is not known")
    elif kind == "linear" and factor not in (0.0, 1.0):
        rope.update(rope_type="linear", factor=factor)
    elif "freqs" in factors and rope["rope_type"] == "default":
        rope.update(_LLAMA3, factor=max(factors["freqs"]))
    config.validate_rope()


def _check_rotary(model: Any, header: GgufHeader, factors: dict[str, list[float]]) -> None:
    """Raises:
    NotImplementedError: the model rotates by other frequencies than the file says.
    """
    import torch

    rope = getattr(model.config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    width = header.number("rope.dimension_count", "attention.key_length")
    width = width or header.number("embedding_length") // max(1, header.number("attention.head_count"))
    for module in model.modules():
        inverse = getattr(module, "full_attention_inv_freq", getattr(module, "inv_freq", None))
        if not isinstance(inverse, torch.Tensor):
            continue
        expected = 1.0 / rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
        if rope["rope_type"] == "linear":
            expected /= rope["factor"]
        divisors = torch.tensor(factors.get("freqs") or factors.get("factors_short") or [1.0], dtype=torch.float64)
        is_same = inverse.shape == expected.shape and len(divisors) in (1, len(expected))
        # A factor of NaN or infinity makes the frequencies, or the scaling of the attention, so.
        is_same = is_same and bool((inverse * getattr(module, "attention_scaling", 1.0)).isfinite().all())
        # YaRN's frequencies follow from its parameters alone.
        if is_same and rope["rope_type"] != "yarn":
            is_same = torch.allclose(inverse.double(), expected / divisors, rtol=1e-4, atol=1e-12)
        if not is_same:
            raise NotImplementedError("transformers can't rotate by the frequencies that the file says")


class _Counted:
    """Replaces a progress bar, and reports its count."""

    def __init__(
        self, items: tuple[Any, ...], settings: dict[str, Any], on_progress: Callable[[int, int], None]
    ) -> None:
        self._items: Iterable[Any] = items[0] if items else settings.get("iterable") or ()
        self._total = settings.get("total") or (len(self._items) if hasattr(self._items, "__len__") else 0)
        self._on_progress = on_progress
        self._done = 0

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            yield item
            self.update()

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_, **__: None

    def update(self, count: int = 1) -> None:
        self._done += count
        self._on_progress(self._done, max(self._total, self._done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
