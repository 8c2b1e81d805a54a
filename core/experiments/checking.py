"""Carries a check out, on the path that a run takes: the same models, drafter, forwards and verification."""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from core.analysis.near_ties import find_near_ties, replay_margin
from core.controls import Cancelled, RunControls
from core.decode import autoregressive, sample_blocks, speculative
from core.draft_shape import DraftLength, length_of
from core.drafters.base import Drafter
from core.drafters.registry import build_drafter
from core.experiments.bench import Pair
from core.experiments.check import (
    LAW_PROMPTS,
    CheckFinished,
    CheckProgress,
    CheckReport,
    CheckRequest,
    Comparison,
    FirstTokens,
    IdentityResult,
    LawResult,
    LawTest,
    Parting,
    TokenCount,
    notes_on,
)
from core.experiments.prompt_suites import PRESETS, Prompt, default_prompts, read_prompts
from core.experiments.rivals import Generate
from core.models.language_model import LanguageModel
from core.models.prompting import encode_prompt
from core.rounds import prefill
from core.sampling import gumbel_noise, probabilities
from core.session import Loaded, Session
from core.text import display_texts
from core.types import MAX_DRAFT_TOKENS, Coupling, DraftContext, LengthPolicy, SamplingParams, StageChanged, Step

LEAST_EXPECTED = 5.0
"""Cells that are expected less often are joined with others: below this the chi-squared law is a poor approximation."""


def chi_squared_p_value(statistic: float, degrees: int) -> float:
    """Survival function: how often a chi-squared variable of so many degrees of freedom is at least this large."""
    halves = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def normal_p_value(deviations: float) -> float:
    """How often a normal variable is at least this many standard deviations off, either way."""
    return math.erfc(abs(deviations) / math.sqrt(2.0))


@dataclass(frozen=True, slots=True)
class Fit:
    """Counts held against one distribution.

    Attributes:
        statistic, degrees: Pearson's.
        num_impossible: counts where the distribution has no mass.
    """

    statistic: float
    degrees: int
    num_impossible: int


def fit(counts: Mapping[int, int], law: Tensor, favoured: Tensor) -> Fit:
    """Goodness of fit, every token that is expected often enough in a cell of its own.

    Args:
        counts: how often each token came.
        law: (V,) float64 probabilities.
        favoured: (V,) bool, tokens that the draft likes better than the target does. The rare ones of these make one
            cell and the others another, because what a broken verifier moves, it moves between the two.
    """
    total = sum(counts.values())
    observed = torch.zeros_like(law)
    observed[list(counts)] = torch.tensor([float(count) for count in counts.values()], dtype=law.dtype)
    expected = total * law
    num_impossible = int(observed[law == 0].sum())
    often = expected >= LEAST_EXPECTED
    cells = [(float(seen), float(mean)) for seen, mean in zip(observed[often], expected[often], strict=True)]
    spare = (0.0, 0.0)
    for rare in (favoured & ~often & (law > 0), ~favoured & ~often & (law > 0)):
        cell = (spare[0] + float(observed[rare].sum()), spare[1] + float(expected[rare].sum()))
        spare = (0.0, 0.0)
        if cell[1] >= LEAST_EXPECTED:
            cells.append(cell)
        else:
            spare = cell
    if spare[1] > 0 and cells:
        least = min(range(len(cells)), key=lambda index: cells[index][1])
        cells[least] = (cells[least][0] + spare[0], cells[least][1] + spare[1])
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    return Fit(statistic, max(len(cells) - 1, 0), num_impossible)


class Lean:
    """How much of the draft's own law shows in what was emitted.

    Tokens that the draft likes better than the target does come as often as the target says, in an exact engine; where
    the share x of the tokens were the draft's own, they would come more often by x times what the two differ there.
    """

    def __init__(self) -> None:
        self._surplus = 0.0
        self._difference = 0.0
        self._variance = 0.0
        self.num_samples = 0

    def add(self, counts: Mapping[int, int], law: Tensor, draft_law: Tensor) -> None:
        """Take in the tokens that came after one text.

        Args:
            counts: how often each token came.
            law: (V,) float64, the target's.
            draft_law: (V,) float64, the draft's.
        """
        favoured = draft_law > law
        mass = float(law[favoured].sum().clamp(0.0, 1.0))
        total = sum(counts.values())
        self.num_samples += total
        self._surplus += sum(count for token, count in counts.items() if favoured[token]) - total * mass
        self._difference += total * float((draft_law - law)[favoured].sum())
        self._variance += total * mass * (1.0 - mass)

    @property
    def is_known(self) -> bool:
        """Whether draft and target differ enough, and enough came, for an approximation by the normal law."""
        return self._variance >= 10.0 and self._difference > 0.01 * self.num_samples

    @property
    def deviations(self) -> float:
        """The lean in standard errors."""
        return self._surplus / math.sqrt(self._variance)

    @property
    def share(self) -> float:
        return self._surplus / self._difference

    @property
    def error(self) -> float:
        """The share's standard error."""
        return math.sqrt(self._variance) / self._difference


