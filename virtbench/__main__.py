"""The program ``bench``, which is also ``python -m virtbench``."""

from importlib import import_module

from virtbench.packages import import_own_packages


def main() -> None:
    """Run ``bench`` with the suite's packages, whatever modules of their names PYTHONPATH leads to first."""
    import_own_packages()
    import_module("cli").main(prog_name="bench")


if __name__ == "__main__":
    main()
