"""Models small enough to be exact about: distributions as tables, and random transformers of a few thousand weights."""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from core.drafters.base import chain, empty_draft
from core.models.language_model import LanguageModel, describe
from core.runners import llama
from core.runners.base import ForwardOutput, TreeRows, check_rewind
from core.runners.llama import FusedLlamaWeights
from core.settings import SamplingParams
from core.types import Draft, DraftContext, Finished, Inspected, Step, Verification
from tests.errors import failing  # noqa: F401 - for the tests

torch.set_num_threads(1)

GREEDY = SamplingParams(0.0)
PROMPT = [10, 20, 30, 40]
Logits = Callable[[Sequence[int]], torch.Tensor]
"""From the ids so far to the logits (V,) of the next token."""


class CacheError(Exception):
    """A cache was asked to hold more than it has room for."""


class TableRunner:
    """A `Runner` whose logits come from a table. Keeps its ids, and calls `on_forward` before each forward."""

    def __init__(self, logits: Logits, capacity: int, on_forward: Callable[["TableRunner", list[int]], None]) -> None:
        self._logits = logits
        self._on_forward = on_forward
        self.capacity = capacity
        self.ids: list[int] = []

    @property
    def length(self) -> int:
        return len(self.ids)

    def forward(
        self,
        ids: torch.Tensor,
        *,
        num_logits: int,
        layers: Sequence[int] = (),
        tree: TreeRows | None = None,
    ) -> ForwardOutput:
        new = ids.tolist()
        assert new, "a forward needs a token"
        self._on_forward(self, new)
        if len(self.ids) + len(new) > self.capacity:
            raise CacheError(f"no room for {len(new)} positions behind {len(self.ids)}")
        self.ids += new
        rows = [self._logits(self._seen_at(index, len(new), tree)) for index in range(len(new) - num_logits, len(new))]
        logits = torch.stack(rows) if rows else torch.empty(0)
        return ForwardOutput(logits, tuple(torch.zeros(len(new), 1) for _ in layers))

    def _seen_at(self, index: int, num_new: int, tree: TreeRows | None) -> list[int]:
        """The text that ends with the index-th new token."""
        end = len(self.ids) - num_new + index + 1
        if tree is None:
            return self.ids[:end]
        first = len(self.ids) - len(tree.positions)
        branch = [self.ids[first + place] for place, seen in enumerate(tree.visible[index].tolist()) if seen]
        assert int(tree.new_positions[index]) == first + len(branch) - 1, "a node's position is its depth"
        return self.ids[:first] + branch

    def keep(self, places: Sequence[int]) -> None:
        check_rewind(places[-1] + 1, len(self.ids))
        self.ids[places[0] :] = [self.ids[place] for place in places]

    def rewind(self, length: int) -> None:
        check_rewind(length, len(self.ids))
        del self.ids[length:]


class LetterTokenizer:
    """Id 0 is "a", 1 is "b"…; ids from `num_letters` on are special and have no text."""

    eos_token_id = None
    chat_template = None

    def __init__(self, num_letters: int) -> None:
        self._num_letters = num_letters
        self.added_tokens_decoder: dict[int, AddedToken] = {}

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - 97 for letter in text]}

    def get_vocab(self) -> dict[str, int]:
        return {chr(97 + index): index for index in range(self._num_letters)}

    def decode(self, ids: Sequence[int], **_: object) -> str:
        return "".join(chr(97 + token) for token in ids if token < self._num_letters)


@dataclass(slots=True, eq=False)
class TableModel(LanguageModel):
    """A `LanguageModel` whose runners follow a distribution; the newest runner is kept for a look at its cache."""

    logits_of: Logits | None = None
    on_forward: Callable[[TableRunner, list[int]], None] = lambda runner, ids: None
    last_runner: TableRunner | None = None

    def runner(self, limit: int, *, drafting: bool = False, quantise: bool = False, spare: int = 0) -> TableRunner:
        assert self.logits_of is not None
        self.last_runner = TableRunner(self.logits_of, limit + spare, lambda runner, ids: self.on_forward(runner, ids))
        return self.last_runner


