"""Forms of ``tests.parsed``: questions of plain values, whose answers the suite and its scenarios work out."""

import itertools
import json
import os
from collections.abc import Callable, Mapping
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from pydantic import TypeAdapter, ValidationError

from commands.sweep.backends import slurm
from provisioning.batch.options import SlurmOptions
from provisioning.gpus import Card
from scenarios.command import Command
from scenarios.command_files import files_of
from scenarios.datasets.generated import make_plan as plan_of_set
from scenarios.datasets.resolve import resolve
from scenarios.events import AggressorLog
from scenarios.failure import failure_of_exit
from scenarios.job import digest_of_ranks, merged_environment
from scenarios.own_workload import adopt
from scenarios.probe import scratch_bytes
from scenarios.probes.resize import RESIZE
from scenarios.reading import mounted_at
from scenarios.startup import parse_instances
from suite.differ import FactRule, differ, flattened, gib
from suite.errors import BenchError, MeasurementError, RequestError
from suite.inventory import read_inventory
from suite.job.distributed import DistributedJob, InstancePlan, divided, instances_of
from suite.job.envelope import GIB, Envelope, format_cpu_list, plan_envelope
from suite.job.profiles import Sizes, check_sizes
from suite.job.sharing import Sharing
from suite.part import first_problem
from suite.plan import Plan, lower
from suite.progress import summary
from suite.records.course import envelope_differences
from suite.records.environment import Environment
from suite.records.fields import checked_part
from suite.records.record import Outcome, Steps, TrialRecord
from suite.records.usage import Conditions, Usage
from suite.registries import AGGRESSORS, PROBES
from suite.request.request import RunRequest
from suite.selftest.certificate import Certificate, by_chance
from suite.selftest.injuries import get_injury
from suite.sweep import pool
from suite.sweep.cells import cells_of
from suite.sweep.file import read_sweep
from suite.sweep.file_transfer import decode
from suite.sweep.pool import PoolMember
from suite.targets import TARGETS, ListedMachine
from suite.units import format_duration
from suite.userland import parse_line
from tests.jobs import in_job
from tests.scenarios.test_own_workload import TOY
from tests.suite.conftest import ENVELOPE, inside, make_plan, make_record, record_fields
from worker.aggressors.aggressor import parse as parse_aggressor
from worker.probes.disk import readings
from worker.probes.network import parse_session
from worker.probes.probe import ProbeError, quantile
from worker.probes.syscalls import parse_perf
from worker.protocol import SpecError


def departures(asked: list[Any]) -> object:
    """Return how the inside of a target departs from its envelope, with an ablation and with substitutes."""
    ablation, substitutes, seen = asked
    trial = next(make_plan().trials()).model_copy(update={"ablation": ablation})
    return envelope_differences(trial, ENVELOPE, inside(ENVELOPE, **seen), substitutes)


def envelope(asked: Mapping[str, Any]) -> object:
    host: dict[str, Any] = {"host_cpus": (5, 0, 1, 2), "host_memory_bytes": 8 * GIB}
    return plan_envelope(asked.get("cpus"), asked.get("memory_bytes", GIB), asked.get("threads"), **host)


def least_batch(asked: list[Any]) -> None:
    check_sizes(asked[0], Sizes(batch=1, image_px=asked[1], warmup_steps=1, steps=2), asked[0])


def cells(table: Mapping[str, Any]) -> object:
    sweep = read_sweep({"name": "night", "targets": ["container"], **table}, "p.toml")
    return [cell.settings for cell in cells_of(sweep)]


def generated(asked: Mapping[str, Any]) -> object:
    usual = {"images": 20, "name": "imagefolder", "size": None, "seed": 0, "classes": None}
    return plan_of_set(**{**usual, **asked}).text()


def computed_on(asked: list[Any]) -> object:
    """Return the GPUs of a job that was given some, where torch reports others by name or tells of none."""
    chosen, reported = asked
    cards = [
        Card(str(n), "RTX", uuid=uuid, pci_address=str(n), whole_uuid="GPU-whole" if uuid[0] == "M" else None)
        for n, uuid in enumerate(chosen)
    ]
    seen = [{"name": "RTX", "uuid": uuid, "pci_address": str(n)} for n, uuid in enumerate(reported or [])]
    said = {"gpus": seen if reported is not None else None}
    try:
        found = merged_environment({}, said, {"gpus": [card.fact for card in cards]})
    except MeasurementError as error:
        return error.kind, error.message
    return [gpu.uuid for gpu in found.gpus or ()]


