"""The rules of the rooms: who may import what, and that no module does anything at import."""

import ast
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from provisioning.images.build import INSIDE
from suite.measurable import PATH_ONLY
from suite.registries import ENGINES, MACHINES, SCENARIOS, SITES

REPOSITORY = Path(__file__).parents[1]
ROOMS = ("suite", "worker", "scenarios", "provisioning", "analysis")
WIRING = ("cli.py", "commands", "virtbench")
"""What imports every room, and is imported by none."""
MODULES = sorted(
    [REPOSITORY / "cli.py", *(path for room in (*ROOMS, *WIRING[1:]) for path in (REPOSITORY / room).rglob("*.py"))]
)
# Inside a target there is nobody else to start what the job needs: its ranks, the programs that the probes are, and
# the child that may be killed by a filter of system calls.
STARTS_PROCESSES = (
    "provisioning/",
    "worker/training/ddp.py",
    "worker/probes/",
    "worker/aggressors/",
    "worker/program.py",
    "worker/filters.py",
)
SHIPPED = tuple(name.removesuffix(".py").replace("/", ".") for name in INSIDE if name.startswith("suite/"))
IN_THE_IMAGE = {"suite", "worker", "torch", "torchvision", "numpy", "PIL", "simplejpeg", "waitress", "msgspec"}
MOST_FILES = 20
NAMES = [path.relative_to(REPOSITORY).as_posix() for path in MODULES]


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse((REPOSITORY / name).read_text(), name)


@functools.cache
def imports(module: ast.AST) -> tuple[str, ...]:
    """Return every module that is imported, at the top or inside a function, by its full dotted name."""
    found: list[str] = []
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(found)


def roots(module: ast.AST) -> set[str]:
    return {name.partition(".")[0] for name in imports(module)}


