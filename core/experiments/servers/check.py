"""Checks a server: does it give what its target gives, and does its draft accept what the pair allows?

The target is run here, or a server without speculation stands for it. The first token of a text comes from the prompt
and is seldom speculated, so sampled texts are some tokens long, and every token is compared given those before it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from core.controls import Cancelled, RunControls
from core.engines.server import Product, Server
from core.errors import ServerRefusedError, SettingsError
from core.experiments.bench_plan import num_equal
from core.experiments.check import MOST_ROUNDING
from core.experiments.check_plan import (
    DEFAULT_SAMPLES,
    DEFAULT_TOKENS,
    LEAST_SAMPLES,
    MOST_PROMPTS,
    MOST_SAMPLES,
    MOST_TOKENS,
    CheckProgress,
    Comparison,
    DistributionResult,
    Divergence,
    IdentityResult,
)
from core.experiments.distribution import LEAST_FOLLOWERS, PROMPTS, TargetDistribution, judge_twice
from core.experiments.distribution_statistics import OWN, DistributionTally, fit_to_top, homogeneity
from core.experiments.prompt_suites import PRESETS, Prompt, default_first, encoded, read_prompts
from core.experiments.servers.answers import Answer, ask_all, refuse_drafting
from core.experiments.servers.report import Acceptance, ServerReport
from core.models.language_model import LanguageModel
from core.runners.base import prefill
from core.sampling import probabilities
from core.session import Session
from core.settings import RunRequest, SamplingParams, setting, validate
from core.text import display_texts
from core.types import UNKNOWN_ID, FinishReason, StageChanged

NUM_SAMPLED = 4
"""Tokens of a sampled text: the first is the prefill's, the others come from a step with a draft."""
SERVER_ROUNDING = MOST_ROUNDING[torch.float16]
"""Of a baseline server, whose precision isn't known: the lead in logprobs below which two tokens are a near-tie."""
_AT_ONCE, _BATCH, _ROWS, _TOP = 8, 40, 32, 20
_HALF = -3
"""Counted in place of a token that ends within a character."""
_ROUNDS = 8
"""The most sampled texts of each prompt from which the acceptance is taken."""
_NO_IDS = {
    Product.VLLM: "this vLLM reports no token ids; use a newer one",
    Product.SGLANG: "SGLang reports no token ids with its chat template; add --raw",
    Product.LLAMA_SERVER: "llama-server reports no token ids for a character of several tokens; use --prompts to name "
    "other prompts",
}


@dataclass(frozen=True, slots=True)
class ServerCheckRequest:
    """What is checked, against the target here or against `baseline`, of which one is given.

    `local` names target, perhaps the draft, device and dtype here; its sampling is that of the sampled texts.

    Raises:
        SettingsError: a value out of range, too many prompts, or a baseline that drafts.
    """

    server: Server
    local: RunRequest | None
    baseline: Server | None
    request: RunRequest
    prompts: tuple[Prompt, ...]
    num_samples: int = setting(DEFAULT_SAMPLES, label="The number of samples", min=LEAST_SAMPLES, max=MOST_SAMPLES)
    num_tokens: int = setting(DEFAULT_TOKENS, label="The number of tokens to compare", min=1, max=MOST_TOKENS)

    def __post_init__(self) -> None:
        validate(self)
        if len(self.prompts) > MOST_PROMPTS:
            raise SettingsError(f"A check takes at most {MOST_PROMPTS:,} prompts, not {len(self.prompts):,}.")
        refuse_drafting(self.baseline)

    def model(self, server: Server) -> str:
        """What a server calls the model."""
        return server.counterpart(self.request.target)

    def requests(self, server: Server, prompts: Sequence[Prompt], seed: int, **changes: Any) -> list[RunRequest]:
        """A request for each prompt, each with a seed of its own."""
        shared = replace(self.request, target=self.model(server), engine=server.address.url, **changes)
        return [replace(shared, prompt=prompt.text, seed=(seed + at) % 2**31) for at, prompt in enumerate(prompts)]


