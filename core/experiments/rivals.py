"""transformers' own `generate`, plain and with an assistant model."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.errors import ModelUnreadableError, SettingsError, first_line
from core.experiments.bench import ASSISTED, FLASHSPEC, FLASHSPEC_AUTO, GENERATE, NotApplicableError, Pair, Timed
from core.models.loading import prepare
from core.runners.timing import Stopwatch

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from core.models.language_model import LanguageModel


def truncated_draft(target: LanguageModel, num_layers: int) -> LanguageModel:
    """A model of the target's first layers, which are copied, as a real draft has its own.

    Embedding, final norm and head are the target's, by reference.

    Raises:
        SettingsError: it has no such number of layers.
        ModelUnreadableError: its layers can't be told from the rest.
    """
    config = copy.deepcopy(target.model.config)
    most = config.num_hidden_layers
    if not 1 <= num_layers <= most:
        raise SettingsError(f"A draft can have from 1 to {most} of the target's layers, not {num_layers}.")
    config.num_hidden_layers = num_layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]
    path = _path_of_layers(target.model, most)
    if path is None:
        raise ModelUnreadableError(
            f"The layers of {target.ref} can't be told from its other parts. Name a draft with --draft instead."
        )
    module = _with_layers(target.model, path.split("."), num_layers, config)
    return prepare(f"{target.ref}, {num_layers} layers", module, target.tokenizer, target.device, target.dtype)


def _path_of_layers(module: Any, count: int) -> str | None:
    lists = (name for name, part in module.named_modules() if isinstance(part, nn.ModuleList) and len(part) == count)
    return next(lists, None)


def _with_layers(module: Any, path: list[str], count: int, config: Any) -> Any:
    """A copy of a module with fewer layers; of all else it holds the same parts."""
    if not path:
        return nn.ModuleList(copy.deepcopy(layer) for layer in module[:count])
    twin = copy.copy(module)
    # copy.copy gives the twin the very same dictionaries, of parts as well as of hooks.
    vars(twin).update({name: copy.copy(value) for name, value in vars(module).items() if isinstance(value, dict)})
    twin._modules[path[0]] = _with_layers(module._modules[path[0]], path[1:], count, config)
    if hasattr(module, "config"):
        twin.config = config
    return twin


PACKAGE = "flashspec"


class FlashSpec:
    """Its engine with one draft model: held to K tokens a step, or with the policy that it chooses by itself."""

    def __init__(self, pair: Pair, max_new_tokens: int, num_draft_tokens: int | None) -> None:
        """
        Args:
            pair: with a draft.
            max_new_tokens: to be written.
            num_draft_tokens: K; None leaves it to its own policy.
        """
        self._package, engine = _import(PACKAGE), _import(f"{PACKAGE}.engine")
        if pair.draft is None:
            raise NotApplicableError("There is no draft model; name one with --draft, or use --draft-layers.")
        # Every logger of it writes JSON lines to stderr by itself.
        logging.getLogger(PACKAGE).setLevel(logging.ERROR)
        self.num_draft_tokens = num_draft_tokens
        self.name = FLASHSPEC if num_draft_tokens is not None else FLASHSPEC_AUTO
        self.title = "flashspec" if num_draft_tokens is not None else "flashspec, own policy"
        self._max_new_tokens = max_new_tokens
        self._device = pair.target.device
        target, draft = pair.target, pair.draft
        self._target = engine.TargetModel(target.ref, target.device, target.dtype, model=target.model)
        self._drafter = engine.HuggingFaceDrafter(draft.ref, draft.device, draft.dtype, model=draft.model)

    def run(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> Timed:
        engine = self._engine(temperature, seed)
        inputs = torch.tensor([list(prompt_ids)], device=self._device)
        with torch.inference_mode():
            watch = Stopwatch(self._device)
            result = engine.generate(inputs, max_new_tokens=self._max_new_tokens)
            seconds = watch.lap() / 1e3
        return Timed(
            tuple(result.output_ids[0, : result.n_tokens_generated].tolist()),
            seconds,
            num_forwards=len(result.arm_steps),
            longest_draft=max((step.proposed for step in result.arm_steps), default=0),
        )

    def _engine(self, temperature: float, seed: int) -> Any:
        package = self._package
        sampling: dict[str, Any] = {"temperature": temperature, "seed": seed}
        policy: dict[str, Any] = {}
        if self.num_draft_tokens is not None:
            sampling["gamma"] = self.num_draft_tokens
            policy = {"drafter_strategy": "bandit", "bandit": package.BanditConfig(n_arms=1)}
        # The dtype is that of the modules; the field is but a record. No end is named, so the length is full.
        config = package.FlashSpecConfig(
            device=str(self._device), sampling=package.SamplingConfig(**sampling), **policy
        )
        self._drafter.set_temperature(temperature)
        return package.SpeculativeEngine(config, [self._drafter], self._target)


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        if error.name == PACKAGE:
            raise NotApplicableError(f"It is not installed; to compare with it, install {PACKAGE}.") from None
        raise NotApplicableError(f"It can't be imported here ({first_line(error)}).") from error


class Generate:
    """`generate` as a user calls it, held to this temperature and length and to nothing else."""

    name = GENERATE
    title = "transformers generate"
    num_draft_tokens: int | None = 0

    def __init__(self, pair: Pair, max_new_tokens: int) -> None:
        self._target = pair.target
        self._max_new_tokens = max_new_tokens
        self._options: dict[str, Any] = {}

    def run(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> Timed:
        device = self._target.device
        inputs = torch.tensor([list(prompt_ids)], device=device)
        mask = torch.ones_like(inputs)
        with _own_configs(self._configs(temperature)), _seeded(device, seed):
            watch = Stopwatch(device)
            output = self._target.model.generate(inputs, attention_mask=mask, **self._options)
            seconds = watch.lap() / 1e3
        return Timed(tuple(output[0, len(prompt_ids) :].tolist()), seconds)

    def _configs(self, temperature: float) -> list[tuple[Any, GenerationConfig]]:
        return [(self._target.model, self._config(temperature))]

    def _config(self, temperature: float) -> GenerationConfig:
        from transformers import GenerationConfig

        # A filter that is left out takes a default of transformers' own: top-k is 50 then.
        law: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            law = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        # No end is named: asking for a shortest length instead would forbid it, which is another law.
        return GenerationConfig(max_new_tokens=self._max_new_tokens, use_cache=True, **law)


class Assisted(Generate):
    """`generate` with an assistant that drafts K tokens each time, neither more nor fewer for any reason."""

    name = ASSISTED
    title = "transformers assisted"

    def __init__(self, pair: Pair, max_new_tokens: int, num_draft_tokens: int) -> None:
        super().__init__(pair, max_new_tokens)
        if pair.draft is None:
            raise NotApplicableError("There is no draft model; name one with --draft, or use --draft-layers.")
        self._draft = pair.draft
        sizes = [model.model.config.get_text_config().vocab_size for model in (pair.target, pair.draft)]
        if sizes[0] != sizes[1]:
            raise NotApplicableError(
                f"transformers takes only an assistant whose table is as long as the target's, {sizes[0]:,} rows; "
                f"this draft's has {sizes[1]:,}."
            )
        self.num_draft_tokens = num_draft_tokens
        self._options = {"assistant_model": self._draft.model}

    def _configs(self, temperature: float) -> list[tuple[Any, GenerationConfig]]:
        drafting = self._config(temperature)
        drafting.num_assistant_tokens = self.num_draft_tokens
        drafting.num_assistant_tokens_schedule = "constant"
        drafting.assistant_confidence_threshold = 0.0
        return [*super()._configs(temperature), (self._draft.model, drafting)]


@contextlib.contextmanager
def _own_configs(configs: Sequence[tuple[Any, GenerationConfig]]) -> Iterator[None]:
    """Give each module a configuration for one call, and its own one back, whatever the call wrote into it."""
    before = [(module, module.generation_config) for module, _ in configs]
    try:
        for module, config in configs:
            module.generation_config = config
        yield
    finally:
        for module, config in before:
            module.generation_config = config


@contextlib.contextmanager
def _seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the global generator, which is the only one that `generate` draws from, and put it back."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
