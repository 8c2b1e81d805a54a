"""Arguments that commands share: the parser, types, settings of a run and the choice of models."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import Field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from app.cli.errors import UsageError
from core.draft_length import DraftLength, parse_draft_length, parse_draft_lengths
from core.drafters.registry import METHODS, Method, get_method, split_options
from core.engines.address import KEY_VARIABLE, Address
from core.errors import OutriderError, SettingsError
from core.experiments.bench_plan import split_name
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET, embedded_models, resolve
from core.settings import SETTINGS, SamplingParams, declared, user_default
from core.text import did_you_mean

if TYPE_CHECKING:
    from core.engines.server import Server

T = TypeVar("T")

ALIASES = {
    "--target": ("-m",),
    "--draft": ("-md",),
    "--prompt": ("-p",),
    "-k": ("--num-draft-tokens",),
    **{f"--{name.replace('_', '-')}": item.metadata.get("flags", ()) for name, item in SETTINGS.items()},
}
"""Other names of flags, as other programs use them."""
REF_HELP = "a catalogue name, a Hub id, a local folder (safetensors) or a .gguf file"
EXIT_CODES = "Exit codes: 0 done, 1 failed while running, 2 bad usage or input, 130 stopped."
_LONGEST_ECHO = 60
OPTION = "option_"
"""Begins the names of arguments that are options of a method."""


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps each paragraph by itself, and keeps indented lines, the examples, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n".join(line if line[:1] in {"", " "} else fill(line, width, indent) for line in text.split("\n"))


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose `parse_args` raises UsageError instead of printing and exiting."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"formatter_class": _HelpFormatter, "allow_abbrev": False, **more})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse, but each command reports its own unknown arguments."""
        self._given = list(args or ())
        with self.naming_help():
            found, unknown = super().parse_known_args(args, namespace)
            self._refuse_flags(part for part in unknown if part.startswith("-"))
            if unknown:
                problem = f"{echo(unknown[0])} is one argument too many"
                raise UsageError(f"{problem}; put a text of several words in quotes, or see {self.prog} --help.")
        return found, unknown

    def _refuse_flags(self, unknown: Iterable[str]) -> None:
        known = [flag for action in self._actions for flag in action.option_strings]
        for flag in (part.partition("=")[0] for part in unknown):
            if flag not in known:
                raise UsageError(f"There is no option {flag}.{did_you_mean(flag, known)}")

    @contextlib.contextmanager
    def naming_help(self) -> Iterator[None]:
        """Let errors in the arguments end with the command's own --help, unless they name it or another command."""
        try:
            yield
        except (UsageError, SettingsError) as error:
            if "outrider " in str(error):
                raise
            raise UsageError(f"{error} See {self.prog} --help.") from error

    def error(self, message: str) -> NoReturn:
        if "required" in message:  # What is missing may have been misspelt.
            self._refuse_flags(part for part in self._given if part.startswith("--"))
        message = message.removeprefix("argument ").rstrip(".")
        flag, _, problem = message.partition(": ")
        if problem.startswith("must "):
            raise UsageError(f"{flag.partition('/')[0]} {problem}.")
        if choice := re.fullmatch(r"invalid choice: '(.*)' \(choose from (.*)\)", problem, re.DOTALL):
            known = re.findall(r"[\w.-]+", choice[2])
            meant = did_you_mean(choice[1], known)
            problem = f"must be one of {', '.join(known)}, not {echo(choice[1])}.{meant}"
            raise UsageError(f"{flag.partition('/')[0]} {problem}")
        if problem == "expected one argument":
            message += " (write a value that begins with a dash after '=')"
        raise UsageError(f"{message[:1].upper()}{message[1:]}; see {self.prog} --help.")


def add_command(
    commands: Any,
    name: str,
    execute: Callable[[argparse.Namespace], int] | None = None,
    *,
    examples: Sequence[str] = (),
    epilog: str = EXIT_CODES,
    **texts: str,
) -> Parser:
    """Add a command with its help, description, worked examples and epilog."""
    shown = "".join(f"\n  {example}" for example in examples)
    parser: Parser = commands.add_parser(name, epilog=f"examples:{shown}\n\n{epilog}", **texts)
    if execute is not None:
        parser.set_defaults(execute=parser.naming_help()(execute))
    return parser


def echo(text: str) -> str:
    """The user's text, quoted, on one line, and shortened if long."""
    return repr(text if len(text) <= _LONGEST_ECHO else text[:_LONGEST_ECHO] + "…")


# --- Types for `add_argument` -----------------------------------------------------------------------------------


