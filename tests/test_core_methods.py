"""Drafters of others: packages with an entry point, classes named by the user, and what is wrong with either."""

import contextlib
import re
import sys

import numpy as np
import pytest
import torch

from app.__main__ import build_parser, main
from app.cli import run, sweep
from app.cli.parsing import add_named_methods
from core.drafters.base import DrafterSetup
from core.drafters.registry import METHODS, Methods, build_drafter, split_options
from core.errors import DrafterError, PromptError, SettingsError
from core.experiments.api import check, generate, measure
from core.experiments.bench_plan import option_text, split_name
from core.experiments.check_plan import Verdict
from core.settings import Coupling, LengthPolicy, RunRequest, SamplingParams, VerificationRule
from tests.fakes import greedy_reference, is_sentence, random_rows, refusal, save_model, table_model, tiny_model

DRAFTER = '''
from dataclasses import dataclass
from enum import Enum

import torch

from core.drafters.base import chain
from core.settings import setting


@dataclass(frozen=True)
class Options:
    token: int = setting(1, label="Token", help="What is proposed, always.", min=0, max=255, step=1)


class Stubborn:
    """Proposes one token again and again."""

    title = "Stubborn"
    Options = Options
    needs = frozenset()

    def __init__(self, setup, options):
        self.setup, self.options = setup, options

    def start(self, prompt):
        pass

    def propose(self, context):
        return chain(torch.full((context.num_draft_tokens,), self.options.token), None)

    def observe(self, outcome):
        pass


class Half:
    def start(self, prompt):
        pass


class Demanding(Stubborn):
    needs_draft_model = True


class Loose(Stubborn):
    needs = None


class Clumsy(Stubborn):
    def __init__(self, setup):
        pass


class Bare(Stubborn):
    @dataclass(frozen=True)
    class Options:
        token: int


class Shade(str, Enum):
    RED = "red"
    __str__ = str.__str__


class Shady(Stubborn):
    @dataclass(frozen=True)
    class Options:
        colour: Shade = setting(Shade.RED, label="Colour", help="A choice.", titles={})


class Choosy(Stubborn):
    @dataclass(frozen=True)
    class Options:
        colour: Enum = setting(Enum("Colour", "RED").RED, label="Colour", help="A choice.", titles={})


class Wordy(Stubborn):
    @dataclass(frozen=True)
    class Options:
        colour: Enum = setting(Enum("Colour", {"RED": "red"}, type=str).RED, label="Colour", help="A.", titles={})
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on Python's path with the module; what was added to the methods is forgotten afterwards."""
    name = f"drafters_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(DRAFTER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(METHODS, "_methods", dict(METHODS))
    return tmp_path


@pytest.fixture
def module(folder):
    return next(folder.glob("drafters_*.py")).stem


def install(folder, *entries: str) -> Methods:
    """Install a package with these entry points, and look for methods anew."""
    info = folder / "strange_drafters-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-drafters\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(["[outrider.drafters]", *entries]) + "\n")
    return Methods(METHODS.values())


def setup() -> DrafterSetup:
    return DrafterSetup(table_model(random_rows(8, 1), 8))


def test_a_package_adds_a_method_and_a_broken_one_is_left_out_with_a_sentence(folder, module):
    (folder / "exits.py").write_text("raise SystemExit(3)")
    methods = install(
        folder, f"stubborn = {module}:Stubborn", "gone = no_such_module:Drafter", f"half = {module}:Half",
        "exits = exits:Drafter", f"bare = {module}:Bare", f"a:b = {module}:Stubborn",
        f"prompt-lookup = {module}:Stubborn", f"plain = {module}:Stubborn",
    )  # fmt: skip
    assert list(methods) == [*METHODS, "stubborn"]
    method = methods["stubborn"]
    assert (method.title, method.summary) == ("Stubborn", "Proposes one token again and again.")
    assert len(methods.problems) == 7
    assert all(is_sentence(problem) and "strange-drafters" in problem for problem in methods.problems)


def test_a_package_may_describe_its_method_without_importing_the_drafter(folder, module):
    (folder / "light.py").write_text(
        "from core.drafters.registry import Method, NoOptions\n"
        "METHOD = Method('light', 'Light', 'Imported late.', False, NoOptions, 'no_such_module:Drafter')\n"
    )
    methods = install(folder, "any = light:METHOD")
    assert methods["light"].title == "Light"
    assert not methods.problems


def test_a_named_class_is_a_method_with_options_under_its_path(module):
    add_named_methods(["run", "--method", f"{module}:Stubborn", "--prompt", "a:b"])
    drafter = build_drafter(f"{module}:Stubborn", setup(), {"token": 5})
    assert drafter.options.token == 5
    assert split_options(f"{module}:Stubborn:token=5") == (f"{module}:Stubborn", ["token=5"])
    assert split_options("medusa:Class") == ("medusa:Class", [])  # A module may be called as a method is.
    assert split_options("prompt-lookup:max-ngram=5") == ("prompt-lookup", ["max-ngram=5"])
    for heads in (r"C:\my heads\a=b", "/runs:12:30/heads"):
        options = {"heads": heads, "int8": False}
        assert split_name(option_text("medusa", options)) == ("medusa", options)
    with pytest.raises(SettingsError, match="from 0 to 255"):
        build_drafter(f"{module}:Stubborn", setup(), {"token": 999})


def test_a_choice_may_be_any_enum_whose_members_are_named_by_their_texts(module):
    METHODS.add_class(f"{module}:Shady")
    named, default = (build_drafter(f"{module}:Shady", setup(), options) for options in ({"colour": "red"}, {}))
    assert named.options == default.options


@pytest.mark.parametrize(
    ("name", "error", "part"),
    [
        ("no_such_module:Drafter", SettingsError, "no_such_module"),
        ("{}:", SettingsError, "of the form module:Class"),
        (":Bare", SettingsError, "of the form module:Class"),
        ("my-draft:Bare", SettingsError, "of the form module:Class"),
        ("{}:Missing", SettingsError, "Missing"),
        ("{}:Half", SettingsError, "propose"),
        ("{}:Bare", SettingsError, "has no default"),
        ("{}:Choosy", SettingsError, "colour is a choice that is neither a StrEnum"),
        ("{}:Wordy", SettingsError, "colour is a choice that is neither a StrEnum"),
        ("{}:Demanding", SettingsError, "needs a draft model"),
        ("{}:Clumsy", DrafterError, "can't be created"),
        ("{}:Loose", DrafterError, "frozenset"),
    ],
)
def test_what_is_wrong_with_a_named_class_is_a_sentence(module, name, error, part):
    name = name.format(module)

    def use() -> None:
        METHODS.add_class(name)
        build_drafter(name, setup())

    assert part in refusal(error, use)


def test_a_log_that_names_a_class_runs_no_code(module):
    with pytest.raises(SettingsError, match="start Outrider with --method"):
        build_drafter(f"{module}:Stubborn", setup())
    assert module not in sys.modules


def test_the_terminal_runs_a_class_in_the_current_folder_with_its_flags(folder, module, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in {"", str(folder)}])
    command = ["run", "--method", f"{module}:Stubborn", "--token", "7", "--prompt", "def f(x):", "--temperature", "0"]
    assert main([*command, "--max-new-tokens", "4", "--log", "run.jsonl"]) == 0, capsys.readouterr().err
    log = (folder / "run.jsonl").read_text("utf-8")
    assert f'"method": "{module}:Stubborn"' in log
    assert '"token": 7' in log


def test_options_whose_flags_are_taken_follow_the_name_and_stop_no_command(folder, module):
    (folder / "taken.py").write_text(
        f"from {module} import *\n"
        "class Seeded(Stubborn):\n"
        "    @dataclass(frozen=True)\n"
        "    class Options:\n"
        "        seed: int = setting(1, label='Seed', help='Its own.', min=0, max=9, step=1)\n"
        "        heads: int = setting(1, label='Heads', help='A number.', min=0, max=9, step=1)\n"
    )
    name = "taken:Seeded:seed=3:heads=4"
    add_named_methods(["run", "--method", name])
    run_args = build_parser().parse_args(["run", "--prompt", "a", "--method", name, "--seed", "5"])
    request = run.build_request(run_args)
    assert (request.method, request.seed, dict(request.method_options)) == ("taken:Seeded", 5, {"seed": 3, "heads": 4})
    command = ["run", "--prompt", "a", "--method", "taken:Seeded", "--heads"]
    for value in ("4", "four"):  # The flag is that of Medusa's option, a path.
        run_args = build_parser().parse_args([*command, value])
        with contextlib.nullcontext() if value == "4" else pytest.raises(SettingsError, match="must be a number"):
            assert dict(run.build_request(run_args).method_options) == {"heads": 4}
    grid = ["--heads", "1-2", "--seed", "5", "--prompts", "code", "--out", "x"]
    plan = sweep.build_plan(build_parser("sweep").parse_args(["sweep", "--method", "taken:Seeded:seed=3", *grid]))
    assert plan.seed == 5
    assert [dict(drafter.options) for drafter in plan.drafters] == [{"seed": 3, "heads": 1}, {"seed": 3, "heads": 2}]


COMMANDS = {
    "run": ("--prompt", "abc", "--max-new-tokens", "4", "--log", "{out}"),
    "check": ("--samples", "200", "--prompts", "{folder}/prompts.txt", "--max-new-tokens", "4", "--json", "{out}"),
    "sweep": ("--prompts", "{folder}/prompts.txt", "--repeats", "1", "--max-new-tokens", "4", "--out", "{out}"),
}


@pytest.mark.parametrize("is_package", [False, True], ids=["class", "package"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_named_class_and_a_method_of_a_package_run_in_every_command(
    folder, module, monkeypatch, capsys, command, is_package
):
    name = f"{module}:Stubborn"
    if is_package:
        install(folder, f"stubborn = {module}:Stubborn")
        monkeypatch.setattr(METHODS, "_has_looked", False)
        name = "stubborn"
    target, out = str(save_model(folder / "target")), folder / "out.json"
    (folder / "prompts.txt").write_text("abc\n", "utf-8")
    more = [part.format(folder=folder, out=out) for part in COMMANDS[command]]
    assert main([command, "--method", name, "--token", "7", "--target", target, "-k", "2", *more]) == 0, (
        capsys.readouterr().err
    )
    record = out.read_text("utf-8").replace("\n", "")
    assert re.search(rf'"method": ?"{re.escape(name)}"', record)
    assert re.search(r'"token": ?7\b', record)


@pytest.mark.parametrize("is_model", [False, True])
def test_one_call_generates_measures_and_checks(module, is_model):
    target, draft = (tiny_model(seed=seed, is_fused=True) for seed in (0, 1))
    prompt = "abcabc"
    METHODS.add_class(f"{module}:Stubborn")
    drafter = draft if is_model else build_drafter(f"{module}:Stubborn", DrafterSetup(target))
    sampling, ids = SamplingParams(0.0), list(b"abcabc")
    expected = greedy_reference(target, ids, 12)
    assert list(generate(target, drafter, ids, sampling=sampling, max_new_tokens=12).ids) == expected
    assert list(generate(target, None, ids, sampling=sampling, max_new_tokens=12).ids) == expected
    speed = measure(target, drafter, [prompt], num_draft_tokens=2, max_new_tokens=8, rounds=2)
    assert len(speed.speedup.values) == 2
    assert speed.speedup.median > 0
    asked = {"num_draft_tokens": 2, "num_samples": 200, "num_tokens": 8}
    assert check(target, drafter, [prompt], **asked).verdict is Verdict.EXACT
    lossy = {"verification": VerificationRule.TYPICAL}
    assert check(target, drafter, [prompt], **asked, **lossy).verdict is Verdict.NOT_EXACT
    assert list(generate(target, drafter, ids, sampling=sampling, max_new_tokens=12, **lossy).ids) == expected


@pytest.mark.parametrize("drafter", ["draft-model", 3, object])
def test_what_is_no_drafter_is_a_sentence(drafter):
    for call in (generate, measure, check):
        refusal(DrafterError, call, tiny_model(), drafter, "a" if call is generate else ["a"])


@pytest.mark.parametrize("token", [-1, 10**9, 1.5, "a"])
def test_what_is_no_id_is_a_sentence(token):
    assert "ids from 0 to 256" in refusal(PromptError, generate, tiny_model(), None, [5, token])


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        *[("max_new_tokens", value, "number of new tokens must be") for value in ("5", 2.5, None, True)],
        *[("seed", value, "seed must be") for value in ("1", 1.5, None, True, 2**63)],
        *[("sampling", value, "must be SamplingParams") for value in ({}, 0.7, "x")],
        ("stop", 5, "must be texts"),
    ],
)
def test_a_setting_of_another_kind_is_a_sentence(setting, value, words):
    refusal(SettingsError, generate, tiny_model(), tiny_model(), "abc", **{setting: value}, match=words)
    if setting in {"seed", "sampling"}:
        refusal(SettingsError, check, tiny_model(), tiny_model(), "abc", **{setting: value}, match=words)


@pytest.mark.parametrize("prompts", [5, [5], [[1, 2]], b"abc"])
def test_prompts_that_are_no_texts_are_a_sentence(prompts):
    for call in (measure, check):
        refusal(PromptError, call, tiny_model(), tiny_model(), prompts, match="must be texts")


def test_a_row_of_a_tensor_a_path_and_numpys_numbers_are_read_as_what_they_are(tmp_path):
    asked, folder = {"sampling": SamplingParams(0.0), "max_new_tokens": 4}, save_model(tmp_path / "model")
    expected = generate(str(folder), None, [5, 6, 7], **asked).ids
    for prompt in (torch.tensor([5, 6, 7]), torch.tensor([[5, 6, 7]]), np.array([[5, 6, 7]])):
        more = asked | {"max_new_tokens": np.int64(4)}
        assert generate(folder, None, prompt, **more).ids == expected
    for prompt in (torch.tensor([[5], [6]]), None, 3):
        refusal(PromptError, generate, tiny_model(), None, prompt, match="The prompt")
    refusal(SettingsError, generate, None, None, "abc", match="The target must be")


def test_a_choice_that_is_named_by_its_text_acts_as_its_member():
    request = RunRequest(
        "T", None, "a", num_draft_tokens=None, length_policy="auto", coupling="gumbel", verification="typical"
    )
    assert (request.coupling, request.is_lossy) == (Coupling.GUMBEL, True)
    assert request.draft_length is LengthPolicy.AUTO
    for policy in (LengthPolicy.ADAPTIVE, "adaptive"):
        assert RunRequest("T", None, "a", num_draft_tokens=policy).draft_length is LengthPolicy.ADAPTIVE
    target, draft = (tiny_model(seed=seed, is_fused=True) for seed in (0, 1))
    asked = {"num_draft_tokens": 3, "max_new_tokens": 12, "seed": 5}
    for setting, member in (("coupling", Coupling.GUMBEL), ("verification", VerificationRule.TYPICAL)):
        found = [generate(target, draft, "abc", **asked, **{setting: value}).ids for value in (str(member), member)]
        assert found[0] == found[1] != generate(target, draft, "abc", **asked).ids
        assert setting in refusal(SettingsError, generate, target, draft, "abc", **{setting: "nope"}).lower()
    report = check(target, draft, ["abc"], num_samples=200, num_tokens=8, verification="typical")
    assert (report.is_lossy, report.verdict) == (True, Verdict.NOT_EXACT)


def test_a_single_prompt_or_stop_text_is_one_and_not_its_letters():
    target, draft = (tiny_model(seed=seed, is_fused=True) for seed in (0, 1))
    report = check(target, draft, "abc", num_samples=200, num_tokens=4)
    assert [prompt.text for prompt in report.request.prompts] == ["abc"]
    asked = {"max_new_tokens": 12, "sampling": SamplingParams(0.0)}
    whole = generate(target, draft, "abc", **asked).text
    first, second = whole[4:6]
    for stop, expected in ((first + second, whole[:4]), (second + first, whole)):
        assert generate(target, draft, "abc", stop=stop, **asked).text == expected
    assert RunRequest("T", None, "a", stop="ab").stop == ("ab",)
    for stop, problem in (("", "is empty"), (["a", ""], "is empty"), ([3], "must be a text")):
        refusal(SettingsError, generate, target, draft, "abc", stop=stop, match=f"A stop text {problem}")
        refusal(SettingsError, RunRequest, "T", None, "a", stop=stop, match=f"A stop text {problem}")


@pytest.mark.parametrize("call", [generate, check])
def test_a_rule_that_cant_test_the_drafts_is_refused_as_in_the_terminal(call):
    target, prompt = tiny_model(), "abc" if call is generate else ["abc"]
    for rule in ("block", VerificationRule.TYPICAL):
        words = "needs rejection coupling"
        refusal(SettingsError, call, target, target, prompt, coupling="gumbel", verification=rule, match=words)
    tree = build_drafter("draft-tree", DrafterSetup(target, target, 32))
    refusal(SettingsError, call, target, tree, prompt, verification=VerificationRule.BLOCK, match="for chains")
    refusal(SettingsError, call, target, None, prompt, verification="nope", match="Verification must be one of")


def test_plain_decoding_ignores_the_rule():
    asked = {"max_new_tokens": 4, "coupling": "gumbel"}
    found, plain = (
        generate(tiny_model(), None, "abc", **rule, **asked).ids for rule in ({"verification": "block"}, {})
    )
    assert found == plain
