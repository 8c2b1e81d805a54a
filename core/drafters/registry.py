"""The drafting methods: Outrider's own, those of installed packages, and classes that the user names.

Imports no torch.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum, StrEnum
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from core.errors import DrafterError, OutriderError, SettingsError, first_line
from core.settings import LONGEST_CHAIN, SAME_TEXT, Coupling, RunRequest, VerificationRule, declared, setting, validate
from core.text import did_you_mean

if TYPE_CHECKING:
    from core.drafters.base import Drafter, DrafterSetup

GROUP = "outrider.drafters"
"""The entry-point group through which an installed package adds methods."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_TAKEN = ("plain", "auto", "generate", "assisted", "flashspec", "flashspec-auto", "llama.cpp", "llama.cpp-draft")
"""Contenders of a bench, and the baseline of a sweep."""


@dataclass(frozen=True, slots=True)
class NoOptions:
    """For a method without options."""


@dataclass(frozen=True, slots=True)
class DraftModelOptions:
    """Options of drafting with a model."""

    int8: bool = setting(
        True,
        label="Draft in int8",
        help="On the CPU, compute the draft in int8 if that is faster. The output still follows the target's "
        "distribution exactly.",
    )


class TreeRule(StrEnum):
    """How the children of a node are drafted above temperature 0."""

    WITHOUT = "without-replacement"
    """Each drawn from what its earlier siblings leave (Sequoia, 2402.12374)."""
    INDEPENDENT = "independent"
    """Each drawn from the same distribution; siblings may repeat (SpecInfer, 2305.09781)."""
    TOP = "sampled-then-top"
    """The first drawn, the others the most likely ones that are left (Hu et al., 2502.18779)."""
    BEST = "best"
    """The most likely ones, as at temperature 0."""


@dataclass(frozen=True, slots=True)
class DraftTreeOptions(DraftModelOptions):
    """Options of drafting a tree; K is its number of nodes."""

    depth: int = setting(
        4,
        label="Depth",
        help="The maximum number of tokens in a row; with K auto, fewer if another level isn't worth it. K is "
        "the number of nodes in the whole tree.",
        min=1,
        max=LONGEST_CHAIN,
        step=1,
    )
    branching: int = setting(
        3,
        label="Branching",
        help="The maximum number of candidates for the token that follows a node; 1 makes the tree a chain.",
        min=1,
        max=LONGEST_CHAIN,
        step=1,
    )
    rule: TreeRule = setting(
        TreeRule.WITHOUT,
        label="Candidates",
        help="How candidates are chosen above temperature 0: drawn without replacement, drawn independently, "
        "one drawn and then the most likely others, or only the most likely ones (best). All four are exact.",
        titles={
            TreeRule.WITHOUT: "Distinct",
            TreeRule.INDEPENDENT: "Independent",
            TreeRule.TOP: "One drawn",
            TreeRule.BEST: "Best",
        },
    )
    lookup: int = setting(
        0,
        label="Nodes from lookup",
        help="How many of the K nodes may come from prompt lookup: they repeat what followed an earlier "
        "occurrence of the last tokens; 0 for none.",
        min=0,
        max=LONGEST_CHAIN,
        step=1,
    )


@dataclass(frozen=True, slots=True)
class PromptLookupOptions:
    """Options of prompt lookup. A field's metadata builds its form in the window and its command-line flag."""

    max_ngram: int = setting(
        3,
        label="Longest n-gram",
        help="How many of the last tokens to look up first. If they are not found, shorter n-grams are tried.",
        min=1,
        max=10,
        step=1,
    )
    min_ngram: int = setting(
        1,
        label="Shortest n-gram",
        help="The minimum number of tokens that must match before anything is proposed.",
        min=1,
        max=10,
        step=1,
    )

    def __post_init__(self) -> None:
        validate(self)
        if self.min_ngram > self.max_ngram:
            raise SettingsError("The shortest n-gram must not be longer than the longest.")


@dataclass(frozen=True, slots=True)
class MedusaOptions:
    """Options of drafting with Medusa heads."""

    heads: str = setting(
        "",
        label="Heads",
        help="A folder written by `outrider distill TARGET --kind medusa`, or published heads (medusa_lm_head.pt or "
        ".safetensors). Empty: those included for this target.",
        path=True,
        metavar="PATH",
        placeholder="those included for the target",
    )
    int8: bool = setting(
        True,
        label="Heads in int8",
        help="On the CPU, compute the heads' logits in int8 if that is faster. The output still follows the "
        "target's distribution exactly.",
    )


