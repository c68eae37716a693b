"""A stand-in for ``apptainer``, which no registry has: it takes the words of its manual and runs the command as it is.

It refuses what the manual does not list, a tree that is none, and binds of what is not there.
"""

import argparse
import csv
import os
import sys
from pathlib import Path

SWITCHES = ("--containall", "--no-home", "--no-eval", "--no-umask", "--no-privs", "--net")
VALUES = ("--pwd", "--hostname", "--network", "--security", "--mount", "--no-mount")


def main(words: list[str]) -> None:
    if words == ["--version"]:
        print("apptainer version 1.4.0")
        return
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("action", choices=["exec"])
    for name in SWITCHES:
        parser.add_argument(name, action="store_true")
    for name in VALUES:
        parser.add_argument(name, action="append", default=[])
    parser.add_argument("tree")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(words)
    if not (Path(given.tree) / "usr").is_dir():
        parser.error(f"{given.tree} is no image")
    for mount in csv.reader(given.mount):
        fields = dict(field.partition("=")[::2] for field in mount)
        if fields.keys() - {"type", "source", "destination", "ro"} or not Path(fields["source"]).exists():
            parser.error(f"{mount} is no bind")
    os.execvpe(given.command[0], given.command, {"PATH": os.environ["PATH"], "APPTAINER_CONTAINER": given.tree})  # noqa: S606


main(sys.argv[1:])
