"""The events of one short run, and the lines of the log that they make."""

import json

from core.runlog.log import RunLogWriter
from core.types import Finished, FinishReason, PrefillDone, RunStarted, StageChanged, Step, Summary
from core.types import TokenKind as Kind

# The schema as the design lists it, written out again here so that a renamed field fails.
RUN = [
    "schema", "type", "id", "started_at", "outrider_version", "config", "environment",
]  # fmt: skip
CONFIG = [
    "target", "draft", "method", "revision", "device", "dtype", "num_draft_tokens", "temperature", "top_k", "top_p",
    "min_p", "seed", "coupling", "max_new_tokens", "prompt", "prompt_token_ids", "chat",
]  # fmt: skip
ENVIRONMENT = [
    "python", "torch", "transformers", "platform", "device_name", "threads",
]  # fmt: skip
STEP = [
    "index", "position", "num_draft_tokens", "temperature", "drafted", "draft_probs", "target_probs",
    "acceptance_probs", "expected_acceptance", "num_accepted", "emitted", "emitted_kinds", "emitted_text",
    "draft_ms", "verify_ms", "sample_ms", "total_ms",
]  # fmt: skip
SUMMARY = [
    "finish_reason", "text", "num_tokens", "num_drafts", "num_draft_tokens", "num_accepted_tokens",
    "num_accepted_tokens_per_pos", "draft_acceptance_rate", "block_efficiency", "cost_coefficient",
    "tokens_per_second", "prefill_ms", "peak_memory_mb", "predicted_speedup",
]  # fmt: skip
STARTED = RunStarted(
    run_id="r1",
    started_at="2026-01-02T03:04:05+00:00",
    version="0.1.0",
    config={**dict.fromkeys(reversed(CONFIG), 1), "prompt": "naïve\u2028 prompt\n", "method_options": {"max_ngram": 3}},
    environment=dict.fromkeys(ENVIRONMENT, "x"),
)
STEP_EVENT = Step(
    index=0, position=5, num_draft_tokens=2, temperature=0.7, drafted=(11, 12), drafted_texts=("a", " b"),
    draft_probs=(0.5, 0.25), target_probs=(0.75, 0.125), acceptance_probs=(1.0, 0.5),
    expected_acceptance=(0.9, 0.8), uniforms=(0.1, 0.6), num_accepted=1, emitted=(11, 13),
    emitted_kinds=(Kind.ACCEPTED, Kind.CORRECTION), emitted_texts=("a", ' "c",\n'), draft_ms=1.0, verify_ms=2.0,
    sample_ms=0.5, total_ms=3.75,
)  # fmt: skip
SUMMARY_EVENT = Summary(
    finish_reason=FinishReason.LENGTH, text='a "c",\n', num_tokens=2, num_steps=1, num_drafts=1, num_draft_tokens=2,
    num_accepted_tokens=1, num_accepted_tokens_per_pos=(1, 0), draft_acceptance_rate=0.5, block_efficiency=2.0,
    cost_coefficient=0.1, tokens_per_second=533.3, prefill_ms=12.0, peak_memory_mb=None, predicted_speedup=1.5,
)  # fmt: skip
EVENTS = [StageChanged("Loading"), STARTED, PrefillDone(5, 12.0, 2.0), STEP_EVENT, Finished(SUMMARY_EVENT)]


def write(path, events=EVENTS):
    with RunLogWriter(path) as log:
        for event in events:
            log.write(event)
    return path


def lines(path):
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
