"""Sizes, durations, counts and ages of models in words."""

from __future__ import annotations

import pytest

from app.setup.model_library import age_text, bytes_of_text, bytes_text, count_text, duration_text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (269_060_552, "269 MB"), (3_422_777_952, "3.4 GB"), (999_960_000, "1.0 GB")],
)
def test_sizes(count, text):
    assert bytes_text(count) == text


def test_parts_of_a_size_say_a_common_unit_once():
    assert bytes_of_text(312_000_000, 724_000_000) == "312 of 724 MB"
    assert bytes_of_text(312_000_000, 7_240_000_000) == "312 MB of 7.2 GB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1 s"),
        (42.4, "42 s"),
        (59.7, "1 min"),
        (83, "1 min 25 s"),
        (600, "10 min"),
        (3599, "1 h 0 min"),
        (7265, "2 h 1 min"),
    ],
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


def test_counts_and_ages():
    assert [count_text(n) for n in (16_500_000, 134_515_008, 1_711_376_384, 999_900_000)] == [
        "16.5 M",
        "135 M",
        "1.71 B",
        "1 B",
    ]
    day = 86_400
    assert [age_text(day * (100 - ago), day * 100) for ago in (0, 1, 59, 90)] == [
        "Today",
        "Yesterday",
        "59 days ago",
        "3 months ago",
    ]
