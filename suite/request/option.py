"""An option of a run: what is declared of it beyond its type and default, and how everything else sees it."""

import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self, Union, get_args, get_origin

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue

from suite.errors import RequestError, flag, nearest, option, spelled
from suite.part import MOST, Part, checked
from suite.registries import SCENARIOS
from suite.registry import Registry, unreadable_packages
from suite.request.traits import traits_of

Count = Annotated[int, Field(gt=0, le=MOST, strict=True)]
NotNegative = Annotated[int, Field(ge=0, le=MOST, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32, strict=True)]
Text = Annotated[str, Field(min_length=1)]
_MEMBER_FILE = re.compile(r".*\.py(:\w+)?", re.DOTALL)
ALL = "all"
"""Stands for every choice of an option that can be given several times."""
Asked = Callable[[str], Any]
"""Gives the value of an option by its name. Raises AttributeError for one that is not among those it knows."""


@dataclass(frozen=True)
class Need:
    """A condition of an option: what must hold for it, or must not."""

    words: str
    """The condition as a noun, such as another option with its value."""
    holds: Callable[[Asked], bool]
    remedy: str
    why: str = ""
    """The reason, if the words do not give it."""
    valued: str = ""
    """The option whose value is one of several that fulfil it."""

    def among(self, asked: Asked) -> bool | None:
        """Return whether it holds; None if that depends on options that are not known here."""
        try:
            return self.holds(asked)
        except AttributeError:
            return None


def given(name: str, *values: str, example: str = "", why: str = "") -> Need:
    """Return the condition that an option has a value or, if ``values`` are named, one of them."""

    def holds(asked: Asked) -> bool:
        value = asked(name)
        if not values:
            return value is not None
        members = value if isinstance(value, tuple) else (value,)
        return bool(set(values).intersection(members))

    words = f"{option(name)} {' or '.join(values)}".rstrip()
    remedy = f"add {option(name)} {example or ''.join(values[:1])}".rstrip()
    return Need(words, holds, remedy, why, valued=name if len(values) > 1 else "")


class OptionGroup(Part):
    """A part of a request: options of one topic. Its docstring is its title in help."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Refuse options of this group that contradict each other; the request looks across its groups."""
        declared = {name: about for name, field in type(self).model_fields.items() if (about := _about(field))}
        for name, about in declared.items():
            default = type(self).model_fields[name].get_default(call_default_factory=True)
            value = getattr(self, name)
            if value != default:
                about.refuse(name, value, lambda other: getattr(self, other))
        return self


@dataclass(frozen=True)
class About:
    """The declaration of an option, in its annotation."""

    help: str | Callable[[], str]
    """One sentence, and the meaning of its values where their names do not say it. Other options in it are marked, as
    ``suite.errors.option`` does."""
    choices: Callable[[str | None], Iterable[str]] | None = None
    """Return the names that it takes with a scenario, or with any. Not needed where its type is a ``Literal``, or where
    they are the members of registries."""
    members: tuple[Registry, ...] = ()
    """The registries whose members it names."""
    also: tuple[str, ...] = ()
    """Other spellings on the command line."""
    shared_with: tuple[str, ...] = ()
    """Further scenarios that know it, beside the one that declares it or those with the trait ``of``."""
    of: str = ""
    """The trait of the scenarios that know it, a field of ``suite.request.traits.Traits``; empty for all of them."""
    needs: tuple[Need, ...] = ()
    """The conditions of which one must hold if it is given."""
    excludes: tuple[Need, ...] = ()
    """The conditions of which none may hold if it is given."""
    idle_without: tuple[Need, ...] = ()
    """The conditions of which one must hold for it to have an effect. A sweep may give it to cells without one."""
    meaning: bool = True
    """Whether it changes what a number means, and not only the course of the run."""
    own_code: bool = False
    """Whether it takes a path of the user's own code, which plan files give relative to themselves. Where it names
    members, ``PATH.py`` or ``PATH.py:NAME`` stands for one that this file declares."""
    names_place: bool = False
    """Whether its values can be ``KIND:PATH``."""
    runs_program: bool = False
    """Whether its value is a program that is started."""
    further: str = ""
    """The option that takes all values but the first if this one is given several times."""
    valued: bool = False
    """Whether its names can be followed by a value of theirs: ``NAME=VALUE``."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    common: bool = False
    """Whether it is one of those that most people need, which help shows first."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:  # noqa: ANN401
        help_text = self.help if isinstance(self.help, str) else self.help()
        return {**handler(schema), "description": spelled(help_text, str)}

    def refuse(self, name: str, value: object, asked: Asked) -> None:
        """Raise RequestError if the option ``name`` contradicts the others with this value."""
        # Names are worth repeating; numbers, paths and patterns are not.
        named = isinstance(value, str) and re.fullmatch(r"[a-z][a-z-]*", value)
        if named:
            words = f"{option(name)} {value}"
        else:
            words = option(name)
        for other in self.excludes:
            if other.among(asked):
                why = f": {other.why}" if other.why else ""
                other_words = f"{option(other.valued)} {asked(other.valued)}" if other.valued else other.words
                raise RequestError(f"{words} and {other_words} exclude each other{why}", remedy="give one of them")
        _demand(f"{words} needs", self.needs, asked)

    def refuse_idle(self, name: str, asked: Asked) -> None:
        """Raise RequestError if the option ``name`` would have no effect."""
        _demand(f"{option(name)} would change nothing without", self.idle_without, asked)