_SPARE = 2


class TargetLaws:
    """The target's law after each beginning of a block, scored alone and scored as part of a block."""

    def __init__(
        self,
        target: LanguageModel,
        prompt_ids: Sequence[int],
        num_draft_tokens: int,
        sampling: SamplingParams,
        check_cancelled: Callable[[], None],
    ) -> None:
        """
        Args:
            target: the model.
            prompt_ids: the text that blocks follow.
            num_draft_tokens: K; a block scores K + 1 positions.
            sampling: temperature and filters.
            check_cancelled: raises to give up; called before each forward.
        """
        self._prompt = tuple(prompt_ids)
        self._sampling = sampling
        self._check_cancelled = check_cancelled
        self._vocab_size = target.vocab_size
        self._length = min(num_draft_tokens, target.context_length - len(self._prompt))
        capacity = len(self._prompt) + num_draft_tokens + _SPARE
        self._single, self._block = target.runner(capacity), target.runner(capacity)
        for runner in (self._single, self._block):
            prefill(runner, self._prompt[:-1], check_cancelled)
        self._cached: tuple[int, ...] = ()
        self.rounding = 0.0
        """Most that the two ways of scoring were seen to differ, in total variation, the filters aside."""

    @torch.inference_mode()
    def law(self, block: tuple[int, ...]) -> Tensor:
        """(V,) float64: the law that the engine has to draw from behind the prompt and `block`, at most K tokens.

        It is that of a block's scoring, which is what is verified against. How far plain decoding's is from it is
        noted, because only rounding may lie between the two.
        """
        alone, scored = self._alone(block), self._scored(block)
        plain = SamplingParams(self._sampling.temperature)
        laws = [probabilities(row, plain).double() for row in (alone, scored)]
        self.rounding = max(self.rounding, 0.5 * float((laws[0] - laws[1]).abs().sum()))
        return probabilities(scored, self._sampling).double().cpu()

    def _alone(self, block: tuple[int, ...]) -> Tensor:
        """Token by token, as plain decoding reads."""
        base = len(self._prompt) - 1
        same = 0
        while same < min(len(block), len(self._cached)) and block[same] == self._cached[same]:
            same += 1
        # The last position is read again where it is there already: its logits are wanted.
        keep = min(self._single.length, base + min(same + 1, len(block)))
        self._single.rewind(keep)
        text = (*self._prompt, *block)
        for at in range(keep, len(text)):
            self._check_cancelled()
            logits = self._single.forward(torch.tensor(text[at : at + 1]), num_logits=1).logits
        self._cached = block
        return logits[0, : self._vocab_size].float()

    def _scored(self, block: tuple[int, ...]) -> Tensor:
        """As a row of K + 1; what stands behind a position does not sway it."""
        self._check_cancelled()
        ids = (self._prompt[-1], *block)
        padded = (*ids, *[ids[-1]] * (self._length + 1 - len(ids)))
        rows = self._block.forward(torch.tensor(padded), num_logits=len(padded)).logits
        row = rows[len(block), : self._vocab_size].float()
        self._block.rewind(len(self._prompt) - 1)
        return row


