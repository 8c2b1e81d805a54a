"""Checks of the distribution of whole blocks, and mutants of the engine's source to show that the checks can fail."""

import contextlib
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from scipy.stats import chi2

from core.drafters.base import DrafterSetup
from core.drafters.draft_tree import _children
from core.drafters.registry import TreeRule
from core.sampling import draw, draw_uniforms, probabilities
from core.settings import Coupling, SamplingParams
from core.types import Draft, DraftContext
from tests.fakes import ScriptDrafter, play, random_rows, table_model

V, K = 3, 2
SIGNIFICANCE = 1e-6
"""So low that an honest engine fails by chance nowhere, whatever its draws become."""

Rows = Mapping[tuple[int, ...], torch.Tensor]
"""From a context to the distribution (V,) of the token after it."""

StepFunction = Callable[[Rows, Rows, torch.Generator], list[int]]
"""One draft-verify round: (draft distributions, target distributions, generator) -> the 1 to K + 1 tokens emitted."""


@contextlib.contextmanager
def global_generator_untouched():
    """Fails if the block draws from, or seeds, torch's global generator."""
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state())


def make_rows(seed: int) -> Rows:
    """A different positive distribution for every context."""
    generator = torch.Generator().manual_seed(seed)
    contexts = [context for size in range(K + 1) for context in itertools.product(range(V), repeat=size)]
    rows = {context: torch.rand(V, generator=generator) + 0.08 for context in contexts}
    return {context: row / row.sum() for context, row in rows.items()}


class RandomBlock(NamedTuple):
    """What a verifier is given; the target never says token 0. `probs` is None where the draft was certain."""

    tokens: torch.Tensor
    probs: torch.Tensor | None
    target: torch.Tensor
    seed: int


