"""How a check judges sampled text: it compares many first blocks with the target's exact distribution.

Every token of a block is counted by what came before it in the block, and compared by chi-squared with the target's
distribution there; a second statistic measures how much of the draft's own distribution shows.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.decode import sample_blocks
from core.draft_length import DraftLength
from core.drafters.base import blaming, chain, is_own
from core.experiments.bench_plan import num_equal
from core.experiments.check_plan import CheckProgress, DistributionResult, FirstTokens, TokenCount, block_lengths
from core.experiments.distribution_statistics import BONUS, DistributionTally
from core.experiments.prompt_suites import Prompt
from core.models.language_model import LanguageModel
from core.runners.base import prefill
from core.runners.scoring import TargetScorer
from core.sampling import probabilities
from core.settings import LengthPolicy, SamplingParams
from core.text import display_texts
from core.types import DraftContext, Feature, TokenKind

if TYPE_CHECKING:
    from core.experiments.check import CheckContext

FALSE_ALARM = 0.03
"""A p-value below this, shared among all tests, is tested again on fresh samples, and must be low there as well: an
exact engine fails fewer than 0.03 x 0.03 of its checks, one in a thousand."""
MORE_SAMPLES = 3
"""Factor by which the second test draws more samples."""
BEYOND_DOUBT = 1e-9
"""A p-value that needs no second test."""
LEAST_FOLLOWERS = 12
"""A prefix of a block seen less often is not tested: hardly any token is expected five times after it."""
MOST_CHOSEN = 5
"""The longest first block where the engine chooses K, as `sample_blocks` has room for."""
MOST_MISSCORED = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3}
"""Total variation that rounding may cause between a distribution scored alone and in a block."""
PROMPTS = 3
"""Prompts that blocks are sampled after: many blocks after one prompt say more than a few after many."""

_SHARES = (1.0, 0.75, 0.5, 0.3)
"""Shares of a prompt read before a block; at its end the next token is often certain."""
_MOST_PROMPTS = 12
_LEAST_IDS = 4
_NUM_SHOWN = 8


# --- Exact distributions ----------------------------------------------------------------------------------------


class TargetDistribution:
    """The target's distribution after a prompt and each prefix of a block.

    rounding is the largest total variation seen between scoring in a block and token by token, the filters aside, and
    lead the largest change of a token's lead over another, in logits.
    """

    def __init__(
        self,
        target: LanguageModel,
        prompt_ids: tuple[int, ...],
        num_draft_tokens: int,
        sampling: SamplingParams,
        check_cancelled: Callable[[], None],
        lead: float = 0.0,
    ) -> None:
        """Args: lead: the least one to expect, as of a server in another precision."""
        self._prompt = prompt_ids
        self._sampling, self._check_cancelled = sampling, check_cancelled
        self._vocab_size = target.vocab_size
        self._length = min(num_draft_tokens, target.context_length - len(prompt_ids))
        capacity = len(prompt_ids) + num_draft_tokens + 2
        self._single, self._block = target.runner(capacity), target.runner(capacity)
        for runner in (self._single, self._block):
            prefill(runner, prompt_ids[:-1], check_cancelled)
        self._cached: tuple[int, ...] = ()
        self._row = torch.empty(0)
        self.rounding, self.lead = 0.0, lead

    @torch.inference_mode()
    def after(self, block: tuple[int, ...]) -> Tensor:
        """(V,) float64: the distribution to draw from after the prompt and `block`, at most K tokens.

        It is computed by scoring a block, as in verification; `rounding` is how far plain decoding's is from it.
        """
        alone, self._row = self._alone(block), self._scored(block)
        plain = SamplingParams(self._sampling.temperature)
        one, other = (probabilities(row, plain).cpu().double() for row in (alone, self._row))
        self.rounding = max(self.rounding, 0.5 * float((one - other).abs().sum()))
        self.lead = max(self.lead, 2.0 * float((alone - self._row).abs().nan_to_num(0.0, posinf=0.0).max()))
        return probabilities(self._row, self._sampling).cpu().double()

    def at_edge(self, drawn: Iterable[int]) -> list[int]:
        """`at_edge` after the last block."""
        return at_edge(self._row, self._sampling, self.lead, drawn)

    def _alone(self, block: tuple[int, ...]) -> Tensor:
        """Token by token, as plain decoding reads."""
        base, text = len(self._prompt) - 1, (*self._prompt, *block)
        # The last position is read again even if it is cached: its logits are wanted.
        keep = min(self._single.length, base + min(num_equal(block, self._cached) + 1, len(block)))
        self._single.rewind(keep)
        for at in range(keep, len(text)):
            self._check_cancelled()
            logits = self._single.forward(torch.tensor(text[at : at + 1]), num_logits=1).logits
        self._cached = block
        return logits[0, : self._vocab_size].to(torch.float32, copy=True)  # The other runner may overwrite a graph's.

    def _scored(self, block: tuple[int, ...]) -> Tensor:
        """As a row of K + 1; later positions don't affect earlier ones."""
        self._check_cancelled()
        ids = (self._prompt[-1], *block)
        padded = (*ids, *[ids[-1]] * (self._length + 1 - len(ids)))
        row = self._block.forward(torch.tensor(padded), num_logits=len(padded)).logits[len(block)]
        self._block.rewind(len(self._prompt) - 1)
        return row[: self._vocab_size].to(torch.float32, copy=True)  # A draft may be scored before it is read again.


