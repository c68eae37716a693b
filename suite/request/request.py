"""The request: everything that ``bench run`` is asked for, typed and checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from suite.errors import RequestError, nearest, option
from suite.job.serving import SERVE
from suite.job.sharing import PAPERS_VICTIMS
from suite.request.option import Option, OptionGroup
from suite.request.parts import (
    CommandOptions,
    DataOptions,
    DistributedOptions,
    EnvelopeOptions,
    GpuOptions,
    MeasurementOptions,
    ProbeOptions,
    RepetitionOptions,
    ServingOptions,
    SharedOptions,
    TargetOptions,
)


class RunRequest(OptionGroup):
    """A request for one run, or for one cell of a sweep: what is measured, where and how often."""

    measurement: MeasurementOptions = MeasurementOptions()
    targets: TargetOptions = TargetOptions()
    envelope: EnvelopeOptions = EnvelopeOptions()
    repetitions: RepetitionOptions = RepetitionOptions()
    gpus: GpuOptions = GpuOptions()
    data: DataOptions = DataOptions()
    probes: ProbeOptions = ProbeOptions()
    distributed: DistributedOptions = DistributedOptions()
    shared: SharedOptions = SharedOptions()
    serving: ServingOptions = ServingOptions()
    own: CommandOptions = CommandOptions()

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Self:
        """Return the request with the options that were given, by name.

        Raises RequestError for an unknown option, for one that the scenario does not know, and for a value that the
        option cannot have.
        """
        scenario = str(given.get("scenario", OPTIONS["scenario"].default))
        parts: dict[str, dict[str, object]] = {}
        # The scenario first: which other options there are depends on it.
        for name in sorted(given, key=lambda name: name != "scenario"):
            if name not in OPTIONS:
                raise RequestError(f"no option {name}", remedy=nearest(name, list(OPTIONS)))
            each = OPTIONS[name]
            each.refuse_foreign(scenario)
            parts.setdefault(each.part, {})[name] = each.chosen(given[name], scenario)
        try:
            return cls.model_validate(parts)
        except ValidationError as error:
            raise _refusal(error) from error

    def value(self, name: str) -> Any:  # noqa: ANN401 (each option has a type of its own)
        return getattr(getattr(self, OPTIONS[name].part), name)

    def given(self) -> dict[str, object]:
        """Return the options that differ from their defaults, and the scenario, by name."""
        # A request of another machine can hold a default that is another here; of what its scenario knows, it matters.
        known = {name: each for name, each in OPTIONS.items() if each.known_to(self.scenario)}
        values = {name: self.value(name) for name in known}
        return {name: value for name, value in values.items() if name == "scenario" or value != known[name].default}

    def changed(self, **options: object) -> Self:
        """Return the request with other values of some options; None takes one away. Raises RequestError."""
        values = {**self.given(), **options}
        return self.of({name: value for name, value in values.items() if value is not None})

    def command(self) -> list[str]:
        """Return the command that asks for the same, from ``bench`` on."""
        return command_of(self.given())

    @property
    def scenario(self) -> str:
        return self.measurement.scenario

    @property
    def models(self) -> tuple[str, ...]:
        """Return what is trained or served: what was named, or the scenario's usual."""
        if self.measurement.model:
            return self.measurement.model
        if self.scenario == SERVE:
            return ("gan",)
        # The smoke profile proves the path, and on an emulated CPU every victim takes minutes.
        return PAPERS_VICTIMS if self.scenario == "shared" and self.measurement.profile != "smoke" else ("resnet50",)

    def with_absolute_paths(self) -> Self:
        """Return the request as it can be repeated from another directory."""
        return self.changed(**{name: OPTIONS[name].located(value, Path.cwd()) for name, value in self.given().items()})


def command_of(values: Mapping[str, object]) -> list[str]:
    """Return the command that gives options these values. None, False and no value at all are left out."""
    words = ["bench", "run"]
    for name, each in OPTIONS.items():
        value = values.get(name)
        if not (value in (None, ()) or value is False):
            words += each.command_words(value)
    return words


PARTS: dict[str, type[OptionGroup]] = {
    name: field.annotation for name, field in RunRequest.model_fields.items() if isinstance(field.annotation, type)
}
"""The model of each part, by the field of the request that holds it."""
OPTIONS = {
    name: Option(name, part, field) for part, model in PARTS.items() for name, field in model.model_fields.items()
}
"""Every option by name, in the order of help."""


def _refusal(error: ValidationError) -> RequestError:
    """Return what is wrong with the first value that is wrong, in words of the command line."""
    first = error.errors(include_url=False)[0]
    name, value, context = str(first["loc"][1]), first["input"], first.get("ctx", {})
    if first["type"] == "value_error" and isinstance(cause := context["error"].__cause__, RequestError):
        return cause.within(option(name))
    if first["type"] in ("greater_than", "greater_than_equal"):
        least = context["ge"] if "ge" in context else context["gt"] + 1
        return RequestError(f"{option(name)} {value}", remedy=f"give a number from {least} up")
    if first["type"] in ("less_than", "less_than_equal"):
        most = context["le"] if "le" in context else context["lt"] - 1
        return RequestError(f"{option(name)} {value:,} is too many", remedy=f"give a number up to {most:,}")
    return RequestError(f"{option(name)} {value!r}: {first['msg']}", remedy="bench run --help says what it takes")
