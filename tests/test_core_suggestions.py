"""The models that are suggested: their families, and drafts that are smaller and of their target's family."""

from core.models import hub, wheel
from core.models.catalogue import SMOLLM2_DRAFTER
from core.models.suggestions import SUGGESTIONS, suggested_drafts


def test_suggested_drafts_are_smaller_and_of_the_targets_family():
    known = {suggestion.ref: suggestion for suggestion in SUGGESTIONS}
    assert len(known) == len(SUGGESTIONS)
    for suggestion in SUGGESTIONS:
        assert hub.is_hub_id(suggestion.ref)
        assert suggestion.download_bytes > 1.9 * suggestion.num_parameters
        for ref in suggestion.drafts:
            if ref != SMOLLM2_DRAFTER:
                assert known[ref].num_parameters < suggestion.num_parameters
                assert (known[ref].family, known[ref].is_instruct) == (suggestion.family, suggestion.is_instruct)


def test_the_families_of_the_catalogue():
    families = ["SmolLM2", "Qwen2.5", "Qwen3", "Llama 3.2", "Gemma 3", "GPT-2", "Pythia", "OPT"]
    assert list(dict.fromkeys(suggestion.family for suggestion in SUGGESTIONS)) == families
    for family in families:
        members = [suggestion for suggestion in SUGGESTIONS if suggestion.family == family]
        assert any(member.drafts for member in members)
        assert members == sorted(members, key=lambda member: member.num_parameters)


def test_drafts_are_suggested_by_the_targets_id():
    assert suggested_drafts(wheel.REF) == (SMOLLM2_DRAFTER,)
    assert suggested_drafts("openai-community/gpt2-xl")[0] == "openai-community/gpt2"
    assert suggested_drafts("owner/unknown") == ()