def at_edge(logits: Tensor, sampling: SamplingParams, lead: float, drawn: Iterable[int]) -> list[int]:
    """The tokens at the edge of the filters, which another rounding may keep or drop.

    Args:
        logits: (V,).
        lead: how far rounding may move a token's lead over another, in logits.
        drawn: of the tokens that the filters drop, only these are looked at.
    """
    if sampling.is_unfiltered or lead == 0.0:
        return []

    def is_kept(token: int, gain: float) -> bool:
        moved = logits.clone()
        moved[token] += gain
        # The more probable tokens together may lose, or gain, as much.
        top_p = 1.0 / (1.0 + (1.0 / sampling.top_p - 1.0) * math.exp(min(-gain / sampling.temperature, 500.0)))
        return bool(probabilities(moved, replace(sampling, top_p=top_p))[token] > 0)

    probs = probabilities(logits, sampling)
    kept = probs.nonzero().flatten()
    rising: list[int] = kept[probs[kept].argsort()].tolist()
    num_at_edge = bisect_left(rising, True, key=lambda token: is_kept(token, -lead))
    # The likeliest first: where one stays dropped, so does each less likely one.
    dropped = sorted((token for token in drawn if probs[token] == 0), key=lambda token: -float(logits[token]))
    return [*rising[:num_at_edge], *takewhile(lambda token: is_kept(token, lead), dropped)]


class DraftDistribution:
    """What a drafter would propose next after a prompt. The bias is measured against it; chi-squared is not."""

    def __init__(self, context: CheckContext, prompt_ids: tuple[int, ...], capacity: int) -> None:
        self._prompt = list(prompt_ids)
        self._drafter = context.make_drafter(capacity)
        self._sampling, self._check_cancelled = context.controls.sampling, context.controls.check_cancelled
        self._vocab_size = context.target.vocab_size
        self._generator = torch.Generator().manual_seed(0)
        with blaming(self._drafter):
            self._drafter.start(torch.tensor(self._prompt))
        self._scorer = TargetScorer(context.target, capacity, self._drafter.needs) if self._drafter.needs else None
        if self._scorer is not None:
            self._scorer.prefill(self._prompt, self._check_cancelled)
            self._of_prompt = self._scorer.take_features()

    @torch.inference_mode()
    def after(self, block: tuple[int, ...]) -> Tensor | None:
        """(V,) float64 after the prompt and `block`; None where nothing is proposed."""
        # Ours take what they have read for the beginning of the next context, which saves reading the prompt again.
        reads_on, features = self._scorer is None and is_own(self._drafter), self._features(block)
        with blaming(self._drafter):
            if not reads_on:
                self._drafter.start(torch.tensor([*self._prompt, *block]))
            for length in range(len(block) + 1) if reads_on else (len(block),):
                draft = self._drafter.propose(
                    DraftContext(
                        ids=[*self._prompt, *block[:length]],
                        num_draft_tokens=1,
                        sampling=self._sampling,
                        generator=self._generator,
                        vocab_size=self._vocab_size,
                        check_cancelled=self._check_cancelled,
                        features=features,
                    )
                )
        if not len(draft):
            return None
        if draft.probs is not None:
            return draft.probs[0].cpu().double()
        probs = torch.zeros(self._vocab_size, dtype=torch.float64)
        probs[int(draft.tokens[0])] = 1.0
        return probs

    def _features(self, block: tuple[int, ...]) -> dict[Feature, Tensor]:
        """The target's states up to the one that the last id of `block` was drawn from."""
        scorer, root = self._scorer, len(self._prompt) - 1
        if scorer is None:
            return {}
        scorer.give_back(self._of_prompt)
        if block:
            read = chain(torch.tensor(block[:-1], dtype=torch.int64), None)
            scorer.score(self._prompt[-1], read, range(-1, len(block) - 2))
            scorer.keep(root, range(len(block) - 1))
            scorer.rewind(root)
        return scorer.take_features()


