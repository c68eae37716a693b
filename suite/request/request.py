"""The request: everything that ``bench run`` is asked for, typed and checked, with the defaults of a project."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import ConfigDict, ValidationError, model_validator

from suite.errors import RequestError, nearest, option
from suite.registries import ENGINES, SCENARIOS
from suite.registry import Registry
from suite.request.option import Option, OptionGroup
from suite.request.parts import (
    DataOptions,
    EnvelopeOptions,
    GpuOptions,
    JoiningOptions,
    MeasurementOptions,
    TargetOptions,
)
from suite.request.repetitions import DECIDING_BLOCKS, DECIDING_BUDGETS, DECIDING_MARGIN, RepetitionOptions
from suite.request.traits import traits_of
from suite.results.project import Project, project
from suite.units import format_share, parse_duration_s, parse_share

G = TypeVar("G", bound=OptionGroup)
OWNERS: Mapping[str, Registry] = {"scenario": SCENARIOS, "engine": ENGINES}
"""The registries whose members can declare options."""


class RunRequest(OptionGroup):
    """A request for one run, or for one cell of a sweep: what is measured, where and how often.

    Beside the groups that are declared here it has one of each scenario and each engine with options; see ``options``.
    """

    model_config = ConfigDict(extra="allow")

    measurement: MeasurementOptions = MeasurementOptions()
    targets: TargetOptions = TargetOptions()
    envelope: EnvelopeOptions = EnvelopeOptions()
    repetitions: RepetitionOptions = RepetitionOptions()
    gpus: GpuOptions = GpuOptions()
    data: DataOptions = DataOptions()
    joining: JoiningOptions = JoiningOptions()

    @model_validator(mode="before")
    @classmethod
    def _with_declared_groups(cls, groups: Any) -> Any:  # noqa: ANN401 (anything can be stored)
        """Add every group that is declared here. Those of a package that is not installed are kept as they are."""
        if not isinstance(groups, Mapping):
            return groups
        models = group_models()
        declared = {part: model.model_validate(groups.get(part, {})) for part, model in models.items()}
        foreign = sorted(groups.keys() - models.keys())
        scenario = getattr(declared["measurement"], "scenario", None)
        engine = getattr(declared["targets"], "engine", None)
        if foreign and scenario in SCENARIOS and engine in (None, *ENGINES):
            raise ValueError(f"no group of options {foreign[0]}")
        return {**groups, **declared}

    @model_validator(mode="after")
    def _agree_across_groups(self) -> Self:
        for name, value in self.given().items():
            OPTIONS[name].about.refuse(name, value, self.value)
        return self

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Self:
        """Return the request with these options, by name. Raises RequestError for one that is unknown or cannot be."""
        scenario = str(given.get("scenario") or implied_scenario(given))
        given = {**given, "scenario": scenario}
        for each in OPTIONS.values():
            if each.about.further:
                given = each.spread(given, OPTIONS[each.about.further])
        parts: dict[str, dict[str, object]] = {}
        # The scenario first: which other options there are depends on it.
        for name in sorted(given, key=lambda name: name != "scenario"):
            if name not in OPTIONS:
                raise RequestError(f"no option {name}", remedy=nearest(name, list(OPTIONS)))
            each = OPTIONS[name]
            each.refuse_foreign(scenario)
            parts.setdefault(each.part, {})[name] = each.chosen(given[name], scenario)
        try:
            groups = {part: group_models()[part].model_validate(values) for part, values in parts.items()}
        except ValidationError as error:
            raise _refusal(error) from error
        return cls.model_validate(groups)

    def options(self, kind: type[G]) -> G:
        """Return the group of options that a scenario or an engine declares."""
        added_groups = (self.__pydantic_extra__ or {}).values()
        groups: Iterator[object] = iter(added_groups)
        return next(group for group in groups if isinstance(group, kind))

    def value(self, name: str) -> Any:  # noqa: ANN401 (each option has a type of its own)
        if name not in OPTIONS:
            raise AttributeError(name)
        part = OPTIONS[name].part
        group = (self.__pydantic_extra__ or {}).get(part) or getattr(self, part)
        return getattr(group, name)

    def given(self) -> dict[str, object]:
        """Return the options that differ from their defaults, and the scenario, by name."""
        # A request of another machine can hold a default that is another here; of what its scenario knows, it matters.
        defaults = {name: each for name, each in OPTIONS.items() if each.known_to(self.scenario)}
        values = {name: self.value(name) for name in defaults}
        return {name: value for name, value in values.items() if name == "scenario" or value != defaults[name].default}

    def changed(self, **options: object) -> Self:
        """Return the request with other values of some options; None takes one away. Raises RequestError."""
        wanted = {**self.given(), **options}
        chosen = {name: value for name, value in wanted.items() if value is not None}
        return self.of(chosen)

    def command(self) -> list[str]:
        """Return the command of this request, with its scenario unless the other options imply it."""
        given = self.given()
        scenario = given.pop("scenario")
        if implied_scenario(given) != scenario:
            given["scenario"] = scenario
        return command_of(given)

    def refuse_idle(self) -> None:
        """Raise RequestError for an option that was given and would change nothing."""
        engine = self.targets.engine
        for name in self.given():
            declared = OPTIONS[name]
            if declared.engine and declared.engine != engine:
                raise RequestError(
                    f"{option(name)} would change nothing: it is about {option('engine')} {declared.engine}",
                    remedy="leave it out",
                )
            declared.about.refuse_idle(name, self.value)

    @property
    def scenario(self) -> str:
        return self.measurement.scenario

    @property
    def models(self) -> tuple[str, ...]:
        """Return what is trained or served: what was named, or the scenario's usual."""
        return self.measurement.model or traits_of(self.scenario).usual_models(self.measurement.profile)

    def with_absolute_paths(self) -> Self:
        """Return the request as it can be repeated from another directory."""
        chosen = self.given()
        located = {name: OPTIONS[name].located(value, Path.cwd()) for name, value in chosen.items()}
        return self.changed(**located)


