"""Files of strangers besides records, plans and sweeps: a message each, or nothing is taken from them."""

import json
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.costs.prices import read_prices
from commands.sweep.firing import _not_slower
from commands.web.generate import read_services
from suite.errors import RequestError
from suite.results.layout import CONVERGED, FIRING
from suite.results.notes import FILE as NOTES
from suite.results.notes import read_notes
from suite.results.quality import FILE as QUALITY
from suite.results.quality import read_quality
from suite.selftest.certificate import read_certificate
from suite.sweep.directory import SweepDirectory
from tests.hostile.conftest import RUNS
from tests.hostile.mutations import examples, json_texts, toml_texts, written
from tests.hostile.test_fuzz import FUZZ, place
from tests.suite.sweep.conftest import make_sweep

DOCUMENTED = Path(__file__).parents[2] / "docs/guide/prices.toml"
LISTED = b"""InstanceType,vCPUs,Price,SpotPrice,Region,AvailabilityZone
n2-standard-8,8,0.388,0.11,europe-west4,europe-west4-a
n2-standard-8,8,0.388,0.11,europe-west4,europe-west4-b
"""
CATALOGUE = {
    "place": [
        {
            "match": {"host": "cloud"},
            "currency": "USD",
            "source": "catalogue",
            "date": "2026-11-01",
            "catalogue": {"file": "vms.csv", "instance": "n2-standard-8", "region": "europe-west4"},
        }
    ]
}
PRICES = json.loads(json.dumps(tomllib.loads(DOCUMENTED.read_text()), default=str))
CERTIFICATE = {
    "schema_version": 1,
    "suite_version": "0.1.0",
    "made_at": "2026-11-01T00:00:00+00:00",
    "directory": "results/selftest",
    "machine": {},
    "targets": ["bare-metal"],
    "engine": None,
    "blocks": 6,
    "margin": 0.02,
    "findings": [],
    "smallest": {"elapsed": 0.01},
}
FIRED = {"schema_version": 3, "sweep_exit_code": 0, "exit_code": 0, "outcome": "ok", "gate": {"rows": [{"p": 0.5}]}}
DECIDED = {"sha256": "ab" * 32, "cells": ["one", "two"]}
READERS: dict[str, tuple[str, Any, Callable[[Path], object]]] = {
    "prices": ("prices.toml", PRICES, read_prices),
    "prices of a catalogue": ("prices.toml", CATALOGUE, read_prices),
    "services": ("services.toml", {"here": "http://127.0.0.1:5001", "vm": "http://[::1]:80/"}, read_services),
    "quality": (QUALITY, json.loads((RUNS / "kept" / QUALITY).read_text()), lambda path: read_quality(path.parent)),
    "notes": (NOTES, {"schema_version": 1, "text": "x", "tags": ["a"]}, lambda path: read_notes(path.parent)),
    "certificate": ("selftest.json", CERTIFICATE, read_certificate),
    "firing": (FIRING, FIRED, lambda path: _not_slower(path.parents[1])),
    "converged": (CONVERGED, DECIDED, lambda path: SweepDirectory(path.parent).converged(make_sweep())),
}


@pytest.mark.parametrize(("name", "original", "reads"), READERS.values(), ids=READERS)
@given(data=st.data())
@settings(max_examples=examples(10_000, one_in=200), **FUZZ)
def test_a_file_of_a_stranger_is_read_or_refused(
    data: st.DataObject, name: str, original: Any, reads: Callable[[Path], object]
) -> None:
    texts = toml_texts if name.endswith(".toml") else json_texts
    with place() as run:
        run.mkdir()
        (run / "vms.csv").write_bytes(data.draw(written(LISTED)))
        (run / name).write_bytes(data.draw(texts(original)))
        with suppress(RequestError):
            reads(run / name)