# --- The test ---------------------------------------------------------------------------------------------------


def judge_distribution(context: CheckContext) -> Generator[CheckProgress, None, DistributionResult]:
    """Draw blocks and test them; if a test fails, repeat it on fresh blocks."""
    seeds = torch.Generator().manual_seed(context.request.run.seed)
    prompts = yield from _choose_prompts(context)
    context = replace(context, prompts=prompts)

    def sample(count: int, is_second: bool) -> Generator[CheckProgress, None, DistributionResult]:
        return _sampled(context, count, seeds, "A second test: fresh blocks" if is_second else "Blocks")

    return (yield from judge_twice(sample, context.request.num_samples))


Sample = Callable[[int, bool], Generator[CheckProgress, None, DistributionResult]]
"""Draws a number of samples and tests them; the flag says whether this is the second test."""


def judge_twice(sample: Sample, count: int) -> Generator[CheckProgress, None, DistributionResult]:
    """Test samples; a test that fails counts only if it fails again on fresh ones, or beyond doubt."""
    first = yield from sample(count, False)
    suspects = _suspects(first)
    if (
        not suspects
        or first.num_impossible
        or any(test.p_value is not None and test.p_value < BEYOND_DOUBT for test in first.tests)
    ):
        return _judged(first, suspects)
    again = yield from sample(MORE_SAMPLES * count, True)
    lowest = min(test.p_value for test in first.tests if test.p_value is not None)
    judged = _judged(again, suspects & _suspects(again))
    return replace(judged, first_p_value=lowest, first_bias_error=first.bias_error)


def _suspects(found: DistributionResult) -> set[str]:
    p_values = {test.name: test.p_value for test in found.tests if test.p_value is not None}
    return {name for name, p_value in p_values.items() if p_value < FALSE_ALARM / len(p_values)}


def _judged(found: DistributionResult, failed: set[str]) -> DistributionResult:
    return replace(found, tests=tuple(replace(test, is_failed=test.name in failed) for test in found.tests))


def _choose_prompts(context: CheckContext) -> Generator[CheckProgress, None, tuple[Prompt, ...]]:
    """The first prompt, and the beginnings of prompts after which a block reveals most."""
    prompts = context.prompts[:_MOST_PROMPTS]
    found: list[tuple[float, Prompt]] = []
    for index, prompt in enumerate(prompts):
        yield CheckProgress("Looking for positions where draft and target differ", index, len(prompts))
        lengths = {round(share * len(prompt.ids)) for share in _SHARES} - {len(prompt.ids)}
        cut = [
            replace(prompt, name=f"{prompt.name}, cut after {length} tokens", ids=prompt.ids[:length])
            for length in sorted(lengths)
            if length >= _LEAST_IDS
        ]
        worth = [(_worth(context, candidate), candidate) for candidate in (prompt, *cut)]
        found.append(max(worth, key=lambda item: item[0]))
    found.sort(key=lambda item: -item[0])
    differing = [prompt for _, prompt in found if prompt.ids != prompts[0].ids]
    return (prompts[0], *differing[: PROMPTS - 1])