def dotted(node: ast.AST) -> str:
    """Return ``os.system`` of what is called so; of an attribute of anything else ``.system``."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@functools.cache
def calls(module: ast.AST) -> tuple[str, ...]:
    """Return every called name, as written: ``os.system``."""
    return tuple(dotted(node.func) for node in ast.walk(module) if isinstance(node, ast.Call))


def forbidden_at_top(module: ast.Module) -> list[str]:
    """What stands at the top of the module and is no definition, constant, import or docstring."""
    allowed = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
    found = []
    for statement in module.body:
        if isinstance(statement, (*allowed, ast.AnnAssign)):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if isinstance(statement, ast.If) and ast.unparse(statement.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
            continue
        found.append(ast.unparse(statement))
    return found


def shell_uses(module: ast.AST) -> list[str]:
    """Ways to hand text to a shell of this machine."""
    shells = {"os.system", "os.popen", "subprocess.getoutput", "eval", "exec"}
    keywords = (node for node in ast.walk(module) if isinstance(node, ast.keyword) and node.arg == "shell")
    found = [name for name in calls(module) if name in shells]
    return [*found, *(f"shell={ast.unparse(node.value)}" for node in keywords)]


def test_the_rooms_are_found() -> None:
    assert {name.partition("/")[0] for name in NAMES} == {*WIRING, *ROOMS}
    assert "worker/training/trainer.py" in NAMES


def breaking(rule: Callable[[str], bool], names: Iterable[str] = NAMES) -> list[str]:
    """The modules that do not keep to it."""
    return [name for name in names if not rule(name)]


def test_a_room_imports_the_core_and_itself_alone() -> None:
    def keeps(name: str) -> bool:
        room = name.partition("/")[0]
        # Scenarios speak with the worker: what it imports without torch (rules of job files, listings) is theirs, too.
        also = {"worker"} if room == "scenarios" else set()
        return roots(tree(name)) & {*ROOMS, "cli", "commands", "tests"} <= {"suite", room, *also}

    assert breaking(keeps, (name for name in NAMES if not name.startswith(WIRING))) == []


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the files of a circle, if there is one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return sorted({*error.args[1]})
    return []


def test_no_file_is_part_of_a_circle() -> None:
    """Imports inside functions and those for the type checker alone are counted, too."""
    files = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in NAMES}
    graph = {name: {files[full] for full in imports(tree(name)) if full in files} - {name} for name in NAMES}
    assert sum(map(len, graph.values())) > len(NAMES)
    assert circle(graph) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == ["a", "b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_two_classes_do_not_share_a_name() -> None:
    classes = [
        node.name
        for name in NAMES
        for node in ast.walk(tree(name))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert {name: count for name, count in Counter(classes).items() if count > 1} == {}


def test_a_folder_holds_at_most_twenty_files() -> None:
    folders = Counter(name.rpartition("/")[0] for name in NAMES)
    assert {folder: count for folder, count in folders.items() if count > MOST_FILES} == {}


def test_torch_and_plotting_libraries_are_imported_in_their_rooms_alone() -> None:
    others = (name for name in NAMES if not name.startswith("worker/"))
    assert breaking(lambda name: not roots(tree(name)) & {"torch", "torchvision"}, others) == []
    others = (name for name in NAMES if not name.startswith("analysis/figures/"))
    assert breaking(lambda name: not roots(tree(name)) & {"seaborn", "matplotlib"}, others) == []


def test_the_worker_imports_what_the_image_holds_and_nothing_else() -> None:
    def keeps(name: str) -> bool:
        ours = {full for full in imports(tree(name)) if full.partition(".")[0] == "suite"}
        within = {full for full in ours if not full.startswith(SHIPPED)} <= {"suite"}
        return within and roots(tree(name)) <= {*sys.stdlib_module_names, *IN_THE_IMAGE}

    assert breaking(keeps, (name for name in NAMES if name.startswith("worker/"))) == []


def test_what_the_worker_takes_from_the_core_imports_the_standard_library_alone() -> None:
    for name in (name for name in INSIDE if name.startswith("suite/")):
        assert roots(tree(name)) <= set(sys.stdlib_module_names)


def test_processes_are_started_by_provisioning_alone() -> None:
    starters = {"os.fork", "os.posix_spawn", "os.execv", "os.execve", "os.execvp", "os.execvpe", "os.spawnv"}

    def keeps(name: str) -> bool:
        return "subprocess" not in roots(tree(name)) and not starters & set(calls(tree(name)))

    assert breaking(keeps, (name for name in NAMES if not name.startswith(STARTS_PROCESSES))) == []


SHARE_THE_TERMINAL = {
    "provisioning/foreground.py",  # bench itself, and a user's own program
    "provisioning/remote/agent.py",  # on another machine
    "provisioning/kubernetes/bench_pod.py",  # in a pod
}


OWN_SETTINGS = {
    "provisioning/machines/detached.py",  # a command in a guest, which outlives its connection
    "provisioning/gpu_driver.py",  # a program of any node, which the suite starts with its settings
    "provisioning/processes.py",  # a bench that outlives this one, with the user's settings
}


def test_what_is_started_is_in_a_session_of_its_own_and_speaks_english() -> None:
    """So that Ctrl-C reaches the suite alone, and its output can be parsed."""

    def apart(name: str) -> bool:
        started = [
            node
            for node in ast.walk(tree(name))
            if isinstance(node, ast.Call) and dotted(node.func) in ("subprocess.run", "subprocess.Popen")
        ]
        words = [{word.arg or ast.unparse(word.value).partition("(")[0] for word in node.keywords} for node in started]
        ways = {"popen_settings", *(["start_new_session"] if name in OWN_SETTINGS else [])}
        return all(ways & given for given in words)

    rest = [name for name in NAMES if name.startswith("provisioning/") and name not in SHARE_THE_TERMINAL]
    assert breaking(apart, rest) == []


def test_nothing_is_handed_to_a_shell_as_text() -> None:
    assert breaking(lambda name: shell_uses(tree(name)) == []) == []


def test_no_module_does_anything_at_import() -> None:
    assert breaking(lambda name: forbidden_at_top(tree(name)) == []) == []


NAMED = {
    name: place.partition(":")[0].replace(".", "/") + ".py"
    for registry in (SITES, ENGINES, MACHINES)
    for name, place in registry.own.items()
}
"""The file of each site, engine and provider, by name."""


def compared_by_name(module: ast.AST, known: dict[str, str], where: str = "") -> list[str]:
    """Comparisons with the name of a member outside its own file."""
    return [
        ast.unparse(node)
        for node in ast.walk(module)
        if isinstance(node, ast.Compare)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and known.get(str(part.value), where) != where
    ]


def test_no_site_engine_or_provider_is_compared_by_its_name_outside_its_own_file() -> None:
    assert breaking(lambda name: compared_by_name(tree(name), NAMED, name) == []) == []
    seen = ast.parse("x == 'runc'; y in ('podman', 'no'); z = 'runc'; w == 'host'")
    assert compared_by_name(seen, NAMED) == ["x == 'runc'", "y in ('podman', 'no')"]


MOST_COMPARED = 4
"""The comparisons with names of scenarios that are left, those of the paper's figures; the number only falls."""
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
    assert len(found) <= MOST_COMPARED, found
    module = ast.parse(
        'JOINED = ("serve",)\nif request.scenario in JOINED or kind == "probe" or scenario != "real": ...'
    )
    assert len(list(comparisons(module))) == 3


def test_the_folder_of_the_recipe_holds_no_python() -> None:
    assert list((REPOSITORY / "docker").rglob("*.py")) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("print(1)", ["print(1)"]),
        ("for a in b:\n    c(a)", ["for a in b:\n    c(a)"]),
        ("if x:\n    y()", ["if x:\n    y()"]),
        ("'words'\nimport a\nB = 1\nif TYPE_CHECKING:\n    import c\nif __name__ == '__main__':\n    d()", []),
    ],
)
def test_the_rule_on_imports_sees_what_is_done(source: str, found: list[str]) -> None:
    assert forbidden_at_top(ast.parse(source)) == found


def test_the_rules_see_lazy_imports_and_shells() -> None:
    module = ast.parse("def f():\n    from torch import nn\n    os.system('x')\n    run(a, shell=True)")
    assert set(imports(module)) == {"torch", "torch.nn"}
    assert shell_uses(module) == ["os.system", "shell=True"]


def test_one_file_names_the_substitutes_that_change_what_a_number_means_and_all_others_ask_it() -> None:
    naming = set()
    for name in NAMES:
        constants = [node.value for node in ast.walk(tree(name)) if isinstance(node, ast.Constant)]
        if any(value in PATH_ONLY for value in constants if isinstance(value, str)):
            naming.add(name)
    assert naming == {"suite/measurable.py"}