@dataclass(frozen=True, slots=True)
class Method:
    """One way to draft.

    Attributes:
        name: what the command line and the run log call it.
        title: what the window calls it.
        summary: one sentence for a tooltip.
        needs_draft_model: whether it needs a second model.
        options: dataclass of the method's options.
        factory: makes its `Drafter` from a `DrafterSetup` and the options; "module:Class" is imported when a run needs
            it.
        proposes_trees: whether it proposes several candidates for a position.
    """

    name: str
    title: str
    summary: str
    needs_draft_model: bool
    options: type
    factory: str | Callable[[DrafterSetup, Any], Drafter]
    proposes_trees: bool = False

    @property
    def is_own(self) -> bool:
        """Whether it is one of Outrider's own."""
        return isinstance(self.factory, str)

    def parse(self, values: Mapping[str, Any] | None = None) -> Any:
        """The options with these values, by field name; the others have their defaults.

        Raises:
            SettingsError: an unknown option, or a value out of range.
        """
        values = values or {}
        known = [item.name for item in fields(self.options)]
        if not values.keys() <= set(known):
            raise SettingsError(
                f"{self.title} doesn't have all of these options: {', '.join(values)}. It has: "
                f"{', '.join(known) or 'none'}."
            )
        try:
            options = self.options(**values)
            validate(options)
        except SettingsError:
            raise
        except Exception as error:
            raise SettingsError(f"{self.title} can't use these options: {first_line(error)}.") from error
        return options


class Methods(Mapping[str, Method]):
    """The methods by name. Those of installed packages are looked for when the methods are first read.

    Attributes:
        problems: a sentence for each method of a package that can't be used, and is left out.
    """

    def __init__(self, own: Iterable[Method]) -> None:
        self._methods = {method.name: method for method in own}
        self._has_looked = False
        self.problems: list[str] = []

    def __getitem__(self, name: str) -> Method:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def add_class(self, path: str) -> Method:
        """Add the drafter class at "module:Class", which is then the method's name.

        The module may also lie in the current folder. This runs its code, so the path must come from the user.

        Raises:
            SettingsError: there is no such class, its module fails, or it is not a drafter.
        """
        if path in self._all():
            return self._methods[path]
        module, _, name = path.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            raise SettingsError(f"The method {path!r} isn't of the form module:Class, as in my_module:MyDrafter.")
        package = module.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            sys.path.append(os.getcwd())
        method = _load(EntryPoint(path, path, GROUP), f"The method {path!r}", "check its name and its code")
        self._methods[path] = method
        return method

    def _all(self) -> dict[str, Method]:
        if not self._has_looked:
            self._has_looked = True  # First, since a package may itself read the methods while it is imported.
            for found in entry_points(group=GROUP):
                try:
                    self._add_package(found)
                except SettingsError as error:
                    self.problems.append(str(error))
        return self._methods

    def _add_package(self, found: EntryPoint) -> None:
        package = found.dist.name if found.dist else found.value
        subject, advice = f"The method {found.name!r} of the package {package}", "update or remove the package"
        method = _load(found, subject, advice)
        if not _NAME.fullmatch(method.name) or method.name in (*self._methods, *_TAKEN):
            is_taken = _NAME.fullmatch(method.name)
            problem = "has a name that is taken" if is_taken else "needs a name of a-z, 0-9, '.', '-' and '_'"
            raise SettingsError(f"{subject} {problem}: {method.name!r}; {advice}.")
        self._methods[method.name] = method


def _load(found: EntryPoint, subject: str, advice: str) -> Method:
    """The method that an entry point's class describes, or the `Method` that it holds.

    Raises:
        SettingsError: it can't be used; the sentence begins with `subject` and ends with `advice`.
    """
    try:
        loaded = found.load()
        method = loaded if isinstance(loaded, Method) else _describe(loaded, found.name)
        _check(method)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # A stranger's module may even exit.
        cause = str(error) if isinstance(error, SettingsError) else f"{type(error).__name__}: {first_line(error)}"
        raise SettingsError(f"{subject} can't be used ({cause.rstrip('.')}); {advice}.") from error
    return method


def _describe(drafter: Any, name: str) -> Method:
    """The method of a `Drafter` class, from its attributes name, title, summary, Options and needs_…."""
    if not isinstance(drafter, type) or not all(
        callable(getattr(drafter, part, None)) for part in ("start", "propose", "observe")
    ):
        raise SettingsError("it is not a class with the methods start, propose and observe")
    doc = " ".join((drafter.__doc__ or "").strip().partition("\n\n")[0].split())
    return Method(
        name=name if ":" in name else getattr(drafter, "name", name),
        title=getattr(drafter, "title", drafter.__name__),
        summary=getattr(drafter, "summary", doc or f"The drafter {drafter.__name__}."),
        needs_draft_model=getattr(drafter, "needs_draft_model", False),
        options=getattr(drafter, "Options", NoOptions),
        factory=drafter,
        proposes_trees=getattr(drafter, "proposes_trees", False),
    )


def _check(method: Method) -> None:
    for name in ("name", "title", "summary"):
        if not isinstance(getattr(method, name), str) or not getattr(method, name):
            raise SettingsError(f"its {name} is not a string")
    if not isinstance(method.options, type) or not is_dataclass(method.options):
        raise SettingsError("its Options is not a dataclass")
    for item in fields(method.options):
        if item.default is MISSING and item.default_factory is MISSING:
            raise SettingsError(f"its option {item.name} has no default")
    for name, item in declared(method.options).items():
        is_number = isinstance(item.default, int | float) and not isinstance(item.default, bool)
        if lacking := {"help", *(("min", "max", "step") if is_number else ())} - item.metadata.keys():
            raise SettingsError(f"its option {name} declares no {', '.join(sorted(lacking))}")
        default = item.default
        if isinstance(default, Enum) and not (isinstance(default, str) and str(default) == default.value):
            # Flags and files name a choice by its text, and a log is read back from it.
            raise SettingsError(f"its option {name} is a choice that is neither a StrEnum nor has its value as str()")
    method.parse()


