"""An option of a run: what is declared of it beyond its type and default, and how everything else sees it."""

import re
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Field, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue

from suite.errors import RequestError, flag, nearest, option, spelled
from suite.part import MOST, Part, checked
from suite.registry import Registry

Count = Annotated[int, Field(gt=0, le=MOST, strict=True)]
NotNegative = Annotated[int, Field(ge=0, le=MOST, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32, strict=True)]
Text = Annotated[str, Field(min_length=1)]
_MEMBER_FILE = re.compile(r".*\.py(:\w+)?", re.DOTALL)
ALL = "all"
"""Stands for every choice of an option that can be given several times."""


class OptionGroup(Part):
    """A part of a request: options of one topic. Its docstring is its title in help."""


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
    only: tuple[str, ...] = ()
    """The scenarios that know it; empty for all of them."""
    never: tuple[str, ...] = ()
    """The scenarios that do not know it, where all others do, those of other packages too."""
    meaning: bool = True
    """Whether it changes what a number means, and not only the course of the run."""
    own_code: bool = False
    """Whether it takes a path of the user's own code, which plan files give relative to themselves. Where it names
    members, ``PATH.py`` or ``PATH.py:NAME`` stands for one that this file declares."""
    common: bool = False
    """Whether it is one of those that most people need, which help shows first."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:  # noqa: ANN401
        """Return the JSON schema of a field with this as its description."""
        help_text = self.help if isinstance(self.help, str) else self.help()
        return {**handler(schema), "description": spelled(help_text, str)}


def about(
    default: Any,  # noqa: ANN401 (each option has a type of its own)
    text: str | Callable[[], str],
    *,
    parse: Callable[[str], object] | None = None,
    **more: Any,  # noqa: ANN401 (see About)
) -> Any:  # noqa: ANN401
    """Return the field of an option: its default, its help, what refuses a text, and what else ``About`` holds."""
    field = Field(default_factory=default) if callable(default) else Field(default)
    field.metadata += [*([checked(parse)] if parse else []), About(text, **more)]
    return field


@dataclass(frozen=True)
class Option:
    """One option: a field of a part, as the command line, plan files, help and messages need it."""

    name: str
    """The name in a plan file; the command line writes dashes: see ``flag``."""
    part: str
    """The field of the request that holds the part it is in."""
    field: FieldInfo

    @cached_property
    def about(self) -> About:
        return next(each for each in self.field.metadata if isinstance(each, About))

    @property
    def flags(self) -> tuple[str, ...]:
        """Return its spellings on the command line, the proper one first."""
        return (flag(self.name), *self.about.also)

    @cached_property
    def kind(self) -> type:
        """Return bool, int, Path or str: what one value of it is. A number or a text is a str."""
        kinds = {str if get_origin(each) is Literal else each for each in _alternatives(self.field.annotation)}
        return kinds.pop() if len(kinds) == 1 else str

    @cached_property
    def several(self) -> bool:
        """Return whether it can be given several times, and takes ``all``."""
        return get_origin(self.field.annotation) is tuple

    @property
    def default(self) -> object:
        return self.field.get_default(call_default_factory=True)

    def choices(self, scenario: str | None = None) -> tuple[str, ...]:
        """Return the names that it takes with ``scenario``, or with any; empty where it takes other values."""
        if self.about.choices:
            return tuple(self.about.choices(scenario))
        if self.about.members:
            return tuple(dict.fromkeys(name for registry in self.about.members for name in registry))
        literals = (each for each in _alternatives(self.field.annotation) if get_origin(each) is Literal)
        return tuple(name for each in literals for name in get_args(each))

    def failures(self) -> dict[str, str]:
        """Return, by name, why a choice that another package has added cannot be used; empty where all can."""
        return {name: why for registry in self.about.members for name, why in registry.failures().items()}

    def is_path(self, word: object) -> bool:
        """Return whether a value is a path: any of an option that takes paths alone, else the file of a member."""
        return self.kind is Path or (self.about.own_code and bool(_MEMBER_FILE.fullmatch(str(word))))

    def located(self, value: object, directory: Path) -> object:
        """Return the value with its relative paths, where it has any, taken from an absolute directory."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.located(each, directory) for each in value)
        return type(value)(directory / value) if isinstance(value, (str, Path)) and self.is_path(value) else value

    def known_to(self, scenario: str) -> bool:
        return scenario not in self.about.never and (not self.about.only or scenario in self.about.only)

    def description(self, spelling: Callable[[str], str] = str) -> str:
        """Return what it is, the names that it takes, and its default, with options as plan files spell them."""
        text = spelled(self.about.help if isinstance(self.about.help, str) else self.about.help(), spelling)
        names = self.choices()
        told = [*names, f"or {ALL}"] if self.several else names
        if any(name not in text for name in names):
            text += f" One of {', '.join(told)}."
        elif self.several:
            text += f" Or {ALL}."
        if self.default not in (None, (), False):
            text += f" Default: {ALL if self.default == names else ', '.join(_words(self.default))}."
        return text

    def help(self) -> str:
        """Return its description as the command line shows it."""
        return self.description(flag) + (" Repeatable." if self.several else "")

    def whose(self) -> str:
        """Return the scenarios that know it: ``real or distributed``, ``any but probe or command``, ``any``."""
        *others, last = self.about.only or self.about.never or ("any",)
        names = f"{', '.join(others)} or {last}" if others else last
        return f"any but {names}" if self.about.never else names

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:  # noqa: ANN401
        """Return the JSON schema of a key of a plan file that gives this option."""
        return {**handler(schema), "description": self.description()}

    def refuse_foreign(self, scenario: str) -> None:
        """Raise RequestError where the scenario does not know the option."""
        if self.known_to(scenario):
            return
        if self.about.only:
            raise RequestError(
                f"{option(self.name)} is about {option('scenario')} {self.whose()}",
                remedy=f"use {option('scenario')} {self.about.only[0]}, or leave it out",
            )
        raise RequestError(
            f"{option(self.name)} says nothing with {option('scenario')} {scenario}", remedy="leave it out"
        )

    def chosen(self, value: object, scenario: str) -> object:
        """Return the value with ``all`` replaced by the names that it stands for.

        Raises RequestError for a name that the option does not take with the scenario.
        """
        names = self.choices(scenario)
        if not names or value is None:
            return value
        words = _words(value)
        for word in words:
            if word not in names and not self.is_path(word) and not (self.several and word == ALL):
                known = nearest(word, [*names, *[ALL] * self.several])
                # A name that another scenario takes is no slip of the pen.
                why = f"{word} is not for {option('scenario')} {scenario}" if word in self.choices() else ""
                raise RequestError(f"{option(self.name)} {why or f'{word!r} is unknown'}", remedy=known)
        if not self.several:
            return words[0]
        return names if ALL in words else tuple(dict.fromkeys(words))

    def command_words(self, value: object) -> Iterator[str]:
        """Give the words that say the value on a command line."""
        if value is True:
            yield flag(self.name)
            return
        for word in _words(value):
            yield from (flag(self.name), word)


def _words(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, (list, tuple)) else [str(value)]


def _alternatives(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 (what stands after a colon)
    """Give the types and literals that one value can be of, without None."""
    if get_origin(annotation) in (Union, types.UnionType, Annotated, tuple):
        for each in get_args(annotation):
            yield from _alternatives(each)
    elif annotation in (bool, int, str, Path) or get_origin(annotation) is Literal:
        yield annotation
