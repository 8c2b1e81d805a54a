"""The pair's tokenizer: a byte-level BPE whose pre-tokens follow the layout of code."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 6144
MAX_POSITIONS = 1024

# Newlines and the indentation after them are tokens of their own: a prompt may then end after a colon, after the line
# break or after the indent, and what follows is tokenized as in training. A word takes the one space or mark before it
# with it (" in", ".append", "(self").
PATTERN = r"\n+|(?<=\n)[ ]+| ?[^\s\p{L}\p{N}]?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|[^\S\n]+(?=\S)|[^\S\n]+"


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """Learns the merges; any bytes round-trip, since the alphabet is all 256 of them. Id 0 is END_OF_TEXT."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence(
        [Split(Regex(PATTERN), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END_OF_TEXT], initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return wrap(tokenizer)


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """What transformers loads. Encoding adds no special token: the ids are the text, exactly."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return wrap(Tokenizer.from_file(str(folder / "tokenizer.json")))