def table_model(
    logits: Logits, vocab_size: int, *, eos_ids: Sequence[int] = (), context_length: int = 1_000_000, ref: str = "table"
) -> TableModel:
    """A model that follows a distribution; those of equal `vocab_size` share a tokenizer, so that they make a pair."""
    return TableModel(
        ref=ref, model=None, tokenizer=_letters(vocab_size), device=torch.device("cpu"), dtype=torch.float32,
        vocab_size=vocab_size, context_length=context_length, eos_ids=frozenset(eos_ids), logits_of=logits,
    )  # fmt: skip


_letters = functools.cache(LetterTokenizer)


def random_rows(
    vocab_size: int, seed: int, *, period: int | None = None, memory: int = 3, scale: float = 1.0
) -> Logits:
    """A different random row of logits for every context: the last `memory` tokens, or all since the last `period`."""

    @functools.cache
    def row(context: tuple[int, ...]) -> torch.Tensor:
        key = 0
        for token in context:
            key = key * (vocab_size + 1) + token + 1
        generator = torch.Generator().manual_seed(seed * 1_000_003 + key)
        return torch.randn(vocab_size, generator=generator) * scale

    def logits_of(ids: Sequence[int]) -> torch.Tensor:
        size = memory if period is None else len(ids) % period
        return row(tuple(ids[len(ids) - size :]) if size else ())

    return logits_of


def fixed_rows(logits: Sequence[float]) -> Logits:
    """The same logits after every text."""
    row = torch.tensor(logits)
    return lambda ids: row


class StubDrafter:
    """Needs nothing and takes no notice: what it proposes is up to a subclass."""

    needs: frozenset = frozenset()

    def start(self, prompt: torch.Tensor) -> None:
        pass

    def observe(self, outcome: Verification) -> None:
        pass


@dataclass
class ScriptDrafter:
    """Proposes what a function of (ids, K) says, without a distribution. Keeps the verdicts."""

    script: Callable[[Sequence[int], int], Sequence[int]]
    needs: frozenset = frozenset()
    outcomes: list[Verification] = field(default_factory=list)

    def start(self, prompt: torch.Tensor) -> None:
        self.outcomes.clear()

    def propose(self, context: DraftContext) -> Draft:
        tokens = list(self.script(context.ids, context.num_draft_tokens))[: context.num_draft_tokens]
        return chain(torch.tensor(tokens, dtype=torch.int64), None) if tokens else empty_draft()

    def observe(self, outcome: Verification) -> None:
        self.outcomes.append(outcome)


def oracle(text: Sequence[int], *, offset: int = 0, vocab_size: int = 1) -> ScriptDrafter:
    """Knows the whole text beforehand; with an offset, is always wrong by it."""
    tokens = list(text)
    if offset:
        tokens = [(token + offset) % vocab_size for token in tokens]
    return ScriptDrafter(lambda ids, count: tokens[len(ids) : len(ids) + count])


@dataclass(frozen=True)
class Played:
    """A run that was played to its end."""

    steps: list[Step]
    finished: Finished

    @property
    def ids(self) -> list[int]:
        return [token for step in self.steps for token in step.emitted]

    @property
    def kinds(self) -> list:
        return [kind for step in self.steps for kind in step.emitted_kinds]

    @property
    def summary(self):
        return self.finished.summary


def play(events) -> Played:
    """Play a run of `core.decode` to its end; evidence is put with its step, as readers of a run do."""
    steps, finished = [], []
    for event in events:
        assert not finished, "nothing follows Finished"
        if isinstance(event, Step):
            steps.append(event)
        elif isinstance(event, Inspected):
            steps[event.index] = replace(steps[event.index], evidence=event.evidence)
        elif isinstance(event, Finished):
            finished.append(event)
    assert finished, "a run ends with Finished"
    return Played(steps, finished[0])


EOS = "<|end|>"