class DraftLaws:
    """What a drafter would propose next, for a look only: nothing that is tested hangs on it."""

    def __init__(
        self,
        drafter: Drafter,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        vocab_size: int,
        check_cancelled: Callable[[], None],
    ) -> None:
        self._drafter = drafter
        self._prompt = list(prompt_ids)
        self._sampling = sampling
        self._vocab_size = vocab_size
        self._check_cancelled = check_cancelled
        self._generator = torch.Generator().manual_seed(0)
        drafter.start(torch.tensor(self._prompt))

    @torch.inference_mode()
    def law(self, block: tuple[int, ...]) -> Tensor | None:
        """(V,) float64: its law behind the prompt and `block`; None where it proposes nothing."""
        law = None
        # From the prompt on: a drafter takes what it has read for the beginning of what it is asked about.
        for length in range(len(block) + 1):
            law = self._next([*self._prompt, *block[:length]])
        return law

    def _next(self, ids: list[int]) -> Tensor | None:
        draft = self._drafter.propose(
            DraftContext(
                ids=ids,
                num_draft_tokens=1,
                sampling=self._sampling,
                generator=self._generator,
                vocab_size=self._vocab_size,
                check_cancelled=self._check_cancelled,
            )
        )
        if not len(draft):
            return None
        if draft.probs is not None:
            return draft.probs[0].double().cpu()
        law = torch.zeros(self._vocab_size, dtype=torch.float64)
        law[int(draft.tokens[0])] = 1.0
        return law


MOST_ROUNDING = {torch.float32: 0.02, torch.float16: 0.5, torch.bfloat16: 2.0}
"""How far rounding may move a lead between two logits. More than that is a mistake in how blocks are scored."""