def _parse(kind: Callable[[str], T], wanted: str, text: str, holds: Callable[[T], bool] = lambda value: True) -> T:
    with contextlib.suppress(ValueError):
        if holds(value := kind(text)):
            return value
    raise argparse.ArgumentTypeError(f"must be {wanted}, not {echo(text)}")


number = functools.partial(_parse, float, "a number")
whole_number = functools.partial(_parse, int, "a whole number")
positive_number = functools.partial(_parse, float, "a number above 0", holds=lambda value: 0 < value < float("inf"))
positive_whole_number = functools.partial(_parse, int, "a whole number, 1 or more", holds=lambda value: value >= 1)
small_seed = functools.partial(
    _parse, int, f"a whole number from 0 to {2**31 - 1:,}", holds=lambda value: 0 <= value < 2**31
)
"""To which batches and epochs add."""
filled = functools.partial(_parse, str, "a name", holds=lambda text: bool(text.strip()))
"""A text that is not blank."""


def numbers(text: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    return _parse(lambda text: tuple(map(float, names(text))), "numbers separated by commas", text, bool)


def whole_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers above 0 separated by commas."""
    return tuple(map(positive_whole_number, names(text)))


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas; a file name may contain a comma."""
    parts = [text] if os.path.exists(text) else text.split(",")
    return _parse(lambda _: tuple(filter(None, map(str.strip, parts))), "a name, or several", text, bool)


def _or_usage(parse: Callable[[str, str], T], text: str) -> T:
    # A SettingsError is a ValueError, whose message argparse would replace with its own.
    try:
        return parse(text, "-k")
    except SettingsError as error:
        raise UsageError(str(error)) from None


draft_lengths = functools.partial(_or_usage, parse_draft_lengths)


def draft_length_or_plain(text: str) -> DraftLength:
    """One K, or 0 for plain decoding."""
    return _or_usage(functools.partial(parse_draft_length, least=0), text)


def add_named_methods(arguments: Sequence[str]) -> None:
    """Add the drafter classes that --method names, as module:Class, so that their options become flags.

    Raises:
        SettingsError: there is no such class, or it is not a drafter.
    """
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        flag, is_joined, value = argument.partition("=")
        if flag in {"--method", "--methods", "--only"}:
            for name in (value if is_joined else following).split(","):
                if ":" in (path := split_options(name.strip())[0]):
                    METHODS.add_class(path)


# --- Options of several commands --------------------------------------------------------------------------------


def option(
    group: Any, spec: str, text: str, kind: Callable[[str], Any] | None = None, default: Any = None, **more: Any
) -> None:
    """Add an option, such as `option(group, "-k --k N", "tokens to draft", int, 4)`; its help ends with the default.

    Without flags it is a positional argument, `args.ref` for "REF". Without a type, its value is a text that only TEXT
    may leave empty.
    """
    *flags, metavar = spec.split(" ")
    kind = kind or (str if metavar.startswith("TEXT") else filled)
    flags = [*flags, *(alias for flag in flags for alias in ALIASES.get(flag, ()))] or [metavar.lower()]
    values = default if isinstance(default, tuple | list) else [default]
    shown = ",".join(f"{value:g}" if isinstance(value, float | int) else str(value) for value in values)
    text = text if default is None or not shown else f"{text.rstrip('.')} (default: {shown})"
    text = text if text == argparse.SUPPRESS else sentence(text)
    group.add_argument(*flags, metavar=metavar, type=kind, default=default, help=text, **more)


class Listing(argparse.Action):
    """Collects the tuples of a list that is written with commas, by repeating the flag, or both; each value once."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        groups = values if self.nargs == "+" else [values]
        kept = () if before is self.default else before
        setattr(namespace, self.dest, tuple(dict.fromkeys((*kept, *(value for group in groups for value in group)))))


def switch(group: Any, flag: str, text: str, **more: Any) -> None:
    """Add a flag without a value."""
    group.add_argument(flag, **{"action": "store_true", **more}, help=sentence(text))


def sentence(text: str) -> str:
    """A help text, with a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:].rstrip('.')}.".replace("%", "%%")


