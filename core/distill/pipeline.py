"""`distill`: the stages in order, each resuming where an earlier call was stopped."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from core.analysis.expectation import Curve, expected_tokens
from core.analysis.run_probe import measure, speedup
from core.distill.heads import (
    TOPS,
    Tables,
    export_heads,
    held_out_accuracy,
    judged_temperature,
    new_heads,
    train_heads,
)
from core.distill.self_play import OWN_WORDS, PlaySettings, Script, script_of, write_texts
from core.distill.student import check_target, export_student, held_out_acceptance, new_student, train_student
from core.distill.texts import (
    Part,
    Texts,
    frequent_ids,
    in_parts,
    parts_in,
    read_part,
    read_texts,
    save_part,
    split,
    write_part,
)
from core.errors import DeviceError, SettingsError
from core.files import write_atomically
from core.models.catalogue import EMBEDDED_TITLES
from core.models.medusa_heads import CONFIG, WEIGHTS, is_heads
from core.models.shared_draft import serves
from core.settings import LONGEST_CHAIN, MAX_DRAFT_TOKENS, SamplingParams
from core.text import duration_text
from core.training.train import Progress, TrainSettings

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

FEWEST_TEXTS = 4
_OF_FILE_MANAGERS = ".DS_Store", "Thumbs.db", "desktop.ini"
"""What a file manager may leave in a folder."""
_TIMED_TOKENS = 64
"""Length of the text after which the models are timed."""


class Kind(StrEnum):
    """What can be distilled."""

    DRAFT = "draft"
    MEDUSA = "medusa"


@dataclass(frozen=True, slots=True)
class DistillSettings:
    """What `distill` makes.

    Attributes:
        num_texts: texts that the target writes, held-out ones included.
        num_layers: of the draft, or blocks of each Medusa head.
        vocabulary_size: ids that the draft or the heads propose.
        training, play: settings of the stages.
        start_from: an .npz file of texts to start with; see `read_texts`.
        seed: of the sampling of texts.
        kind: a draft model or Medusa heads.
        num_heads: of Medusa.
    """

    num_texts: int
    num_layers: int
    vocabulary_size: int
    training: TrainSettings
    play: PlaySettings = field(default_factory=PlaySettings)
    start_from: Path | None = None
    seed: int = 0
    kind: Kind = Kind.DRAFT
    num_heads: int = 3


def distill(
    target: LanguageModel,
    settings: DistillSettings,
    work: Path,
    out: Path,
    log: Callable[[str], None] = print,
) -> dict[str, float]:
    """Make a draft, or Medusa heads, for a target.

    Args:
        target: in float32. Training runs on its device.
        work: folder for texts, states and the checkpoint; a later call with the same folder resumes.
        out: folder that the result is written to.
        log: called periodically with a line of progress.

    Returns:
        Figures on the held-out texts by name: a draft's acceptance by temperature, such as "acceptance at 1"; each
        head's accuracy at temperature 0, such as "head 1, top 4", or at the lowest temperature of given texts.

    Raises:
        ModelUnreadableError: the target is of an unsupported kind.
        DeviceError: the target is spread over several devices.
        SettingsError: there are too few texts, or `out` or `work` belongs to something else.
    """
    check_target(target.model)
    if target.is_spread:
        raise DeviceError("The target doesn't fit on one device in float32. Choose a smaller one, or --device cpu.")
    check_destination(out, work, settings.kind)
    if settings.start_from is None and min(settings.num_texts, settings.play.rows) < FEWEST_TEXTS:
        raise SettingsError(
            f"There are too few texts: at least {FEWEST_TEXTS} are needed, some to train on and some to judge "
            "by. Raise --texts or --batch."
        )
    if settings.kind is Kind.MEDUSA and settings.num_heads > MAX_DRAFT_TOKENS:
        raise SettingsError(f"A run drafts with at most {MAX_DRAFT_TOKENS} Medusa heads. Use fewer --heads.")
    work.mkdir(parents=True, exist_ok=True)
    _claim(work, target)
    first = _write_parts(target, settings, work, log)
    training, held_out = split([read_part(path) for path in parts_in(work)])
    _check_judgeable(held_out, settings)
    texts = [part.texts for part in training]
    checkpoint = work / ("heads.pt" if settings.kind is Kind.MEDUSA else "student.pt")
    ids, progress = _kept(checkpoint)
    size = min(settings.vocabulary_size, target.vocab_size)
    if ids and len(ids) != size:
        raise SettingsError(
            f"The training in {str(work)!r} is of {len(ids):,} ids, not {size:,}. Give --vocabulary {len(ids)}, or "
            "choose another --work folder."
        )
    ids = ids or frequent_ids(texts, size, target.vocab_size, target.eos_ids)
    if settings.training.used(progress.tokens, progress.seconds) < 1:
        rows, number = sum(map(len, texts)), sum(int(some.end.sum()) for some in texts)
        duration = duration_text(settings.training.seconds) if settings.training.seconds else ""
        log(f"training on {rows} texts, {number:,} tokens{duration and f', for {duration}'}")
    else:
        log(f"already trained for {duration_text(progress.seconds)}; give more --minutes to train on")
    if settings.kind is Kind.MEDUSA:
        if at := judged_temperature(held_out.texts, settings.num_heads):
            log(f"the heads are judged at temperature {at:g}, the lowest with answers long enough")
        torch.manual_seed(settings.seed)
        heads = new_heads(target.model, target.ref, settings.num_heads, settings.num_layers, ids)
        tables = Tables.of(target.model, held_out)
        train_heads(heads, tables, training, held_out, first, settings.training, checkpoint, log)
        export_heads(heads, tables.scale, out)
        return {
            f"head {head}, top {top}": share
            for head, shares in enumerate(held_out_accuracy(heads, tables, held_out))
            for top, share in zip(TOPS, shares, strict=True)
        }
    student = new_student(target.model, settings.num_layers)
    vocabulary = torch.tensor(ids, device=target.device)
    student.config.draft_vocabulary = ids  # Kept in the checkpoint.
    train_student(student, vocabulary, training, held_out, first, settings.training, checkpoint, log)
    export_student(student, target.tokenizer, target.ref, ids, out)
    return {
        f"acceptance at {at:g}": held_out_acceptance(student, held_out, vocabulary, first, temperature=at)
        for at in sorted(set(held_out.texts.temperature.tolist()))
    }


def _write_parts(target: LanguageModel, settings: DistillSettings, work: Path, log: Callable[[str], None]) -> int:
    """Write texts until there are enough; returns the length of their opening."""
    script = script_of(target.tokenizer, target.eos_ids)
    given = _given_parts(target, script, settings)
    kept = {path.name: read_part(path).texts for path in parts_in(work)}
    play = replace(settings.play, length=_length_of_texts(given, kept, settings, work))
    # A word of the user's, or those that a base model begins with, and one of the answer.
    fewest = len(script.opening) + len(script.bridge) + (1 if script.bridge else OWN_WORDS) + 1
    if not fewest <= play.length <= target.context_length:
        raise SettingsError(
            f"Texts of {play.length:,} tokens don't fit this target. Choose a length from {fewest} to "
            f"{target.context_length:,}."
        )
    number, written, seconds = sum(map(len, kept.values())), 0, 0.0
    for index in itertools.count():
        name = _part_name(index)
        if name in kept:  # One that was damaged, and deleted by the user, is written again.
            continue
        if index < len(given):
            log(f"the target reads texts: part {index + 1} of {len(given)}")
            compiled = settings.training.compile
            write_part(target.model, given[index], work / name, compiled=compiled, vocab_size=target.vocab_size)
            number += len(given[index])
        elif number < settings.num_texts:
            to_write = settings.num_texts - number
            left = f", about {duration_text(seconds / written * to_write)} left" if written else ""
            log(f"the target writes texts: {number} of {settings.num_texts} so far{left}")
            generator, began = torch.Generator().manual_seed(settings.seed + 7919 * index), time.monotonic()
            part = write_texts(target.model, script, play, generator, vocab_size=target.vocab_size)
            save_part(part, work / name)
            seconds += time.monotonic() - began
            number, written = number + len(part.texts), written + len(part.texts)
        else:
            break
    return len(script.opening)


def _part_name(index: int) -> str:
    return f"part-{index:04}"


def _length_of_texts(given: Sequence[Texts], kept: Mapping[str, Texts], settings: DistillSettings, work: Path) -> int:
    """The length of all texts of a training, in tokens.

    Raises:
        SettingsError: those in the work folder are others than the settings ask for.
    """
    lengths = {texts.ids.shape[1] for texts in (*given, *kept.values())}
    if len(lengths) > 1:
        raise SettingsError(f"The texts in {str(work)!r} have a different length. Choose another --work folder.")
    for index, texts in enumerate(given):
        written = kept.get(_part_name(index))
        pairs = ((getattr(texts, item.name), getattr(written, item.name)) for item in fields(Texts))
        if written is not None and not all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
            raise SettingsError(
                f"The texts in {str(work)!r} are not those of --texts-from, or were written with another --batch. "
                "Choose another --work folder."
            )
    length: int = lengths.pop() if lengths else settings.play.length
    if not given and length != settings.play.length:
        raise SettingsError(
            f"The texts in {str(work)!r} have {length} tokens, not {settings.play.length}. Give --length {length}, or "
            "choose another --work folder."
        )
    return length


def _kept(checkpoint: Path) -> tuple[list[int], Progress]:
    """The ids that a training proposes, and its progress; none if it hasn't begun, or `load_checkpoint` will refuse."""
    with contextlib.suppress(Exception):
        state = torch.load(checkpoint, weights_only=True, mmap=True, map_location="cpu")
        config = state["config"]
        return config.get("draft_vocabulary") or config.get("vocabulary") or [], Progress(**state["progress"])
    return [], Progress()


