"""The engines that a bench runs in this process: Outrider's own, transformers' `generate`, and flashspec."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.decode import autoregressive, speculative
from core.drafters.base import DrafterSetup
from core.drafters.registry import METHODS, build_drafter, rule_problem
from core.errors import DrafterError, ModelUnreadableError, PairMismatchError, SettingsError, first_line
from core.experiments.bench_plan import (
    ASSISTED,
    AUTO,
    FLASHSPEC,
    FLASHSPEC_AUTO,
    GENERATE,
    LLAMA_CPP,
    LLAMA_CPP_DRAFT,
    NO_DRAFT,
    PLAIN,
    BenchSettings,
    Contender,
    NotApplicableError,
    Pair,
    Timed,
    default_names,
    option_text,
    split_name,
)
from core.experiments.llama_cpp import LlamaCpp
from core.models.fit import pair_problem
from core.models.loading import check_pair, load, prepare
from core.runners.timing import Stopwatch
from core.settings import Coupling, LengthPolicy, SamplingParams, VerificationRule, rule_text
from core.types import Step

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from core.models.language_model import LanguageModel

PACKAGE = "flashspec"


class Outrider:
    """Our own engine: plain decoding, or a drafting method with its options at their defaults unless named."""

    def __init__(
        self,
        pair: Pair,
        max_new_tokens: int,
        num_draft_tokens: int | None = 0,
        method: str = "",
        options: Mapping[str, Any] | None = None,
        rule: VerificationRule = VerificationRule.TOKEN,
    ) -> None:
        """K is 0 for plain decoding, which has no method; None lets the engine choose it before each step."""
        self._rule = rule
        self._pair, self._max_new_tokens, self._options = pair, max_new_tokens, options or {}
        self.num_draft_tokens, self.method = num_draft_tokens, method
        self.name, self.title, self.drafter = PLAIN, "plain decoding", None
        if method:
            self.name = option_text(method, self._options)
            title = METHODS[method].title.lower() if METHODS[method].is_own else method
            self.title = option_text(title, self._options, ", ")
            if num_draft_tokens is None:
                self.name, self.title = AUTO, f"{self.title}, K auto"
            if rule is not VerificationRule.TOKEN:
                if problem := rule_problem(method, Coupling.REJECTION, rule):
                    raise NotApplicableError(problem)
                self.title += f", {rule_text({'verification': rule})}"
            self.drafter = self._build(1)  # Raises here if it does not apply.

    def run(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> Timed:
        target = self._pair.target
        settings: dict[str, Any] = {
            "sampling": SamplingParams(temperature=temperature),
            "max_new_tokens": self._max_new_tokens,
            "seed": seed,
        }
        if self.method:
            self.drafter = self._build(len(prompt_ids))
            settings["num_draft_tokens"] = LengthPolicy.AUTO if self.num_draft_tokens is None else self.num_draft_tokens
        watch = Stopwatch(target.device)
        if self.drafter is None:
            events = autoregressive(target, prompt_ids, **settings)
        else:
            events = speculative(target, self.drafter, prompt_ids, rule=self._rule, **settings)
        steps = tuple(event for event in events if isinstance(event, Step))
        seconds = watch.lap() / 1e3
        ids = tuple(token for step in steps for token in step.emitted)
        longest = max((step.num_draft_tokens for step in steps), default=0)
        return Timed(ids, seconds, num_forwards=len(steps), longest_draft=longest, steps=steps)

    def _build(self, num_prompt_tokens: int) -> Any:
        setup = DrafterSetup(self._pair.target, self._pair.draft, num_prompt_tokens + self._max_new_tokens)
        return build_drafter(self.method, setup, self._options)


class Generate:
    """transformers' `generate`; with an assistant that drafts exactly K tokens each time, where K is given."""

    def __init__(self, pair: Pair, max_new_tokens: int, num_draft_tokens: int = 0) -> None:
        self._target, self._draft = pair.target, pair.draft
        self._max_new_tokens = max_new_tokens
        self.num_draft_tokens: int | None = num_draft_tokens
        self.name, self.title = GENERATE, "transformers generate"
        self._options: dict[str, Any] = {}
        if num_draft_tokens:
            self.name, self.title = ASSISTED, "transformers assisted"
            if pair.draft is None:
                raise NotApplicableError(NO_DRAFT)
            sizes = [model.model.config.get_text_config().vocab_size for model in (pair.target, pair.draft)]
            if sizes[0] != sizes[1]:
                raise NotApplicableError(
                    "transformers takes only an assistant whose embedding has as many rows as the target's, "
                    f"{sizes[0]:,}; this draft's has {sizes[1]:,}."
                )
            self._options = {"assistant_model": pair.draft.model}

    def run(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> Timed:
        device = self._target.device
        inputs = torch.tensor([list(prompt_ids)], device=device)
        mask = torch.ones_like(inputs)
        with _prepared(self._configs(temperature), device, seed):
            watch = Stopwatch(device)
            output = self._target.model.generate(inputs, attention_mask=mask, **self._options)
            seconds = watch.lap() / 1e3
        return Timed(tuple(output[0, len(prompt_ids) :].tolist()), seconds)

    def _configs(self, temperature: float) -> list[tuple[Any, GenerationConfig]]:
        from transformers import GenerationConfig

        # Filters are named, since transformers' own default of top-k is 50. No end is named, since asking for a least
        # length instead would forbid the ends, which changes the distribution.
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        plain, drafting = (
            GenerationConfig(max_new_tokens=self._max_new_tokens, use_cache=True, **sampling) for _ in range(2)
        )
        if not self.num_draft_tokens or self._draft is None:
            return [(self._target.model, plain)]
        drafting.num_assistant_tokens = self.num_draft_tokens
        drafting.num_assistant_tokens_schedule = "constant"
        drafting.assistant_confidence_threshold = 0.0
        return [(self._target.model, plain), (self._draft.model, drafting)]


@contextlib.contextmanager
def _prepared(configs: Sequence[tuple[Any, GenerationConfig]], device: torch.device, seed: int) -> Iterator[None]:
    """Lend modules a configuration, and seed the global generator, the only one that `generate` draws from."""
    before = [(module, module.generation_config) for module, _ in configs]
    try:
        for module, config in configs:
            module.generation_config = config
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield
    finally:
        for module, config in before:
            module.generation_config = config


class FlashSpec:
    """flashspec with one draft model: K tokens a step, or its own policy where K is None."""

    def __init__(self, pair: Pair, max_new_tokens: int, num_draft_tokens: int | None) -> None:
        self._package, engine = _import(PACKAGE), _import(f"{PACKAGE}.engine")
        if pair.draft is None:
            raise NotApplicableError(NO_DRAFT)
        # Each of its loggers writes JSON lines to stderr.
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
        package = self._package
        sampling: dict[str, Any] = {"temperature": temperature, "seed": seed}
        policy: dict[str, Any] = {}
        if self.num_draft_tokens is not None:
            sampling["gamma"] = self.num_draft_tokens
            policy = {"drafter_strategy": "bandit", "bandit": package.BanditConfig(n_arms=1)}
        config = package.FlashSpecConfig(
            device=str(self._device), sampling=package.SamplingConfig(**sampling), **policy
        )
        self._drafter.set_temperature(temperature)
        engine = package.SpeculativeEngine(config, [self._drafter], self._target)
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


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        if error.name == PACKAGE:
            raise NotApplicableError(f"It is not installed; to compare with it, install {PACKAGE}.") from None
        raise NotApplicableError(f"It can't be imported here ({first_line(error)}).") from error


def build(
    name: str, pair: Pair, settings: BenchSettings, on_stage: Callable[[str], None] = lambda text: None
) -> Contender:
    """One contender.

    Raises:
        NotApplicableError, SettingsError: it can't run with these models, or here.
    """
    base, options = split_name(name)
    length, k, rule = settings.max_new_tokens, settings.num_draft_tokens, settings.verification
    made: dict[str, Callable[[], Contender]] = {
        GENERATE: lambda: Generate(pair, length),
        ASSISTED: lambda: Generate(pair, length, k),
        FLASHSPEC: lambda: FlashSpec(pair, length, k),
        FLASHSPEC_AUTO: lambda: FlashSpec(pair, length, None),
        LLAMA_CPP: lambda: LlamaCpp(pair, settings, 0, on_stage),
        LLAMA_CPP_DRAFT: lambda: LlamaCpp(pair, settings, k, on_stage),
        PLAIN: lambda: Outrider(pair, length),
        AUTO: lambda: Outrider(
            pair, length, None, "draft-model" if pair.draft is not None else "prompt-lookup", rule=rule
        ),
    }
    return made[base]() if base in made else Outrider(pair, length, k, base, options, rule)


def build_all(
    pair: Pair, settings: BenchSettings, on_stage: Callable[[str], None] = lambda text: None
) -> tuple[list[Contender], dict[str, str]]:
    """The contenders that can run with this pair, and why the others can't, by name.

    Raises:
        SettingsError: one that was asked for by name can't take part.
    """
    present: list[Contender] = []
    absent: dict[str, str] = {}
    for name in settings.only or default_names():
        try:
            present.append(build(name, pair, settings, on_stage))
        except (NotApplicableError, SettingsError, DrafterError) as error:
            if settings.only:
                raise SettingsError(f"The contender {name} can't take part: {error}") from error
            absent[name] = str(error)
    return present, absent


def load_pair(settings: BenchSettings, on_stage: Callable[[str], None] = lambda text: None) -> Pair:
    """Load the models that the settings name.

    Raises:
        OutriderError: one can't be loaded, or they don't go together.
    """
    if settings.draft is not None and (problem := pair_problem(settings.draft, settings.target)) is not None:
        raise PairMismatchError(problem)
    on_stage(f"Loading {settings.target}…")
    target = load(settings.target, settings.device, settings.dtype)
    draft: LanguageModel | None = None
    if settings.draft_layers is not None:
        draft = truncated_draft(target, settings.draft_layers)
    elif settings.draft is not None:
        on_stage(f"Loading {settings.draft}…")
        draft = load(settings.draft, settings.device, settings.dtype, target=target)
        check_pair(draft, target)
    return Pair(replace(target, eos_ids=frozenset()), draft)


def truncated_draft(target: LanguageModel, num_layers: int) -> LanguageModel:
    """A draft of copies of the target's first layers; embedding, final norm and head are shared with the target.

    Raises:
        SettingsError: the target has no such number of layers.
        ModelUnreadableError: its layers can't be found.
    """
    most = target.model.config.num_hidden_layers
    if not 1 <= num_layers <= most:
        raise SettingsError(f"A draft can have from 1 to {most} of the target's layers, not {num_layers}.")
    parts = target.model.named_modules()
    path = next((name for name, part in parts if isinstance(part, nn.ModuleList) and len(part) == most), None)
    if path is None:
        raise ModelUnreadableError(f"The layers of {target.ref} can't be found. Name a draft with --draft instead.")
    shared: dict[int, Any] = {}
    part = target.model
    for name in path.split("."):
        shared |= {id(other): other for key, other in part.named_children() if key != name}
        part = getattr(part, name)
    # What deepcopy takes for copied already stays as it is.
    module = copy.deepcopy(target.model, shared | {id(layer): layer for layer in part[num_layers:]})
    del module.get_submodule(path)[num_layers:]
    module.config.num_hidden_layers = num_layers
    if getattr(module.config, "layer_types", None):
        module.config.layer_types = module.config.layer_types[:num_layers]
    return prepare(f"{target.ref}, {num_layers} layers", module, target.tokenizer, target.device, target.dtype)
