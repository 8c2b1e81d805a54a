"""The sampled law: blocks drawn by the engine behind a few prompts, held against the target's exact law.

A block is taken apart token by token: after each beginning that came up often enough, the tokens that followed it are
counted, and held against the target's law after the prompt and that beginning. In an exact engine a block's token
follows that law whatever it took for the block to come so far, so these tests are as good as independent, and their
chi-squared values add up: together they are the joint test of all K + 1 tokens. The bonus token, behind a full draft,
has a test of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field, replace

import torch

from core.check.identity import Setting
from core.check.places import choose_places
from core.check.reference import DraftLaws, TargetLaws
from core.check.statistics import Lean, chi_squared_p_value, fit, normal_p_value
from core.check.types import CheckProgress, FirstTokens, LawResult, LawTest, TokenCount
from core.decode import sample_blocks
from core.draft_length import DraftLength, length_of
from core.prompt_suites import Prompt
from core.text import display_texts
from core.types import MAX_DRAFT_TOKENS, LengthPolicy

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
