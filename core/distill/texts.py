"""Texts that a target wrote, and what it says of every position of them, as training reads them.

Kept are the target's final states and the logarithm of its softmax's denominator over the whole vocabulary: with the
head's rows of any ids, they give the exact probabilities of those ids.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from core.errors import ModelUnreadableError

Ids = npt.NDArray[np.int32]

_TEXT_ARRAYS = ("ids", "answer_start", "end", "temperature")


@dataclass(frozen=True, slots=True)
class Texts:
    """Conversations of one length, filled up behind their end.

    Attributes:
        ids: (rows, length).
        answer_start: (rows,) index of the answer's first token; `length` where a row never got there.
        end: (rows,) index behind the last token that counts.
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
    """Texts with what the target says of them.

    Attributes:
        texts: rows of ids.
        states: (rows, length, hidden) float16, the target's final normed states.
        log_norms: (rows, length) float32, log of the sum of exp(logits).
    """

    texts: Texts
    states: npt.NDArray[np.float16]
    log_norms: npt.NDArray[np.float32]


def save_part(part: Part, path: Path) -> None:
    """Keep a part as a folder at `path`, whole or not at all."""
    scratch = path.with_name(f".{path.name}")
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        np.save(scratch / "states.npy", part.states)
        np.save(scratch / "log_norms.npy", part.log_norms)
        for name in _TEXT_ARRAYS:
            np.save(scratch / f"{name}.npy", getattr(part.texts, name))
        os.replace(scratch, path)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def read_part(path: Path) -> Part:
    """A folder of `save_part`; the states stay on disk until they are read.

    Raises:
        ModelUnreadableError: it is damaged.
    """
    try:
        texts = Texts(*(np.load(path / f"{name}.npy") for name in _TEXT_ARRAYS))
        log_norms = np.load(path / "log_norms.npy")
        states = np.load(path / "states.npy", mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise ModelUnreadableError(f"The texts in {str(path)!r} are damaged. Delete that folder.") from error
    return Part(texts, states, log_norms)


def parts_in(folder: Path) -> list[Path]:
    """The parts written so far, oldest first."""
    return sorted(folder.glob("part-*"))
