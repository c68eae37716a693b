"""Files on their way between machines."""

import json
import os
from pathlib import Path

import pytest

from suite.sweep.file_transfer import Outbox, TransferError, encode_file, receive_file


def test_a_file_arrives_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "here/cell-1/trials/a-b000.json"
    source.parent.mkdir(parents=True)
    source.write_text('{"text": "ü \\n"}\n')
    there = receive_file(tmp_path / "there", encode_file(tmp_path / "here", source))
    assert there == tmp_path / "there/cell-1/trials/a-b000.json"
    assert there.read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    "path",
    ["/etc/cron.d/x.json", "../x.json", "a/../../x.json", ".ssh/x.json", "a/b/c/d.json", "x.sh", "", "a\n.json", 3],
)
def test_a_path_that_no_run_holds_is_refused_and_nothing_is_written(path: object, tmp_path: Path) -> None:
    with pytest.raises(TransferError):
        receive_file(tmp_path / "root", json.dumps({"path": path, "text": "x"}))
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("line", ["", "motd: welcome", "[]", "{}", '{"path": "x.json"}'])
def test_a_line_that_is_no_file_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(TransferError):
        receive_file(tmp_path, line)


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