_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
          "intermediate_size": 48, "max_position_embeddings": 128}  # fmt: skip
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
FAMILIES: dict[str, dict] = {
    "llama": _SMALL,
    "qwen2": _SMALL,
    "qwen3": _SMALL,
    "mistral": {**_SMALL, "sliding_window": None},
    "gpt2": _GPT2,
    "gpt_neox": _SMALL,
    "gemma2": {**_SMALL, "sliding_window": 8, "query_pre_attn_scalar": 8},
    "gemma3_text": {**_SMALL, "num_hidden_layers": 4, "sliding_window": 8, "query_pre_attn_scalar": 8,
                    "layer_types": ["sliding_attention", "full_attention"] * 2},
    "opt": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
            "max_position_embeddings": 128, "word_embed_proj_dim": 32},
    "phi": _SMALL,
}  # fmt: skip
"""Configurations of a few thousand weights, the attention windows smaller than the texts of the tests."""


def byte_tokenizer(
    merges: Sequence[tuple[str, str]] = (), *, specials: Sequence[str] = (EOS,)
) -> PreTrainedTokenizerFast:
    """A byte-level BPE: 256 bytes, then the merged pairs, then the special tokens. The first special ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(alphabet)}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=specials[0], additional_special_tokens=list(specials[1:])
    )


def tiny_module(family: str, *, vocab_size: int = 257, seed: int = 0, **changes):
    """A random causal language model of transformers, its weights large enough that its choices are clear."""
    config = AutoConfig.for_model(
        family, vocab_size=vocab_size, **{"bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
                                          **FAMILIES.get(family, {}), **changes}
    )  # fmt: skip
    module = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        if parameter.ndim > 1:
            parameter.normal_(std=0.3, generator=generator)
        else:  # Norms and biases, which start as all ones and all zeros, and would hide what is done to them.
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return module


def language_model(module, tokenizer=None, *, is_fused: bool = False, ref: str = "tiny") -> LanguageModel:
    """A `LanguageModel` around a module, with the fused forward or with the module's own."""
    tokenizer = tokenizer or shared_tokenizer()
    model = describe(ref, module, tokenizer, torch.device("cpu"), module.dtype)
    if module.config.eos_token_id is None:
        model.eos_ids = frozenset()  # As in `generate`, which does not ask the tokenizer.
    if is_fused:
        assert llama.supports(module)
        model.fused_weights = FusedLlamaWeights(module)
    return model


@functools.cache
def shared_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of every tiny model that is given no other: 256 bytes and an end."""
    return byte_tokenizer()


@functools.cache
def tiny_model(family: str = "llama", seed: int = 0, *, is_fused: bool = False, **changes) -> LanguageModel:
    """A random model, made once for each set of arguments; nothing in it is changed by a run."""
    return language_model(tiny_module(family, seed=seed, **changes), is_fused=is_fused)


def save_model(folder, *, family: str = "llama", seed: int = 0, tokenizer=None, **changes):
    """Write a tiny model and its tokenizer into a folder, as transformers does."""
    tokenizer = tokenizer or shared_tokenizer()
    tiny_module(family, seed=seed, **{"vocab_size": len(tokenizer), **changes}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


PANICS = {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "xx"}}
"""Changes of a tokenizer.json with which the library panics on any text."""


def edit_json(path, **changes) -> None:
    """Change values of a JSON file; None removes one."""
    values = {**json.loads(path.read_text("utf-8")), **changes}
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}), "utf-8")


def greedy_reference(model: LanguageModel, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
    """What transformers' own `generate` adds at temperature 0."""
    inputs = torch.tensor([list(prompt_ids)])
    output = model.model.generate(
        inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=0
    )
    return output[0, len(prompt_ids) :].tolist()


def is_sentence(text: str) -> bool:
    """Whether a message is fit to be shown to a person: one line that ends, and no trace of Python."""
    return text.endswith(".") and "\n" not in text and "Traceback" not in text and text[0] not in " \t"


def refusal(error: type[Exception] | tuple, call: Callable, *args, match: str | None = None, **settings) -> str:
    """What a call that is refused says: one sentence, with a match of this pattern."""
    with pytest.raises(error, match=match) as caught:
        call(*args, **settings)
    assert is_sentence(str(caught.value)), str(caught.value)
    return str(caught.value)


class NoLook(TorchDispatchMode):
    """Within it, looking at a tensor's value is an error, as it is while a CUDA graph is captured."""

    LOOKS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default, torch.ops.aten.is_nonzero.default)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in self.LOOKS:
            raise AssertionError("a tensor's value was looked at")
        return func(*args, **(kwargs or {}))
