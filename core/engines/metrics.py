"""A server's own counters: one reading of /metrics, and what happened between two.

vLLM, SGLang and llama-server count alike under different names. What a server doesn't count is None, never 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.engines.client import Client
from core.errors import ServerError

_NAMES = {
    "drafts": ("vllm:spec_decode_num_drafts", "llamacpp:spec_decode_num_drafts", "sglang:spec_verify_calls"),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens", "llamacpp:spec_decode_num_draft_tokens"),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens", "llamacpp:spec_decode_num_accepted_tokens"),
    "generated_tokens": ("vllm:generation_tokens", "llamacpp:tokens_predicted", "sglang:generation_tokens"),
    "requests": ("vllm:request_success", "sglang:num_requests"),
    "running": ("vllm:num_requests_running", "llamacpp:requests_processing", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "llamacpp:requests_deferred", "sglang:num_queue_reqs"),
}
"""The names of each figure, without the _total that Prometheus adds to a counter."""
_PER_POSITION = ("vllm:spec_decode_num_accepted_tokens_per_pos", "llamacpp:spec_decode_num_accepted_tokens_per_pos")
_LEVELS = ("running", "waiting")
"""Figures that go up and down; all others only grow while the server runs."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Figures of a server since it started, summed over its engines; None for what it doesn't report.

    Attributes:
        drafts: steps that drafted. draft_tokens, accepted_tokens: of these.
        accepted_per_position: how often a drafted token was accepted at each position, from 0; empty if not reported.
        generated_tokens, requests: tokens generated, and requests finished.
        running, waiting: requests at this moment.
    """

    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    accepted_per_position: tuple[float, ...] = ()
    generated_tokens: float | None = None
    requests: float | None = None
    running: float | None = None
    waiting: float | None = None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; None if nothing was drafted, or isn't reported."""
        return (
            self.accepted_tokens / self.draft_tokens if self.draft_tokens and self.accepted_tokens is not None else None
        )

    @property
    def num_draft_tokens(self) -> int | None:
        """K, the positions that are counted; None if the server counts none."""
        return len(self.accepted_per_position) or None

    @property
    def drafts_always(self) -> bool:
        """Whether almost every step so far drafted, as with a draft model but not with n-grams."""
        if not self.drafts or self.generated_tokens is None or self.accepted_tokens is None:
            return False
        steps = self.generated_tokens - self.accepted_tokens - (self.requests or 0)
        return self.drafts >= 0.95 * steps


def read_metrics(client: Client, query: str = "") -> Snapshot | None:
    """One reading; None if the server offers none. `query` is `Server.query(model)`.

    Raises:
        ServerError: it can't be reached, or sends something else.
    """
    # llama-server says 501 if it was started without --metrics.
    text = client.get_text(f"/metrics{query}", missing=(404, 405, 501))
    return None if text is None else parse_metrics(text)


def parse_metrics(text: str) -> Snapshot | None:
    """The figures in a page of Prometheus; None if it is that of another product.

    Raises:
        ServerError: it is no such page.
    """
    from prometheus_client.parser import text_string_to_metric_families

    # Two engines of one server, such as data-parallel ranks, have a sample each.
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    known = {name: figure for figure, names in _NAMES.items() for name in names}
    is_known = False
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                is_known = is_known or sample.name.startswith(("vllm:", "sglang:", "llamacpp:"))
                name = sample.name.removesuffix("_total")
                if not math.isfinite(sample.value):
                    continue
                if name in known:
                    sums[known[name]] = sums.get(known[name], 0.0) + sample.value
                elif name in _PER_POSITION and (place := sample.labels.get("position", "")).isdecimal():
                    positions[int(place)] = positions.get(int(place), 0.0) + sample.value
    except (ValueError, IndexError, KeyError):
        raise ServerError("The server's /metrics is not in the Prometheus format.") from None
    if not is_known:
        return None
    per_position = tuple(positions[place] for place in sorted(positions) if place < 1_000)
    if {"drafts", "generated_tokens", "requests"} <= sums.keys() and "sglang:" in text:
        # SGLang counts no accepted tokens, but a request adds one token, and a step those and one of the target's own.
        sums["accepted_tokens"] = max(0.0, sums["generated_tokens"] - sums["requests"] - sums["drafts"])
    return Snapshot(accepted_per_position=per_position, **sums)


def difference(before: Snapshot, after: Snapshot) -> Snapshot | None:
    """What happened between two readings; levels are those of the second. None if the server restarted meanwhile."""
    figures: dict[str, float | None] = {}
    for name in _NAMES:
        old, new = getattr(before, name), getattr(after, name)
        figures[name] = new if name in _LEVELS or new is None or old is None else new - old
    earlier, later = before.accepted_per_position, after.accepted_per_position
    # A server may begin to count positions only with its first draft.
    grown = tuple(count - (earlier[place] if place < len(earlier) else 0.0) for place, count in enumerate(later))
    counted = [figures[name] for name in _NAMES if name not in _LEVELS]
    if len(later) < len(earlier) or any(value is not None and value < 0 for value in (*counted, *grown)):
        return None
    return Snapshot(accepted_per_position=grown, **figures)
