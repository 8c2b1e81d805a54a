"""A target small enough to be distilled at once, and the settings and texts to do it with."""

import copy
from pathlib import Path

import numpy as np
import torch

from core.distill.pipeline import DistillSettings
from core.distill.self_play import PlaySettings, Script, write_texts
from core.distill.texts import Part
from core.training.train import TrainSettings
from tests.fakes import byte_tokenizer, save_model, tiny_module

TEMPLATE = "{% for m in messages %}<u>{{ m['content'] }}</u>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
END = 256
LONG = PlaySettings(rows=8, length=60, longest_prompt=10)


def chat_tokenizer():
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def training_settings(**changes) -> TrainSettings:
    values = {"tokens": 1000, "per_step": 2, "compile": False, "warmup_steps": 2, "decay_from": 0.5}
    return TrainSettings(**{**values, "learning_rate": 2e-3, **changes})


def settings(**changes) -> DistillSettings:
    values = {"num_texts": 12, "num_layers": 1, "vocabulary_size": 80, "training": training_settings()}
    return DistillSettings(**{**values, "play": PlaySettings(rows=8, length=48, longest_prompt=10), **changes})


def play_part(script: Script, seed: int = 0, **changes) -> Part:
    rows = PlaySettings(**{"rows": 12, "length": 40, "longest_prompt": 9, "temperatures": (1.0, 0.0), **changes})
    return write_texts(tiny_module("llama"), script, rows, torch.Generator().manual_seed(seed), dtype=torch.float32)


def save_target(folder: Path) -> Path:
    """A plain Llama with a chat template."""
    return save_model(folder / "target", tokenizer=chat_tokenizer(), eos_token_id=END)


def texts_file(path: Path, ids: np.ndarray, start: int = 5, temperature: float = 1.0) -> Path:
    """A file of texts as `outrider distill --texts-from` takes it."""
    rows = len(ids)
    np.savez(path, ids=ids, answer_start=np.full(rows, start), answer_temperature=np.full(rows, temperature))
    return path


def quiet(line: str) -> None:
    """A log that nobody reads."""