def _check_judgeable(held_out: Part, settings: DistillSettings) -> None:
    """Raises SettingsError, before training, where the held-out texts leave nothing to judge the result by."""
    texts = held_out.texts
    if settings.kind is Kind.MEDUSA:
        if math.isnan(judged_temperature(texts, settings.num_heads)):
            raise SettingsError(
                f"None of the {len(texts)} held-out texts has an answer of more than {settings.num_heads} tokens to "
                "judge the heads by. Use fewer --heads, or start with longer texts in another --work folder."
            )
        return
    has_answer = texts.answer_start < texts.end
    for at in sorted(set(texts.temperature.tolist())):
        if not has_answer[texts.temperature == at].any():
            raise SettingsError(
                f"None of the {len(texts)} held-out texts has an answer at temperature {at:g} to judge the draft by. "
                "Start with longer texts, or more at this temperature, in another --work folder."
            )


def expected_speedup(target: LanguageModel, draft: LanguageModel, acceptance: float) -> tuple[int, float]:
    """The best K for a draft with this acceptance, 0 for none, and the speedup to expect: tau(K) / (K c + v(K+1)).

    Times both models here, for a few seconds.
    """
    costs = measure(target, draft, list(range(1, _TIMED_TOKENS + 1)), SamplingParams())
    tokens = Curve(tuple(expected_tokens(acceptance, k) for k in range(LONGEST_CHAIN + 1)))
    _, found = speedup(tokens, costs)
    return found.best, found.values[found.best]