@dataclass(frozen=True, slots=True)
class ServerChecked:
    """The last event; has no report if the check was stopped."""

    report: ServerReport | None


ServerEvent = StageChanged | CheckProgress | ServerChecked


def check_server(
    make_session: Callable[[], Session], request: ServerCheckRequest, controls: RunControls
) -> Generator[ServerEvent, None, None]:
    """Check a server.

    Yields:
        `StageChanged` while models are loaded, `CheckProgress`, and `ServerChecked`, also when it was stopped.

    Raises:
        OutriderError: it can't be checked, in one sentence.
    """
    try:
        if request.local is None:
            prompts = request.prompts or tuple(read_prompts(PRESETS))
            yield ServerChecked((yield from _Check(request, prompts, controls).report()))
            return
        loaded = yield from make_session().load(request.local, controls)
        yield ServerChecked((yield from _CheckHere(request, controls, loaded.target, loaded.draft).report()))
    except Cancelled:
        yield ServerChecked(None)


class _Check:
    """A check against another server, which is expected to show the target's own text and frequencies."""

    has_draft = False

    def __init__(self, request: ServerCheckRequest, prompts: tuple[Prompt, ...], controls: RunControls) -> None:
        self._request, self._prompts, self._controls = request, prompts, controls
        self._server = request.server
        self._sampling = request.request.sampling
        self._seed = request.request.seed
        self._long = {"max_new_tokens": request.num_tokens}
        self._num_drafted = 0
        # llama-server sends tokens that end within a character only with the rest of it, and without an id.
        servers = (request.server, request.baseline or request.server)
        self._hides = all(server.product is Product.LLAMA_SERVER for server in servers)
        self._partial: Counter[Product] = Counter()
        """The texts in which the ids break off."""
        self._tally: DistributionTally

    def report(self) -> Generator[CheckProgress, None, ServerReport]:
        began = time.monotonic()
        greedy = yield from self._ask(
            self._server, self._prompts, "Greedy texts", sampling=SamplingParams(0.0), **self._long
        )
        identity = yield from self._greedy(greedy)
        self._refuse_none(bool(identity.num_tokens or identity.divergences))
        acceptances = [Acceptance.of(0.0, list(self._tested(greedy, SamplingParams(0.0))))]
        distribution = None
        if not self._sampling.is_greedy:
            distribution = yield from judge_twice(self._sample, self._request.num_samples)
            self._refuse_none(bool(distribution.tests))
            acceptances.append((yield from self._sampled_acceptance()))
        return ServerReport(
            server=self._server.text,
            model=self._request.model(self._server),
            speculates=self._server.speculation.is_on,
            against=self._against(),
            greedy=identity,
            temperature=self._sampling.temperature,
            distribution=distribution,
            num_drafted=self._num_drafted,
            num_partial=self._partial.total(),
            acceptances=tuple(found for found in acceptances if found is not None),
            has_draft=self.has_draft,
            notes=tuple(self._notes(any(acceptances))),
            seconds=time.monotonic() - began,
        )

    def _refuse_none(self, is_compared: bool) -> None:
        """Refuse servers whose ids break off before anything could be compared."""
        if not is_compared and self._partial.total():
            ((product, _),) = self._partial.most_common(1)
            raise ServerRefusedError(f"Too few tokens could be compared: {_NO_IDS[product]}.")

    def _sampled_acceptance(self) -> Generator[CheckProgress, None, Acceptance | None]:
        """The acceptance in sampled texts, of as many as it takes to tell whether it is enough."""
        found: Acceptance | None = None
        tested: list[tuple[bool, float, float]] = []
        for attempt in range(_ROUNDS if self.has_draft else 0):
            seed = self._seed + attempt * 100_000
            texts = yield from self._ask(self._server, self._prompts, "Sampled texts", seed=seed, **self._long)
            tested += self._tested(texts, self._sampling)
            found = Acceptance.of(self._sampling.temperature, tested)
            if found is None or found.is_decided:
                break
        return found

    def _ask(
        self,
        server: Server,
        prompts: Sequence[Prompt],
        title: str,
        *,
        seed: int | None = None,
        top_logprobs: int = 0,
        **changes: Any,
    ) -> Generator[CheckProgress, None, list[Answer]]:
        """An answer to each prompt."""
        requests = self._request.requests(server, prompts, self._seed if seed is None else seed, **changes)
        found: list[Answer] = []
        for start in range(0, len(requests), _BATCH):
            yield CheckProgress(title, start, len(requests))
            batch = requests[start : start + _BATCH]
            found += ask_all(server, batch, _AT_ONCE, self._controls, top_logprobs=top_logprobs).answers
        self._partial[server.product] += sum(not answer.is_known for answer in found)
        return found

    def _sample(self, count: int, is_second: bool) -> Generator[CheckProgress, None, DistributionResult]:
        """Short sampled texts after a few prompts, and the tests of each position."""
        self._tally = DistributionTally()
        self._num_drafted = 0
        title = "A second test: fresh texts" if is_second else "Short sampled texts"
        chosen = self._prompts[:PROMPTS]
        for place, prompt in enumerate(chosen):
            share = count // len(chosen) + (place < count % len(chosen))
            # Seeds that no other request of this check has.
            seed = self._seed + (1 + place + PROMPTS * is_second) * 1_000_000
            yield from self._compare(prompt, share, seed, title)
        found = self._tally.result(count, math.inf)
        return found if self.has_draft else replace(found, bias_limit=None)

    def _texts(
        self, server: Server, prompt: Prompt, count: int, seed: int, title: str
    ) -> Generator[CheckProgress, None, dict[tuple[int, ...], Counter[int]]]:
        """From the beginning of a text to how often each token followed it on a server, where all are known."""
        title = f"{title}, {prompt.name}"
        answers = yield from self._ask(server, [prompt] * count, title, seed=seed, max_new_tokens=NUM_SAMPLED)
        followers: dict[tuple[int, ...], Counter[int]] = {}
        broken_off: set[int] = set()
        for answer in answers:
            ids = self._compared(prompt, answer)
            self._num_drafted += server is self._server and bool(answer.tested(server, self._sampling.temperature))
            for place, token in enumerate(ids):
                followers.setdefault(ids[:place], Counter())[token] += 1
            if not answer.is_known and not self._hides:
                broken_off.add(len(ids))
        if server is self._server:
            yield from self._test_own(prompt, answers, title)
        # A token that isn't reported would seem never to be drawn, also where by chance it didn't come.
        return {ids: counts for ids, counts in followers.items() if len(ids) not in broken_off}

    def _test_own(self, prompt: Prompt, answers: Sequence[Answer], title: str) -> Iterator[CheckProgress]:
        """Test the likely first tokens against the server's own logprobs: of its sampling, whatever its weights."""
        temperature = self._sampling.temperature
        if self._sampling != SamplingParams(temperature):
            return  # A filter changes what the logprobs say.
        tops = []
        for asked in (temperature, 1.0):
            sampling = SamplingParams(asked)
            (answer,) = yield from self._ask(
                self._server, [prompt], title, top_logprobs=_TOP, sampling=sampling, max_new_tokens=1
            )
            tops.append(sorted((lp for token in answer.tokens[:1] for _, lp in token.top), reverse=True)[:_TOP])
        first = [token for answer in answers for token in answer.tokens[:1]]
        # A token without an id, such as the end of a text, would seem never to be drawn.
        is_reported = all(token.id != UNKNOWN_ID and not math.isnan(token.logprob) for token in first)
        if not all(tops) or len(first) < len(answers) or not is_reported:
            return
        # Some servers report logprobs before the temperature, others after it; rounding moves them between requests.
        shifted = [[logprob - top[0] for logprob in top] for top in tops]
        pairs = list(zip(*shifted, strict=False))
        power = min(
            (1.0 / temperature, 1.0),
            key=lambda power: sum(abs(power * temperature * one - other) for one, other in pairs),
        )
        found, count = fit_to_top(tops[0], first, power)
        self._tally.count(OWN, found.statistic, found.degrees, count)

    # What differs when the target is run here. ---------------------------------------------------------------------

    def _against(self) -> str:
        baseline = self._request.baseline
        assert baseline is not None
        return f"{self._request.model(baseline)} on the server without speculation at {baseline.address}"

    def _compared(self, prompt: Prompt, answer: Answer) -> tuple[int, ...]:
        """A text's ids as far as they are compared: one stands for all that end within a character, which ends it."""
        ids = self._ids(prompt, answer)
        return (*ids, _HALF) if self._hides and not answer.is_known else ids

    def _ids(self, prompt: Prompt, answer: Answer) -> tuple[int, ...]:
        """The tokens up to the first without an id; a text's end is -2, as not every server reports its token."""
        is_end = answer.chunks[-1].finish is FinishReason.EOS and answer.is_known
        return (*answer.ids, -2) if is_end else answer.ids

    def _greedy(self, answers: Sequence[Answer]) -> Generator[CheckProgress, None, IdentityResult]:
        baseline = self._request.baseline
        assert baseline is not None
        expected = yield from self._ask(
            baseline,
            self._prompts,
            "Greedy texts of the baseline",
            sampling=SamplingParams(0.0),
            top_logprobs=5,
            **self._long,
        )
        divergences, num_tokens = [], 0
        for prompt, plain, found in zip(self._prompts, expected, answers, strict=True):
            ours, theirs = found.ids, plain.ids
            shared, same = min(len(ours), len(theirs)), num_equal(ours, theirs)
            num_tokens += same
            if same == len(ours) == len(theirs) or (same == shared and not (found.is_known and plain.is_known)):
                continue
            other = found.name_at(same)
            lead = plain.lead(same, other) if same < shared else None
            is_near = lead is not None and lead <= SERVER_ROUNDING
            divergences.append(
                Divergence(prompt.name, same, plain.name_at(same), other, lead, SERVER_ROUNDING, is_near)
            )
        return IdentityResult(Comparison.GREEDY, len(answers), num_tokens, tuple(divergences))

    def _compare(self, prompt: Prompt, count: int, seed: int, title: str) -> Iterator[CheckProgress]:
        assert self._request.baseline is not None
        found = yield from self._texts(self._server, prompt, count, seed, title)
        seed += 500_000
        plain = yield from self._texts(self._request.baseline, prompt, count, seed, f"{title} of the baseline")
        for block in sorted(found.keys() & plain.keys()):
            if min(sum(found[block].values()), sum(plain[block].values())) >= LEAST_FOLLOWERS:
                statistic, degrees = homogeneity(found[block], plain[block])
                self._tally.count(len(block) + 1, statistic, degrees, sum(found[block].values()))

    def _tested(self, answers: Sequence[Answer], sampling: SamplingParams) -> Iterator[tuple[bool, float, float]]:
        """Of each tested token whether it was accepted, and how likely that is for a drawn and the likeliest draft."""
        yield from ()

    def _notes(self, has_acceptance: bool) -> Iterator[str]:
        yield (
            "Token 1 comes from the prompt, the others from steps that draft. If all tests fail except the one against "
            "the server's own logprobs, the reference has other weights, precision or chat template; if only later "
            "tokens fail, look at the speculation."
        )