def random_block(num_drafted: int, vocab_size: int, seed: int, is_certain: bool, is_same: bool) -> RandomBlock:
    """A block of drafted tokens, by a draft that is the target itself or another distribution."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.rand(num_drafted + 1, vocab_size, generator=generator).pow(4)
    target[:, 0] = 0.0
    target = target / target.sum(-1, keepdim=True)
    draft = target[:-1] if is_same else torch.rand(num_drafted, vocab_size, generator=generator).softmax(-1)
    tokens = draft.multinomial(1, generator=generator).squeeze(1) if num_drafted else torch.empty(0, dtype=torch.long)
    return RandomBlock(tokens, None if is_certain else draft, target, seed)


random_blocks = st.builds(
    random_block, st.integers(0, 5), st.integers(2, 12), st.integers(0, 2**31), st.booleans(), st.booleans()
)


def chi_squared_p_value(counts: np.ndarray, expected: np.ndarray) -> float:
    """Goodness of fit. Cells expected fewer than 5 times are joined; a count where none can be is impossible: 0."""
    if counts[expected == 0].any():
        return 0.0
    rare = expected < 5
    cells = [*zip(counts[~rare], expected[~rare], strict=True)]
    if expected[rare].sum() > 0:
        cells.append((counts[rare].sum(), expected[rare].sum()))
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    return float(chi2.sf(statistic, max(len(cells) - 1, 1)))


@torch.inference_mode()
def joint_p_value(step: StepFunction, *, samples: int = 10_000, seed: int = 0) -> float:
    """Chi-squared of all K + 1 tokens of a block together, completed from the target where the block is shorter.

    The seed also decides the distributions: those of 10 show what drafters do wrong, those of 2 what trees do wrong.
    """
    draft_rows, target_rows = make_rows(seed + 1), make_rows(seed + 2)
    cumulated = {context: np.cumsum(row.double().numpy()) for context, row in target_rows.items()}
    generator, completion = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    cells = itertools.product(range(V), repeat=K + 1)
    expected = np.array([np.prod([float(target_rows[cell[:i]][cell[i]]) for i in range(K + 1)]) for cell in cells])
    counts = np.zeros(len(expected))
    for done in range(1, samples + 1):
        tokens = step(draft_rows, target_rows, generator)
        assert 1 <= len(tokens) <= K + 1
        while len(tokens) <= K:
            tokens.append(int(np.searchsorted(cumulated[tuple(tokens)], completion.random() * 0.9999999)))
        counts[tokens[0] * V * V + tokens[1] * V + tokens[2]] += 1
        if done % 250 == 0 or done == samples:
            p_value = chi_squared_p_value(counts, expected * done)
            if p_value < SIGNIFICANCE:
                break
    return p_value


def verify_step(verify_block: Callable) -> StepFunction:
    """A round whose draft is drawn as it should be."""

    def step(draft_rows: Rows, target_rows: Rows, generator: torch.Generator) -> list[int]:
        tokens: list[int] = []
        for uniform in draw_uniforms(K, generator):
            tokens.append(int(draw(draft_rows[tuple(tokens)], uniform)))
        draft_probs = torch.stack([draft_rows[tuple(tokens[:i])] for i in range(K)])
        return _verified(verify_block, tokens, draft_probs, target_rows, generator)

    return step


def certain_step(verify_block: Callable) -> StepFunction:
    """A round whose drafter proposes, without a distribution, the likeliest tokens."""

    def step(draft_rows: Rows, target_rows: Rows, generator: torch.Generator) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < K:
            tokens.append(int(draft_rows[tuple(tokens)].argmax()))
        return _verified(verify_block, tokens, None, target_rows, generator)

    return step


def tree_step(
    verify_block: Callable,
    parents: Sequence[int],
    rule: str,
    children: Callable = _children,
    merge: Callable[[Draft], Draft] = lambda draft: draft,
) -> StepFunction:
    """A round whose tree is drawn by a rule, and may get more nodes; best proposes one-hots without probabilities."""

    def step(draft_rows: Rows, target_rows: Rows, generator: torch.Generator) -> list[int]:
        context = {-1: ()}
        tokens, sources = [0] * len(parents), [torch.empty(0)] * len(parents)
        for parent in dict.fromkeys(parents):
            nodes = [node for node, each in enumerate(parents) if each == parent]
            row = draft_rows[context[parent]]
            if rule == TreeRule.BEST:
                found = [(token, torch.empty(0)) for token in row.topk(len(nodes)).indices]
            else:
                chosen = TreeRule.TOP if rule == "mixed" and parent == -1 else rule
                found = list(children(row, draw_uniforms(len(nodes), generator), chosen))
            for node, (token, source) in zip(nodes, found, strict=True):
                tokens[node], sources[node] = int(token), source
                context[node] = (*context[parent], int(token))
        probs = None if rule == TreeRule.BEST else torch.stack(sources)
        draft = merge(Draft(torch.tensor(tokens), torch.tensor(parents), probs))
        context, tokens, order = {-1: ()}, draft.tokens.tolist(), draft.parents.tolist()
        for node, parent in enumerate(order):
            context[node] = (*context[parent], tokens[node])
        rows = torch.stack([target_rows[context[node]] for node in range(-1, len(order))])
        outcome = verify_block(draft.tokens, order, draft.probs, rows, draw_uniforms(len(order) + 1, generator))
        return [*(tokens[node] for node in outcome.path), outcome.next_token]

    return step


def stops_at_the_unsure(confidence: float) -> bool:
    """A rule for ending blocks, which ends many."""
    return confidence >= 0.45


def drafter_step(
    drafter_class: Callable, verify_block: Callable, keep_drafting: Callable[[float], bool] | None = None
) -> StepFunction:
    """A round whose draft comes from a model through a `DraftModelDrafter`, asked or not whether to go on."""
    drafters: list = []

    def step(draft_rows: Rows, target_rows: Rows, generator: torch.Generator) -> list[int]:
        if not drafters:
            model = table_model(lambda ids: draft_rows[tuple(ids[1:])].log(), V)
            drafters.append(drafter_class(DrafterSetup(model, model)))
            drafters[0].start(torch.tensor([0]))
        context = DraftContext(
            ids=[0], num_draft_tokens=K, sampling=SamplingParams(), generator=generator, vocab_size=V,
            check_cancelled=lambda: None, keep_drafting=keep_drafting,
        )  # fmt: skip
        draft = drafters[0].propose(context)
        # The next round starts from the same text again: no token of this one is committed.
        drafters[0]._runner.rewind(0)
        return _verified(verify_block, draft.tokens.tolist(), draft.probs, target_rows, generator)

    return step


def _verified(verify_block: Callable, tokens: list[int], draft_probs, target_rows: Rows, generator) -> list[int]:
    rows = torch.stack([target_rows[tuple(tokens[:i])] for i in range(len(tokens) + 1)])
    parents = range(-1, len(tokens) - 1)
    uniforms = draw_uniforms(len(tokens) + 1, generator)
    outcome = verify_block(torch.tensor(tokens), parents, draft_probs, rows, uniforms)
    return [*tokens[: outcome.num_accepted], outcome.next_token]


def engine_p_value(
    speculative: Callable,
    *,
    sampling: SamplingParams,
    coupling: Coupling = Coupling.REJECTION,
    num_draft_tokens: int = 2,
    vocab_size: int = 5,
    seed: int = 0,
) -> float:
    """Chi-squared of three tokens together, out of the whole loop: drafter, filters, verification, both caches.

    One long text whose distributions forget everything at each third position stands for many texts of three tokens.
    """
    target_logits = random_rows(vocab_size, 10 + seed, period=3, scale=1.5)
    target = table_model(target_logits, vocab_size)
    draft = table_model(random_rows(vocab_size, 20 + seed, period=3, scale=1.5), vocab_size)
    run = play(
        speculative(
            target, draft, [0, 0, 0], num_draft_tokens=num_draft_tokens, sampling=sampling, coupling=coupling,
            max_new_tokens=3 * 600, seed=seed,
        )
    )  # fmt: skip
    tokens = np.array(run.ids).reshape(-1, 3)
    shape = (vocab_size,) * 3
    counts = np.bincount(np.ravel_multi_index(tokens.T, shape), minlength=vocab_size**3)
    expected = np.zeros(shape)
    for context in itertools.product(range(vocab_size), repeat=2):
        rows = [probabilities(target_logits([0, 0, 0, *context[:size]]), sampling).double() for size in range(3)]
        expected[context] = float(rows[0][context[0]] * rows[1][context[1]]) * rows[2].numpy()
    return chi_squared_p_value(counts, expected.ravel() * len(tokens))


def always(tokens: list[int]) -> ScriptDrafter:
    """A drafter that proposes the same tokens every time."""
    return ScriptDrafter(lambda ids, count: tokens)


def mutate(module: ModuleType, old: str, new: str) -> ModuleType:
    """The module with one piece of its source replaced. The piece must be there exactly once."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {module.__name__}"
    mutant = ModuleType(module.__name__)
    mutant.__file__ = module.__file__
    code = compile(source.replace(old, new), f"<mutant of {module.__name__}>", "exec", dont_inherit=True)
    exec(code, mutant.__dict__)
    return mutant
