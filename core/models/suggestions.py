"""A short catalogue of models on the Hub that make sensible pairs: names, sizes and licences."""

from __future__ import annotations

from dataclasses import dataclass

from core.models.catalogue import SMOLLM2_DRAFTER


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A model on the Hub.

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
