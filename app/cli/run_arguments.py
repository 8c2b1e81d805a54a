"""The arguments of `outrider run`, and the request that they make."""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from app.cli.errors import UsageError, say
from app.cli.models import REF_HELP
from app.cli.parsing import add_place, add_template, draft_length, number, whole_number
from core.draft_shape import request_fields
from core.drafters.registry import METHODS, Method, get_method
from core.errors import OutriderError
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET, embedded_models, resolve
from core.types import Coupling, Device, DType, RunRequest, SamplingParams


def read_prompt(text: str | None, file: str | None, *, quiet: bool) -> str:
    """The prompt from --prompt, --prompt-file or a pipe.

    One line end at the end of a file or a pipe is dropped, because editors and `echo` add it unasked.

    Raises:
        UsageError: there is none, or it can't be read.
    """
    if text is not None:
        return text
    if file is not None and file != "-":
        return _decode(_read_file(file), repr(file))
    stream = sys.stdin
    if stream is None or stream.closed or (stream.isatty() and file is None):
        raise UsageError("There is no prompt; give it with --prompt TEXT or --prompt-file FILE, or pipe it in.")
    if not quiet:
        say("Reading the prompt from standard input.")
    buffer = getattr(stream, "buffer", None)
    try:
        data = buffer.read() if buffer else stream.read().encode()
    except OSError as error:
        raise UsageError(f"Standard input can't be read ({error}); give the prompt with --prompt TEXT.") from None
    return _decode(data, "standard input")


def read_text_file(file: str, *, quiet: bool) -> str:
    """A text to read as it is; - for a pipe.

    Raises:
        UsageError: it is empty, or can't be read.
    """
    text = read_prompt(None, file, quiet=quiet)
    if not text.strip():
        raise UsageError(f"There is no text in {file!r}; name a file that holds some.")
    return text


def _read_file(name: str) -> bytes:
    path = Path(name)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"There is no prompt file {name!r}; check the path.") from None
    except OSError as error:
        if path.is_dir():
            raise UsageError(f"{name!r} is a folder; name a text file with the prompt.") from None
        raise UsageError(f"The prompt file {name!r} can't be read ({error.strerror}); check its permissions.") from None


def _decode(data: bytes, source: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"The prompt in {source} is not UTF-8 text; save it as UTF-8.") from None
    return text.removesuffix("\n").removesuffix("\r")


