"""`outrider run` with an engine that is played."""

import io

from app.cli.run_arguments import build_request

from app.__main__ import build_parser, main
from app.cli import run
from tests.cli_fakes import GOOD, FakeEngine


def outrider(*arguments, prompt="Hi"):
    return main(["run", *(["--prompt", prompt] if prompt is not None else []), *arguments])


def request_of(*arguments):
    return build_request(build_parser().parse_args(["run", "--prompt", "Hi", *arguments]))


def piped(data):
    return io.TextIOWrapper(io.BytesIO(data))


def play_engine(monkeypatch, *script):
    """Puts a fake engine in the real one's place; nothing of torch is imported."""
    engine = FakeEngine(script or GOOD)
    monkeypatch.setattr(run, "make_engine", lambda: engine)
    return engine


def clear_environment(monkeypatch):
    """The terminal of the test run has no say."""
    for name in ("NO_COLOR", "FORCE_COLOR", "OUTRIDER_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # So that no test leaves it behind.
