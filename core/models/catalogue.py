"""Finds models by name: embedded, kept by Outrider, in the Hub's cache, or at a path. No torch, no network."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import platformdirs

from core.draft_length import DraftLength
from core.errors import ModelNotFoundError, ModelUnreadableError, OutriderError
from core.files import open_regular, read_json
from core.models.folder.weight_files import PICKLED, adapter_error, refuse_ggufs, weight_files
from core.models.remote import hub
from core.settings import LengthPolicy
from core.text import did_you_mean

_log = logging.getLogger(__name__)

RESOURCES = Path(__file__).resolve().parents[2] / "resources"
EMBEDDED = RESOURCES / "models"

DEFAULT_TARGET = "outrider-code-target"
DEFAULT_DRAFT = "outrider-code-draft"
SMOLLM2_DRAFTER = "outrider-smollm2-drafter"
EMBEDDED_TITLES = {
    DEFAULT_TARGET: "Outrider Code target",
    DEFAULT_DRAFT: "Outrider Code draft",
    SMOLLM2_DRAFTER: "Outrider SmolLM2 drafter",
}

MEASURED_LENGTHS = {DEFAULT_DRAFT: 3, SMOLLM2_DRAFTER: 2}
"""The K that was measured to pay for a draft with its target at several temperatures: resources/docs/benchmarks.md."""

SHARES = "shares_tables_with"
"""The key of `config.json` that marks a draft that borrows its target's tables."""
MEDUSA_HEADS = "medusa-heads"
"""In place of a model's type, where a folder holds heads."""

_TEXT_GENERATORS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def usual_draft_length(draft: str | None) -> DraftLength:
    """The K to start with for a draft: the one that was measured to pay, or auto where nothing is known.

    None is a method without a draft model.
    """
    return 4 if draft is None else MEASURED_LENGTHS.get(draft, LengthPolicy.AUTO)


class ModelFormat(StrEnum):
    SAFETENSORS = "safetensors"
    GGUF = "gguf"