METHODS = Methods(
    (
        Method(
            "draft-model",
            "Draft model",
            "A smaller model with the same tokenizer proposes the next K tokens.",
            True,
            DraftModelOptions,
            "core.drafters.draft_model:DraftModelDrafter",
        ),
        Method(
            "prompt-lookup",
            "Prompt lookup",
            "Looks up the last few tokens earlier in the text and proposes what followed them there.",
            False,
            PromptLookupOptions,
            "core.drafters.prompt_lookup:PromptLookupDrafter",
        ),
        Method(
            "self-draft",
            "Self-draft (int8)",
            "The target itself proposes the next K tokens, from an int8 copy of its weights. It needs the CPU and "
            "float32, and pays only for Llama-shaped models.",
            False,
            NoOptions,
            "core.drafters.draft_model:SelfDraftDrafter",
        ),
        Method(
            "draft-tree",
            "Draft tree",
            "A smaller model proposes several candidates for each position; K is the number of nodes of this tree.",
            True,
            DraftTreeOptions,
            "core.drafters.draft_tree:DraftTreeDrafter",
            proposes_trees=True,
        ),
        Method(
            "medusa",
            "Medusa heads",
            "Small layers on the target's own states propose a tree of several next tokens.",
            False,
            MedusaOptions,
            "core.drafters.medusa:MedusaDrafter",
            proposes_trees=True,
        ),
    )
)


def split_options(text: str) -> tuple[str, list[str]]:
    """A method's name and the options after it, as in "prompt-lookup:max-ngram=5" or "module:Class:depth=3"."""
    name, *parts = re.split(r":(?=\s*[^\W\d][\w-]*\s*=)", text)  # A value may be a path with colons.
    return name, parts


def get_method(name: str) -> Method:
    """The method called `name`.

    Raises:
        SettingsError: there is none; the message lists the methods.
    """
    try:
        return METHODS[name]
    except KeyError:
        more = f" To use that class, start Outrider with --method {name}." if ":" in name and "=" not in name else ""
        meant = did_you_mean(name, METHODS)
        raise SettingsError(f"There is no method {name!r}.{meant} Choose one of: {', '.join(METHODS)}.{more}") from None


def rule_problem(method: str, coupling: Coupling, rule: VerificationRule) -> str:
    """One sentence on why a rule can't test what a method drafts; empty if it can.

    Raises:
        SettingsError: there is no such method.
    """
    found = get_method(method)
    return drafts_problem(found.name, coupling, rule, are_trees=found.proposes_trees)


def drafts_problem(method: str, coupling: Coupling, rule: VerificationRule, *, are_trees: bool) -> str:
    """`rule_problem` for drafts of this shape, of a method that need not be registered."""
    title = str(rule).capitalize()
    if rule != VerificationRule.TOKEN and coupling == Coupling.GUMBEL:
        return (
            f"{title} verification needs rejection coupling, not Gumbel coupling (in the window: {SAME_TEXT}). Verify "
            "token by token."
        )
    if rule == VerificationRule.BLOCK and are_trees:
        return f"Block verification is for chains, and the method {method} drafts trees. Verify token by token."
    return ""


def check_rule(run: RunRequest) -> None:
    """Raise SettingsError with `rule_problem`'s sentence, if there is one."""
    if problem := rule_problem(run.method, run.coupling, run.verification):
        raise SettingsError(problem)


def build_drafter(name: str, setup: DrafterSetup, options: Mapping[str, Any] | None = None) -> Drafter:
    """Make a drafter of the method called `name`, with these values of its options.

    Raises:
        SettingsError: an unknown method or option, a value out of range, or a missing draft model.
        DrafterError: a third-party drafter that fails here, or an object that is not a drafter.
    """
    from core.controls import Cancelled
    from core.drafters.base import Drafter  # Imported late, since it needs torch.

    method = get_method(name)
    parsed = method.parse(options)
    if method.needs_draft_model and setup.draft is None:
        raise SettingsError(
            f"{method.title} needs a draft model. Choose one, or choose prompt lookup, which needs none."
        )
    try:
        factory = method.factory
        make = EntryPoint(name, factory, GROUP).load() if isinstance(factory, str) else factory
        drafter = make(setup, parsed)
        is_drafter = isinstance(drafter, Drafter) and isinstance(drafter.needs, frozenset)
    except (OutriderError, Cancelled):
        raise
    except Exception as error:
        raise DrafterError(
            f"The drafter {name} can't be created ({type(error).__name__}: {first_line(error)}). This is a bug in its "
            "code."
        ) from error
    if not is_drafter:
        raise DrafterError(
            f"{type(drafter).__name__} is not a drafter: it needs start, propose and observe, and needs must be a "
            "frozenset. This is a bug in its code."
        )
    return drafter
