"""Words and weight of the code, with budgets that only fall: lower a budget when its count has fallen.

``python -m tests.test_words`` prints the present counts.
"""

import ast
import functools
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_rooms import NAMES, REPOSITORY, ROOMS, tree

PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted(REPOSITORY.glob("docs/**/*.md"))]

PATTERNS = {
    "say, tell, hear, know, believe": r"says?|said|tells?|told|hears?|heard|knows?|believes?|believed",
    "beside": r"beside",
    "of its own": r"of (?:its|their|a|one's) own",
    "what is": r"what (?:is|was|are|were)",
    "is none": r"(?:is|are|was|were) (?:no|none)",
    "where for if": r"where (?:it|they|there|that|this|one|no|nothing|nobody|all|a|an|the|its|both)",
    "asked for": r"asked for",
}
"""Habits of STYLE.md by name, as regular expressions of whole words."""
BUDGETS = {
    "code": {
        "say, tell, hear, know, believe": 24.6,
        "beside": 8.1,
        "of its own": 6.1,
        "what is": 17.5,
        "is none": 16.0,
        "where for if": 26.3,
        "asked for": 2.9,
    },
    "pages": {
        "say, tell, hear, know, believe": 1.9,
        "beside": 1.2,
        "of its own": 0.8,
        "what is": 3.7,
        "is none": 2.2,
        "where for if": 4.4,
        "asked for": 0.45,
    },
}
"""The most occurrences per 10,000 words of prose."""

EMPTY_NAMES = {
    *("found", "one", "each", "place", "own", "said", "told", "known", "given", "made", "around", "itself", "asked"),
    *("taken", "seen", "held", "again", "apart", "beside", "what", "these", "those", "them", "whole", "rest", "done"),
    *("left", "here", "there", "other", "others"),
}
"""Names that say nothing about what they hold."""


class Weight(NamedTuple):
    """What a reader of a room must hold; tuples and nested comprehensions are per 1,000 lines of code."""

    tokens_per_line: float
    """The tokens of a line of code, without strings and comments."""
    tuple_assignments: float
    """The assignments of several values to as many names."""
    nested: float
    """The comprehensions that hold another one."""
    empty_share: float
    """The share of ``EMPTY_NAMES`` among all names that are assigned or are parameters."""
    complex_functions: float
    """The functions whose complexity exceeds ``COMPLEX``."""


WEIGHTS = {
    "suite": Weight(8.25, 1, 0.3, 0.025, 2),
    "worker": Weight(8.7, 1, 0.3, 0.027, 2),
    "scenarios": Weight(8.45, 1, 0.5, 0.03, 1),
    "provisioning": Weight(8.45, 1, 0.2, 0.02, 2),
    "analysis": Weight(8.9, 1, 0.3, 0.02, 3),
    "commands": Weight(8.35, 1, 0.3, 0.03, 3),
}
"""The most that each room may weigh."""
COMPLEX = 12
MOST_COMPLEX = 14
"""The complexity that no function exceeds."""


