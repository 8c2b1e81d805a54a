"""`outrider models` on models of a few bytes, with a download that is played."""

import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from app.__main__ import main
from app.cli.run_arguments import build_request
from core.errors import HubUnreachableError, ModelNotFoundError, NoSpaceError, OutriderError
from core.models import catalogue
from core.models import hub as hub_cache
from core.models.catalogue import ModelEntry, ModelFormat, ModelOrigin
from core.models.compatibility import PairVerdict
from core.models.memory import MemoryForecast
from core.models.progress import DownloadProgress
from tests.fakes import is_sentence

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_model(folder, *, layers=1, tokens=("a", "b", "c"), **config):
    """A llama of a few weights, all of them 0."""
    folder.mkdir(parents=True)
    shapes = {"model.embed_tokens.weight": [len(tokens), 4]}
    shapes |= {f"model.layers.{index}.mlp.up_proj.weight": [8, 4] for index in range(layers)}
    header, end = {}, 0
    for name, (rows, columns) in shapes.items():
        start, end = end, end + rows * columns * 2
        header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    values = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": len(tokens),
        "hidden_size": 4,
        "intermediate_size": 8,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(values | config), "utf-8")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    (folder / "tokenizer_config.json").write_text("{}", "utf-8")
    return folder


@pytest.fixture(autouse=True)
def shelf(tmp_path, monkeypatch):
    """No model is here but those of the test; the terminal of the test run has no say."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGINGFACE_")) or name in {"COLUMNS", "NO_COLOR", "FORCE_COLOR", "OUTRIDER_DEBUG"}:
            monkeypatch.delenv(name)
    embedded = tmp_path / "embedded"
    embedded.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(catalogue, "EMBEDDED", embedded)
    return tmp_path


@pytest.fixture
def cached(shelf):
    """Puts a model into the Hub cache."""

    def put(ref, **changes):
        repository = shelf / "hub" / f"models--{ref.replace('/', '--')}"
        folder = write_model(repository / "snapshots" / COMMIT, **changes)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(COMMIT)
        return folder

    return put


class Terminal(io.StringIO):
    def isatty(self):
        return True

    @property
    def text(self):
        """What was written, without colours and weights."""
        return re.sub(r"\x1b\[[\d;]*m", "", self.getvalue())


@pytest.fixture
def terminal(monkeypatch):
    """Standard output and stderr of a terminal, and answers typed at it."""

    def open_terminal(*, width=100, typed=""):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        streams = SimpleNamespace(out=Terminal(), err=Terminal())
        monkeypatch.setattr("sys.stdout", streams.out)
        monkeypatch.setattr("sys.stderr", streams.err)
        monkeypatch.setattr("sys.stdin", Terminal(typed))
        return streams

    return open_terminal


def models(*arguments):
    return main(["models", *map(str, arguments)])


def fields(text):
    """The last value of each name."""
    return dict(line.split("\t") for line in text.splitlines())


# --- list -------------------------------------------------------------------------------------------------------


def test_a_model_of_the_hub_cache_is_listed_with_exact_values(cached, capsys):
    folder = cached("owner/small")
    assert models("list") == 0
    out, err = capsys.readouterr()
    (row,) = (line.split("\t") for line in out.splitlines())
    size = (folder / "model.safetensors").stat().st_size
    assert row[:8] == ["owner/small", "hub", "safetensors", "bfloat16", "44", "2048", "3", str(size)]
    assert row[8].endswith("+00:00")
    assert row[9] == str(folder)
    assert err == ""


def test_the_list_as_json_has_numbers_and_the_revision(cached, capsys):
    cached("owner/small")
    assert models("list", "--json") == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["parameters"], record["revision"], record["problem"]) == (44, COMMIT, None)


def test_no_model_at_all_is_said(capsys):
    assert models("list") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "--suggested" in err
    assert models("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_damaged_model_is_a_row_with_its_reason_and_the_others_are_whole(shelf, monkeypatch, capsys):
    entries = []
    for name in ("broken", "sound"):
        folder = write_model(shelf / name)
        entries.append(ModelEntry(name, name, folder, ModelFormat.SAFETENSORS, 5, ModelOrigin.KEPT))
    monkeypatch.setattr(catalogue, "local_models", lambda: entries)
    (shelf / "broken" / "model.safetensors").write_bytes(b"")
    assert models("list") == 0
    out, err = capsys.readouterr()
    broken, sound = (line.split("\t") for line in out.splitlines())
    assert broken[:5] == ["broken", "kept", "safetensors", "", ""]
    assert sound[:5] == ["sound", "kept", "safetensors", "bfloat16", "44"]
    assert err.startswith("broken: ")
    assert is_sentence(err.rstrip("\n"))


def test_a_download_that_was_stopped_is_told_beside_the_list(kept, capsys):
    assert models("list") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("owner/model: 4.0 MB of a stopped download")


def test_a_wide_terminal_shows_every_column_and_a_narrow_one_the_names_and_sizes(cached, terminal):
    cached("owner/with-a-name-of-some-length")
    wide = terminal(width=300)
    assert models("list") == 0
    assert wide.out.text.split()[:10] == (
        ["model", "origin", "format", "precision", "params", "context", "vocab", "size", "last", "used"]
    )
    for width in (120, 80, 60, 45, 30):
        narrow = terminal(width=width)
        assert models("list") == 0
        lines = narrow.out.text.splitlines()
        assert max(map(len, lines)) <= width
        assert lines[0].split()[0] == "model"
        assert "size" in lines[0]
        name = "".join(line.split()[0] for line in lines[1:] if not line.startswith(" "))
        assert name == "owner/with-a-name-of-some-length"


def test_a_name_cannot_steer_the_terminal_nor_add_columns(monkeypatch, terminal, capsys, tmp_path):
    entry = ModelEntry("evil\x1b[2J\tname\n", "t", tmp_path, ModelFormat.SAFETENSORS, 1)
    monkeypatch.setattr(catalogue, "local_models", lambda: (entry,))
    assert models("list") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("evil\ufffd[2J\ufffdname\ufffd\tfolder\t")
    streams = terminal()
    assert models("list") == 0
    assert "\x1b[2J" not in streams.out.text + streams.err.text


def test_suggestions_say_what_is_here_already(cached, capsys):
    cached("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert models("list", "--suggested") == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    here = {row[0] for row in rows if row[5] == "yes"}
    assert here == {"HuggingFaceTB/SmolLM2-135M-Instruct"}
    assert {row[5] for row in rows} == {"yes", "no"}
    target = next(row for row in rows if row[0] == "HuggingFaceTB/SmolLM2-1.7B-Instruct")
    assert target[6].split(",")[0] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert int(target[2]) > 3_000_000_000


def test_suggestions_fit_80_columns_with_names_and_sizes_on_one_line(terminal):
    streams = terminal(width=80)
    assert models("list", "--suggested") == 0
    lines = streams.out.text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "download" in lines[0]
    assert any(line.startswith("HuggingFaceTB/SmolLM2-360M-Instruct ") and "724 MB" in line for line in lines)


# --- info -------------------------------------------------------------------------------------------------------


def test_info_describes_a_model_and_names_the_smaller_drafts_that_share_its_tokens(cached, capsys):
    folder = cached("owner/target", layers=3)
    cached("owner/draft")
    cached("owner/stranger", tokens=("x", "y", "z"))
    cached("owner/larger", layers=4)
    assert models("info", "owner/target") == 0
    shown = fields(capsys.readouterr().out)
    assert shown["path"] == str(folder)
    assert (shown["origin"], shown["architecture"], shown["kind"]) == ("hub", "llama", "base")
    assert (shown["parameters"], shown["layers"], shown["context"]) == ("108", "3", "2048")
    assert shown["drafts"] == "owner/draft"
    assert models("info", "owner/target", "--json") == 0
    assert json.loads(capsys.readouterr().out)["drafts"] == ["owner/draft"]


def test_info_takes_a_folder_with_spaces_and_letters_of_every_kind(shelf, terminal):
    folder = write_model(shelf / "ein Öfchen – モデル", layers=2)
    streams = terminal(width=120)
    assert models("info", folder) == 0
    text = streams.out.text
    assert "ein Öfchen – モデル" in text
    assert "2,048 tokens" in text
    assert "none" in next(line for line in text.splitlines() if line.startswith("drafts here"))


@pytest.mark.parametrize("action", ["info", "remove"])
@pytest.mark.parametrize("ref", ["nothing-here", "owner/nothing-here"])
def test_a_model_that_is_not_here_is_a_sentence_and_exit_2(action, ref, capsys):
    assert models(action, ref) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert ref in err
    assert is_sentence(err.rstrip("\n"))


# --- get --------------------------------------------------------------------------------------------------------


def progress(stage, *figures):
    return DownloadProgress(stage, "model.safetensors" if figures else "", *figures)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A download in the real one's place: plays stages, calls what is callable, and notes how it was asked."""
    entry = ModelEntry("owner/model", "model", tmp_path / "snapshot", ModelFormat.SAFETENSORS, 5, ModelOrigin.HUB)
    stages = [
        progress("Asking the Hub…"),
        progress("Downloading", 0, 10_000_000),
        progress("Downloading", 4_000_000, 10_000_000, 2e6, 3.0),
        progress("Downloading", 10_000_000, 10_000_000, 2e6, 0.0),
        progress("Checking…", 10_000_000, 10_000_000),
    ]
    played = SimpleNamespace(script=stages, asked=[], path=entry.path)

    def download(ref, *, on_progress, check_cancelled, restart=False):
        played.asked.append((ref, restart))
        for item in played.script:
            check_cancelled()
            if isinstance(item, Exception):
                raise item
            item() if callable(item) else on_progress(item)
        return replace(entry, path=played.path)

    monkeypatch.setattr("core.models.downloads.download", download)
    return played


