"""Which machines may stand in one table, and files on their way between them."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from suite.errors import RequestError
from suite.job.envelope import GIB
from suite.records.environment import Environment
from suite.sweep.file_transfer import Outbox
from suite.sweep.pool import PoolMember, join_pool


def machine(name: str = "n1", **changed: Any) -> PoolMember:
    facts = {
        "hostname": name, "kernel": "6.1", "cpu_model": "Xeon", "cpus": [0, 1], "memory_bytes": 64 * GIB,
        "mitigations": {"meltdown": "Not affected"},
    }  # fmt: skip
    own = {"suite_version": "1", "image": "abc"}
    own |= {key: changed.pop(key) for key in own if key in changed}
    return PoolMember.model_validate({**own, "environment": Environment.model_validate({**facts, **changed})})


def test_the_first_machine_sets_what_the_others_must_be_like(tmp_path: Path) -> None:
    join_pool(tmp_path / "out", machine("n1"))
    join_pool(tmp_path / "out", machine("n2"))
    join_pool(tmp_path / "out", machine("n1"))
    with pytest.raises(RequestError, match=r"n3 is unequal to n1.*kernel: n1 6.1, n3 6.2"):
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
    with pytest.raises(RequestError, match="was not written by this suite"):
        join_pool(tmp_path, machine())


def test_the_outbox_tells_new_and_changed_files_once(tmp_path: Path) -> None:
    old, new = tmp_path / "sweep.json", tmp_path / "cell/trials/x.json"
    old.write_text("{}")
    outbox = Outbox(tmp_path)
    outbox.mark_sent(old)
    assert list(outbox.unsent()) == []
    new.parent.mkdir(parents=True)
    new.write_text("1")
    (tmp_path / "cell/trials/.x.json.tmp").write_text("half")
    assert list(outbox.unsent()) == [new]
    assert list(outbox.unsent()) == []
    os.utime(new, ns=(1, 1))
    assert list(outbox.unsent()) == [new]
