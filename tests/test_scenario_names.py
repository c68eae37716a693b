"""What a scenario knows about itself it declares: nobody outside its file asks for its name."""

import ast
from collections.abc import Iterator

from suite.registries import SCENARIOS
from tests.test_rooms import NAMES, tree

MOST = 4
"""The comparisons that are left, those of the paper's figures; the number only falls."""
OWN_FILES = tuple(f"{place.partition(':')[0].replace('.', '/')}.py" for place in SCENARIOS.own.values())
ALSO_DATA = {"synthetic", "real"}
"""Names of kinds of data, too."""


def constants(module: ast.AST) -> dict[str, set[str]]:
    """The constants of a module, by name: ``SERVE = "serve"``, ``JOINED = ("distributed", SERVE)``."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Name, ast.Tuple)):
            names = [part.id for part in ast.walk(node.targets[0]) if isinstance(part, ast.Name)]
            parts = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            found |= {name: {value for value in parts if isinstance(value, str)} for name in names}
    return found


def comparisons(module: ast.Module) -> Iterator[ast.AST]:
    """The comparisons of something that is called scenario, or of a name that only a scenario has, with a name."""
    known = constants(module)
    for node in ast.walk(module):
        if not isinstance(node, (ast.Compare, ast.Match)):
            continue
        parts = list(ast.walk(node))
        values = {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
        values |= {value for part in parts if isinstance(part, ast.Name) for value in known.get(part.id, ())}
        named = values & set(SCENARIOS.own)
        if named and (named - ALSO_DATA or "scenario" in ast.unparse(node)):
            yield node


def test_names_of_scenarios_are_compared_in_their_own_files() -> None:
    outside = [name for name in NAMES if name not in OWN_FILES]
    found = [f"{name}:{ast.unparse(node)}" for name in outside for node in comparisons(tree(name))]
    assert len(found) <= MOST, found


def test_a_comparison_is_seen() -> None:
    module = ast.parse(
        'JOINED = ("serve",)\nif request.scenario in JOINED or kind == "probe" or scenario != "real": ...'
    )
    assert len(list(comparisons(module))) == 3