def _worth(context: CheckContext, prompt: Prompt) -> float:
    """How often a first drafted token would be rejected, times how often the most common one is accepted."""
    controls = context.controls
    target = TargetDistribution(context.target, prompt.ids, 1, controls.sampling, controls.check_cancelled)
    draft_probs = DraftDistribution(context, prompt.ids, len(prompt.ids) + 2).after(())
    if draft_probs is None:
        return 0.0
    accepted = torch.minimum(target.after(()), draft_probs)
    return float((1.0 - accepted.sum()) * accepted.max())


Followers = dict[tuple[bool, tuple[int, ...]], Counter[int]]
"""From whether a prefix was a fully accepted draft, and the prefix, to how often each token followed it."""


def _sampled(
    context: CheckContext, count: int, seeds: torch.Generator, title: str
) -> Generator[CheckProgress, None, DistributionResult]:
    run, tally = context.request.run, DistributionTally()
    series = [(prompt, length) for prompt in context.prompts for length in block_lengths(run)]
    done = 0
    for index, (prompt, length) in enumerate(series):
        share = count // len(series) + (index < count % len(series))
        blocks = sample_blocks(
            context.target,
            context.make_drafter(len(prompt.ids) + _longest(length) + 2),
            prompt.ids,
            seed=int(torch.randint(2**62, (), generator=seeds)),
            controls=context.controls.sharing_stop(run.sampling, length),
            coupling=run.coupling,
            rule=run.verification,
        )
        followers: Followers = {}
        for number, step in zip(range(share), blocks, strict=False):
            if number % 20 == 0:
                yield CheckProgress(title, done + number, count)
            if number % 100 == 99:
                context.loaded.look_again()
            context.loaded.record(step)
            tally.shapes[step.parents] += 1
            for position, token in enumerate(step.emitted):
                # A token without any draft is the target's own, but not a bonus.
                is_bonus = step.num_draft_tokens > 0 and step.emitted_kinds[position] is TokenKind.BONUS
                followers.setdefault((is_bonus, step.emitted[:position]), Counter())[token] += 1
        done += share
        yield CheckProgress("The target's exact distributions", done, count)
        _compare(context, prompt, length, followers, tally)
    return tally.result(count, MOST_MISSCORED[context.target.dtype])


def _longest(length: DraftLength) -> int:
    return MOST_CHOSEN if isinstance(length, LengthPolicy) else length


def _compare(
    context: CheckContext, prompt: Prompt, length: DraftLength, followers: Followers, tally: DistributionTally
) -> None:
    """Compute the exact distribution after each prefix, and add its tests."""
    longest, controls = _longest(length), context.controls
    target = TargetDistribution(context.target, prompt.ids, longest, controls.sampling, controls.check_cancelled)
    draft = DraftDistribution(context, prompt.ids, len(prompt.ids) + longest + 2)
    for (is_bonus, block), counts in sorted(followers.items()):
        if sum(counts.values()) < LEAST_FOLLOWERS or len(block) > longest:
            continue
        probs, draft_probs = target.after(block), draft.after(block)
        position = BONUS if is_bonus else len(block) + 1
        tally.add(position, counts, probs, draft_probs, target.at_edge(counts))
        if not block and length == context.request.run.draft_length:
            tally.first_tokens.append(FirstTokens(prompt.name, _shown(context, counts, probs)))
    tally.rounding = max(tally.rounding, target.rounding)


def _shown(context: CheckContext, counts: Counter[int], probs: Tensor) -> tuple[TokenCount, ...]:
    total = sum(counts.values())
    likeliest = [token for token in probs.topk(min(_NUM_SHOWN, len(probs))).indices.tolist() if probs[token] > 0]
    texts = display_texts(context.target.tokenizer, likeliest)
    shown = [
        TokenCount(text, counts[token], total * float(probs[token]))
        for token, text in zip(likeliest, texts, strict=True)
    ]
    observed, expected = sum(item.observed for item in shown), sum(item.expected for item in shown)
    return (*shown, TokenCount("", total - observed, max(total - expected, 0.0)))
