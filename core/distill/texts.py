"""The texts that a draft learns from, with the target's states on them, as folders on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from core.errors import ModelUnreadableError, SettingsError
from core.files import explaining_full_disks, open_regular
from core.text import bytes_text
from core.training.model import arithmetic, hidden_states, logits_of, rope_for

Ids = npt.NDArray[np.int32]

HELD_OUT_ROWS = 200
"""The last rows of the first part, at most four fifths of it, are never trained on."""
QUICK_LOOK = 32
"""Held-out rows that are evaluated during training."""
_MOST_BYTES = 1_000_000_000
"""Largest size of a file of texts; the target's states on them take hundreds of times as much."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Conversations of one length, padded after their end.

    Attributes:
        ids: (rows, length).
        answer_start: (rows,) index of the answer's first token; `length` where a row has no answer.
        end: (rows,) index after the last token that counts.
        temperature: (rows,) at which the answer was sampled.
    """

    ids: Ids
    answer_start: Ids
    end: Ids
    temperature: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice) -> Texts:
        return Texts(self.ids[rows], self.answer_start[rows], self.end[rows], self.temperature[rows])


@dataclass(frozen=True, slots=True)
class Part:
    """Texts with the target's outputs for them.

    Attributes:
        texts: rows of ids.
        states: (rows, length, hidden) float16, the target's final normed states.
        log_norms: (rows, length) float32, log of the sum of exp(logits).
    """

    texts: Texts
    states: npt.NDArray[np.float16]
    log_norms: npt.NDArray[np.float32]

    def __getitem__(self, rows: slice) -> Part:
        return Part(self.texts[rows], self.states[rows], self.log_norms[rows])


def save_part(part: Part, path: Path) -> None:
    """Write a part as a folder, atomically."""
    scratch = path.with_name(f".{path.name}")
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        with explaining_full_disks(path):
            np.save(scratch / "states.npy", part.states)
            np.save(scratch / "log_norms.npy", part.log_norms)
            for field in fields(Texts):
                np.save(scratch / f"{field.name}.npy", getattr(part.texts, field.name))
        os.replace(scratch, path)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def read_part(path: Path) -> Part:
    """Read a folder of `save_part`; the states stay on disk until they are used.

    Raises:
        ModelUnreadableError: it is damaged.
    """
    try:
        texts = Texts(*(np.load(path / f"{field.name}.npy") for field in fields(Texts)))
        return Part(texts, np.load(path / "states.npy", mmap_mode="r"), np.load(path / "log_norms.npy"))
    except (OSError, ValueError, EOFError) as error:
        raise ModelUnreadableError(f"The texts in {str(path)!r} are damaged. Delete that folder.") from error


def parts_in(folder: Path) -> list[Path]:
    """The parts written so far, oldest first."""
    return sorted(folder.glob("part-*"))


@torch.no_grad()
def write_part(
    target: Any,
    texts: Texts,
    path: Path,
    *,
    rows_per_pass: int = 8,
    compiled: bool = True,
    vocab_size: int | None = None,
) -> None:
    """Run the target over texts, and save them with its states; `vocab_size` as in `write_texts`."""

    def normalise(states: Tensor) -> Tensor:
        return logits_of(target, states)[..., :vocab_size].float().logsumexp(-1)

    forward: Callable[..., Tensor] = hidden_states
    if compiled:
        forward, normalise = torch.compile(forward, dynamic=False), torch.compile(normalise, dynamic=False)
    rows, length = texts.ids.shape
    states = np.zeros((rows, length, target.config.hidden_size), dtype=np.float16)
    log_norms = np.zeros((rows, length), dtype=np.float32)
    cos, sin = rope_for(target, length)
    dtype = arithmetic(cos.device)
    for start in range(0, rows, rows_per_pass):
        # The last pass overlaps the one before: a smaller batch would be compiled again.
        at = slice(max(0, min(start, rows - rows_per_pass)), start + rows_per_pass)
        hidden = forward(target, torch.from_numpy(texts.ids[at].astype(np.int64)).to(cos.device), cos, sin, dtype)
        states[at] = hidden.half().cpu().numpy()
        for row, own in zip(range(rows)[at], hidden, strict=True):
            log_norms[row] = normalise(own).cpu().numpy()
    save_part(Part(texts, states, log_norms), path)


def target_log_probs(states: Tensor, log_norms: Tensor, head: Tensor) -> Tensor:
    """(..., R) log-probabilities of the ids whose rows of the head (R, hidden) are given."""
    return functional.linear(states, head).float() - log_norms[..., None]


def id_counts(texts: Iterable[Texts], vocab_size: int) -> npt.NDArray[np.int64]:
    """(V,) how often each id comes before the ends of the texts."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for some in texts:
        columns = np.arange(some.ids.shape[1])
        counts += np.bincount(some.ids[columns < some.end[:, None]], minlength=vocab_size)[:vocab_size]
    return counts


def frequent_ids(texts: Iterable[Texts], size: int, vocab_size: int, always: frozenset[int]) -> list[int]:
    """The `size` most frequent ids of the texts, those of `always` among them, in ascending order."""
    counts = id_counts(texts, vocab_size)
    counts[sorted(always)] = np.iinfo(np.int64).max
    return sorted(int(token) for token in np.argsort(-counts, kind="stable")[:size])


def read_texts(path: Path, end_ids: frozenset[int]) -> Texts:
    """Texts from an .npz file with the arrays ids (rows, length), answer_start and answer_temperature.

    Raises:
        ModelUnreadableError: the file is damaged or has another form.
    """
    try:
        with open_regular(path) as file, ZipFile(file) as archive:
            if sum(item.file_size for item in archive.infolist()) > _MOST_BYTES:
                raise ValueError
            names = ("ids.npy", "answer_start.npy", "answer_temperature.npy")
            ids, start, temperature = (np.lib.format.read_array(archive.open(name)) for name in names)
        ids, start, temperature = ids.astype(np.int32), start.astype(np.int32), temperature.astype(np.float32)
        if ids.ndim != 2 or not start.shape == temperature.shape == ids.shape[:1]:
            raise ValueError
    except Exception as error:  # The libraries raise many kinds.
        raise ModelUnreadableError(
            f"{path.name!r} holds no readable texts, or more than {bytes_text(_MOST_BYTES)} of them. Leave it out."
        ) from error
    temperature[temperature < 0.05] = 0.0  # Near-greedy rows count as greedy ones.
    is_end = np.isin(ids, sorted(end_ids)) & (np.arange(ids.shape[1]) >= start[:, None])
    end = np.where(is_end.any(1), is_end.argmax(1) + 1, ids.shape[1]).astype(np.int32)
    return Texts(ids, start, end, temperature)


def in_parts(texts: Texts, rows: int) -> list[Texts]:
    """Parts of about `rows` texts. The last texts come first, because the first part is held out."""
    first = max(0, len(texts) - max(rows, HELD_OUT_ROWS + HELD_OUT_ROWS // 4))
    starts = range(0, first, rows)
    return [texts[slice(first, None)], *(texts[slice(at, min(at + rows, first))] for at in starts)]


def split(parts: list[Part]) -> tuple[list[Part], Part]:
    """Parts to train on, and the held-out rows.

    Raises:
        SettingsError: the first part is too small to hold some out.
    """
    first = parts[0]
    kept = len(first.texts) - min(HELD_OUT_ROWS, len(first.texts) * 4 // 5)
    if not 0 < kept < len(first.texts):
        raise SettingsError("There are too few texts to hold some out. Let the target write more.")
    return [first[slice(None, kept)], *parts[1:]], first[slice(kept, None)]
