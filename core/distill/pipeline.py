"""The stages in order, each of which goes on where an earlier call was stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np
import torch

from core.distill.self_play import PlaySettings, Script, script_of, write_texts
from core.distill.train import (
    Part,
    StudentSettings,
    Texts,
    check_target,
    export_student,
    frequent_ids,
    held_out_acceptance,
    new_student,
    parts_in,
    read_part,
    save_part,
    train_student,
    write_part,
)
from core.errors import ModelUnreadableError, SettingsError
from core.files import write_atomically
from core.models.shared_draft import serves

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel


HELD_OUT_ROWS = 200
"""The last rows of the first part, at most four fifths of it, are never trained on."""


@dataclass(frozen=True, slots=True)
class DistillSettings:
    """What `distill` makes.

    Attributes:
        num_texts: texts that the target is to have written, held-out ones included.
        num_layers: of the draft.
        vocabulary_size: ids that the draft proposes.
        play, student: settings of the stages.
        start_from: texts written earlier (an .npz with ids, answer_start and answer_temperature), read as first part.
        seed: of the sampling of texts.
    """

    num_texts: int
    num_layers: int
    vocabulary_size: int
    student: StudentSettings
    play: PlaySettings = field(default_factory=PlaySettings)
    start_from: Path | None = None
    seed: int = 0


def distill(
    target: LanguageModel,
    settings: DistillSettings,
    work: Path,
    out: Path,
    log: Callable[[str], None] = print,
    check_cancelled: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Make a draft for a target.

    Args:
        target: loaded in float32 on the CPU.
        settings: see there.
        work: folder for texts, states and the checkpoint; a later call with the same folder goes on.
        out: folder that the draft is written to.
        log: told a line now and then.
        check_cancelled: raises to stop; nothing that is finished is lost.

    Returns:
        The held-out acceptance by temperature, as "acceptance at 1".

    Raises:
        ModelUnreadableError: the target is of a kind that can't be a teacher here.
        SettingsError: there is too little text to hold some out, something else lies where the draft is to go, or what
            lies in the work folder is another target's or another draft's.
    """
    check_target(target.model)
    check_destination(out)
    script = script_of(target.tokenizer, target.eos_ids)
    work.mkdir(parents=True, exist_ok=True)
    _claim(work, target)
    _write_parts(target, script, settings, work, log, check_cancelled)
    parts = [read_part(path) for path in parts_in(work)]
    train, held_out = split(parts)
    first = len(script.opening)
    ids = frequent_ids((part.texts for part in train), settings.vocabulary_size, target.vocab_size, target.eos_ids)
    vocabulary = torch.tensor(ids)
    student = new_student(target.model, settings.num_layers)
    rows, number = sum(len(part.texts) for part in train), sum(int(part.texts.end.sum()) for part in train)
    log(f"training {settings.num_layers} layers on {rows} texts, {number:,} tokens")
    checkpoint = work / "student.pt"
    train_student(student, train, held_out, vocabulary, first, settings.student, checkpoint, log, check_cancelled)
    export_student(student, target.tokenizer, target.ref, ids, out)
    return {
        f"acceptance at {temperature:g}": held_out_acceptance(
            student, held_out, vocabulary, first, temperature=temperature
        )
        for temperature in sorted(set(held_out.texts.temperature.tolist()))
    }


def check_destination(out: Path) -> None:
    """Raises:
    SettingsError: if something lies there that is no draft of an earlier call, and would be lost.
    """
    if not out.exists() or (out.is_dir() and (serves(out) is not None or not any(out.iterdir()))):
        return
    raise SettingsError(f"{str(out)!r} is there already, and is no draft that was distilled. Choose a new folder.")


def _claim(work: Path, target: LanguageModel) -> None:
    """A work folder is one target's, which is told by the weights of its last norm."""
    weights = target.model.model.norm.weight.detach().cpu().float().numpy()
    fingerprint = hashlib.sha256(weights.tobytes()).hexdigest()
    mark = work / "target.sha256"
    if not mark.exists():
        write_atomically(mark, fingerprint)
    elif mark.read_text("utf-8", "replace") != fingerprint:
        raise SettingsError(f"What lies in {str(work)!r} was made with another target. Choose another folder for it.")


