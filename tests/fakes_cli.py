"""A played engine, and its events, for the tests of the terminal's commands."""

import errno
import io
import os

from app.__main__ import build_parser, main
from app.cli import run
from core.types import Finished, FinishReason, PrefillDone, RunStarted, StageChanged, Step, Summary
from core.types import TokenKind as Kind

STARTED = RunStarted("id", "2026-01-02T03:04:05+00:00", "0.1.0", {"target": "t", "device": "cpu"}, {})


def step(*texts, index=0):
    kinds = (*[Kind.ACCEPTED] * (len(texts) - 1), Kind.BONUS)
    ids = tuple(range(len(texts)))
    drafted = len(texts) - 1
    return Step(
        index=index, position=3, num_draft_tokens=drafted, temperature=1.0, drafted=ids[:drafted],
        drafted_texts=texts[:drafted], draft_probs=(0.5,) * drafted, target_probs=(0.5,) * drafted,
        acceptance_probs=(1.0,) * drafted, expected_acceptance=(0.9,) * drafted, uniforms=(0.1,) * drafted,
        num_accepted=drafted, emitted=ids, emitted_kinds=kinds, emitted_texts=texts, draft_ms=1.0, verify_ms=1.0,
        sample_ms=1.0, total_ms=3.0,
    )  # fmt: skip


def finished(text, reason=FinishReason.LENGTH, **changes):
    values = {
        "finish_reason": reason, "text": text, "num_tokens": 4, "num_steps": 2, "num_drafts": 2,
        "num_draft_tokens": 4, "num_accepted_tokens": 3, "num_accepted_tokens_per_pos": (2, 1),
        "draft_acceptance_rate": 0.75, "block_efficiency": 2.0, "cost_coefficient": 0.1,
        "tokens_per_second": 123.4, "prefill_ms": 12.3, "peak_memory_mb": None, "predicted_speedup": 1.5,
    }  # fmt: skip
    return Finished(Summary(**values | changes))


class FakeEngine:
    """Plays a list of events; a function in it is called with the controls, an exception is raised."""

    def __init__(self, script):
        self.script = script
        self.keep = None  # A last event that comes although the run was stopped, as it is.
        self.requests = []
        self.closed = False

    def run(self, request, controls):
        self.requests.append(request)
        try:
            for item in self.script:
                if isinstance(item, BaseException):
                    raise item
                if callable(item):
                    item(controls)
                elif isinstance(item, Finished) and controls.is_cancelled:
                    yield finished(item.summary.text, FinishReason.CANCELLED)
                else:
                    yield item
            if self.keep is not None:
                yield self.keep
        finally:
            self.closed = True


GOOD = [
    StageChanged("Loading the target"),
    STARTED,
    PrefillDone(3, 12.3, 2.0),
    step("def", " f"),
    step("(x)", ":\n", index=1),
    finished("def f(x):\n"),
]


def outrider(*arguments, prompt="Hi"):
    return main(["run", *(["--prompt", prompt] if prompt is not None else []), *arguments])


def refused(capsys, *arguments, code=2):
    """What a command that is refused says: one line, and nothing on standard output."""
    assert main([*map(str, arguments)]) == code
    out, said = capsys.readouterr()
    assert (out, said.count("\n")) == ("", 1), said
    return said.removesuffix("\n")


def request_of(*arguments):
    return run.build_request(build_parser().parse_args(["run", "--prompt", "Hi", *arguments]))


class BrokenStream(io.TextIOWrapper):
    """An output that can't be written; by default its reader has gone."""

    def __init__(self, number=errno.EPIPE):
        super().__init__(io.BytesIO())
        self.number = number

    @property
    def buffer(self):
        return self

    def write(self, _):
        raise OSError(self.number, os.strerror(self.number))


def piped(data):
    return io.TextIOWrapper(io.BytesIO(data))


def play_engine(monkeypatch, *script):
    """Puts a fake engine in the real one's place; nothing of torch is imported."""
    engine = FakeEngine(script or GOOD)
    monkeypatch.setattr(run, "make_engine", lambda: engine)
    return engine