def check_destination(out: Path, work: Path, kind: Kind) -> None:
    """Check what the result replaces.

    Raises:
        SettingsError: `out` holds anything but what was distilled earlier, of the same kind, and cards beside it, or
            `work`, or it can't be replaced, because it is the current folder or a disk; or its name is another model's.
    """
    if kind is Kind.DRAFT and str(out) in EMBEDDED_TITLES:
        raise SettingsError(f"{str(out)!r} is the name of an embedded model. Choose another folder.")
    if Path.cwd().is_relative_to(os.path.realpath(out)) or os.path.ismount(out):
        raise SettingsError(f"{str(out)!r} is the current folder, holds it, or is a disk. Choose a new folder.")
    if Path(os.path.realpath(work)).is_relative_to(os.path.realpath(out)):
        raise SettingsError(
            f"The result replaces all of {str(out)!r}, and so the texts in {str(work)!r}. Choose a --work folder "
            "outside --out."
        )
    if not out.exists():
        return
    what, weights = ("Medusa heads", WEIGHTS) if kind is Kind.MEDUSA else ("a distilled draft", "model.safetensors")
    files = set(out.iterdir()) if out.is_dir() else {out}
    known = {CONFIG, weights, *_OF_FILE_MANAGERS}
    others = sorted(path.name for path in files if path.name not in known and path.suffix != ".md")
    is_ours = not files or (is_heads(out) if kind is Kind.MEDUSA else serves(out) is not None)
    if not out.is_dir() or not is_ours:
        raise SettingsError(f"{str(out)!r} already exists and is not {what}. Choose a new folder.")
    if others:
        raise SettingsError(f"{str(out)!r} also holds {others[0]!r}, which would be lost. Choose a new folder.")


def _claim(work: Path, target: LanguageModel) -> None:
    """Tie a work folder to one target, identified by its last norm, which all versions write, and by all weights."""
    norm = target.model.model.norm.weight.detach().cpu().float().numpy()
    # Sums of bits, as integers, are exact in any order.
    sums = [int(weight.detach().cpu().float().view(torch.int32).sum()) for weight in target.model.parameters()]
    marks = [hashlib.sha256(data).hexdigest() for data in (norm.tobytes(), repr(sums).encode())]
    file = work / "target.sha256"
    found = file.read_text("utf-8", "replace").split() if file.exists() else []
    if found != marks[: len(found)]:
        raise SettingsError(f"The files in {str(work)!r} were made for another target. Choose another --work folder.")
    if found != marks:
        write_atomically(file, "\n".join(marks))


def _given_parts(target: LanguageModel, script: Script, settings: DistillSettings) -> list[Texts]:
    if settings.start_from is None:
        return []
    texts = read_texts(settings.start_from, script.end_ids)
    if not len(texts) or not 0 <= int(texts.ids.min()) <= int(texts.ids.max()) < target.vocab_size:
        raise SettingsError(f"{settings.start_from.name!r} holds ids outside the target's vocabulary. Leave it out.")
    # The state before an answer's first token chooses it.
    if not 1 <= int(texts.answer_start.min()) <= int(texts.answer_start.max()) <= texts.ids.shape[1]:
        raise SettingsError(
            f"{settings.start_from.name!r} holds answers that begin before index 1 or after the end. Leave it out."
        )
    return in_parts(texts, settings.play.rows)