class _CheckHere(_Check):
    """A check against the target that is run here."""

    def __init__(
        self, request: ServerCheckRequest, controls: RunControls, target: LanguageModel, draft: LanguageModel | None
    ) -> None:
        chat, system = request.request.chat, request.request.system
        prompts = encoded(request.prompts or default_first(target), target, chat, system)
        super().__init__(request, tuple(prompts), controls)
        self._target, self._draft = target, draft
        self.has_draft = draft is not None
        # Some targets have several tokens that end a text, of which a server may report none: they count as one.
        self._eos = sorted(target.eos_ids)
        every = range(target.vocab_size) if self._hides else ()
        self._halves = [token for token in every if target.tokenizer.decode([token]).endswith("\ufffd")]
        self._hides = bool(self._halves)

    def _against(self) -> str:
        target = self._target
        dtype = str(target.dtype).removeprefix("torch.")
        return f"{target.ref} run here ({target.device}, {dtype})"

    def _ids(self, prompt: Prompt, answer: Answer) -> tuple[int, ...]:
        self._check_prompt(prompt, answer)
        ids = tuple(self._eos[0] if token in self._eos else token for token in answer.ids)
        if any(token >= self._target.vocab_size for token in ids):
            raise SettingsError(f"The server sends tokens that {self._target.ref} doesn't have; name its own model.")
        is_whole = answer.is_known and answer.chunks[-1].finish is FinishReason.EOS
        has_end = bool(ids) and ids[-1] in self._eos[:1]
        return (*ids, self._eos[0]) if is_whole and self._eos and not has_end else ids

    def _compared(self, prompt: Prompt, answer: Answer) -> tuple[int, ...]:
        ids = super()._compared(prompt, answer)
        halves = {*self._halves, _HALF}
        place = next((place for place, token in enumerate(ids) if token in halves), None)
        return ids if place is None else (*ids[:place], self._halves[0])

    def _check_prompt(self, prompt: Prompt, answer: Answer) -> None:
        ids = next((chunk.prompt_ids for chunk in answer.chunks if chunk.prompt_ids), None)
        count = len(ids) if ids else next((n for chunk in answer.chunks if (n := chunk.num_prompt_tokens)), None)
        if (ids or prompt.ids) != prompt.ids or (count or len(prompt.ids)) != len(prompt.ids):
            raise SettingsError(
                f"The server splits the prompt {prompt.name!r} into other tokens than {self._target.ref} here ({count} "
                f"and {len(prompt.ids)} tokens): name the model that it serves, with the same chat template, or add "
                "--raw."
            )

    def _merged(self, values: Tensor, *, is_sum: bool) -> Tensor:
        """Rows (…, V) in which the first token of each group, such as those that end a text, stands for all of it."""
        for group in (self._eos, self._halves):
            if len(group) > 1:
                found = values[..., group]
                values = values.clone()
                values[..., group] = 0.0 if is_sum else -torch.inf
                values[..., group[0]] = found.sum(-1) if is_sum else found.amax(-1)
        return values

    @torch.inference_mode()
    def _logits(self, model: LanguageModel, prompt: Prompt, ids: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """Row after row, (V,), what follows the prompt and the first tokens of a text."""
        text = [*prompt.ids, *ids]
        runner = model.runner(len(text))
        prefill(runner, prompt.ids[:-1], self._controls.check_cancelled)
        for start in range(0, len(ids), _ROWS):
            self._controls.check_cancelled()
            first = len(prompt.ids) - 1 + start
            part = torch.tensor(text[first : min(first + _ROWS, len(text) - 1)])
            rows = runner.forward(part, num_logits=len(part)).logits[:, : self._target.vocab_size].float().clone()
            yield from enumerate(rows, start)

    def _greedy(self, answers: Sequence[Answer]) -> Generator[CheckProgress, None, IdentityResult]:
        """Every token is judged given the server's own text before it, also behind a near-tie."""
        divergences, num_tokens = [], 0
        limit = MOST_ROUNDING[self._target.dtype]
        for place, (prompt, answer) in enumerate(zip(self._prompts, answers, strict=True)):
            yield CheckProgress("The target's greedy choices", place, len(answers))
            ids = self._ids(prompt, answer)
            worst: Divergence | None = None
            for at, logits in self._logits(self._target, prompt, ids):
                row = self._merged(logits, is_sum=False)
                best = int(row.argmax())
                margin = float(row[best] - row[ids[at]])
                num_tokens += best == ids[at]
                if best != ids[at] and (worst is None or (worst.is_near_tie and margin > limit)):
                    texts = display_texts(self._target.tokenizer, [best, ids[at]])
                    worst = Divergence(prompt.name, at, texts[0], texts[1], margin, limit, margin <= limit)
            divergences += [worst] if worst is not None else []
        return IdentityResult(Comparison.GREEDY, len(answers), num_tokens, tuple(divergences))

    def _compare(self, prompt: Prompt, count: int, seed: int, title: str) -> Iterator[CheckProgress]:
        followers = yield from self._texts(self._server, prompt, count, seed, title)
        models = [model for model in (self._target, self._draft) if model is not None]
        exact = [
            TargetDistribution(
                model, prompt.ids, NUM_SAMPLED, self._sampling, self._controls.check_cancelled, SERVER_ROUNDING
            )
            for model in models
        ]
        for block, counts in sorted(followers.items()):
            if sum(counts.values()) >= LEAST_FOLLOWERS:
                yield CheckProgress("The target's exact distributions", 0, 0)
                probs = [self._padded(self._merged(item.after(block), is_sum=True)) for item in exact]
                edge = exact[0].at_edge([token for drawn in counts for token in self._meant(drawn)])
                merged = {self._meant(token)[0] for token in edge}
                self._tally.add(len(block) + 1, counts, probs[0], probs[1] if len(probs) > 1 else None, merged)

    def _meant(self, token: int) -> Sequence[int]:
        """The tokens that one stands for."""
        return next((group for group in (self._eos, self._halves) if token in group), (token,))

    def _padded(self, probs: Tensor) -> Tensor:
        size = self._target.vocab_size
        return probs[:size] if len(probs) >= size else torch.cat([probs, probs.new_zeros(size - len(probs))])

    def _tested(self, answers: Sequence[Answer], sampling: SamplingParams) -> Iterator[tuple[bool, float, float]]:
        if self._draft is None:
            return
        for prompt, answer in zip(self._prompts, answers, strict=True):
            ids = self._ids(prompt, answer)
            tested = answer.tested(self._server, sampling.temperature)
            rows = zip(self._logits(self._target, prompt, ids), self._logits(self._draft, prompt, ids), strict=True)
            for (at, target_row), (_, draft_row) in rows if tested else ():
                if at in tested:
                    target_probs = probabilities(target_row, sampling)
                    draft_probs = self._padded(probabilities(draft_row, sampling))
                    overlap = min(1.0, float(torch.minimum(target_probs, draft_probs).sum()))
                    yield tested[at], overlap, float(target_probs[int(draft_probs.argmax())])

    def _notes(self, has_acceptance: bool) -> Iterator[str]:
        yield from super()._notes(has_acceptance)
        if not self._sampling.is_unfiltered:
            yield (
                f"Tokens within {SERVER_ROUNDING:g} of the edge of a filter, in logits, aren't tested, since the "
                "server may have another precision: a top-k that is one too large isn't found."
            )
        if self._draft is None and self._server.speculation.is_on:
            yield "The acceptance wasn't checked: use --draft to name the model that the server drafts with."
        if self._draft is not None and not has_acceptance:
            how = {
                Product.VLLM: "start vLLM with --per-request-spec-decode-metrics detailed",
                Product.SGLANG: "use a newer SGLang, and a chain in place of a tree",
                Product.LLAMA_SERVER: "use a newer llama-server",
            }[self._server.product]
            yield f"The server doesn't report what each step drafted, so its acceptance wasn't checked; {how}."
