"""`outrider check`: its arguments, its report, its exit codes."""

import json
import re
import sys
from dataclasses import replace

import pytest

import app.cli.check
import core.rounds
import core.verify.rejection
from app.__main__ import build_parser, main
from app.cli.check import build_request
from core.errors import GenerationError
from core.experiments.check import check
from core.experiments.servers.check import _NO_IDS
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET, EMBEDDED
from core.settings import Coupling, VerificationRule
from tests.errors import failing
from tests.exactness import mutate
from tests.fakes_check import PROMPTS, TableSession
from tests.fakes_cli import BrokenStream, refused
from tests.test_core_mutants import VERIFIERS


@pytest.fixture
def tables(monkeypatch):
    """The pair is one of tables, and only the settings are the command line's."""
    seen = []

    def open_check(request, controls):
        request = replace(request, prompts=PROMPTS, num_tokens=12)
        seen.append((request, controls))
        return check(TableSession(), request, controls)

    monkeypatch.setattr(app.cli.check, "open_check", open_check)
    return seen


def requested(*arguments):
    return build_request(build_parser().parse_args(["check", *arguments]))


def test_two_names_are_draft_and_target_one_is_the_target_and_none_is_the_embedded_pair():
    run = requested().run
    assert (run.draft, run.target, run.num_draft_tokens) == (DEFAULT_DRAFT, DEFAULT_TARGET, 4)
    run = requested("small", "large", "-k", "6", "--coupling", "gumbel").run
    assert (run.draft, run.target, run.num_draft_tokens, run.coupling) == ("small", "large", 6, Coupling.GUMBEL)
    alone = requested("large", "--method", "prompt-lookup").run
    assert (alone.draft, alone.target, alone.method) == (None, "large", "prompt-lookup")


def test_the_template_and_the_system_prompt_are_those_of_the_arguments(tables, capsys):
    assert [requested(*flags).run.chat for flags in ([], ["--chat"], ["--raw"])] == [None, True, False]
    assert "has no chat template" in refused(capsys, "check", "--chat")
    assert "takes no system prompt" in refused(capsys, "check", "--system", "Be brief.")
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    known = capsys.readouterr().out
    assert all(f"  {flag} " in known for advice in _NO_IDS.values() for flag in re.findall(r"--\w+", advice))


@pytest.mark.parametrize("name", [DEFAULT_TARGET, str(EMBEDDED / DEFAULT_TARGET)])
def test_naming_the_default_target_changes_neither_method_nor_draft(name):
    for method in ([], ["--method", "draft-tree"]):
        unnamed = requested(*method).run
        for flag in ([], ["--target"]):
            named = requested(*flag, name, *method).run
            assert (named.method, named.draft, named.num_draft_tokens) == (unnamed.method, DEFAULT_DRAFT, 4)
    both = requested(DEFAULT_DRAFT, name).run
    assert (both.method, both.draft, both.target) == ("draft-model", DEFAULT_DRAFT, name)


def test_a_methods_own_flags_and_the_rule_are_checked_and_reported(tables, capsys):
    flags = ["--method", "draft-tree", "--depth", "2", "--branching", "2", "--rule", "independent", "-k", "4"]
    assert main(["check", *flags, "--samples", "300"]) == 0
    assert (
        "draft-tree (depth 2, branching 2, lookup 0, rule independent), K = 4, token verification"
        in capsys.readouterr().out
    )
    assert main(["check", "--verification", "typical", "--samples", "300"]) == 1
    assert capsys.readouterr().out.startswith("Not exact: typical acceptance")
    assert tables[1][0].run.verification is VerificationRule.TYPICAL


def test_an_exact_pair_ends_with_0_and_its_report_on_standard_output(tables, capsys, tmp_path):
    out = tmp_path / "report.json"
    assert main(["check", "--samples", "300", "-k", "2", "--json", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("Exact as far as tested: ")
    assert "Token 1 of a block" in printed.out
    assert "Bonus token" in printed.out
    assert "Greedy text, prompt 1 of 2" in printed.err
    assert re.search(r"^Part 2 of 2 · Blocks: .+ of 300, about .+ left$", printed.err, re.MULTILINE)
    assert re.search(r", took .+ s$", printed.out.splitlines()[1])
    bias = r"Bias towards the draft: [^,]+, standard error [\d.]+\s%\. A check of this size finds a bias of [\d.]+\s%"
    assert re.search(bias, printed.out)
    assert json.loads(out.read_text("utf-8"))["verdict"] == "exact"


def test_a_reader_that_goes_away_loses_no_report(tables, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdout", BrokenStream())
    assert main(["check", "--samples", "300", "--json", str(tmp_path / "report.json")]) == 130
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["verdict"] == "exact"


def test_a_file_that_can_no_longer_be_written_loses_no_report(tables, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(app.cli.check, "check_out", lambda path, mark: None)  # As if the folder vanished meanwhile.
    assert main(["check", "--samples", "300", "--json", str(tmp_path / "gone" / "report.json")]) == 2
    assert capsys.readouterr().out.startswith("Exact")


def test_a_broken_verifier_ends_with_1(tables, capsys, monkeypatch):
    mutant = mutate(core.verify.rejection, *VERIFIERS["corrects from the target"])
    monkeypatch.setattr(core.rounds, "verify_block", mutant.verify_block)
    assert main(["check", "--samples", "900"]) == 1
    assert capsys.readouterr().out.startswith("Not exact: ")


def test_a_check_that_is_stopped_ends_with_130_and_a_model_that_fails_with_1_and_a_sentence(capsys, monkeypatch):
    def stop_at_once(request, controls):
        controls.cancel()
        return check(TableSession(), request, controls)

    broken = failing(GenerationError("The target's logits hold NaN."))
    for open_check, code, words in ((stop_at_once, 130, "Stopped."), (broken, 1, "The target's logits hold NaN.")):
        monkeypatch.setattr(app.cli.check, "open_check", open_check)
        assert refused(capsys, "check", code=code) == words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--samples", "3"], "from 200"),
        (["--samples", "many"], "must be a whole number"),
        (["--temperature", "-1"], "Temperature"),
        (["--prompts", "nowhere.txt"], "can't be read"),
        (["--prompts", "poems"], "no prompt suite or file"),
        (["-k", "0"], "With K = 0 nothing is drafted, so there is nothing to check. Set K to 1 or more."),
        (["-k", "99999"], "from 0 to"),
        (["--method", "medusa", "--verification", "block"], "for chains"),
        (["--coupling", "gumbel", "--verification", "block"], "needs rejection coupling"),
        (["--depth", "2"], "no option --depth"),
        (["--method", "draft-tree", "--depth", "0"], "from 1 to 16"),
        (["small", "large", "--method", "prompt-lookup"], "uses no draft model"),
        (["a", "b", "c"], "with --target and --draft"),
        (["--json", "."], "folder"),
    ],
)
def test_bad_input_ends_with_2_and_one_sentence(tables, arguments, words, capsys):
    assert words.lower() in refused(capsys, "check", *arguments).lower()
    assert not tables