_TITLES = {
    Comparison.GREEDY: "Greedy text",
    Comparison.GUMBEL: "Gumbel-coupled text",
    Comparison.TRANSFORMERS: "transformers' text",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What all parts of a check share.

    Attributes:
        request: what was asked.
        loaded: the models.
        prompts: with their ids.
        controls: the way to stop, and the run's sampling and K.
        make_drafter: from a capacity to the drafter that a run would use.
    """

    request: CheckRequest
    loaded: Loaded
    prompts: tuple[Prompt, ...]
    controls: RunControls
    make_drafter: Callable[[int], Drafter]

    @property
    def target(self) -> LanguageModel:
        return self.loaded.target


@dataclass(frozen=True, slots=True)
class _Text:
    """A decoded text, and of each step what was drafted and what was emitted."""

    ids: tuple[int, ...]
    blocks: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()


def compare_texts(setting: Setting, comparison: Comparison) -> Generator[CheckProgress, None, IdentityResult]:
    """Decode behind each prompt both ways, and hold the texts against each other.

    Raises:
        Cancelled: it was asked to stop.
        OutriderError: decoding failed.
    """
    partings, num_tokens = [], 0
    for index, prompt in enumerate(setting.prompts):
        total = len(setting.prompts)
        yield CheckProgress(f"{_TITLES[comparison]}, prompt {index + 1} of {total}", index, total)
        expected, found = _both(setting, comparison, prompt)
        same = _num_same(expected.ids, found.ids)
        num_tokens += same
        if same < max(len(expected.ids), len(found.ids)):
            partings.append(_parting(setting, comparison, prompt, expected, found, same))
    return IdentityResult(comparison, len(setting.prompts), num_tokens, tuple(partings))


def _both(setting: Setting, comparison: Comparison, prompt: Prompt) -> tuple[_Text, _Text]:
    """The text as it should be, and as it is."""
    run = setting.request.run
    sampling = run.sampling if comparison is Comparison.GUMBEL else SamplingParams(temperature=0.0)
    shared: dict[str, Any] = {
        "max_new_tokens": setting.request.num_tokens,
        "seed": run.seed,
        "coupling": Coupling.GUMBEL if comparison is Comparison.GUMBEL else Coupling.REJECTION,
    }
    controls = setting.controls.sharing_stop(sampling, 0)
    plain = _decoded(setting, autoregressive(setting.target, prompt.ids, controls=controls, **shared))
    if comparison is Comparison.TRANSFORMERS:
        return _generated(setting, prompt), plain
    controls = setting.controls.sharing_stop(sampling, length_of(run))
    drafter = setting.make_drafter(len(prompt.ids) + setting.request.num_tokens)
    drafted = speculative(setting.target, drafter, prompt.ids, controls=controls, **shared)
    return plain, _decoded(setting, drafted)


def _decoded(setting: Setting, events: Iterator[Any]) -> _Text:
    blocks: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for event in events:
        if isinstance(event, Step):
            setting.loaded.record(event)
            blocks.append((event.drafted, event.emitted))
    setting.controls.check_cancelled()
    return _Text(tuple(token for _, emitted in blocks for token in emitted), tuple(blocks))


def _generated(setting: Setting, prompt: Prompt) -> _Text:
    target = setting.target
    room = min(setting.request.num_tokens, target.context_length - len(prompt.ids))
    ids = Generate(Pair(target, None), room).run(prompt.ids, temperature=0.0, seed=0).ids
    end = next((index + 1 for index, token in enumerate(ids) if token in target.eos_ids), len(ids))
    return _Text(ids[:end])


def _num_same(one: Sequence[int], other: Sequence[int]) -> int:
    return next(
        (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _parting(
    setting: Setting, comparison: Comparison, prompt: Prompt, expected: _Text, found: _Text, at: int
) -> Parting:
    target = setting.target
    margin = difference = None
    if at < min(len(expected.ids), len(found.ids)):
        tokens = expected.ids[at], found.ids[at]
        if comparison is Comparison.TRANSFORMERS:
            margin, difference = _against_module(target, (*prompt.ids, *expected.ids[:at]), tokens)
        else:
            margin, difference = _measure(setting, comparison, prompt, (expected, found), at)
    is_near_tie = (
        margin is not None
        and difference is not None
        and margin <= difference <= MOST_ROUNDING.get(target.dtype, MOST_ROUNDING[torch.float32])
    )
    shown = ["".join(display_texts(target.tokenizer, text.ids[at : at + 1])) for text in (expected, found)]
    return Parting(prompt.name, at, shown[0], shown[1], margin, difference, is_near_tie)


def _measure(
    setting: Setting, comparison: Comparison, prompt: Prompt, texts: tuple[_Text, _Text], at: int
) -> tuple[float, float]:
    """The lead of the expected token where one position is scored at a time, and how far it moves in blocks."""
    tokens = texts[0].ids[at], texts[1].ids[at]
    options: dict[str, Any] = {"check_cancelled": setting.controls.check_cancelled}
    if comparison is Comparison.GUMBEL:
        options["scores"] = _noisy(setting)
    margin, lead = (replay_margin(setting.target, prompt.ids, text.blocks, at, tokens, **options) for text in texts)
    difference = abs(margin - lead)
    if difference >= margin:
        return margin, difference
    # Another number of threads than in the run may sum in another order: as blocks of this length do at any place.
    longest = max(len(drafted) for drafted, _ in texts[1].blocks)
    ids = (*prompt.ids, *texts[0].ids[: at + 1])
    ties = find_near_ties(setting.target, ids, longest, num_prompt_tokens=len(prompt.ids), **options)
    tie = next((tie for tie in ties if tie.position == len(prompt.ids) + at), None)
    return (tie.margin, tie.difference) if tie and {tie.token, tie.other} == set(tokens) else (margin, difference)


def _noisy(setting: Setting) -> Callable[[int, Tensor], Tensor]:
    """What a Gumbel-coupled draw is the argmax of."""
    seed, sampling = setting.request.run.seed, setting.controls.sampling

    @functools.lru_cache(maxsize=8)
    def noise(position: int) -> Tensor:
        return gumbel_noise(seed, position, setting.target.vocab_size).to(setting.target.device)

    return lambda position, logits: probabilities(logits, sampling).log() + noise(position)


@torch.inference_mode()
def _against_module(target: LanguageModel, ids: Sequence[int], tokens: tuple[int, int]) -> tuple[float, float]:
    """How far the module's first token leads in its own logits, and how far that lead is another in ours."""
    inputs = torch.tensor([list(ids)], device=target.device)
    theirs = target.model(input_ids=inputs).logits[0, -1].float()
    runner = target.runner(len(ids))
    ours = runner.forward(torch.tensor(ids), num_logits=1).logits[0].float()
    margin, lead = (float(row[tokens[0]] - row[tokens[1]]) for row in (theirs, ours))
    return margin, abs(margin - lead)


_SHARES = (1.0, 0.75, 0.5, 0.3)
"""Of each prompt, how much is read before a block; its own end is often a place where all is clear."""

_MOST_PROMPTS = 12
_LEAST_IDS = 4


def choose_places(setting: Setting) -> Generator[CheckProgress, None, tuple[Prompt, ...]]:
    """The first prompt as it is, and the beginnings of prompts behind which a block tells most.

    Raises:
        Cancelled: it was asked to stop.
        OutriderError: decoding failed.
    """
    prompts = setting.prompts[:_MOST_PROMPTS]
    found: list[tuple[float, Prompt]] = []
    for index, prompt in enumerate(prompts):
        yield CheckProgress("Looking for places where draft and target differ", index, len(prompts))
        places = [(_worth(setting, place), place) for place in _beginnings(prompt)]
        found.append(max(places, key=lambda item: item[0]))
    found.sort(key=lambda item: -item[0])
    differing = [place for _, place in found if place.ids != prompts[0].ids]
    return (prompts[0], *differing[: LAW_PROMPTS - 1])


def _beginnings(prompt: Prompt) -> list[Prompt]:
    """The prompt, and cut short in several places."""
    lengths = {round(share * len(prompt.ids)) for share in _SHARES} - {len(prompt.ids)}
    cut = [
        replace(prompt, name=f"{prompt.name}, first {length} tokens", ids=prompt.ids[:length])
        for length in sorted(lengths)
        if length >= _LEAST_IDS
    ]
    return [prompt, *cut]


def _worth(setting: Setting, prompt: Prompt) -> float:
    """How often a first drafted token would be rejected, times how often the commonest one is accepted."""
    check_cancelled, sampling = setting.controls.check_cancelled, setting.controls.sampling
    law = TargetLaws(setting.target, prompt.ids, 1, sampling, check_cancelled).law(())
    drafter = setting.make_drafter(len(prompt.ids) + 2)
    draft_law = DraftLaws(drafter, prompt.ids, sampling, setting.target.vocab_size, check_cancelled).law(())
    if draft_law is None:
        return 0.0
    accepted = torch.minimum(law, draft_law)
    return float((1.0 - accepted.sum()) * accepted.max())


FALSE_ALARM = 0.03
"""A p-value below this, shared among all tests, is looked at again with fresh samples, and must come up again there: an
exact engine fails fewer than 0.03 x 0.03 of its checks, one of a thousand."""

MORE_SAMPLES = 3
"""Times as many are drawn for the second look."""

BEYOND_DOUBT = 1e-9
"""A p-value that needs no second look."""

_LEAST_FOLLOWERS = 12
"""A beginning that came up less often is not looked at: hardly a token is expected five times after it."""

MOST_CHOSEN = 5
"""The longest first block where the engine chooses K: `sample_blocks` leaves no more room."""

MOST_MISSCORED = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3}
"""Total variation that rounding may put between a law scored alone and in a block."""