class ModelOrigin(StrEnum):
    """Where a model's files are stored. HUB is the user's Hugging Face cache, KEPT Outrider's own data folder."""

    EMBEDDED = "embedded"
    HUB = "hub"
    KEPT = "kept"
    FOLDER = "folder"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that can be chosen.

    Attributes:
        ref: what `core.models.load` and the command line take.
        title: what the window shows.
        path: its folder, or its .gguf file.
        format: how its weights are stored.
        size_bytes: size of its weights.
        origin: where its files are.
        revision: commit; only for models in the Hub's cache.
        serves: the target's reference, if this is a drafter that borrows its target's tables.
        has_weights: whether its weights are here, and not only what describes them (`downloads.preview`).
    """

    ref: str
    title: str
    path: Path
    format: ModelFormat
    size_bytes: int
    origin: ModelOrigin = ModelOrigin.FOLDER
    revision: str | None = None
    serves: str | None = None
    has_weights: bool = True

    @property
    def embedded(self) -> bool:
        """Whether it ships with Outrider."""
        return self.origin is ModelOrigin.EMBEDDED


def embedded_models() -> tuple[ModelEntry, ...]:
    """The models that ship with Outrider, default target first; missing or damaged ones are skipped."""
    return tuple(_readable(_embedded_entry, EMBEDDED_TITLES))


def local_models() -> tuple[ModelEntry, ...]:
    """Every local model with a name: embedded, kept, then the Hub's cache by name; damaged ones are skipped.

    Reads a few small files per model.
    """
    kept: list[str] = []
    if _kept_models().is_dir():
        kept = sorted(folder.name.replace("--", "/") for folder in _kept_models().iterdir() if folder.is_dir())
    found = [*embedded_models(), *_readable(downloaded_model, kept)]
    known = {entry.ref for entry in found}
    cached = _readable(_hub_entry, (ref for ref in hub.cached_refs() if ref not in known))
    return (*found, *(entry for entry in cached if _writes_text(entry.path)))


def resolve(ref: str) -> ModelEntry:
    """Find the model that a reference names: an embedded or kept model, a folder, a .gguf file, or a cached Hub id.

    Raises:
        ModelNotFoundError: nothing exists there.
        ModelUnreadableError: what exists there is not a model.
    """
    try:
        if ref in EMBEDDED_TITLES and (EMBEDDED / ref).is_dir():
            return _embedded_entry(ref)
        path = Path(ref).expanduser()
        if path.suffix.lower() == ".gguf":
            return _gguf_entry(path, ref)
        if path.is_dir():
            return _folder_entry(path, ref, path.resolve().name, ModelOrigin.FOLDER)
        if path.is_file():
            raise ModelUnreadableError(
                f"{ref!r} is a file, but not a .gguf file. Name the model's folder, or a .gguf file."
            )
        if hub.is_hub_id(ref):
            return downloaded_model(ref)
    except PermissionError:
        raise ModelUnreadableError(
            f"You have no permission to read {ref!r}. Ask its owner, or choose another model."
        ) from None
    except (OSError, RuntimeError, ValueError):
        pass  # Not a path at all: too long, an unknown home, or an invalid character.
    names = "".join(f"{entry.ref}, " for entry in embedded_models())
    shown = ref if len(ref) <= 120 else f"{ref[:119]}…"
    raise ModelNotFoundError(
        f"There is no local model {shown!r}.{_meant(shown)} Name {names}a folder with safetensors, a .gguf file, "
        "or a downloaded Hub model."
    )


def source_kind(ref: str) -> str | None:
    """Where a reference leads: "embedded", "hub" or "local", a path; None if nothing is there."""
    try:
        origin = resolve(ref).origin
    except OutriderError:
        return None
    return {ModelOrigin.EMBEDDED: "embedded", ModelOrigin.HUB: "hub", ModelOrigin.KEPT: "hub"}.get(origin, "local")


def downloaded_model(ref: str) -> ModelEntry:
    """The model with a Hub id, from the Hub's cache or Outrider's own folder.

    Raises:
        ModelNotFoundError: it is not downloaded yet.
        ModelUnreadableError: it is incomplete or damaged.
    """
    if hub.revisions(ref):
        try:
            return _hub_entry(ref)
        except (ModelNotFoundError, ModelUnreadableError):
            if not kept_folder(ref).is_dir():
                raise
    if kept_folder(ref).is_dir():
        return _kept_entry(ref)
    if "/" not in ref:
        raise FileNotFoundError(ref)
    raise _not_downloaded(ref)


def kept_folder(ref: str) -> Path:
    """Where Outrider keeps, or will keep, a model that it converted to safetensors itself."""
    return _kept_models() / ref.replace("/", "--")


def served_target(config: Any) -> str | None:
    """The target whose tables a drafter borrows, from its config.json."""
    target = shared_tables(config).get("model")
    return target if isinstance(target, str) else None


def shared_tables(config: Any) -> Mapping[str, Any]:
    """What a drafter's config.json says about the tables that it borrows; empty if it borrows none."""
    shares = config.get(SHARES) if isinstance(config, dict) else None
    return shares if isinstance(shares, dict) else {}


def _not_downloaded(ref: str) -> ModelNotFoundError:
    name = ref if "/" in ref else "owner/model"
    return ModelNotFoundError(
        f"{ref!r} is not downloaded yet.{_meant(ref)} Get it with `outrider models get {name}`, or in the window "
        "under Models."
    )


def _meant(ref: str) -> str:
    """A question with the model that is probably meant; empty if there is none, or the name is right."""
    known = {*EMBEDDED_TITLES, *hub.cached_refs(), *(suggestion.ref for suggestion in SUGGESTIONS)}
    return "" if ref in known else did_you_mean(ref, sorted(known))


def _kept_models() -> Path:
    return platformdirs.user_data_path("outrider", appauthor=False) / "models"


def _readable(entry_of: Callable[[str], ModelEntry], refs: Iterable[str]) -> Iterator[ModelEntry]:
    for ref in refs:
        try:
            yield entry_of(ref)
        except (OutriderError, OSError) as error:
            _log.debug("%s is left out: %s", ref, error)


def _embedded_entry(ref: str) -> ModelEntry:
    return _folder_entry(EMBEDDED / ref, ref, EMBEDDED_TITLES[ref], ModelOrigin.EMBEDDED)


def _kept_entry(ref: str) -> ModelEntry:
    return _folder_entry(kept_folder(ref), ref, ref.rpartition("/")[2], ModelOrigin.KEPT)


