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

from tests.test_rooms import NAMES, REPOSITORY, tree

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
        "say, tell, hear, know, believe": 27,
        "beside": 9.3,
        "of its own": 6.7,
        "what is": 18.7,
        "is none": 17,
        "where for if": 28.4,
        "asked for": 3.3,
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
EMPTY_SHARE = 0.043
"""The largest share of such names among all names that are assigned or are parameters."""

COMPLEX = {12: 17, 15: 0}
"""The most functions whose complexity exceeds each number."""


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


def empty_names() -> tuple[float, Counter[str]]:
    """Return the share of names without content, and how often each occurs."""
    names = Counter(name.strip("_") for file in NAMES for name in stored_names(tree(file)))
    empty = Counter({name: count for name, count in names.items() if name in EMPTY_NAMES})
    return empty.total() / names.total(), empty


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


def test_few_names_are_empty() -> None:
    share, empty = empty_names()
    assert share <= EMPTY_SHARE, empty.most_common(10)


def test_few_functions_are_complex() -> None:
    for bound, most in COMPLEX.items():
        above = {name: count for name, count in complexities().items() if count > bound}
        assert len(above) <= most, sorted(above.items(), key=lambda item: -item[1])


def test_the_counts_see_what_they_count() -> None:
    assert habits("It says what is none, asked for a job of its own")["say, tell, hear, know, believe"] > 0
    assert [*stored_names(ast.parse("def f(a, *, b):\n    c, found = a, b"))] == ["a", "b", "c", "found"]
    assert complexity(ast.parse("def f(a):\n    return [b for b in a if b and a or b]")) == 5


if __name__ == "__main__":
    for kind, counts in all_habits().items():
        print(kind, {name: round(count, 1) for name, count in counts.items()})
    print("empty names", empty_names())
    print("complex", {bound: sum(count > bound for count in complexities().values()) for bound in COMPLEX})