def killed(asked: Mapping[str, Any]) -> object:
    """Return what is said of a worker that SIGKILL has ended on a node with these files and facts."""

    def run(argv: list[str], **_: object) -> SimpleNamespace:
        return SimpleNamespace(stdout=asked.get("files", {}).get(argv[1], ""))

    node: Any = SimpleNamespace(
        run=run, facts=asked.get("facts", {}), substitutes=asked.get("substitutes", ()), name="here"
    )
    failure = failure_of_exit(137, "warm-up", 2 * GIB, node)
    return failure.kind, failure.message


MOUNTS = """\
1 1 254:0 / / ro,noatime - ext4 /dev/vda ro
2 1 0:20 / /mnt rw - tmpfs tmpfs rw
3 2 254:16 / /mnt/data ro,noatime shared:1 master:2 - ext4 /dev/vdb ro
4 2 254:16 / /mnt/data2 ro,noatime - overlay overlay ro
"""


def mounted(directory: str) -> object:
    node: Any = SimpleNamespace(run=lambda *_, **__: SimpleNamespace(stdout=MOUNTS))
    return mounted_at(node, directory)


def unit(words: Mapping[str, str]) -> object:
    request = RunRequest.of({"scenario": "command", "command": "python train.py", **words})
    return Command.of(request).unit(request, "train.py")


def unequal(changed: Mapping[str, Any]) -> object:
    """Return the differences of a machine of a pool from one that has these facts instead."""
    facts = {"kernel": "6.1", "cpu_model": "Xeon", "cpus": [0, 1], "memory_bytes": 64 * GIB}
    facts |= {"hostname": "n1", "mitigations": {"meltdown": "none"}}
    first = {"suite_version": "1", "image": "abc", "environment": facts}
    other = {**first, **changed, "environment": {**facts, "hostname": "n2", **changed.get("environment", {})}}
    return pool.unequal(PoolMember.model_validate(first), PoolMember.model_validate(other))


