"""Prints a Python's version, and which of these modules fail to import: ``python3 - torch worker.main:attest``.

A program: ``needs`` runs it in the tree of an image. A word after a colon is a function of the module, which is called.
"""

import importlib
import json
import sys


def main(names: "list[str]") -> None:
    """Print the version, and why each of the modules that fail does so, as JSON on the last line."""
    failed = {}
    for name in names:
        module, _, function = name.partition(":")
        try:
            imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()
        except Exception as error:  # noqa: BLE001 (all are reported)
            failed[name] = "{}: {}".format(type(error).__name__, error)  # noqa: UP032 (any Python 3 is to run this)
    print(json.dumps({"version": list(sys.version_info[:2]), "failed": failed}))


if __name__ == "__main__":
    main(sys.argv[1:])
