"""virtbench from Python: ``run``, ``compare`` and ``read``. See docs/guide/python.md.

They are imported when they are used, for the suite's packages have general names: see ``virtbench.packages``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from virtbench.packages import import_own_packages, warn_of_hidden_modules

if TYPE_CHECKING:
    from virtbench.calls import Result, compare, read, run

__all__ = ["Result", "compare", "read", "run"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 (one of those above)
    if name not in __all__:
        raise AttributeError(f"module 'virtbench' has no attribute {name!r}")
    warn_of_hidden_modules(import_own_packages())
    calls = import_module("virtbench.calls")
    # From here on they are found without this function, which would warn again.
    globals().update({public: getattr(calls, public) for public in __all__})
    return globals()[name]