@pytest.fixture
def kept(shelf):
    """What a download that was stopped has left in the Hub cache: 4 MB."""
    blobs = shelf / "hub" / "models--owner--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / ("0" * 64 + hub_cache.PARTIAL_SUFFIX)).write_bytes(bytes(4_000_000))


def press_ctrl_c():
    signal.raise_signal(signal.SIGINT)


def test_get_prints_the_path_and_a_line_for_each_stage_and_file(hub, capsys):
    assert models("get", "owner/model") == 0
    out, err = capsys.readouterr()
    assert out == f"{hub.path}\n"
    assert err.splitlines() == ["Asking the Hub…", "10.0 MB in all", "Downloading model.safetensors"]
    assert hub.asked == [("owner/model", False)]


def test_a_model_that_is_here_already_is_said_to_be(hub, cached, capsys):
    hub.path, hub.script = cached("owner/model"), []
    assert models("get", "owner/model") == 0
    out, err = capsys.readouterr()
    assert out == f"{hub.path}\n"
    assert "here already" in err
    assert models("get", "owner/model", "--restart") == 0
    assert "here already" not in capsys.readouterr().err


def test_offline_a_model_that_is_here_is_got(cached, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was touched"))
    folder = cached("owner/model")
    assert models("get", "owner/model") == 0
    out, err = capsys.readouterr()
    assert out == f"{folder}\n"
    assert "here already" in err


def test_what_ships_with_outrider_needs_no_download(hub, shelf, monkeypatch, capsys):
    monkeypatch.setattr(catalogue, "EMBEDDED_TITLES", {"pocket": "Pocket model"})
    folder = write_model(shelf / "embedded" / "pocket")
    assert models("get", "pocket") == 0
    assert capsys.readouterr() == (f"{folder}\n", "pocket ships with Outrider.\n")
    assert hub.asked == []


def test_a_model_that_was_damaged_not_all_here_or_older_was_not_here_already(hub, cached, shelf, capsys):
    hub.path = cached("owner/damaged")
    weights = hub.path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert models("get", "owner/damaged") == 0
    hub.path = cached("owner/partial")
    blobs = shelf / "hub" / "models--owner--partial" / "blobs"
    blobs.mkdir()
    (blobs / ("0" * 64 + hub_cache.PARTIAL_SUFFIX)).write_bytes(b"some")
    assert models("get", "owner/partial") == 0
    cached("owner/older")
    hub.path = shelf / "newer"
    assert models("get", "owner/older") == 0
    assert "here already" not in capsys.readouterr().err


def test_get_can_begin_anew(hub):
    assert models("get", "owner/model", "--restart") == 0
    assert hub.asked == [("owner/model", True)]


def test_ctrl_c_stops_a_download_says_what_is_kept_and_how_to_go_on(hub, kept, capsys):
    before = signal.getsignal(signal.SIGINT)
    hub.script[3:] = [press_ctrl_c, progress("Downloading", 5_000_000, 10_000_000)]
    assert models("get", "owner/model") == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == (
        "Stopped; 4.0 MB of it are kept. `outrider models get owner/model` goes on from there."
    )
    assert signal.getsignal(signal.SIGINT) is before


def test_where_nothing_is_kept_nothing_is_promised(hub, capsys):
    hub.script[3:] = [press_ctrl_c, progress("Downloading", 5_000_000, 10_000_000)]
    assert models("get", "owner/model") == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        "Stopped; nothing of it is kept. `outrider models get owner/model` begins again."
    )