def flag_of(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def add_setting(group: Any, item: Field[Any], *, default: Any, **more: Any) -> None:
    """Add the flag of a declared setting; with `default` None, the result is None if it was not given."""
    flag, text = flag_of(item.name), item.metadata["help"]
    kind: Callable[[str], Any]
    if isinstance(item.default, bool):
        action = "store_true" if default is False else argparse.BooleanOptionalAction
        switch(group, flag, text, action=action, default=default, **more)
    elif isinstance(item.default, Enum):
        known = [str(member) for member in type(item.default)]
        text = f"{text.rstrip('.')} (default: {item.default})"
        # Completion offers these; a device may also have an index.
        more["choices"] = None if item.name == "device" else known
        kind = functools.partial(_parse, type(item.default), f"one of {', '.join(known)}")
        group.add_argument(
            flag, metavar=f"{{{','.join(known)}}}", type=kind, default=default, help=sentence(text), **more
        )
    else:
        kinds: dict[type, Callable[[str], Any]] = {int: whole_number, float: number}
        kind = kinds.get(type(item.default), str)
        option(group, f"{flag} {item.metadata.get('metavar', 'N')}", text, kind, default, **more)


SAMPLING = ("temperature", "top_k", "top_p", "min_p")


def add_settings(group: Any, *names: str, **defaults: Any) -> None:
    """Add the flags of run settings, by name; `defaults` override those of a run, and None means no default."""
    for name in names:
        add_setting(group, SETTINGS[name], default=defaults.get(name, user_default(name)))


def add_models(
    parser: argparse.ArgumentParser, *, many: bool = False, method: bool = True, has_defaults: bool = True
) -> Any:
    """Add the group of --target, --draft, --method, --device and --dtype; `many` allows lists of drafts and methods."""
    group = parser.add_argument_group("models")
    usual = f" (default: {DEFAULT_TARGET})", " (default: the embedded one for this target, if any)"
    target, draft = usual if has_defaults else ("", "")
    option(group, "--target REF", f"the model to sample from: {REF_HELP}{target}")
    more: dict[str, Any] = {"action": Listing, "kind": names, "default": ()} if many else {}
    option(group, "--draft REF,…" if many else "--draft REF", f"the draft model{draft}", **more)
    if method:
        text = f"how to draft: {', '.join(METHODS)}, or a drafter of your own, module:Class, with options after a "
        text += "colon, as in prompt-lookup:max-ngram=5 (default: draft-model, or prompt-lookup without a draft)"
        option(group, "--method NAME,…" if many else "--method NAME", text, **more)
    add_settings(group, "device", "dtype")
    return group


def add_engine(
    group: Any,
    text: str = "run on this server instead of this machine",
    target: str = "; --target is then a model's name there",
) -> None:
    """Add --engine; see `refuse_for_engine`. `target` says what --target then names."""
    what = f"vLLM, SGLang or llama-server{target}. An API key in OUTRIDER_API_KEY is sent to this host only"
    option(group, "--engine URL", f"{text}: {what}; without one, the key that the window kept for the address is used")


def find_servers(args: argparse.Namespace) -> tuple[Server, Server | None]:
    """What answers at --engine and, if there is one, at --baseline-engine.

    The key in the environment is meant for the first, and reaches the second only on the same host.

    Raises:
        ServerError: one of them doesn't answer, or is no such server.
    """
    from core.engines.server import identify  # Late: most commands need no HTTP.

    def host(url: str) -> tuple[str, str | None]:
        parts = urlsplit(Address.parse(url).url)
        return parts.scheme, parts.hostname

    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    engine, baseline = identify(args.engine, key), getattr(args, "baseline_engine", None)
    if baseline is None:
        return engine, None
    return engine, identify(baseline, key if host(baseline) == host(args.engine) else None)


def refuse_for_engine(args: argparse.Namespace, allowed: Collection[str] = ()) -> None:
    """Refuse the flags that a server has its own settings for, but for those in `allowed`.

    Raises:
        UsageError: one of them was given.
    """
    unset = {"draft": None, "method": None, "k": None, "device": "auto", "dtype": "auto"}
    given = [name for name, usual in unset.items() if getattr(args, name, usual) not in (usual, ())]
    if names := [name for name in (*given, *given_options(args)) if name not in allowed]:
        flag = "-k" if names[0] == "k" else flag_of(names[0])
        raise UsageError(f"With --engine, the server sets its own {flag}; leave {flag} out.")


def refuse_without_engine(args: argparse.Namespace) -> None:
    """Refuse what only a server can do.

    Raises:
        UsageError: such a flag was given.
    """
    for name in ("concurrency", "baseline_engine"):
        if getattr(args, name, None):
            raise UsageError(f"{flag_of(name)} is for a server; name it with --engine, or leave {flag_of(name)} out.")


def refuse_to_replace(flag: str, written: str, read: Iterable[str | None]) -> None:
    """Refuse to write a file that the command reads; a device holds nothing to lose.

    Raises:
        UsageError: one of the files read is the one to write, whatever its names.
    """
    if os.path.isfile(written) and any(
        name and os.path.exists(name) and os.path.samefile(name, written) for name in read
    ):
        raise UsageError(f"{flag} {echo(written)} would replace what the command reads; choose another name.")


def add_template(group: Any, system: str | None = "") -> None:
    """Add --chat and --raw, which set `chat`; it is None if neither is given. And --system, with its default."""
    template = group.add_mutually_exclusive_group()
    switch(template, "--chat", "apply the model's chat template (default: if it has one)", default=None)
    switch(template, "--raw", "never apply a chat template", dest="chat", action="store_false")
    option(group, "--system TEXT", "the system prompt in the chat template", default=system)


def sampling_of(args: argparse.Namespace, otherwise: SamplingParams | None = None) -> SamplingParams:
    """The sampling that the arguments describe; what they omit is as `otherwise`, by default as in the window."""
    given = {name: getattr(args, name) for name in SAMPLING}
    otherwise = otherwise or SamplingParams(**{name: user_default(name) for name in SAMPLING})
    return replace(otherwise, **{name: value for name, value in given.items() if value is not None})


def common_fields(args: argparse.Namespace, *more: str) -> dict[str, Any]:
    """The fields that most requests take from the arguments, seed, coupling, verification, chat, system, device and
    dtype, and `more`."""
    names = ("seed", "coupling", "verification", "chat", "system", "device", "dtype", *more)
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


# --- The choice of models ---------------------------------------------------------------------------------------


def choose_models(name: str | None, target: str | None, draft: str | None) -> tuple[Method, str, str | None]:
    """Method, target and draft, with defaults for those that are None. The name may have options after it."""
    name = name and split_options(name)[0]
    if draft is None and (name is None or get_method(name).needs_draft_model):
        draft = default_draft(target)
    method = get_method(name or ("prompt-lookup" if draft is None else "draft-model"))
    if method.needs_draft_model and draft is None:
        raise UsageError(f"The method {method.name} needs a draft model; name one with --draft.")
    if draft is not None and not method.needs_draft_model:
        raise UsageError(
            f"The method {method.name} uses no draft model; leave out --draft, or choose another --method."
        )
    return method, target or DEFAULT_TARGET, draft


def default_draft(target: str | None) -> str | None:
    """The embedded draft for this target, whichever name the target is given by; None if there is none."""
    if target is None:
        return DEFAULT_DRAFT
    served = {DEFAULT_TARGET: DEFAULT_DRAFT, **{entry.serves: entry.ref for entry in embedded_models() if entry.serves}}
    for name, draft in served.items():
        with contextlib.suppress(OutriderError, OSError):
            if name == target or resolve(target).path.samefile(resolve(name).path):
                return draft
    return None


def add_pair(parser: argparse.ArgumentParser, **how: bool) -> None:
    """`add_models`, and, as in earlier versions, models without flags; see `named_pair`."""
    add_models(parser, **how)
    option(parser, "PAIR", argparse.SUPPRESS, nargs="*")


def named_pair(args: argparse.Namespace) -> tuple[str | None, str | None]:
    """Target and draft, from their flags, or without flags in the order DRAFT TARGET; a single name is the target."""
    if not args.pair:
        return args.target, args.draft
    if args.target or args.draft or len(args.pair) > 2:
        raise UsageError("Name the models with --target and --draft, each once.")
    return args.pair[-1], args.pair[0] if len(args.pair) == 2 else None


def add_method_options(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each option of each method; options with the same name share a flag."""
    seen: set[str] = set()
    for method in METHODS.values():
        items = [item for name, item in declared(method.options).items() if name not in seen]
        if not items:
            continue
        group = parser.add_argument_group(f"method {method.name}")
        for item in items:
            seen.add(item.name)
            # Someone else's drafter may declare an option whose flag is taken; that option then gets none.
            with contextlib.suppress(argparse.ArgumentError):
                add_setting(group, item, default=None, dest=OPTION + item.name)


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of methods whose flags were given, by name."""
    named = ((name, value) for name, value in vars(args).items() if name.startswith(OPTION) and value is not None)
    return {name.removeprefix(OPTION): value for name, value in named}


def method_options(method: Method, args: argparse.Namespace) -> dict[str, Any]:
    """The options that the arguments set for a method, by flags or after its name.

    Raises:
        UsageError, SettingsError: an option of another method, or a value out of range.
    """
    given = {**(split_name(args.method)[1] if args.method else {}), **given_options(args)}
    defaults: dict[str, Any] = {item.name: item.default for item in fields(method.options)}
    for name, value in given.items():
        if name not in defaults:
            raise UsageError(f"The method {method.name} has no option {flag_of(name)}; choose one that has it.")
        # A flag that methods share has the type of another one's option.
        if isinstance(default := defaults[name], int | float | Enum) and type(value) is not type(default):
            given |= split_name(f"{method.name}:{name}={value}")[1]
    method.parse(given)  # Rejects values out of range before a model is loaded.
    return given