_NUM_SHOWN = 8

BONUS = MAX_DRAFT_TOKENS + 1
"""Stands for the place of a token behind a full draft, wherever that is."""


def judge_law(setting: Setting) -> Generator[CheckProgress, None, LawResult]:
    """Draw blocks, test them, and where that raises a suspicion, test it on more blocks.

    Raises:
        Cancelled: it was asked to stop.
        OutriderError: decoding failed.
    """
    count = setting.request.num_samples
    seeds = torch.Generator().manual_seed(setting.request.run.seed)
    setting = replace(setting, prompts=(yield from choose_places(setting)))
    first = yield from _look(setting, count, seeds, "Blocks")
    suspects = [test.name for test in first.tests if _is_below(test, first.tests)]
    if not suspects or first.num_impossible or any((test.p_value or 1.0) < BEYOND_DOUBT for test in first.tests):
        return _judged(first, suspects)
    again = yield from _look(setting, MORE_SAMPLES * count, seeds, "A second look: fresh blocks")
    confirmed = [test.name for test in again.tests if test.name in suspects and _is_below(test, again.tests)]
    lowest = min(test.p_value for test in first.tests if test.p_value is not None)
    return replace(_judged(again, confirmed), first_p_value=lowest)


def _is_below(test: LawTest, tests: tuple[LawTest, ...]) -> bool:
    num_tests = sum(item.p_value is not None for item in tests)
    return test.p_value is not None and test.p_value < FALSE_ALARM / num_tests


def _judged(result: LawResult, failed: list[str]) -> LawResult:
    return replace(result, tests=tuple(replace(test, is_failed=test.name in failed) for test in result.tests))


