"""`outrider models`: exact for programs, verdicts on pairs, and nothing of the user's own is ever deleted."""

import io
import json
from types import SimpleNamespace

import pytest

from core.models import catalogue
from core.models.catalogue import ModelEntry, ModelFormat, ModelOrigin
from core.models.fit import MemoryForecast, PairVerdict
from tests.children import imports_of
from tests.fakes import is_sentence
from tests.fakes_cache import COMMIT, fields, leave_partial, models, write_model
from tests.fakes_cli import refused
from tests.hub_server import Repository

pytestmark = pytest.mark.usefixtures("shelf")


# --- list -------------------------------------------------------------------------------------------------------


def test_a_model_of_the_hub_cache_is_listed_with_exact_values(cached, capsys):
    folder = cached("owner/small")
    assert models("list") == 0
    out, err = capsys.readouterr()
    (row,) = (line.split("\t") for line in out.splitlines())
    size = (folder / "model.safetensors").stat().st_size
    assert row[:8] == ["owner/small", "hub", "safetensors", "bfloat16", "44", "2048", "3", str(size)]
    assert row[8:] == [str(folder)]
    assert err == ""
    assert models("list", "--json") == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["parameters"], record["revision"], record["problem"]) == (44, COMMIT, None)


def test_an_empty_list_of_models_says_so(capsys):
    assert models("list") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "--suggested" in err
    assert models("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_damaged_model_is_a_row_with_its_reason_and_the_others_are_complete(shelf, monkeypatch, capsys):
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


def test_a_stopped_download_is_reported_beside_the_list(shelf, capsys):
    leave_partial(shelf)
    assert models("list") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("owner/model: 4.0 MB of a partial download")


def test_a_wide_terminal_shows_every_column_and_a_narrow_one_the_names_and_sizes(cached, terminal):
    cached("owner/with-a-name-of-some-length")
    wide = terminal(width=300)
    assert models("list") == 0
    titles = ["model", "origin", "format", "precision", "params", "context", "vocab", "size", "path"]
    assert wide.out.text.split()[:9] == titles
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


def test_suggestions_say_what_is_already_downloaded(cached, capsys):
    cached("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert models("list", "--suggested") == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    here = {row[0] for row in rows if row[5] == "yes"}
    assert here == {"HuggingFaceTB/SmolLM2-135M-Instruct"}
    assert {row[5] for row in rows} == {"yes", "no"}
    target = next(row for row in rows if row[0] == "HuggingFaceTB/SmolLM2-1.7B-Instruct")
    assert target[6].split(",")[0] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert int(target[2]) > 3_000_000_000


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


@pytest.mark.parametrize("action", ["info", "remove"])
@pytest.mark.parametrize("ref", ["nothing-here", "owner/nothing-here"])
def test_a_model_that_is_not_here_is_a_sentence_and_exit_2(action, ref, capsys):
    said = refused(capsys, "models", action, ref)
    assert ref in said
    assert is_sentence(said)


# --- All of them ------------------------------------------------------------------------------------------------


def test_only_check_may_import_torch(cached):
    cached("owner/small")
    cached("owner/large", layers=2)
    words = ("list", "list --suggested", "info owner/large", "remove owner/small --yes")
    code = f"from app.__main__ import main; assert not any([main(['models', *each.split()]) for each in {words!r}])"
    assert imports_of(code, "torch", "transformers", "PySide6") == []


def test_a_full_disk_on_standard_output_is_a_sentence_and_exit_1(cached, monkeypatch, capsys):
    class Full(io.StringIO):
        def flush(self):
            raise OSError(28, "No space left on device")

    cached("owner/small")
    monkeypatch.setattr("sys.stdout", Full())
    assert models("list") == 1
    assert "No space left" in capsys.readouterr().err


# --- check ----------------------------------------------------------------------------------------------------------


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

    monkeypatch.setattr("core.models.fit.pair_verdict", pair_verdict)
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
def test_check_refuses_a_wrong_command_with_exit_2(verdict, capsys, monkeypatch, arguments):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert is_sentence(refused(capsys, "models", "check", *arguments))
    assert verdict.asked is None


@pytest.mark.slow
def test_a_pair_is_judged_before_it_is_downloaded_and_no_weights_are_fetched(server, tmp_path, monkeypatch, capsys):
    for name, size in (("target", 200_000), ("draft", 20_000)):
        folder = write_model(tmp_path / name, files={"model.safetensors": bytes(size)}, dtype="bfloat16")
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        server.repositories[f"owner/{name}"] = Repository(files)
    for _ in range(2):
        assert models("check", "owner/draft", "owner/target", "--device", "cpu", "--dtype", "float32") == 0
        shown = fields(capsys.readouterr().out)
        assert int(shown["weights_bytes"]) == pytest.approx(4 * 110_000)
        assert float(shown["cost_coefficient"]) == pytest.approx(0.1, rel=0.01)
        assert "estimates for owner/draft and owner/target" in shown["warnings"]
    assert "model.safetensors" not in server.sent
    said = refused(capsys, "models", "info", "owner/target")
    assert "is not downloaded yet. Get it with `outrider models get owner/target`" in said
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert models("check", "owner/draft", "owner/target") == 2
    server.repositories["owner/draft"].files["tokenizer.json"] = b'{"model": {"vocab": {"z": 0}}}'
    server.repositories["owner/draft"].commit = "b" * 40
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert models("check", "owner/draft", "owner/target") == 1
    assert "tokenizers differ" in capsys.readouterr().out


# --- remove ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def removal(monkeypatch, tmp_path):
    """A model that can be removed; the names of those that were."""
    entry = ModelEntry("owner/model", "model", tmp_path, ModelFormat.SAFETENSORS, 5, ModelOrigin.HUB)
    plan = SimpleNamespace(entry=entry, frees_bytes=269_000_000, note="Other programs use it too.")
    removed = []
    monkeypatch.setattr("core.models.remote.removal.plan_removal", lambda ref: plan)
    monkeypatch.setattr("core.models.remote.removal.remove", lambda ref: removed.append(ref) or plan.frees_bytes)
    return removed


@pytest.mark.parametrize("answer", ["y\n", "Yes\n"])
def test_remove_shows_the_freed_bytes_and_a_note_before_it_asks(removal, terminal, answer):
    streams = terminal(typed=answer)
    assert models("remove", "owner/model") == 0
    assert removal == ["owner/model"]
    text = streams.err.text
    assert "269 MB" in text
    assert "Other programs use it too." in text
    assert text.rstrip().endswith("Removed owner/model; 269 MB is free again.")


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "yikes\n"])
def test_any_other_answer_leaves_the_model(removal, terminal, answer):
    streams = terminal(typed=answer)
    assert models("remove", "owner/model") == 130
    assert removal == []
    assert "Nothing was removed." in streams.err.text


def test_without_a_terminal_remove_requires_yes(removal, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert "--yes" in refused(capsys, "models", "remove", "owner/model")
    assert removal == []
    assert models("remove", "owner/model", "--yes") == 0
    assert removal == ["owner/model"]


def test_a_folder_of_the_users_own_is_never_removed(shelf, capsys):
    folder = write_model(shelf / "mine")
    assert is_sentence(refused(capsys, "models", "remove", folder, "--yes"))
    assert (folder / "model.safetensors").exists()