def prose_of_code(name: str) -> Iterator[str]:
    """Yield docstrings, comments, and every other text of at least three words."""
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) > 2:
            yield node.value
    for token in tokenize.generate_tokens(io.StringIO((REPOSITORY / name).read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def prose_of_page(path: Path) -> str:
    """Return the text of a page without blocks of code and code in lines."""
    text = re.sub(r"(?ms)^```.*?^```|^    .*?$", "", path.read_text())
    return re.sub(r"`[^`]*`", "", text)


def habits(text: str) -> dict[str, float]:
    """Return the occurrences of each pattern per 10,000 words."""
    words = len(text.split())
    return {
        name: 1e4 * len(re.findall(rf"\b(?:{pattern})\b", text, re.IGNORECASE)) / words
        for name, pattern in PATTERNS.items()
    }


@functools.cache
def all_habits() -> dict[str, dict[str, float]]:
    code = "\n".join(text for name in NAMES for text in prose_of_code(name))
    return {"code": habits(code), "pages": habits("\n".join(map(prose_of_page, PAGES)))}


def stored_names(module: ast.AST) -> Iterator[str]:
    """Yield the names that a module assigns, and its parameters, as often as they occur."""
    for node in ast.walk(module):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg


NOT_COUNTED = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER", "STRING", "FSTRING_END"}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def tokens_by_line(source: str) -> Counter[int]:
    """Return the tokens of each line of code; a text with values in it is a text, as in every Python before 3.12."""
    lines: Counter[int] = Counter()
    texts = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        texts += (kind == "FSTRING_START") - (kind == "FSTRING_END")
        if not texts and kind not in NOT_COUNTED:
            lines[token.start[0]] += 1
    return lines


def is_tuple_assignment(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign):
        return False
    return isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def is_nested(node: ast.AST) -> bool:
    if not isinstance(node, COMPREHENSIONS):
        return False
    return any(isinstance(inner, COMPREHENSIONS) for inner in ast.walk(node) if inner is not node)


def files_of(room: str) -> list[str]:
    return [name for name in NAMES if name.partition("/")[0] == room]


@functools.cache
def weight_of(room: str) -> Weight:
    files = files_of(room)
    lines = [tokens_by_line((REPOSITORY / name).read_text()) for name in files]
    code = sum(map(len, lines))
    nodes = [node for name in files for node in ast.walk(tree(name))]
    names = Counter(name.strip("_") for file in files for name in stored_names(tree(file)))
    empty = sum(count for name, count in names.items() if name in EMPTY_NAMES)
    return Weight(
        tokens_per_line=sum(of_file.total() for of_file in lines) / code,
        tuple_assignments=1000 * sum(map(is_tuple_assignment, nodes)) / code,
        nested=1000 * sum(map(is_nested, nodes)) / code,
        empty_share=empty / names.total(),
        complex_functions=sum(count > COMPLEX for name, count in complexities().items() if name.split("/")[0] == room),
    )


BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.match_case, ast.comprehension)


def complexity(function: ast.AST) -> int:
    """Return 1 plus the branches of a function: statements, comprehensions, and links of boolean chains."""
    count = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            count += 1 + len(getattr(node, "ifs", ()))
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
    return count


@functools.cache
def complexities() -> Mapping[str, int]:
    """Return the complexity of every function by file and name."""
    return {
        f"{name}:{node.lineno} {node.name}": complexity(node)
        for name in NAMES
        for node in ast.walk(tree(name))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def test_prose_keeps_to_its_budgets() -> None:
    counts = {(kind, name): count for kind, habits in all_habits().items() for name, count in habits.items()}
    assert {where: round(count, 1) for where, count in counts.items() if count > BUDGETS[where[0]][where[1]]} == {}


@pytest.mark.parametrize("room", WEIGHTS)
def test_no_room_is_heavier_than_its_budget(room: str) -> None:
    budget = WEIGHTS[room]._asdict()
    assert {name: count for name, count in weight_of(room)._asdict().items() if count > budget[name]} == {}


def test_every_room_has_a_budget() -> None:
    assert {*WEIGHTS} == {*ROOMS, "commands"}


def test_no_function_is_too_complex() -> None:
    assert {name: count for name, count in complexities().items() if count > MOST_COMPLEX} == {}


def test_the_counts_see_what_they_count() -> None:
    assert habits("It says what is none, asked for a job of its own")["say, tell, hear, know, believe"] > 0
    assert [*stored_names(ast.parse("def f(a, *, b):\n    c, found = a, b"))] == ["a", "b", "c", "found"]
    assert complexity(ast.parse("def f(a):\n    return [b for b in a if b and a or b]")) == 5
    assert tokens_by_line('a = f"{b}"  # one\n"""Two."""\n\nb = a') == {1: 2, 4: 3}
    statements = ast.parse("a, b = 1, 2\na, b = f()\n[[c for c in d] for d in a]\n[c for c in a]").body
    assert [is_tuple_assignment(statement) for statement in statements] == [True, False, False, False]
    expressions = [statement.value for statement in statements if isinstance(statement, ast.Expr)]
    assert [is_nested(expression) for expression in expressions] == [True, False]


if __name__ == "__main__":
    for kind, counts in all_habits().items():
        print(kind, {name: round(count, 1) for name, count in counts.items()})
    for room in WEIGHTS:
        print(room, {name: round(count, 3) for name, count in weight_of(room)._asdict().items()})