def test_a_second_ctrl_c_does_not_wait_for_the_download(hub, capsys):
    before = signal.getsignal(signal.SIGINT)

    def hang():
        press_ctrl_c()
        press_ctrl_c()
        raise AssertionError("the second Ctrl-C was not heard")

    hub.script[2:] = [hang]
    assert models("get", "owner/model") == 130
    assert "Traceback" not in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelNotFoundError("The Hub has no such model. Check the name."), 2),
        (HubUnreachableError("The connection broke. Try again."), 1),
        (NoSpaceError("The disk is full. Free some space."), 1),
    ],
)
def test_what_the_download_says_is_passed_on(hub, capsys, error, code):
    hub.script[1:] = [error]
    assert models("get", "owner/model") == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == str(error)


def test_offline_nothing_is_asked_of_the_network(monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was touched"))
    assert models("get", "owner/model") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "HF_HUB_OFFLINE" in err
    assert models("list", "--suggested") == 0


def test_a_terminal_shows_bytes_rate_and_time_left(hub, terminal):
    hub.script[3:] = [press_ctrl_c, progress("Downloading", 4_000_000, 10_000_000)]
    streams = terminal(width=80)
    assert models("get", "owner/model") == 130
    text = streams.err.text
    assert "Downloading" in text
    assert "4.0 of 10.0 MB" in text
    assert "2.0 MB/s" in text
    assert "3 s left" in text
    assert "\x1b[?25h" in text  # The cursor is back.
    assert streams.out.text == ""


# --- remove -----------------------------------------------------------------------------------------------------


@pytest.fixture
def removal(monkeypatch, tmp_path):
    """A model that can be removed; the names of those that were."""
    entry = ModelEntry("owner/model", "model", tmp_path, ModelFormat.SAFETENSORS, 5, ModelOrigin.HUB)
    plan = SimpleNamespace(entry=entry, frees_bytes=269_000_000, note="Other programs use it too.")
    removed = []
    monkeypatch.setattr("core.models.downloads.plan_removal", lambda ref: plan)
    monkeypatch.setattr("core.models.downloads.remove", lambda ref: removed.append(ref) or plan.frees_bytes)
    return removed


@pytest.mark.parametrize("answer", ["y\n", "Yes\n"])
def test_remove_asks_with_the_bytes_and_what_to_know(removal, terminal, answer):
    streams = terminal(typed=answer)
    assert models("remove", "owner/model") == 0
    assert removal == ["owner/model"]
    text = streams.err.text
    assert "269 MB" in text
    assert "Other programs use it too." in text
    assert text.rstrip().endswith("Removed owner/model; 269 MB are free again.")


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "yikes\n"])
def test_any_other_answer_leaves_the_model(removal, terminal, answer):
    streams = terminal(typed=answer)
    assert models("remove", "owner/model") == 130
    assert removal == []
    assert "Nothing was removed." in streams.err.text