def implied_scenario(given: Mapping[str, object]) -> object:
    """Return the scenario of options that name none: the one that declares some and knows all, or the usual one."""
    declared = [OPTIONS[name] for name in given if name in OPTIONS and OPTIONS[name].scenario]
    candidates = {declaration.scenario for declaration in declared}
    if len(candidates) > 1:
        for declaration in declared:
            candidates &= {declaration.scenario, *declaration.about.shared_with}
    if len(candidates) == 1:
        return candidates.pop()
    return OPTIONS["scenario"].default


def command_of(values: Mapping[str, object]) -> list[str]:
    """Return the command that gives options these values. None, False and no value at all are left out."""
    words = ["bench", "run"]
    for name, declared in OPTIONS.items():
        value = values.get(name)
        if not (value in (None, ()) or value is False):
            words += declared.command_words(value)
    return words


class _Options(Mapping[str, Option]):
    """Every option by name, in the order of help. They are collected when one is asked for: scenarios import this."""

    @cached_property
    def _by_name(self) -> dict[str, Option]:
        options: dict[str, Option] = {}
        for part, model, owner in _groups():
            fields = model.model_fields
            added = {name: Option(name, part, field, **owner) for name, field in fields.items()}
            twice = sorted(added.keys() & options.keys())
            if twice:
                for kind, member in owner.items():
                    OWNERS[kind].refuse(member, f"it declares the option {twice[0]} a second time")
            else:
                options |= added
        return options

    def __getitem__(self, name: str) -> Option:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


def _groups() -> Iterator[tuple[str, type[OptionGroup], dict[str, str]]]:
    """Yield the name and the model of each group of options, and the member of a registry that declares it."""
    for name, field in RunRequest.model_fields.items():
        if isinstance(field.annotation, type):
            yield name, field.annotation, {}
    for kind, registry in OWNERS.items():
        broken = registry.failures()
        models = set[type[OptionGroup]]()
        for name in registry:
            model = None if name in broken else registry.options_of(name)
            if model and not (isinstance(model, type) and issubclass(model, OptionGroup)):
                registry.refuse(name, "its options are not a model of options")
            elif model and model not in models:  # one that inherits from another leaves the options to it
                models.add(model)
                yield f"{kind}:{name}", model, {kind: name}


OPTIONS: Mapping[str, Option] = _Options()