def _demand(what: str, needs: Iterable[Need], asked: Asked) -> None:
    """Raise RequestError unless one of the conditions holds, may hold, or there are none."""
    lacking = list(needs)
    if lacking and all(need.among(asked) is False for need in lacking):
        remedy = " or ".join(dict.fromkeys(need.remedy for need in lacking))
        raise RequestError(f"{what} {' or '.join(need.words for need in lacking)}", remedy=f"{remedy}, or leave it out")


def _about(field: FieldInfo) -> About | None:
    declared = (item for item in field.metadata if isinstance(item, About))
    return next(declared, None)


def about(
    default: Any,  # noqa: ANN401 (each option has a type of its own)
    text: str | Callable[[], str],
    *,
    parse: Callable[[str], object] | None = None,
    stored_as_default: bool = True,
    **more: Any,  # noqa: ANN401 (see About)
) -> Any:  # noqa: ANN401
    """Return the field of an option: its default, its help, what refuses a text, and what else ``About`` holds.

    Unless it is ``stored_as_default``, plans hold it only where it was given.
    """
    left_out = None if stored_as_default else (lambda value: value == default)
    if callable(default):
        field = Field(default_factory=default)
    else:
        field = Field(default, exclude_if=left_out)
    field.metadata += [*([checked(parse)] if parse else []), About(text, **more)]
    return field