def test_without_a_terminal_remove_wants_yes(removal, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert models("remove", "owner/model") == 2
    assert removal == []
    assert "--yes" in capsys.readouterr().err
    assert models("remove", "owner/model", "--yes") == 0
    assert removal == ["owner/model"]


def test_a_model_of_the_cache_is_gone_after_remove(cached, capsys):
    folder = cached("owner/small")
    assert models("remove", "owner/small", "--yes") == 0
    assert not folder.exists()
    assert models("info", "owner/small") == 2


def test_a_folder_of_the_users_own_is_never_removed(shelf, capsys):
    folder = write_model(shelf / "mine")
    assert models("remove", folder, "--yes") == 2
    assert (folder / "model.safetensors").exists()
    assert is_sentence(capsys.readouterr().err.rstrip("\n"))


# --- check ------------------------------------------------------------------------------------------------------


@pytest.fixture
def verdict(monkeypatch, cached):
    """A verdict in the real one's place, on two models that are here; what it was asked."""
    cached("owner/target", layers=3)
    cached("owner/draft")
    given = SimpleNamespace(
        verdict=PairVerdict(None, ("The draft is large.",), MemoryForecast(1_000, 200, 30, 4_000_000), 0.125),
        asked=None,
    )

    def pair_verdict(draft, target, **options):
        given.asked = (draft, target, options)
        return given.verdict

    monkeypatch.setattr("core.models.compatibility.pair_verdict", pair_verdict)
    return given


def test_a_pair_that_can_work_is_exit_0_with_memory_by_part_and_cost(verdict, capsys):
    arguments = ("--device", "cpu", "--dtype", "float32", "--context", "512")
    assert models("check", "owner/draft", "owner/target", *arguments) == 0
    assert verdict.asked == (
        "owner/draft", "owner/target", {"device": "cpu", "dtype": "float32", "context": 512}
    )  # fmt: skip
    shown = fields(capsys.readouterr().out)
    assert shown["verdict"] == "owner/draft can draft for owner/target."
    assert shown["warnings"] == "The draft is large."
    assert [int(shown[f"{part}_bytes"]) for part in ("weights", "cache", "working", "total", "available")] == [
        1_000, 200, 30, 1_230, 4_000_000
    ]  # fmt: skip
    assert (shown["fits"], shown["cost_coefficient"]) == ("yes", "0.125")


def test_a_pair_that_cannot_work_is_exit_1_with_the_reason(verdict, capsys):
    verdict.verdict = PairVerdict("The tokenizers differ: id 7.", (), None, None)
    assert models("check", "owner/draft", "owner/target", "--json") == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["can_work"], record["verdict"]) == (False, "The tokenizers differ: id 7.")
    assert (record["total_bytes"], record["warnings"]) == (None, [])