def probed(read: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return the form with the refusals of a probe as those of the suite."""

    def answer(asked: Any) -> object:
        try:
            return read(asked)
        except ProbeError as error:
            raise BenchError(str(error), remedy=error.remedy) from error

    return answer


def session(end: Mapping[str, Any] | str) -> object:
    """Return what is read of an iperf3 with this end, or with this text in place of its JSON."""
    sums = [{"sum": {"bits_per_second": rate, "omitted": rate > 3e9}} for rate in (1e9, 2e9, 9e9)]
    usual = {"sum_sent": {"retransmits": 0}, "sum_received": {"bits_per_second": 1.5e9}}
    return parse_session(end if isinstance(end, str) else json.dumps({"intervals": sums, "end": {**usual, **end}}))


def truth(asked: list[Any]) -> object:
    """Return the truth of an injury, whose trial has these fields beside one of six measured seconds."""
    usual: dict[str, Any] = {"throughput_per_s": 10.0, "sizes": {"batch": 2, "warmup_steps": 1, "steps": 30}}
    found = get_injury(asked[0]).truth(make_record(**usual, **asked[1]), make_record(**usual))
    return found and (round(found.low, 9), round(found.high, 9))


def held(part: type, fields: Mapping[str, Any]) -> str:
    """Return that a record can hold a part with these fields."""
    try:
        checked_part(part, fields)
    except ValidationError as error:
        raise ValueError(first_problem(error, "the whole")) from error
    return "holds"


ENVIRONMENTS = TypeAdapter(Environment)
PARTS = {model.__name__: model for model in (Steps, Outcome, Conditions, Usage)}


def workload(source: Any) -> object:
    """Return the name of the workload in a file with this text, or with the usual one where one word is another."""
    with TemporaryDirectory() as directory, chdir(directory):
        old, new = ("", "") if isinstance(source, str) else source
        text = TOY.replace(old, new, 1) if old else source
        Path("my_model.py").write_text(text)
        return adopt("my_model.py")


def folder(asked: list[Any]) -> object:
    """Return kind, images and bytes of a directory: text is a link to that place, a number a file of so many bytes."""
    kind, content = asked
    with TemporaryDirectory() as place:
        root = Path(os.path.realpath(place), "data")
        for name, inside in content.items() if isinstance(content, dict) else ():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(inside, str):
                (root / name).symlink_to(inside.replace("{root}", str(root)))
            else:
                (root / name).mkdir() if name.endswith("/") else (root / name).write_bytes(b"x" * inside)
        if isinstance(content, int):
            root.write_bytes(b"x" * content)
        try:
            found = files_of(root) if kind == "files" else resolve(kind + f":{root}" * (kind != "generated"), root)[1]
        except RequestError as error:
            told = (text.replace(str(root), "DIR") for text in (error.message, str(error.remedy)))
            raise RequestError(next(told), remedy=next(told)) from error
        return found.kind, found.images, found.size_bytes, os.path.relpath(found.directory, root)


MINE = ("train.py", "lib/model.py")


def script(words: str) -> None:
    """Refuse a command that names a script which is missing in a directory of two."""
    request = RunRequest.of({"scenario": "command", "command": words, "command_files": "mine"})
    with TemporaryDirectory() as place, chdir(place):
        for path in (Path("mine", name) for name in MINE):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("1")
        try:
            Command.of(request).data_set(request, Path("mine"), print)
        except RequestError as error:
            raise RequestError(error.message.replace(str(Path.cwd()), "DIR"), remedy=error.remedy) from error


SHARED = Envelope(cpus=(0, 1, 4, 5), memory_bytes=4 * GIB, threads=4)


def instances(asked: Mapping[str, Any]) -> list[object]:
    """Return role, CPUs, memory and threads of the instances of a job that is distributed, shared or divided."""
    planned: Any
    if "count" in asked:
        shares = divided(SHARED.model_copy(update={"cpus": tuple(asked["cpus"])}), asked["count"])
        planned = [InstancePlan(role="worker", envelope=share) for share in shares]
    elif "target" in asked:
        planned = Sharing.model_validate(asked["sharing"]).instances_of(asked["target"], SHARED)
    else:
        usual = {"strategy": "parameter-server", "workers": 2, "servers": 1, "network": "overlay"}
        planned = instances_of(DistributedJob.model_validate({**usual, **asked}), SHARED)
    given = [(one.role, one.envelope) for one in planned]
    return [(role, own.cpus, f"{own.memory_bytes / GIB:.4g} GiB", own.threads) for role, own in given]


def global_batch(changes: Mapping[str, Any]) -> object:
    sizes = {"batch": 2, "image_px": 32, "warmup_steps": 1, "steps": 3}
    return in_job({"sizes": sizes, "envelope": SHARED, **changes})["job"].global_batch


def aggressor(asked: object) -> object:
    try:
        return parse_aggressor(json.dumps(asked))
    except SpecError as error:
        raise ValueError(str(error)) from error


def resizable(asked: list[Any]) -> None:
    options, targets = asked
    request = RunRequest.of({"scenario": "probe", "probe": ("resize",), **options})
    cpus = tuple(range(int(options.get("cpus", "2"))))
    with patch.object(os, "geteuid", lambda: 1000):
        RESIZE.check(request, targets, Envelope(cpus=cpus, memory_bytes=GIB, threads=1))


def aggressor_log(asked: Mapping[str, Any]) -> object:
    """Return when the victim can be launched, and the speed in spans of seconds since the first measured step.

    A number among the events is a progress of so much work. Each event comes a second after the one before.
    """
    ready: list[int] = []
    ticks = itertools.count(-2)
    log = AggressorLog(ready=lambda: ready.append(len(log.progress) - 1), clock=lambda: float(next(ticks)))
    usual = [["started", {"pid": 7}], ["environment", {"environment": {}}], ["measuring", {"unit": "bytes"}]]
    for each in asked.get("begin", usual) + asked["events"]:
        work = {"steps": len(log.progress), "work": each}
        name, fields = each if isinstance(each, list) else ("progress", work)
        log.hear(json.dumps({"event": name, "t": 1.0, **fields}))
    return ready, [log.per_s(*span) for span in asked.get("spans", ())]


def certificate(*findings: object) -> Certificate:
    made = {"suite_version": "1", "made_at": "2026-11-22T03:00:00+00:00", "directory": "/r", "machine": {}}
    ran = {"targets": ("container",), "engine": "runc", "blocks": 10, "margin": 0.02}
    return Certificate.model_validate({**made, **ran, "findings": findings, "smallest": {"throughput": 0.021}})


def certified(asked: list[Any]) -> object:
    """Return whether a self-test has passed, and its line, of findings (how many, size, place, verdict)."""
    words = {"scenario": "synthetic", "target": "container", "injury": "late-steps", "metric": "throughput"}
    usual = {**words, "summary": "", "witness": "", "blocks": 10}
    findings = [
        {**usual, "size": size, "place": place, "verdict_right": verdict}
        for count, size, place, verdict in asked
        for _ in range(count)
    ]
    found = certificate(*findings)
    return found.passed, found.line()


def opened(text: str) -> object:
    """Return the machines of each target in an inventory, and the target that is opened there."""
    with TemporaryDirectory() as directory, chdir(directory):
        Path("hosts.toml").write_text(text)
        try:
            inventory = read_inventory(Path("hosts.toml"))
        except RequestError as error:
            raise RequestError(error.message.replace(str(Path.cwd()), "DIR"), remedy=error.remedy) from error
        machines = [[node.name for node in inventory.of_target(target)] for target in TARGETS]
        return machines, [inventory.opened_as(target) for target in TARGETS]


RULES = {"memory*": FactRule("memory", tolerance=0.02, text=gib), "cpus": FactRule(counts=len)}


def differing(asked: list[Any]) -> object:
    return [(fact.path, fact.between("a", "b"), fact.against) for fact in differ(asked[0], asked[1], RULES)]


JUDGED: Mapping[str, Callable[[Any], object]] = {
    "departures": departures,
    "listed": lambda asked: ListedMachine(name="n1", targets=asked[0], virtual=asked[1]).contradiction(
        hypervisor=asked[2]
    ),
    "envelope": envelope,
    "cpu-list": format_cpu_list,
    "batch-of-one": least_batch,
    "lasts": format_duration,
    "cells": cells,
    "set": generated,
    "computed-on": computed_on,
    "killed": killed,
    "digests": digest_of_ranks,
    "environment": lambda asked: ENVIRONMENTS.dump_python(merged_environment(*asked), exclude_none=True),
    "mounted": mounted,
    "instances": parse_instances,
    "unit": unit,
    "unequal": unequal,
    "arrives": decode,
    "time-limit": lambda asked: slurm.time_limit(SlurmOptions.model_validate(asked[0]), asked[1]),
    "perf": probed(lambda asked: parse_perf(*asked)),
    "session": probed(session),
    "fio": probed(lambda asked: readings(asked[0] if isinstance(asked[0], str) else json.dumps(asked[0]), asked[1])),
    "quantile": lambda asked: quantile(*asked),
    "truth": truth,
    "record": lambda changes: held(TrialRecord, record_fields(**changes)),
    "part": lambda asked: held(PARTS[asked[0]], asked[1]),
    "workload": workload,
    "folder": folder,
    "resizable": resizable,
    "script": script,
    "instances-of": instances,
    "global-batch": global_batch,
    "lower": lower,
    "manifest-line": parse_line,
    "aggressor": aggressor,
    "scratch": lambda asked: scratch_bytes({"probe": PROBES, "aggressor": AGGRESSORS}[asked[0]], *asked[1:]),
    "aggressor-log": aggressor_log,
    "certificate": certified,
    "missed": by_chance,
    "opened": opened,
    "differing": differing,
    "flattened": flattened,
    "summary": lambda changes: summary(make_record(**changes)),
    "run-plan": lambda changes: held(Plan, make_plan().model_dump() | changes),
    "request": lambda given: RunRequest.of(given).given(),
}