@cache
def group_models() -> dict[str, type[OptionGroup]]:
    parts = {declared.part for declared in OPTIONS.values()}
    return {part: model for part, model, _ in _groups() if part in parts}


def _refusal(error: ValidationError) -> RequestError:
    """Return what is wrong with the first value that is wrong, in words of the command line."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    value = first["input"]
    context = first.get("ctx", {})
    if first["type"] == "value_error" and isinstance(cause := context["error"].__cause__, RequestError):
        return cause.within(option(name))
    if first["type"] in ("greater_than", "greater_than_equal"):
        least = context["ge"] if "ge" in context else context["gt"] + 1
        return RequestError(f"{option(name)} {value}", remedy=f"give a number from {least} up")
    if first["type"] in ("less_than", "less_than_equal"):
        most = context["le"] if "le" in context else context["lt"] - 1
        return RequestError(f"{option(name)} {value:,} is too many", remedy=f"give a number up to {most:,}")
    return RequestError(f"{option(name)} {value!r}: {first['msg']}", remedy="bench run --help says what it takes")


DEFAULT_MARGIN = parse_share(DECIDING_MARGIN)
_ENDS = ("blocks", "warmup_blocks", "until", "detect", "max_blocks", "budget")


def leaves_turns_to_the_run(request: RunRequest) -> bool:
    """Return whether it names no design and computes on CPUs: the run then takes turns, if its machine can."""
    if request.measurement.design or request.gpus.device != "cpu":
        return False
    # Ablations are also about opening and elapsed times, and quotas refill while a job waits.
    return traits_of(request.scenario).turns_by_default and not request.targets.ablate


def until_decided(request: RunRequest, margin: float) -> RunRequest:
    """Return the request of a run that is decided at a margin, a share, with no option that it would choose itself.

    Raises RequestError for options that go with no verdict.
    """
    named_margin = None
    if margin != DEFAULT_MARGIN:
        named_margin = format_share(margin)
    decided = request.changed(**dict.fromkeys(_ENDS), margin=named_margin)
    if decided.measurement.design != "alternating":
        return decided
    try:
        without_design = decided.changed(design=None)
    except RequestError:  # the number of its rounds, or of the steps of a turn, was chosen
        return decided
    if leaves_turns_to_the_run(without_design):
        return without_design
    return decided


def deciding_budget(block_s: float, *, length_unknown: bool = False) -> str:
    """Return the least budget that is expected to hold a verdict, if a block takes so many seconds."""
    budgets = DECIDING_BUDGETS[1:] if length_unknown else DECIDING_BUDGETS
    expected_s = DECIDING_BLOCKS * block_s
    sufficient = (budget for budget in budgets if parse_duration_s(budget) >= expected_s)
    return next(sufficient, budgets[-1])


@dataclass(frozen=True)
class Defaults:
    """The options that a request took from the project's file, and those that do not fit what was given."""

    file: str
    taken: tuple[str, ...]
    left_out: Mapping[str, str]
    """Why each of the others does not apply."""

    def __str__(self) -> str:
        """Return ``virtbench.toml: target, margin``."""
        return f"{self.file}: {', '.join(self.taken) or 'none applies'}"


def with_defaults(given: Mapping[str, object]) -> tuple[RunRequest, Defaults | None]:
    """Return the request of the given options and of the project's file.

    A default gives way to the same option, and to options that exclude it or without which it has no effect. Raises
    RequestError for options that cannot be, and for a file with such.
    """
    of_project = project()
    if of_project is None:
        return RunRequest.of(given), None
    chosen = dict(given)
    left_out = {}
    taken = []
    for name, value in _options(of_project).items():
        if name in given:
            continue
        try:
            RunRequest.of({**chosen, name: value}).refuse_idle()
        except RequestError as error:
            left_out[name] = error.message
        else:
            chosen[name] = value
            taken.append(name)
    return RunRequest.of(chosen), Defaults(of_project.file, tuple(taken), left_out)


def _options(of_project: Project) -> dict[str, object]:
    """Return the options of a file as a request takes them. Raises RequestError for one that cannot be."""
    options = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in of_project.options.items()
        if value is not False
    }
    try:
        RunRequest.of(options)
    except RequestError as error:
        raise error.spelled(str).within(of_project.file) from error
    return options
