"""Token streams on disk, and the order in which training reads them.

A split is one flat uint16 file: each document's tokens with END_OF_TEXT before and after. What a step reads is a pure
function of (seed, step), so a resumed run continues exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from core.training.corpus import Corpus, Document, train_tokenizer, wrap

BLOCK = 1024
Tokens = npt.NDArray[np.uint16]


def pack(documents: Iterable[Document], tokenizer: PreTrainedTokenizerFast, seed: int) -> Tokens:
    """All documents in a seeded order, each `repeat` times, as one stream with END_OF_TEXT between them."""
    separator = tokenizer.eos_token_id
    encoded = tokenizer.backend_tokenizer
    copies = [document for document in documents for _ in range(document.repeat)]
    stream: list[Tokens] = [np.array([separator], dtype=np.uint16)]
    for i in np.random.default_rng(seed).permutation(len(copies)):
        ids = encoded.encode(copies[i].text, add_special_tokens=False).ids
        stream.append(np.array([*ids, separator], dtype=np.uint16))
    return np.concatenate(stream)


def prepare(corpus: Corpus, folder: Path, *, vocab_size: int, seed: int) -> dict[str, int]:
    """Train the tokenizer on the training split and write it, both token streams and the held-out documents."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer((document.text for document in corpus.train), vocab_size)
    tokenizer.save_pretrained(folder / "tokenizer")
    summary = {"vocabulary": len(tokenizer)}
    for name, documents in (("train", corpus.train), ("validation", corpus.validation)):
        stream = pack(documents, tokenizer, seed)
        np.save(folder / f"{name}.npy", stream)
        summary |= {
            f"{name}_files": len(documents),
            f"{name}_chars": sum(len(d.text) for d in documents),
            f"{name}_tokens": len(stream),
        }
        for document in documents:
            key = f"{name}_chars:{document.source}"
            summary[key] = summary.get(key, 0) + len(document.text)
    held_out = "".join(json.dumps(asdict(document)) + "\n" for document in corpus.validation)
    (folder / "validation.jsonl").write_text(held_out, encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def load_stream(folder: Path, name: str) -> Tokens:
    """A stream that `prepare` or a later stage wrote; read from the disk as needed."""
    stream: Tokens = np.load(folder / f"{name}.npy", mmap_mode="r")
    return stream


def load_held_out(folder: Path) -> list[Document]:
    """The documents of the validation split."""
    lines = (folder / "validation.jsonl").read_text(encoding="utf-8").splitlines()
    return [Document(**json.loads(line)) for line in lines]


def prepared_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer that `prepare` trained."""
    return wrap(Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json")))


def read_blocks(stream: Tokens, blocks: Sequence[int], length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, each (len(blocks) * BLOCK / length, length), of the given blocks of the stream."""
    rows = torch.from_numpy(np.stack([stream[b * BLOCK : (b + 1) * BLOCK + 1] for b in blocks]).astype(np.int64))
    return rows[:, :-1].reshape(-1, length), rows[:, 1:].reshape(-1, length)


def block_count(stream: Tokens) -> int:
    """Whole blocks in a stream, each followed by a token."""
    return (len(stream) - 1) // BLOCK


def items_of_step(total: int, per_step: int, step: int, seed: int) -> list[int]:
    """The blocks or texts that a step reads, out of `total`: each epoch is a fresh permutation of them all."""
    steps_per_epoch = total // per_step
    if not steps_per_epoch:
        raise ValueError(f"a step reads {per_step} blocks, but the stream holds only {total}")
    epoch, index = divmod(step, steps_per_epoch)
    order = np.random.default_rng([seed, epoch]).permutation(total)
    return [int(b) for b in order[index * per_step : (index + 1) * per_step]]