@dataclass(frozen=True)
class Option:
    """One option: a field of a part, as the command line, plan files, help and messages need it."""

    name: str
    """The name in a plan file; the command line writes dashes: see ``flag``."""
    part: str
    """The name of its group in the request."""
    field: FieldInfo
    scenario: str | None = None
    """The scenario that declares it, and alone knows it."""
    engine: str | None = None

    @cached_property
    def about(self) -> About:
        declared = _about(self.field)
        assert declared, self.name  # noqa: S101 (every field of a group is made by ``about``)
        return declared

    @property
    def flags(self) -> tuple[str, ...]:
        return (flag(self.name), *self.about.also)

    @cached_property
    def kind(self) -> type:
        """Return bool, int, Path or str: what one value of it is. A number or a text is a str."""
        kinds = {
            str if get_origin(alternative) is Literal else alternative
            for alternative in _alternatives(self.field.annotation)
        }
        if len(kinds) == 1:
            return kinds.pop()
        return str

    @cached_property
    def several(self) -> bool:
        """Return whether it can be given several times, and takes ``all``."""
        return get_origin(self.field.annotation) is tuple

    @property
    def default(self) -> object:
        if self.field.is_required():
            return None
        return self.field.get_default(call_default_factory=True)

    def choices(self, scenario: str | None = None) -> tuple[str, ...]:
        """Return the names that it takes with ``scenario``, or with any; empty where it takes other values."""
        if self.about.choices:
            return tuple(self.about.choices(scenario))
        if self.about.members:
            names = (name for registry in self.about.members for name in registry)
            return tuple(dict.fromkeys(names))
        literals = (literal for literal in _alternatives(self.field.annotation) if get_origin(literal) is Literal)
        return tuple(name for literal in literals for name in get_args(literal))

    def failures(self) -> dict[str, str]:
        """Return, by name, why a choice that another package has added cannot be used; empty where all can."""
        return {name: why for registry in self.about.members for name, why in registry.failures().items()}

    def is_path(self, word: object) -> bool:
        """Return whether a value is a path: any of an option that takes paths alone, else the file of a member."""
        return self.kind is Path or (self.about.own_code and bool(_MEMBER_FILE.fullmatch(str(word))))

    def reaches_out(self, word: str) -> bool:
        """Return whether a value names a file, device or program that the suite does not bring."""
        return self.is_path(word) or self.about.runs_program or bool({"/", ":"} & {*word})

    def located(self, value: object, directory: Path) -> object:
        """Return the value with its relative paths, where it has any, taken from an absolute directory."""
        if isinstance(value, (list, tuple)):
            located = (self.located(each, directory) for each in value)
            return type(value)(located)
        if isinstance(value, str) and self.about.names_place:
            kind, _, place = value.partition(":")
            if place:
                return f"{kind}:{directory / Path(place).expanduser()}"
            return value
        if isinstance(value, (str, Path)) and self.is_path(value):
            return type(value)(directory / value)
        return value

    def known_to(self, scenario: str) -> bool:
        if scenario in self.about.shared_with:
            return True
        if self.scenario:
            return scenario == self.scenario
        return not self.about.of or bool(getattr(traits_of(scenario), self.about.of))

    def description(self, spelling: Callable[[str], str] = str, *, listed: bool = True) -> str:
        """Return what it is, the names that it takes if ``listed``, and its default, with options spelled so."""
        help_text = self.about.help if isinstance(self.about.help, str) else self.about.help()
        text = spelled(help_text, spelling)
        names = self.choices()
        shown = [*names, f"or {ALL}"] if self.several else names
        if listed and any(name not in text for name in names):
            text += f" One of {', '.join(shown)}."
        elif self.several:
            text += f" Or {ALL}."
        if self.default not in (None, (), False):
            text += f" Default: {ALL if self.default == names else ', '.join(_words(self.default))}."
        return text

    def help(self, *, listed: bool = True) -> str:
        return self.description(flag, listed=listed) + (" Repeatable." if self.repeatable else "")

    @property
    def repeatable(self) -> bool:
        return self.several or bool(self.about.further)

    def spread(self, given: Mapping[str, object], taker: "Option") -> Mapping[str, object]:
        """Return the options with all values of this one but the first given to another. Raises RequestError."""
        value = given.get(self.name)
        if not value or not isinstance(value, (list, tuple)):
            return given
        first, *others = dict.fromkeys(value)
        for word in others:
            if word not in self.choices():
                self._refuse_unknown(str(word), self.choices())
            if word not in taker.choices():
                name = f"{option(self.name)} {word}"
                raise RequestError(f"{name} must be the first of several", remedy=f"give {name} first")
        further = _words(given.get(taker.name, ()))
        added = (*further, *others)
        return {**given, self.name: first, **({taker.name: added} if others else {})}

    @cached_property
    def scenarios(self) -> tuple[str, ...]:
        """Return the suite's scenarios that know it, and the one that declares it."""
        named = filter(None, [self.scenario])
        names = dict.fromkeys((*SCENARIOS.own, *named))
        return tuple(name for name in names if self.known_to(name))

    def whose(self) -> str:
        """Return the scenarios that know it: ``real or distributed``, ``any but probe or command``, ``any``."""
        foreign = [name for name in SCENARIOS.own if name not in self.scenarios]
        most = len(foreign) < len(self.scenarios)
        *others, last = foreign or ("any",) if most else self.scenarios
        names = f"{', '.join(others)} or {last}" if others else last
        if most and foreign:
            return f"any but {names}"
        return names

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:  # noqa: ANN401
        return {**handler(schema), "description": self.description()}

    def refuse_foreign(self, scenario: str) -> None:
        """Raise RequestError where the scenario does not know the option."""
        if not self.known_to(scenario):
            raise RequestError(
                f"{option(self.name)} does not apply to {option('scenario')} {scenario}",
                remedy=f"leave it out; it is for {option('scenario')} {self.whose()}",
            )

    def chosen(self, value: object, scenario: str) -> object:
        """Return the value, with the names that ``all`` stands for. Raises RequestError for a name not among them."""
        names = self.choices(scenario)
        if not names or value is None:
            return value
        words = [self.about.synonyms.get(word, word) for word in _words(value)]
        for word in words:
            name = word.partition("=")[0] if self.about.valued else word
            if name not in names and not self.is_path(word) and not (self.several and word == ALL):
                self._refuse_unknown(word, names, scenario)
        if not self.several:
            return words[0]
        if ALL in words:
            return names
        return tuple(dict.fromkeys(words))

    def _refuse_unknown(self, word: str, names: Sequence[str], scenario: str = "") -> NoReturn:
        candidates = [*names, *[ALL] * self.several]
        near = nearest(word, candidates)
        parts = word.split(",")
        if self.repeatable and len(parts) > 1:
            near = f"repeat the option: {' '.join(f'{option(self.name)} {part.strip()}' for part in parts)}"
        # A name that another scenario takes is no slip of the pen.
        if word in self.choices():
            why = f"{word} is not for {option('scenario')} {scenario}"
        else:
            why = ""
        remedies = [near]
        if self.about.members:
            remedies += unreadable_packages().values()
        raise RequestError(f"{option(self.name)} {why or f'{word!r} is unknown'}", remedy="; ".join(remedies))

    def command_words(self, value: object) -> Iterator[str]:
        """Give the words that say the value on a command line."""
        if value is True:
            yield flag(self.name)
            return
        for word in _words(value):
            yield from (flag(self.name), word)


def _words(value: object) -> list[str]:
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value]
    return [str(value)]


def _alternatives(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 (what stands after a colon)
    """Give the types and literals that one value can be of, without None."""
    if get_origin(annotation) in (Union, types.UnionType, Annotated, tuple):
        for alternative in get_args(annotation):
            yield from _alternatives(alternative)
    elif annotation in (bool, int, str, Path) or get_origin(annotation) is Literal:
        yield annotation