def _look(
    setting: Setting, count: int, seeds: torch.Generator, title: str
) -> Generator[CheckProgress, None, LawResult]:
    tally = _Tally()
    series = [(prompt, length) for prompt in setting.prompts for length in _lengths(setting)]
    done = 0
    for index, (prompt, length) in enumerate(series):
        share = count // len(series) + (index < count % len(series))
        seed = int(torch.randint(2**62, (), generator=seeds))
        followers = yield from _draw(setting, prompt, length, share, seed, (title, done, count))
        done += share
        yield CheckProgress("The target's exact laws", done, count)
        _hold_against(setting, prompt, length, followers, tally)
    return tally.result(count, MOST_MISSCORED.get(setting.target.dtype, MOST_MISSCORED[torch.float32]))


def _lengths(setting: Setting) -> list[DraftLength]:
    """K as asked, and K = 1: behind a long block the bonus token is too rare to be tested."""
    asked = length_of(setting.request.run)
    return [asked] if asked == 1 else [asked, 1]


def _longest(length: DraftLength) -> int:
    return MOST_CHOSEN if isinstance(length, LengthPolicy) else length


Followers = dict[tuple[bool, tuple[int, ...]], Counter[int]]
"""From each beginning of a block, and whether it was a full draft, to how often each token followed it."""


def _draw(
    setting: Setting, prompt: Prompt, length: DraftLength, count: int, seed: int, progress: tuple[str, int, int]
) -> Generator[CheckProgress, None, Followers]:
    run = setting.request.run
    title, done, total = progress
    capacity = len(prompt.ids) + _longest(length) + 2
    blocks = sample_blocks(
        setting.target,
        setting.make_drafter(capacity),
        prompt.ids,
        seed=seed,
        controls=setting.controls.sharing_stop(run.sampling, length),
        coupling=run.coupling,
    )
    followers: Followers = {}
    for index, step in zip(range(count), blocks, strict=False):
        if index % 20 == 0:
            yield CheckProgress(title, done + index, total)
        if index % 100 == 99:
            setting.loaded.look_again()
        setting.loaded.record(step)
        for place, token in enumerate(step.emitted):
            # A token behind no draft at all is the target's own, but no bonus.
            followers.setdefault((0 < step.num_draft_tokens == place, step.emitted[:place]), Counter())[token] += 1
    return followers


def _hold_against(setting: Setting, prompt: Prompt, length: DraftLength, followers: Followers, tally: _Tally) -> None:
    longest = _longest(length)
    check_cancelled, sampling = setting.controls.check_cancelled, setting.controls.sampling
    laws = TargetLaws(setting.target, prompt.ids, longest, sampling, check_cancelled)
    drafter = setting.make_drafter(len(prompt.ids) + longest + 2)
    draft_laws = DraftLaws(drafter, prompt.ids, sampling, setting.target.vocab_size, check_cancelled)
    for (is_bonus, block), counts in sorted(followers.items()):
        if sum(counts.values()) < _LEAST_FOLLOWERS or len(block) > longest:
            continue
        law, draft_law = laws.law(block), draft_laws.law(block)
        tally.add(BONUS if is_bonus else len(block) + 1, counts, law, law if draft_law is None else draft_law)
        if not block and length == length_of(setting.request.run):
            tally.first_tokens.append(FirstTokens(prompt.name, _shown(setting, counts, law)))
    tally.rounding = max(tally.rounding, laws.rounding)


def _shown(setting: Setting, counts: Counter[int], law: torch.Tensor) -> tuple[TokenCount, ...]:
    total = sum(counts.values())
    likeliest = [token for token in law.topk(min(_NUM_SHOWN, len(law))).indices.tolist() if law[token] > 0]
    texts = display_texts(setting.target.tokenizer, likeliest)
    shown = [
        TokenCount(text, counts[token], total * float(law[token])) for token, text in zip(likeliest, texts, strict=True)
    ]
    others = total - sum(item.observed for item in shown), total - sum(item.expected for item in shown)
    return (*shown, TokenCount("", others[0], max(others[1], 0.0)))