def split(parts: list[Part]) -> tuple[list[Part], Part]:
    """Texts to train on, and the held-out ones.

    Raises:
        SettingsError: the first part is too small to hold some out.
    """
    first = parts[0]
    kept = len(first.texts) - min(HELD_OUT_ROWS, len(first.texts) * 4 // 5)
    if not 0 < kept < len(first.texts):
        raise SettingsError("There are too few texts to hold some out. Let the target write more.")
    head, tail = slice(None, kept), slice(kept, None)
    return [_rows(first, head), *parts[1:]], _rows(first, tail)


def _rows(part: Part, rows: slice) -> Part:
    return Part(part.texts[rows], part.states[rows], part.log_norms[rows])


def _write_parts(
    target: LanguageModel,
    script: Script,
    settings: DistillSettings,
    work: Path,
    log: Callable[[str], None],
    check_cancelled: Callable[[], None],
) -> None:
    compiled = settings.student.compile
    given = _given_parts(target, script, settings)
    # Texts of one training are of one length.
    lengths = {texts.ids.shape[1] for texts in (*given, *(read_part(path).texts for path in parts_in(work)))}
    if len(lengths) > 1:
        raise SettingsError(f"The texts in {str(work)!r} have another length. Choose another folder for the work.")
    play = replace(settings.play, length=lengths.pop()) if lengths else settings.play
    while True:
        parts = parts_in(work)
        index, number = len(parts), sum(len(read_part(path).texts) for path in parts)
        if index >= len(given) and number >= settings.num_texts:
            return
        path = work / f"part-{index:04}"
        if index < len(given):
            log(f"the target reads texts: part {index + 1} of {len(given)}")
            write_part(target.model, given[index], path, compiled=compiled, check_cancelled=check_cancelled)
            continue
        log(f"the target writes texts: {number} of {settings.num_texts} so far")
        generator = torch.Generator().manual_seed(settings.seed + 7919 * index)
        save_part(write_texts(target.model, script, play, generator, check_cancelled), path)


def _given_parts(target: LanguageModel, script: Script, settings: DistillSettings) -> list[Texts]:
    if settings.start_from is None:
        return []
    texts = read_texts(settings.start_from, script)
    if not len(texts) or not 0 <= int(texts.ids.min()) <= int(texts.ids.max()) < target.vocab_size:
        raise SettingsError(f"{settings.start_from.name!r} holds ids that the target does not know. Leave it out.")
    return in_parts(texts, settings.play.rows)


def in_parts(texts: Texts, rows: int) -> list[Texts]:
    """Parts of some `rows` texts. The last ones come first, so that they are the held-out ones, whole."""
    first = max(0, len(texts) - max(rows, HELD_OUT_ROWS + HELD_OUT_ROWS // 4))
    starts = range(0, first, rows)
    return [texts[slice(first, None)], *(texts[slice(at, min(at + rows, first))] for at in starts)]


def read_texts(path: Path, script: Script) -> Texts:
    """Texts from a file with the arrays ids (rows, length), answer_start and answer_temperature.

    Raises:
        ModelUnreadableError: it has not that form.
    """
    try:
        with np.load(path) as file:
            ids, start = file["ids"].astype(np.int32), file["answer_start"].astype(np.int32)
            temperature = file["answer_temperature"].astype(np.float32)
    except (OSError, EOFError, KeyError, ValueError, BadZipFile) as error:
        raise ModelUnreadableError(f"{path.name!r} holds no texts that can be read. Leave it out.") from error
    # Near-greedy rows count as greedy ones.
    temperature[temperature < 0.05] = 0.0
    columns = np.arange(ids.shape[1])
    is_end = np.isin(ids, sorted(script.end_ids)) & (columns >= start[:, None])
    end = np.where(is_end.any(1), is_end.argmax(1) + 1, ids.shape[1]).astype(np.int32)
    return Texts(ids, start, end, temperature)
