"""Large JSON is what `json.loads` makes of it, and keeps no other thread waiting."""

import contextlib
import json
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.models import details as large_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=6),
    max_leaves=30,
)


@pytest.fixture(autouse=True, scope="module")
def anything_is_large():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_json, "_LARGE", 0)
        yield


def outcome(loads, text):
    try:
        return loads(text)
    except ValueError:
        return ValueError


@given(
    VALUES, st.sampled_from([None, 0, 1]), st.booleans(), st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\r:\n")])
)
def test_a_text_is_read_as_json_reads_it_however_it_is_written(value, indent, is_ascii, separators):
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii, separators=separators)
    assert large_json.loads(text) == value
    assert large_json.loads(f"\n {text}\t") == value


@given(VALUES, st.data())
def test_a_damaged_text_fails_where_json_fails(value, data):
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    damaged = (
        text[:at]
        + data.draw(st.sampled_from(["", ",", '"', "}", "]", ":", "\\", "\x01", "0", "-", "N"]))
        + text[at + 1 :]
    )
    for one in (damaged, text[:at], text[at:]):
        ours, theirs = outcome(large_json.loads, one), outcome(json.loads, one)
        assert repr(ours) == repr(theirs), one


@pytest.mark.parametrize(
    "text",
    [
        *('{"a":1,}', '["a",]', '{"a":01,"b":2}', '{"a":1.5,"b":2}', '{"a":-1,"b":2}', '{"a":1e3,"b":2}'),
        *(
            '{"a":1,"a":2,"b":3}',
            '{"a\\n":1,"b":2}',
            '{"\ud800":1,"b":2}',
            '["a" "b"]',
            '{"a" 1}',
            "{1:2}",
            "{",
            "[",
            "",
        ),
        *('{"a":123456789012,"b":1}', "\ufeff{}", "[NaN,1]", '{"":0,"b":[]}'),
    ],
)
def test_what_is_not_plain_is_read_as_json_reads_it(text):
    assert repr(outcome(large_json.loads, text)) == repr(outcome(json.loads, text))


def test_a_file_may_begin_with_a_mark_of_its_encoding_and_an_empty_one_is_no_json(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_bytes('\ufeff{"é": 1}'.encode())
    assert large_json.read(file) == {"é": 1}
    for damaged in (b"", b"\xff", b'{"a": 1'):
        file.write_bytes(damaged)
        with pytest.raises((json.JSONDecodeError, UnicodeDecodeError)):
            large_json.read(file)


def test_other_threads_go_on_while_a_vocabulary_is_read():
    vocabulary = {f"token{index}": index for index in range(300_000)}
    text = json.dumps({"model": {"vocab": vocabulary}})
    turns, is_over = [], threading.Event()

    def count():
        while not is_over.wait(0.001):
            turns.append(is_reading)

    is_reading = False
    interval = sys.getswitchinterval()
    counter = threading.Thread(target=count)
    with contextlib.ExitStack() as stack:
        stack.callback(counter.join)
        stack.callback(is_over.set)
        stack.callback(sys.setswitchinterval, interval)
        counter.start()
        sys.setswitchinterval(1e-4)
        is_reading = True
        assert large_json.loads(text)["model"]["vocab"] == vocabulary
        is_reading = False
    assert sum(turns) > 5