@dataclass(slots=True)
class _Tally:
    """Adds up the tests, by place in the block."""

    statistics: dict[int, float] = field(default_factory=dict)
    degrees: Counter[int] = field(default_factory=Counter)
    samples: Counter[int] = field(default_factory=Counter)
    num_impossible: int = 0
    rounding: float = 0.0
    lean: Lean = field(default_factory=Lean)
    first_tokens: list[FirstTokens] = field(default_factory=list)

    def add(self, place: int, counts: Counter[int], law: torch.Tensor, draft_law: torch.Tensor) -> None:
        found = fit(counts, law, draft_law > law)
        self.statistics[place] = self.statistics.get(place, 0.0) + found.statistic
        self.degrees[place] += found.degrees
        self.samples[place] += sum(counts.values())
        self.num_impossible += found.num_impossible
        self.lean.add(counts, law, draft_law)

    def result(self, num_blocks: int, most_rounding: float) -> LawResult:
        tests = [self._at(place) for place in sorted(self.samples)]
        lean = self.lean
        if lean.is_known:
            squared = lean.deviations**2
            tests.append(LawTest("lean", None, lean.num_samples, 1, squared, normal_p_value(lean.deviations)))
        return LawResult(
            num_blocks=num_blocks,
            tests=tuple(tests),
            lean=lean.share if lean.is_known else None,
            lean_error=lean.error if lean.is_known else None,
            num_impossible=self.num_impossible,
            rounding=self.rounding,
            most_rounding=most_rounding,
            first_tokens=tuple(self.first_tokens),
        )

    def _at(self, place: int) -> LawTest:
        degrees, statistic = self.degrees[place], self.statistics[place]
        p_value = chi_squared_p_value(statistic, degrees) if degrees else None
        name = "bonus" if place == BONUS else f"token {place}"
        return LawTest(name, None if place == BONUS else place, self.samples[place], degrees, statistic, p_value)


CheckEvent = StageChanged | CheckProgress | CheckFinished


def check(session: Session, request: CheckRequest, controls: RunControls) -> Generator[CheckEvent, None, None]:
    """Check whether a pair and its settings give exactly what the target alone would.

    Args:
        session: that the models are kept by.
        request: what to check.
        controls: the way to stop; sampling and K are taken from the request.

    Yields:
        `StageChanged` while models are loaded, `CheckProgress`, and `CheckFinished`, also when it was stopped.

    Raises:
        OutriderError: it can't be checked, in one sentence.
    """
    try:
        loaded = yield from session.load(request.run, controls)
        report = yield from _checked(request, loaded, controls)
        yield CheckFinished(report)
    except Cancelled:
        yield CheckFinished(None)


def _checked(
    request: CheckRequest, loaded: Loaded, controls: RunControls
) -> Generator[CheckProgress, None, CheckReport]:
    begun = time.monotonic()
    setting = _setting(request, loaded, controls)
    identities = yield from _compared(request, setting)
    law = None
    if not request.run.sampling.is_greedy:
        law = yield from judge_law(setting)
    return CheckReport(
        request=replace(request, prompts=tuple(replace(prompt, ids=()) for prompt in setting.prompts)),
        device=str(loaded.target.device),
        dtype=str(loaded.target.dtype).removeprefix("torch."),
        identities=identities,
        law=law,
        notes=notes_on(request.run, str(loaded.target.dtype), law),
        seconds=time.monotonic() - begun,
    )


def _compared(request: CheckRequest, setting: Setting) -> Generator[CheckProgress, None, tuple[IdentityResult, ...]]:
    found = [(yield from compare_texts(setting, Comparison.GREEDY))]
    if request.run.coupling is Coupling.GUMBEL and not request.run.sampling.is_greedy:
        found.append((yield from compare_texts(setting, Comparison.GUMBEL)))
    if request.with_transformers:
        found.append((yield from compare_texts(setting, Comparison.TRANSFORMERS)))
    return tuple(found)


def _setting(request: CheckRequest, loaded: Loaded, controls: RunControls) -> Setting:
    run, target = request.run, loaded.target
    own = controls.sharing_stop(run.sampling, length_of(run))

    def make_drafter(capacity: int) -> Drafter:
        return build_drafter(
            run.method,
            draft=loaded.draft,
            target=target,
            options=run.method_options,
            capacity=capacity,
            check_cancelled=own.check_cancelled,
        )

    prompts = request.prompts or usual_prompts(target)
    encoded = [replace(item, ids=tuple(encode_prompt(target, item.text, run.chat).ids)) for item in prompts]
    return Setting(request, loaded, tuple(encoded), own, make_drafter)


def usual_prompts(target: LanguageModel) -> tuple[Prompt, ...]:
    """The presets, those ahead that suit the target: the law is sampled behind the first ones."""
    first = default_prompts(is_chat=bool(getattr(target.tokenizer, "chat_template", None)))
    return (*first, *(prompt for prompt in read_prompts(PRESETS) if prompt not in first))
