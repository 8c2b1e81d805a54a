"""The `outrider` command: with no argument it opens the window, otherwise it runs in the terminal.

Qt, torch and commands are imported only when needed, so that `--help` and errors in the arguments appear at once.
Even the commands take a fifth of a second, so this happens inside `main` and `guard`: Ctrl-C then prints no traceback.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from app import __version__

if TYPE_CHECKING:
    from PySide6.QtWidgets import QApplication

    from app.cli.parsing import Parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `outrider` with these arguments, by default the process's own; returns its exit code."""
    _speak_utf8()
    try:
        from app.cli.errors import guard
    except KeyboardInterrupt:
        exec("")  # As in `guard`.
        return 130
    return int(guard(lambda: _dispatch(sys.argv[1:] if arguments is None else arguments)))


COMMANDS = ("run", "bench", "sweep", "probe", "check", "export", "models", "distill")


def build_parser(command: str = "") -> Parser:
    """The parser of one command, or of all commands if there is no such command."""
    from app.cli.parsing import Parser, option

    parser = Parser(
        prog="outrider",
        description="A desktop playground for speculative decoding. With no command, the window opens.",
        epilog='examples:\n  outrider\n  outrider run "class Stack:" --baseline\n'
        "  source <(outrider --completion bash)",
    )
    parser.add_argument("--version", action="version", version=f"outrider {__version__}")
    text = "without a command: open the window with this method chosen, such as a drafter of your own, module:Class"
    option(parser, "--method NAME", text, dest="window_method")
    text = "print a completion script for the shell; source it, or save it where the shell looks for completions"
    option(parser, "--completion SHELL", text, choices=("bash", "zsh", "fish"))
    commands = parser.add_subparsers(metavar="COMMAND")
    for name in [command] if command in COMMANDS else COMMANDS:
        importlib.import_module(f"app.cli.{name}").add_parser(commands)
    return parser


def _print_completion(shell: str) -> int:
    """Print the whole command line as a completion script."""
    import shtab

    from app.cli.errors import Exit, write_output

    script = shtab.complete(build_parser(), shell)
    # In zsh, `source` is of another kind than `eval`, and must register the function just as well.
    script = script.replace("$zsh_eval_context[-1] == eval", "$zsh_eval_context[-1] == (eval|file)")
    write_output(f"{script}\n")
    return Exit.DONE


def _dispatch(arguments: Sequence[str]) -> int:
    from app.cli.errors import UsageError, say
    from app.cli.parsing import add_named_methods
    from core.drafters.registry import METHODS, get_method

    add_named_methods(arguments)
    args = build_parser(arguments[0] if arguments else "").parse_args(arguments)
    for problem in METHODS.problems:
        say(problem)
    execute = getattr(args, "execute", None)
    if args.completion is not None:
        return _print_completion(args.completion)
    if args.window_method is not None:
        if execute is not None:
            raise UsageError("--method before a command is for the window; write it after the command.")
        get_method(args.window_method)
    return open_window(args.window_method) if execute is None else execute(args)


def _speak_utf8() -> None:
    """Write UTF-8 to consoles and pipes with an older encoding: models emit characters from every script."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            if stream.encoding.lower().replace("-", "") != "utf8":
                stream.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]


def open_window(method: str | None = None) -> int:
    """Open the window, with a drafting method chosen, and wait until it is closed; or print why it can't be opened."""
    from app.cli.errors import Exit, say
    from app.preflight import find_problem
    from core.runners.threads import limit_spinning

    problem = find_problem(os.environ)
    if problem is not None:
        say(problem)
        return Exit.FAILED
    limit_spinning()
    interrupts = _Interrupts()
    signal.signal(signal.SIGINT, interrupts.act)
    try:
        from PySide6.QtWidgets import QApplication
    except ImportError as error:
        say(f"PySide6, which draws the window, can't be loaded ({error}); install Outrider again.")
        return Exit.FAILED

    from PySide6.QtCore import QTimer

    from app.controller import RunState
    from app.main_window import PATIENCE_MS, MainWindow
    from app.window_layout import fit_screen

    application = QApplication(sys.argv[:1])
    with collecting_here():
        window = MainWindow()
        fit_screen(window)
        # Qt does not notice that a window has closed if it was hidden while its threads ended.
        window.controller.closed.connect(application.quit)
        # A library that doesn't return, such as a forward that hangs, must not keep a closed window alive.
        deadline = QTimer(interval=PATIENCE_MS)
        deadline.timeout.connect(lambda: window.jobs.must_finish or os._exit(interrupts.exit_code))
        window.lingers.connect(lambda: deadline.isActive() or deadline.start())
        # To collect everything takes several frames' time: it waits until no run is running.
        young, middle, old = gc.get_threshold()
        states = window.controller.state_changed
        states.connect(lambda state: gc.set_threshold(young, middle, 0 if state is RunState.RUNNING else old))
        if method not in {None, window.controls.method.method.name}:
            window.controls.models.method_chosen.emit(method)
        window.show()
        interrupts.application = application
        code = application.exec()
        if not (window.controller.is_closed and window.jobs.is_idle):
            os._exit(interrupts.exit_code)
        return code


@contextlib.contextmanager
def collecting_here() -> Iterator[None]:
    """Collect garbage only by a timer in the calling thread, which runs Qt's event loop.

    Collecting Qt objects in another thread crashes the process.
    """
    from PySide6.QtCore import QTimer

    gc.disable()
    timer = QTimer(interval=500)
    timer.timeout.connect(collect_due)
    timer.start()
    try:
        yield
    finally:
        timer.stop()
        gc.enable()


def collect_due() -> None:
    """Collect the generations that Python would have collected by now."""
    due = [generation for generation, most in enumerate(gc.get_threshold()) if gc.get_count()[generation] > most > 0]
    if due:
        gc.collect(due[-1])


class _Interrupts:
    """Closes the window at Ctrl-C as a click does, so that the log of a run is completed.

    Python runs signal handlers only while Python code runs; while Qt waits, that is in `collecting_here`.
    """

    application: QApplication | None = None
    exit_code = 0

    def act(self, number: int, _frame: object) -> None:
        self.exit_code = 0 if number == signal.SIGINT else 128 + number
        if self.application is not None:
            self.application.closeAllWindows()
        else:
            # An exception out of a half-built window crashes Qt, and nothing needs to be saved yet.
            os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
