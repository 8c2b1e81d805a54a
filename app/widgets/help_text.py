"""The words of the Help page."""

from __future__ import annotations

from app.theme import Theme

INTRO = """
<p>A large <b>target</b> model writes one token at a time, and each takes a whole forward through it. A small
<b>draft</b> model is quick but less good. Speculative decoding has the draft write ahead and the target check: the
text is exactly the target's, and comes sooner where the two agree.</p>
"""

STAGES = """
<p><b>1. Draft.</b> The draft proposes K tokens, one after the other, each drawn from its own distribution q.</p>
<p><b>2. Score.</b> The target reads all K in one forward, which gives its distribution p at each place and one behind
them. Where reading its weights is what takes the time, that costs little more than a single token.</p>
<p><b>3. Accept or reject.</b> From the front, each token x is kept with probability min(1, p(x) / q(x)): a number u is
drawn evenly between 0 and 1, and x is kept if u is smaller. The first rejection ends the block; what lies behind it is
not tested.</p>
<p><b>4. Resample.</b> In place of the rejected token one is drawn from the residual, max(0, p − q), normalised.</p>
<p><b>5. Bonus.</b> If all K are kept, the forward has given one more distribution, and one more token is drawn from
it for nothing. So a step gives from 1 to K + 1 tokens for one forward of the target.</p>
"""

EXACT = """
<p>A token x comes out either because it was drafted and kept, or because it was resampled. A rejection has the
probability 1 − Σ min(p, q), which is Σ max(0, p − q), so that</p>
<p align="center">q(x) · min(1, p(x) / q(x)) + Σ max(0, p − q) · max(0, p(x) − q(x)) / Σ max(0, p − q)<br>
= min(p(x), q(x)) + max(0, p(x) − q(x)) = <b>p(x)</b></p>
<p>whatever the draft is. A bad draft costs time, never quality. At temperature 0 this is simpler still: a token is
kept if it is the one that the target would have taken. With <i>Reproducible</i>, draft and target draw with the same
noise instead of u; the law is the same, and the text depends on the seed alone.</p>
"""

PLOTS = """
<p><b>Acceptance</b>: of each step's K drafted tokens, how many were kept; the lines are the running share, and the
share that the overlap of the two distributions lets expect. <b>Latency</b>: where each step's time went, beside what a
plain step takes. <b>Plots</b>: tokens over time against plain decoding, and how far into a block tokens are
kept. <b>Why</b>: what holds the speedup back, and what to change. <b>Theory</b>: what each K would bring, beside what
was measured. Every formula is under Help, Formulas.</p>
<p>The speedup is tau / (K c + v), and it is always measured too. tau: tokens a step. c: a draft step's time / a target
step's. v: time to score K + 1 positions / time to score one. Where it is below 1, drafting doesn't pay.</p>
"""

PAPERS = (
    ("Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding", "2211.17192"),
    ("Chen et al.: Accelerating Large Language Model Decoding with Speculative Sampling", "2302.01318"),
    ("Zhou et al.: DistillSpec, on training a draft for its target", "2310.08461"),
    ("Daliri, Musco, Suresh: Coupling without Communication, on Reproducible's shared noise", "2408.07978"),
)


def colours(theme: Theme) -> str:
    """What the colours mean, in the theme's own."""
    rows = (
        ("accepted", theme.accepted, "<u>solid line</u>", "drafted, tested and kept: the draft's work"),
        ("resampled", theme.correction, "wavy line, tinted", "a draft was rejected here, and this drawn in its place"),
        ("bonus", theme.bonus, "dotted line, tinted", "the target's own: behind a whole block, or with no draft"),
    )
    lines = "".join(
        f'<tr><td style="color:{color}"><b>{name}</b>&nbsp;&nbsp;</td>'
        f"<td>{line}&nbsp;&nbsp;</td><td>{meaning}</td></tr>"
        for name, color, line, meaning in rows
    )
    return f"<table cellspacing='0' cellpadding='2'>{lines}</table>"


def papers(theme: Theme) -> str:
    """Where the method is from."""
    link = '<a style="color:{color}" href="https://arxiv.org/abs/{id}">arXiv {id}</a>'
    lines = (f"<p>{title}. {link.format(color=theme.accent, id=number)}</p>" for title, number in PAPERS)
    return "".join(lines)