def _hub_entry(ref: str) -> ModelEntry:
    """The newest complete revision in the Hub's cache; the branch `main` first."""
    problem: ModelUnreadableError | None = None
    for commit in hub.revisions(ref):
        folder = hub.snapshot_folder(ref, commit)
        try:
            hub.refuse_links_out(folder, ref)
            return _folder_entry(folder, ref, ref.rpartition("/")[2], ModelOrigin.HUB, commit)
        except ModelUnreadableError as error:
            # Without any weights it was never downloaded: `downloads.preview` fetches what describes a model.
            if any(any(folder.glob(pattern)) for pattern in ("*.safetensors", *PICKLED)):
                problem = problem or error
    raise problem or _not_downloaded(ref)


def _gguf_entry(path: Path, ref: str) -> ModelEntry:
    if path.is_dir():
        raise ModelUnreadableError(f"{ref!r} is a folder, although its name ends in .gguf. Name the file inside it.")
    if not path.is_file():
        raise ModelNotFoundError(f"There is no file {ref!r}. Check the path.")
    with open_regular(path) as file:
        if file.read(4) != b"GGUF":
            raise ModelUnreadableError(f"{ref!r} is not a GGUF file, or is damaged. Download it again.")
    return ModelEntry(ref, path.stem, path, ModelFormat.GGUF, path.stat().st_size, ModelOrigin.GGUF)


def _folder_entry(folder: Path, ref: str, title: str, origin: ModelOrigin, revision: str | None = None) -> ModelEntry:
    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            raise adapter_error(ref)
        refuse_ggufs(folder, ref)
        raise ModelUnreadableError(
            f"{ref!r} contains no model: its config.json is missing. Name a folder that has one."
        )
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError):
        raise ModelUnreadableError(f"The config.json of {ref!r} can't be read. Download the model again.") from None
    if isinstance(config, dict) and config.get("model_type") == MEDUSA_HEADS:
        raise ModelUnreadableError(
            f"{ref!r} holds Medusa heads, which are no model. To draft with them, choose the method Medusa heads and "
            "this folder for it: --method medusa:heads=FOLDER."
        )
    return ModelEntry(
        ref,
        title,
        folder,
        ModelFormat.SAFETENSORS,
        sum(weight.stat().st_size for weight in weight_files(folder, ref)),
        origin,
        revision=revision,
        serves=served_target(config),
    )


def _writes_text(folder: Path) -> bool:
    """Whether a folder's config.json describes a language model, as far as it says."""
    config = read_json(folder / "config.json")
    architectures = config.get("architectures") if isinstance(config, dict) else None
    if not architectures or not isinstance(architectures, list):
        return True
    return any(str(name).endswith(_TEXT_GENERATORS) for name in architectures)


# --- Suggestions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A model on the Hub that makes a sensible pair with others of its family.

    Attributes:
        ref: its Hub id.
        title: name for display.
        family: models of one family share a tokenizer.
        num_parameters: tied embedding and head counted once.
        download_bytes: of the weights as published, to about one percent.
        is_instruct: whether it was trained to answer, rather than to continue.
        is_gated: whether its licence has to be accepted on the Hub first.
        licence: its short name.
        drafts: references of drafts for it as a target, best first.
    """

    ref: str
    title: str
    family: str
    num_parameters: int
    download_bytes: int
    is_instruct: bool
    is_gated: bool
    licence: str
    drafts: tuple[str, ...] = ()


def suggested_drafts(target_ref: str) -> tuple[str, ...]:
    """References of drafts that suit a target, the best first; none for a target that is not in the catalogue."""
    return next((suggestion.drafts for suggestion in SUGGESTIONS if suggestion.ref == target_ref), ())


_Row = tuple[str, int, int, tuple[str, ...]]


def _family(
    name: str, owner: str, licence: str, *rows: _Row, is_instruct: bool = False, is_gated: bool = False
) -> tuple[Suggestion, ...]:
    """Rows of (name, parameters, bytes, drafts); drafts are the owner's own unless named with their owner."""
    return tuple(
        Suggestion(
            f"{owner}/{title}", title, name, parameters, size, is_instruct, is_gated, licence,
            tuple(draft if "/" in draft or draft == SMOLLM2_DRAFTER else f"{owner}/{draft}" for draft in drafts),
        )
        for title, parameters, size, drafts in rows
    )  # fmt: skip


