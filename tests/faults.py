"""Real models and drafters that go wrong on purpose: each fault is one that an engine must show, or survive."""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

import torch

from core.drafters.base import Drafter, DrafterSetup, chain
from core.drafters.registry import build_drafter
from core.models.language_model import LanguageModel
from core.runners.base import ForwardOutput, Runner
from core.runners.llama import FusedLlamaRunner
from core.runners.module import ModuleRunner
from core.types import Draft, DraftContext, Verification
from tests.fakes_medusa import heads_for


def build_method(name: str, target: LanguageModel, draft: LanguageModel, **options) -> Drafter:
    """A registered method's drafter, whichever of the models it asks for."""
    if name == "medusa":
        options = {"heads": heads_for(target), **options}
    return build_drafter(name, DrafterSetup(target, draft), options)


class Wrapped:
    """A runner that does as the one within."""

    def __init__(self, inner: Runner) -> None:
        self.inner = inner

    @property
    def length(self) -> int:
        return self.inner.length

    @property
    def capacity(self) -> int:
        return self.inner.capacity

    def forward(self, ids: torch.Tensor, **asked) -> ForwardOutput:
        return self.inner.forward(ids, **asked)

    def keep(self, places: Sequence[int]) -> None:
        self.inner.keep(places)

    def rewind(self, length: int) -> None:
        self.inner.rewind(length)


class KeepsARejectedPosition(Wrapped):
    def rewind(self, length: int) -> None:
        self.inner.rewind(min(length + 1, self.inner.length))


class DropsAPositionTooMany(Wrapped):
    def rewind(self, length: int) -> None:
        self.inner.rewind(max(length - 1, 0) if length < self.inner.length else length)


class NeverRewinds(Wrapped):
    def rewind(self, length: int) -> None:
        pass


class RowsAreOff(Wrapped):
    def forward(self, ids: torch.Tensor, **asked) -> ForwardOutput:
        output = self.inner.forward(ids, **asked)
        return output._replace(logits=output.logits.roll(1, 0))


class BlocksAreReadBackwards(Wrapped):
    def forward(self, ids: torch.Tensor, **asked) -> ForwardOutput:
        return self.inner.forward(torch.cat((ids[:1], ids[1:].flip(0))), **asked)


class SeesNothingBeforeABlock(Wrapped):
    """As a block would whose mask or positions begin anew."""

    def __init__(self, inner: Runner) -> None:
        super().__init__(inner)
        self._seen: list[int] = []

    def forward(self, ids: torch.Tensor, **asked) -> ForwardOutput:
        if len(ids) == 1:
            self._seen.append(int(ids[0]))
            return super().forward(ids, **asked)
        self._seen = [*self._seen[: self.inner.length], *ids.tolist()]
        self.inner.rewind(0)
        output = self.inner.forward(ids, **asked)
        self.inner.rewind(0)
        self.inner.forward(torch.tensor(self._seen), num_logits=0)
        return output

    def rewind(self, length: int) -> None:
        super().rewind(length)
        del self._seen[length:]


RUNNER_FAULTS = (KeepsARejectedPosition, DropsAPositionTooMany, NeverRewinds, RowsAreOff, BlocksAreReadBackwards,
                 SeesNothingBeforeABlock)  # fmt: skip


@dataclass(slots=True, eq=False)
class ModelWithRunners(LanguageModel):
    """A model that keeps its runners in the order in which they were made, wrapped first."""

    wrap: Callable[[Runner], Runner] = field(default=lambda runner: runner)
    runners: list[Runner] = field(default_factory=list)

    def runner(self, capacity: int, **settings) -> Runner:
        self.runners.append(self.wrap(LanguageModel.runner(self, capacity, **settings)))
        return self.runners[-1]


def with_runners(model: LanguageModel, wrap: Callable[[Runner], Runner] = lambda runner: runner) -> ModelWithRunners:
    """The same model, its runners wrapped and kept."""
    given = {item.name: getattr(model, item.name) for item in fields(LanguageModel) if item.init}
    return ModelWithRunners(**given, wrap=wrap)


def strike(monkeypatch, at: int, action: Callable[[], None]) -> list[int]:
    """Does something before the n-th forward of any runner, counted from 0; returns an entry for each forward since."""
    left, since = itertools.count(at, -1), []

    def struck(method: Callable) -> Callable:
        @functools.wraps(method)
        def forward(*args, **settings):
            now = next(left)
            if now == 0:
                action()
            elif now < 0:
                since.append(now)
            return method(*args, **settings)

        return forward

    fused = ((FusedLlamaRunner, name) for name in ("forward", "draw_next"))
    for runner_type, name in ((ModuleRunner, "forward"), *fused):
        monkeypatch.setattr(runner_type, name, struck(getattr(runner_type, name)))
    return since


class DraftsOtherwise:
    """A drafter that does as the one within, but for what `change` makes of its drafts."""

    def __init__(self, inner: Drafter, change: Callable[[Draft, int], Draft]) -> None:
        self._inner, self._change = inner, change
        self.needs = inner.needs
        self.is_certain = True  # Whether all that was proposed so far came without a distribution.

    def start(self, prompt: torch.Tensor) -> None:
        self._inner.start(prompt)

    def propose(self, context: DraftContext) -> Draft:
        draft = self._inner.propose(context)
        self.is_certain = self.is_certain and draft.probs is None
        return self._change(draft, context.vocab_size) if len(draft) else draft

    def observe(self, outcome: Verification) -> None:
        self._inner.observe(outcome)


def _distribution(draft: Draft, vocab_size: int) -> torch.Tensor:
    """(N, V): what a draft was drawn from, one-hots included."""
    if draft.probs is not None:
        return draft.probs
    return torch.nn.functional.one_hot(draft.tokens, vocab_size).float()


def claims_a_smoother_distribution(draft: Draft, vocab_size: int) -> Draft:
    """The tokens are drawn from one distribution, and tested as if drawn from another."""
    return replace(draft, probs=0.25 * _distribution(draft, vocab_size) + 0.75 / vocab_size)


def takes_the_likeliest(draft: Draft, vocab_size: int) -> Draft:
    """argmax drafting with softmax probabilities."""
    whole = _distribution(draft, vocab_size)[:1]
    return chain(whole.argmax(-1), whole)