def test_a_terminal_shows_the_verdict_in_words(verdict, terminal):
    streams = terminal(width=80)
    assert models("check", "owner/draft", "owner/target") == 0
    text = streams.out.text
    assert "4.0 MB" in text
    assert "c ≈ 0.12" in text
    assert "note" in text
    verdict.verdict = PairVerdict(None, (), None, None)
    streams = terminal(width=80)
    assert models("check", "owner/draft", "owner/target") == 0
    assert "note" not in streams.out.text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments",
    [["owner/draft"], ["owner/draft", "owner/missing"], ["owner/missing", "owner/target"],
     ["owner/draft", "owner/target", "--context", "0"], ["owner/draft", "owner/target", "--context", "x"],
     ["owner/draft", "owner/target", "--device", "tpu"]],
    ids=" ".join,
)  # fmt: skip
def test_check_refuses_a_wrong_command_with_exit_2(verdict, capsys, arguments):
    assert models("check", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert is_sentence(err.rstrip("\n"))
    assert verdict.asked is None


def test_models_that_mean_different_text_by_the_same_id_are_told_apart(cached, capsys):
    cached("owner/target", layers=3)
    cached("owner/stranger", tokens=("a", "y", "c"))
    assert models("check", "owner/stranger", "owner/target") == 1
    assert "'y'" in fields(capsys.readouterr().out)["verdict"]


# --- What `outrider run` makes of it ----------------------------------------------------------------------------


@pytest.fixture
def drafter(shelf, monkeypatch):
    """An embedded drafter that borrows the tables of a model that is not here."""
    drafter = ModelEntry(
        "the-drafter", "Drafter", shelf, ModelFormat.SAFETENSORS, 5, ModelOrigin.EMBEDDED, serves="owner/served"
    )
    monkeypatch.setattr("app.cli.run_arguments.embedded_models", lambda: (drafter,))


def chosen(*arguments):
    from app.__main__ import build_parser

    request = build_request(build_parser().parse_args(["run", "--prompt", "Hi", *map(str, arguments)]))
    return request.method, request.target, request.draft


def test_a_target_that_an_embedded_drafter_serves_gets_it(drafter):
    expected = ("draft-model", "owner/served", "the-drafter")
    assert chosen("--target", "owner/served") == expected
    assert chosen("--target", "owner/served", "--method", "draft-model") == expected


def test_the_drafter_is_found_for_its_target_under_another_name(drafter, cached):
    folder = cached("owner/served")
    assert chosen("--target", folder) == ("draft-model", str(folder), "the-drafter")


def test_what_is_named_goes_before_the_drafter(drafter):
    assert chosen("--target", "owner/served", "--draft", "other") == ("draft-model", "owner/served", "other")
    method, _, draft = chosen("--target", "owner/served", "--method", "prompt-lookup")
    assert (method, draft) == ("prompt-lookup", None)


def test_any_other_target_is_drafted_from_the_prompt(drafter, cached):
    cached("owner/other")
    assert chosen("--target", "owner/other") == ("prompt-lookup", "owner/other", None)
    assert chosen("--target", "owner/missing") == ("prompt-lookup", "owner/missing", None)


def test_running_a_model_that_is_not_here_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # So that no other test finds it changed.
    assert main(["run", "--target", "owner/missing", "--prompt", "Hi"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "`outrider models get owner/missing`" in err


# --- All of them ------------------------------------------------------------------------------------------------


def test_only_check_may_import_torch(cached):
    cached("owner/small")
    cached("owner/large", layers=2)
    code = (
        "import sys; from app.__main__ import main;"
        "codes = [main(['models', *words]) for words in"
        " (['list'], ['list', '--suggested'], ['info', 'owner/large'], ['remove', 'owner/small', '--yes'])];"
        "heavy = {'torch', 'transformers', 'PySide6'} & set(sys.modules);"
        "sys.exit(repr((heavy, codes)) if heavy or any(codes) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_full_disk_behind_standard_output_is_a_sentence_and_exit_1(cached, monkeypatch, capsys):
    class Full(io.StringIO):
        def flush(self):
            raise OSError(28, "No space left on device")

    cached("owner/small")
    monkeypatch.setattr("sys.stdout", Full())
    assert models("list") == 1
    assert "No space left" in capsys.readouterr().err


def test_an_error_of_the_core_is_never_a_traceback(monkeypatch, capsys):
    def fail():
        raise OutriderError("The shelf is locked; unlock it.")

    monkeypatch.setattr(catalogue, "local_models", fail)
    assert models("list") == 2
    assert capsys.readouterr() == ("", "The shelf is locked; unlock it.\n")
