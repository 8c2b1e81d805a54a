"""Figures as people read them: one way to write a share, and no powers of ten as programs write them."""

import pytest

from core.text import percent_text, significant_text, spaced_percent


@pytest.mark.parametrize(
    ("share", "digits", "text"), [(0.795, 1, "79.5\u00a0%"), (1.0, 0, "100\u00a0%"), (0.0, 0, "0\u00a0%")]
)
def test_a_share_is_set_off_from_its_sign_by_a_space_at_which_no_line_ends(share, digits, text):
    assert percent_text(share, digits) == text


def test_only_a_sign_in_per_cent_is_set_off():
    assert spaced_percent(f"{0.5:.0%}") == "50\u00a0%"
    assert spaced_percent("1.50×") == "1.50×"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.123"),
        (0.00012345, "0.000123"),
        (1.2345e-5, "1.23\u00a0×\u00a010⁻⁵"),
        (1e-12, "1\u00a0×\u00a010⁻¹²"),
        (0.0, "0"),
        (-2.5e-7, "-2.5\u00a0×\u00a010⁻⁷"),
    ],
)
def test_small_numbers_have_digits_that_a_person_reads(value, text):
    assert significant_text(value, 3) == text