_OPTION = "option_"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser every flag of a run, those of the drafting methods included."""
    models = parser.add_argument_group("models")
    models.add_argument(
        "--target", metavar="REF", help=f"the model to sample from: {REF_HELP} (default: {DEFAULT_TARGET})"
    )
    models.add_argument(
        "--draft", metavar="REF", help="the model that drafts (default: the embedded one for the target)"
    )
    models.add_argument(
        "--method",
        metavar="NAME",
        help=f"how to draft: {', '.join(METHODS)} (default: draft-model; prompt-lookup if there is no draft)",
    )
    add_place(models)

    sampling = parser.add_argument_group("sampling")
    sampling.add_argument(
        "-k",
        "--k",
        metavar="N|auto|adaptive",
        type=draft_length("-k"),
        default=4,
        help="tokens to draft (default: 4); auto chooses before each step, 0 included, by what steps take here; "
        "adaptive also within the block, by how sure the draft is. With either, a seed repeats its text only with "
        "--coupling gumbel or at temperature 0",
    )
    _number(sampling, "--temperature", 1.0, "0 picks the likeliest token (default: 1)", "T")
    _whole(sampling, "--top-k", 0, "keep the N likeliest tokens (default: 0, off)")
    _number(sampling, "--top-p", 1.0, "keep the likeliest tokens that sum to P (default: 1, off)", "P")
    _number(sampling, "--min-p", 0.0, "drop tokens below P times the likeliest (default: 0, off)", "P")
    _whole(sampling, "--seed", 0, "of the random numbers (default: 0)")
    sampling.add_argument(
        "--coupling",
        choices=[*map(str, Coupling)],
        default=str(Coupling.REJECTION),
        help="how draft and target share randomness (default: rejection); gumbel is the reproducible mode: a seed "
        "gives plain sampling's text whatever the draft and K, for a little less acceptance, which the report shows",
    )
    _whole(sampling, "--max-new-tokens", 128, "length of the text (default: 128)")
    sampling.add_argument(
        "--stop", metavar="TEXT", action="append", default=[], help="end before TEXT; may be repeated"
    )

    prompt = parser.add_argument_group("prompt")
    source = prompt.add_mutually_exclusive_group()
    source.add_argument("--prompt", metavar="TEXT", help="the prompt (default: what is piped in)")
    source.add_argument(
        "--prompt-file", metavar="FILE", help="a file with the prompt, - for a pipe; one line end at its end is dropped"
    )
    add_template(prompt)

    output = parser.add_argument_group("output")
    output.add_argument("--baseline", action="store_true", help="run plain decoding too, and report the speedup")
    output.add_argument("--log", metavar="FILE.jsonl", help="write the run log here, line by line as the run goes")
    output.add_argument(
        "--inspect", action="store_true", help="keep each step's evidence in the log too: what the Inspector shows"
    )
    output.add_argument("--quiet", action="store_true", help="only the text, uncoloured, and errors")
    _add_method_options(parser)


def _number(group: Any, flag: str, default: float, text: str, metavar: str) -> None:
    group.add_argument(flag, metavar=metavar, type=number(flag), default=default, help=text)


def _whole(group: Any, flag: str, default: int, text: str) -> None:
    group.add_argument(flag, metavar="N", type=whole_number(flag), default=default, help=text)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _add_method_options(parser: argparse.ArgumentParser) -> None:
    """A flag for each option of each method, from its dataclass; methods that share a name share the flag."""
    seen: set[str] = set()
    for method in METHODS.values():
        names = [item for item in fields(method.options) if item.name not in seen]
        if not names:
            continue
        group = parser.add_argument_group(f"method {method.name}")
        for item in names:
            seen.add(item.name)
            default = None if item.default is MISSING else item.default
            if isinstance(default, bool):
                said = item.metadata["help"].replace("%", "%%") + f" (default: {'yes' if default else 'no'})"
                action = argparse.BooleanOptionalAction
                group.add_argument(_flag(item.name), dest=_OPTION + item.name, action=action, help=said)
                continue
            kind = number if isinstance(default, float) else whole_number
            text = f"{item.metadata['help']} ({item.metadata['min']} to {item.metadata['max']}; default: {default})"
            group.add_argument(
                _flag(item.name),
                dest=_OPTION + item.name,
                metavar="N",
                type=kind(_flag(item.name)),
                help=text.replace("%", "%%"),
            )


# --- From arguments to a request --------------------------------------------------------------------------------


def build_request(args: argparse.Namespace) -> RunRequest:
    """The run that the arguments ask for.

    Raises:
        SettingsError: a value is out of range, or there is no such method.
        UsageError: arguments that don't go together, or no prompt.
    """
    method, target, draft = choose_models(args.method, args.target, args.draft)
    options = _method_options(method, args)
    if args.inspect and args.log is None:
        raise UsageError("--inspect keeps each step's evidence in the log; name one with --log.")
    sampling = SamplingParams(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p)
    request = RunRequest(
        target=target,
        draft=draft,
        prompt="not read yet",
        method=method.name,
        method_options=options,
        **request_fields(args.k),
        sampling=sampling,
        seed=args.seed,
        coupling=Coupling(args.coupling),
        max_new_tokens=args.max_new_tokens,
        stop=tuple(args.stop),
        chat=args.chat,
        device=Device(args.device),
        dtype=DType(args.dtype),
        baseline=args.baseline,
        inspect=args.inspect,
    )
    # A prompt may be typed in by hand: what is wrong beside it is said before.
    return replace(request, prompt=read_prompt(args.prompt, args.prompt_file, quiet=args.quiet))


def choose_models(name: str | None, target: str | None, draft: str | None) -> tuple[Method, str, str | None]:
    """Method, target and draft, those that were not named as they are by default.

    Raises:
        SettingsError: there is no such method.
        UsageError: they don't go together.
    """
    if draft is None and target is not None and name in {None, "draft-model"}:
        draft = embedded_drafter(target)
    if name is None:
        name = "prompt-lookup" if target is not None and draft is None else "draft-model"
    method = get_method(name)
    if method.needs_draft_model:
        if draft is None and target not in {None, DEFAULT_TARGET}:
            raise UsageError(f"The method {name} needs a draft model; name it with --draft.")
        return method, target or DEFAULT_TARGET, draft or DEFAULT_DRAFT
    if draft is not None:
        raise UsageError(f"The method {name} uses no draft model; leave --draft out, or choose another --method.")
    return method, target or DEFAULT_TARGET, None


def embedded_drafter(target: str) -> str | None:
    """The drafter shipped for this target, under whatever name the target goes; None if there is none."""
    for entry in embedded_models():
        if entry.serves == target:
            return entry.ref
        if entry.serves is not None:
            with contextlib.suppress(OutriderError, OSError):
                if resolve(target).path.samefile(resolve(entry.serves).path):
                    return entry.ref
    return None


def _method_options(method: Method, args: argparse.Namespace) -> dict[str, Any]:
    given = {
        name.removeprefix(_OPTION): value
        for name, value in vars(args).items()
        if name.startswith(_OPTION) and value is not None
    }
    known = {item.name for item in fields(method.options)}
    for name in given:
        if name not in known:
            raise UsageError(f"{_flag(name)} is no option of the method {method.name}; choose the --method it is for.")
    method.options(**given)  # Refuses values out of range before a model is loaded.
    return given
