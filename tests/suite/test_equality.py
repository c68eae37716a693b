"""Which machines may stand in one table."""

import threading
from pathlib import Path
from typing import Any

import pytest

from suite.envelope import GIB
from suite.equality import Machine, differences, join_pool
from suite.errors import RequestError
from suite.records import Environment


def machine(name: str = "n1", **changed: Any) -> Machine:
    facts = {
        "kernel": "6.1", "cpu_model": "Xeon", "cpus": [0, 1], "memory_bytes": 64 * GIB,
        "mitigations": {"meltdown": "Not affected", "retbleed": "IBRS"}, "cpu_flags": ["avx2", "avx512f"],
    }  # fmt: skip
    own = {key: changed.pop(key) for key in ("suite_version", "image") if key in changed}
    environment = Environment.model_validate({**facts, **changed})
    return Machine(hostname=name, environment=environment, **{"suite_version": "1", "image": "abc", **own})


def test_equal_machines_may_differ_in_their_name_and_a_little_memory() -> None:
    other = machine("n2", memory_bytes=64 * GIB - (200 << 20), hostname="n2", cpus=[4, 5])
    assert differences(machine(), other) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kernel": "6.2"}, "kernel 6.1 and 6.2"),
        ({"cpu_model": "EPYC"}, "cpu_model Xeon and EPYC"),
        ({"cpus": [0]}, "CPUs 2 and 1"),
        ({"memory_bytes": 32 * GIB}, "memory 65536 MiB and 32768 MiB"),
        ({"mitigations": {"meltdown": "PTI", "retbleed": "IBRS"}}, "mitigations meltdown: Not affected and PTI"),
        ({"cpu_flags": ["avx2"]}, "cpu_flags with ['avx512f'] and with []"),
        ({"suite_version": "2"}, "suite 1 and 2"),
        ({"image": None}, "image abc and None"),
    ],
)
def test_what_differs_is_named_with_both_values(changed: dict[str, Any], said: str) -> None:
    assert differences(machine(), machine("n2", **changed)) == [said]


def test_the_first_machine_sets_what_the_others_must_be_like(tmp_path: Path) -> None:
    join_pool(tmp_path / "out", machine("n1"))
    join_pool(tmp_path / "out", machine("n2"))
    join_pool(tmp_path / "out", machine("n1"))
    with pytest.raises(RequestError, match=r"n3 is unequal to n1.*kernel 6.1 and 6.2"):
        join_pool(tmp_path / "out", machine("n3", kernel="6.2"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["pool.json"]


def test_of_many_that_come_at_once_one_is_first_and_the_unequal_are_refused(tmp_path: Path) -> None:
    kernels = ["a", "b"] * 10
    refused: list[str] = []
    start = threading.Barrier(len(kernels))

    def come(kernel: str) -> None:
        start.wait()
        try:
            join_pool(tmp_path, machine(kernel, kernel=kernel))
        except RequestError:
            refused.append(kernel)

    threads = [threading.Thread(target=come, args=(kernel,)) for kernel in kernels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 10
    assert len(set(refused)) == 1


def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "pool.json").write_text("{}")
    with pytest.raises(RequestError, match="not of this suite"):
        join_pool(tmp_path, machine())