SUGGESTIONS: tuple[Suggestion, ...] = (
    *_family(
        "SmolLM2", "HuggingFaceTB", "Apache 2.0",
        ("SmolLM2-135M-Instruct", 134_515_008, 269_060_552, (SMOLLM2_DRAFTER,)),
        ("SmolLM2-360M-Instruct", 361_821_120, 723_674_912, ("SmolLM2-135M-Instruct",)),
        ("SmolLM2-1.7B-Instruct", 1_711_376_384, 3_422_777_952, ("SmolLM2-135M-Instruct", "SmolLM2-360M-Instruct")),
        is_instruct=True,
    ),
    *_family(
        "Qwen2.5", "Qwen", "Apache 2.0",
        ("Qwen2.5-0.5B-Instruct", 494_032_768, 988_097_824, ()),
        ("Qwen2.5-1.5B-Instruct", 1_543_714_304, 3_087_467_144, ("Qwen2.5-0.5B-Instruct",)),
        is_instruct=True,
    ),
    *_family(
        "Qwen2.5", "Qwen", "Qwen Research",
        ("Qwen2.5-3B-Instruct", 3_085_938_688, 6_171_926_992, ("Qwen2.5-0.5B-Instruct",)),
        is_instruct=True,
    ),
    *_family(
        "Qwen2.5", "Qwen", "Apache 2.0",
        ("Qwen2.5-7B-Instruct", 7_615_616_512, 15_231_271_864, ("Qwen2.5-0.5B-Instruct", "Qwen2.5-1.5B-Instruct")),
        is_instruct=True,
    ),
    # The two smallest are published with the head beside the embedding that it is tied to.
    *_family(
        "Qwen3", "Qwen", "Apache 2.0",
        ("Qwen3-0.6B", 596_049_920, 1_503_300_328, ()),
        ("Qwen3-1.7B", 1_720_574_976, 4_063_515_640, ("Qwen3-0.6B",)),
        ("Qwen3-4B", 4_022_468_096, 8_044_982_000, ("Qwen3-0.6B",)),
        ("Qwen3-8B", 8_190_735_360, 16_381_516_776, ("Qwen3-0.6B", "Qwen3-1.7B")),
        is_instruct=True,
    ),
    *_family(
        "Llama 3.2", "meta-llama", "Llama 3.2 Community",
        ("Llama-3.2-1B-Instruct", 1_235_814_400, 2_471_645_608, ()),
        ("Llama-3.2-3B-Instruct", 3_212_749_824, 6_425_529_112, ("Llama-3.2-1B-Instruct",)),
        is_instruct=True, is_gated=True,
    ),
    *_family(
        "Gemma 3", "google", "Gemma",
        ("gemma-3-270m-it", 268_098_176, 536_223_056, ()),
        ("gemma-3-1b-it", 999_885_952, 1_999_811_208, ("gemma-3-270m-it",)),
        is_instruct=True, is_gated=True,
    ),
    *_family("GPT-2", "distilbert", "Apache 2.0", ("distilgpt2", 81_912_576, 352_824_413, ())),
    *_family(
        "GPT-2", "openai-community", "MIT",
        ("gpt2", 124_439_808, 548_105_171, ("distilbert/distilgpt2",)),
        ("gpt2-medium", 354_823_168, 1_519_984_962, ("gpt2", "distilbert/distilgpt2")),
        ("gpt2-large", 774_030_080, 3_247_159_078, ("gpt2", "distilbert/distilgpt2")),
        ("gpt2-xl", 1_557_611_200, 6_431_829_964, ("gpt2", "distilbert/distilgpt2")),
    ),
    *_family(
        "Pythia", "EleutherAI", "Apache 2.0",
        ("pythia-70m", 70_426_624, 166_029_852, ()),
        ("pythia-160m", 162_322_944, 374_998_696, ("pythia-70m",)),
        ("pythia-410m", 405_334_016, 911_373_632, ("pythia-70m", "pythia-160m")),
        ("pythia-1.4b", 1_414_647_808, 2_930_007_184, ("pythia-70m", "pythia-160m")),
        ("pythia-2.8b", 2_775_208_960, 5_684_582_344, ("pythia-160m", "pythia-70m")),
    ),
    *_family(
        "OPT", "facebook", "OPT (research only)",
        ("opt-125m", 125_239_296, 250_500_000, ()),
        ("opt-1.3b", 1_315_758_080, 2_631_600_000, ("opt-125m",)),
        ("opt-6.7b", 6_658_473_984, 13_317_000_000, ("opt-125m", "opt-1.3b")),
    ),
)  # fmt: skip
"""Families in the order of the window's list, each from small to large."""
