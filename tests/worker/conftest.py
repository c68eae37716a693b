"""The nodes and trials of the scenarios' tests: the worker's tests run it on the same ones."""

from tests.scenarios.conftest import here, observer, scripted, spec, trial

__all__ = ["here", "observer", "scripted", "spec", "trial"]
