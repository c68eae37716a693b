"""Sweeps for other machines, up to the point where these begin; and a block, as one of them runs it."""

import io
import json
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commands.sweep.backends.base import SweepRequest
from commands.sweep.backends.rounds import blocks_left, estimate_s, files_to_send, next_round
from provisioning.batch.options import KubernetesOptions, SlurmOptions, SshOptions
from provisioning.kubernetes.bench_pod import GIVEN_IN
from suite.progress import Lines
from suite.records.record import TrialRecord
from suite.sweep.directory import SweepDirectory
from suite.sweep.file import load_sweep
from suite.sweep.file_transfer import ENDED, FILE, GIVEN, decode, encode_file, packed, unpacked
from tests.kubernetes_schema import invalid
from tests.own_directories import held_in
from tests.provisioning.kubernetes.conftest import Server, server
from tests.suite.sweep.conftest import REPOSITORY, Machine

__all__ = ["server"]
Request = Callable[[], SweepRequest]


@pytest.fixture
def request_of(machine: Machine, capsys: pytest.CaptureFixture[str]) -> Request:
    del capsys  # what is noted goes nowhere

    def make() -> SweepRequest:
        sweep = load_sweep(machine.plan)
        return SweepRequest(machine.plan, sweep, SweepDirectory(machine.out), (), Lines(io.StringIO()))

    return make


def test_a_dry_run_shows_the_script_and_writes_nothing(machine: Machine) -> None:
    machine.with_engine('kind = "slurm"', 'partition = "cpu"', "at_once = 2", 'time_limit = "2h"')
    ended = machine.sweep_to_its_end("--dry-run", PATH="/nowhere")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "#!/bin/sh"
    assert {"#SBATCH --array=0-2%2", "#SBATCH --partition=cpu", "#SBATCH --time=120"} <= set(lines)
    words = shlex.split(lines[-1])
    assert words[2:5] == ["sweep", "run", str(machine.plan)]
    assert words[-2:] == ["--only-block", "$SLURM_ARRAY_TASK_ID"]
    assert not machine.out.exists()


def test_a_dry_run_prints_a_job_for_each_block_that_can_be_applied(machine: Machine) -> None:
    machine.with_engine('kind = "kubernetes"', 'image = "localhost/virtbench-suite:1"', 'nodes = ["n1"]')
    ended = machine.sweep_to_its_end("--dry-run")
    assert ended.returncode == 0, ended.stderr
    jobs = [json.loads(text) for text in ended.stdout.split("---\n")[1:]]
    assert [invalid(job) for job in jobs] == [[], [], []]
    assert len({job["metadata"]["name"] for job in jobs}) == 3
    template = jobs[2]["spec"]["template"]
    assert template["spec"]["containers"][0]["command"][-1] == "2"
    given = unpacked(template["metadata"]["annotations"][GIVEN_IN])
    assert [decode(line)[0] for line in given[:-1]] == ["sweep.json"]
    assert given[-1] == GIVEN
    assert not machine.out.exists()


def test_what_the_cluster_refuses_is_a_wrong_request_before_a_block_is_sent(machine: Machine, server: Server) -> None:
    machine.with_engine('kind = "kubernetes"', 'image = "localhost/virtbench-suite:1"')
    allowed = {"status": {"allowed": True}}
    server.answers |= {
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews": (201, allowed),
        "POST /apis/batch/v1/namespaces/lab/jobs": (404, {"message": 'namespaces "lab" not found'}),
    }
    ended = machine.sweep_to_its_end(KUBECONFIG=server.kubeconfig(machine.place / "config", current="here"))
    assert ended.returncode == 2, ended.stderr
    assert 'the namespace is missing: namespaces "lab" not found' in ended.stderr
    (asked,) = (line for line in server.asked if "jobs" in line)
    assert "/jobs?dryRun=All" in asked


def test_a_queue_of_a_cluster_without_kueue_is_refused_before_a_job_is_tried(machine: Machine, server: Server) -> None:
    machine.with_engine('kind = "kubernetes"', 'image = "localhost/virtbench-suite:1"', 'queue = "training"')
    server.answers["POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"] = 201, {"status": {"allowed": True}}
    ended = machine.sweep_to_its_end(KUBECONFIG=server.kubeconfig(machine.place / "config", current="here"))
    assert ended.returncode == 2, ended.stderr
    assert "engine.queue = 'training': the cluster of the context here has no Kueue" in ended.stderr
    assert not [line for line in server.asked if "jobs" in line]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['kind = "slurm"', 'partitoin = "x"'], ["unknown key engine.partitoin", "did you mean partition?"]),
        (['kind = "slurm"', "at_once = 0"], ["engine.at_once = 0", "docs/guide/clusters.md"]),
        (['kind = "slurm"', 'time_limit = "soon"'], ["engine.time_limit", "is not a span of time"]),
        (['kind = "ssh"'], ["engine.inventory is missing"]),
        (['kind = "kubernetes"'], ["engine.image is missing"]),
        (['kind = "kubernetes"', 'image = "i"', 'claim = "No_Claim"'], ["engine.claim = 'No_Claim'"]),
        (['kind = "ssh"', 'inventory = "none.toml"'], ["none.toml", "No such file"]),
        (['kind = "ssh"', 'inventory = "hosts.toml"', 'nodes = ["n3"]'], ["'n3' is not in the inventory", "n1"]),
    ],
)
def test_a_wrong_table_is_refused_with_the_key(lines: list[str], said: list[str], machine: Machine) -> None:
    machine.with_engine(*lines)
    (machine.place / "hosts.toml").write_text('[[node]]\nname = "n1"\nhost = "n1"\n')
    for words in (("--dry-run",), ()):
        ended = machine.sweep_to_its_end(*words)
        assert ended.returncode == 2
        assert all(text in ended.stderr for text in said), ended.stderr


def test_a_machine_without_slurm_is_told_so(machine: Machine) -> None:
    machine.with_engine('kind = "slurm"')
    ended = machine.sweep_to_its_end(PATH="/nowhere")
    assert ended.returncode == 2
    assert "sbatch is not on the PATH" in ended.stderr
    status = machine.run("sweep", "status", str(machine.out), PATH="/nowhere")
    assert status.returncode == 0, status.stderr
    assert "the queue cannot be seen from here" in status.stdout


# As Slurm: the tasks are in the queue of the cluster alpha, which only those see who ask it.
ALPHA = """
case " $* " in *" --clusters=alpha "*)
    echo "CLUSTER: alpha"
    state=PD; [ -e "$0.asked" ] && state=CD; touch "$0.asked"
    for block in 0 1 2; do echo "4712|$block|$state||Priority"; done;;
esac"""


@pytest.mark.parametrize("variables", [{}, {"SBATCH_CLUSTERS": "alpha"}])
def test_blocks_in_the_queue_of_another_cluster_are_followed_and_not_submitted_again(
    variables: dict[str, str], machine: Machine
) -> None:
    further = [] if variables else ['further = ["--clusters=alpha"]']
    machine.with_engine('kind = "slurm"', "poll_s = 0.1", *further)
    env = {**variables, **machine.stand_in(sbatch="echo '4713;alpha'", scancel="", squeue=ALPHA)}
    ended = machine.sweep_to_its_end(**env)
    assert "3 blocks already in the queue" in ended.stderr, ended.stderr
    calls = (machine.place / "calls").read_text().splitlines()
    assert {call.split()[0] for call in calls} == {"squeue"}
    (machine.place / "bin/squeue.asked").unlink()
    assert machine.run("sweep", "cancel", str(machine.out), **env).returncode == 0
    assert (machine.place / "calls").read_text().splitlines()[-1].startswith("scancel --clusters=alpha ")


HELD = """
[ -e "$0.asked" ] || { touch "$0.asked"; exit 0; }
for block in 0 1 2; do echo "4712|$block|PD||launch failed requeued held"; done"""


def test_a_sweep_whose_tasks_are_held_ends_with_the_remedy_of_each(machine: Machine) -> None:
    machine.with_engine('kind = "slurm"', "poll_s = 0.1")
    env = machine.stand_in(sbatch="cat >/dev/null; echo 4712", scancel="", squeue=HELD)
    ended = machine.sweep_to_its_end(**env)
    assert ended.returncode == 1
    for block in range(3):
        assert f"task 4712_{block} will not start by waiting: launch failed requeued held; " in ended.stderr
        assert f"then: scontrol release 4712_{block})" in ended.stderr
    assert "3 of 3 blocks not completed" in ended.stderr


def test_the_cluster_of_a_sweep_is_kept_for_commands_with_another_environment(machine: Machine) -> None:
    machine.with_engine('kind = "slurm"', "poll_s = 0.1")
    squeue = f'[ -e "$0.sent" ] && {{ {ALPHA}\n}}; exit 0'
    sbatch = "touch ${0%sbatch}squeue.sent; echo '4712;alpha'"
    env = machine.stand_in(sbatch=sbatch, scancel="", squeue=squeue)
    machine.sweep_to_its_end(SBATCH_CLUSTERS="alpha", **env)
    (machine.place / "bin/squeue.asked").unlink()
    assert "in the queue: block 1 of job 4712" in machine.run("sweep", "status", str(machine.out), **env).stdout
    (machine.place / "bin/squeue.asked").unlink()
    assert machine.run("sweep", "cancel", str(machine.out), **env).returncode == 0
    assert (machine.place / "calls").read_text().splitlines()[-1].startswith("scancel --clusters=alpha ")


def test_without_a_common_file_system_each_block_is_a_job_of_salloc(machine: Machine) -> None:
    machine.with_engine(
        'kind = "slurm"', 'scratch = "/scratch"', 'time_limit = "2h"', 'bench = "/opt/bench"', "at_once = 1"
    )
    env = machine.stand_in(**dict.fromkeys(("sbatch", "squeue", "scancel", "salloc", "srun"), "exit 1"))
    assert machine.sweep_to_its_end(**env).returncode == 1
    called = (machine.place / "calls").read_text().splitlines()[0]
    job, _, task = called.partition(" --mem=0 --time=120 srun ")
    assert job.startswith("salloc --quiet --exclusive --job-name=bench-night-")
    of_srun, _, block_of = task.partition(" /opt/bench sweep block --scratch /scratch --name bench-night-")
    assert of_srun == "--quiet --kill-on-bad-exit=1 --nodes=1 --ntasks=1 --cpu-bind=none"
    assert block_of.split()[1:] == ["0"]


UNRELEASED = "salloc: error: Unable to clean up job allocation 4712: Socket timed out on send/recv operation"
TIMED_OUT = "scancel: error: Socket timed out on send/recv operation"
AWAY_ONCE = f"""[ -e "$0.asked" ] || {{ touch "$0.asked"; echo '{TIMED_OUT}' >&2; exit 1; }}"""


def test_a_job_that_salloc_could_not_end_is_ended_as_soon_as_the_controller_answers(machine: Machine) -> None:
    machine.with_engine('kind = "slurm"', 'scratch = "/scratch"', "poll_s = 0.1", "at_once = 1")
    salloc = f"echo '{UNRELEASED}' >&2; exit 1"
    env = machine.stand_in(salloc=salloc, srun="", squeue="", scancel=AWAY_ONCE)
    ended = machine.sweep_to_its_end(**env)
    called = (machine.place / "calls").read_text().splitlines()
    calls = [call for call in called if not call.startswith("salloc")]
    assert calls[:2] == ["scancel --quiet 4712"] * 2, ended.stderr
    assert ended.stderr.count(f"Slurm does not answer: {TIMED_OUT}") == 1
    assert "; job 4712 keeps its node, and it is asked again for 120 s" in ended.stderr


def test_the_machines_of_a_sweep_are_reached_as_those_of_an_inventory(machine: Machine) -> None:
    machine.with_engine('kind = "ssh"', 'inventory = "hosts.toml"')
    entry = '[[node]]\nname = "n1"\nhost = "gpu1"\nport = 2222\nssh_config = "config"\n'
    (machine.place / "hosts.toml").write_text(entry)
    config = machine.place / "config"
    config.write_text("Host *\n  RemoteCommand tmux new -A -s main\n  RequestTTY yes\n  ForwardAgent yes\n")
    refusal = 'Please login as the user "ubuntu" rather than the user "root".'
    ended = machine.sweep_to_its_end(**machine.stand_in(ssh=f"echo '{refusal}'; echo; exit 142"))
    assert ended.returncode == 1
    assert f"block 0: lost on n1, which is tried again ({refusal}" in ended.stderr, ended.stderr
    called = (machine.place / "calls").read_text().splitlines()[0]
    settings, _, command = called.removeprefix("ssh ").partition(" -- ")
    assert command.startswith("gpu1 exec bench sweep block ")
    asked = subprocess.run(["ssh", "-G", *settings.split(), "gpu1"], capture_output=True, text=True)
    options = asked.stdout.splitlines()
    terminal = {"requesttty false", "forwardagent no", "batchmode yes"}
    assert {*terminal, "stricthostkeychecking true", "port 2222"} <= set(options)
    assert not [line for line in options if line.startswith("remotecommand") and line != "remotecommand none"]


def test_what_is_left_are_the_blocks_with_trials_to_run(machine: Machine, request_of: Request) -> None:
    machine.with_engine('kind = "slurm"')
    assert blocks_left(request_of()) == [0, 1, 2]
    assert estimate_s(request_of()) is None
    assert machine.sweep_to_its_end("--only-block", "1").returncode == 0
    assert blocks_left(request_of()) == next_round(request_of(), 1) == [0, 2]
    assert (machine.out / "pool.json").exists()


def test_the_estimate_is_the_longest_blocks_also_from_a_sweep_beside_it(machine: Machine, request_of: Request) -> None:
    assert machine.sweep_to_its_end("--only-block", "0").returncode == 0  # with its warm-up block
    first: Any = estimate_s(request_of())
    one = TrialRecord.model_validate_json(next(iter(machine.contents().values())))
    alone_s = (one.open_s or 0) + (one.elapsed_s or 0) + (one.close_s or 0)
    assert first > 7 * alone_s * 0.5
    machine.out.rename(machine.place / "last-week")
    assert estimate_s(request_of()) == first


def test_with_until_who_hands_out_the_blocks_decides_how_many_there_are(machine: Machine, request_of: Request) -> None:
    plan = machine.plan.read_text()
    machine.plan.write_text(plan.replace("blocks = 3", 'until = "2%"\nmax_blocks = 3'))
    assert next_round(replace(request_of(), dry_run=True), 1) == [0, 1, 2], "no more than there are"
    assert not machine.out.exists(), "a dry run writes nothing"
    assert next_round(request_of(), 1) == [0, 1, 2]
    assert machine.sweep_to_its_end().returncode == 0
    assert next_round(request_of(), 1) == []
    cut_off = next(machine.out.glob("*/trials/*-b002.json"))
    cut_off.unlink()
    assert next_round(request_of(), 1) == [2], "the last block was begun, and is to be ended"
    assert machine.sweep_to_its_end().returncode == 0
    assert cut_off.exists()
    machine.plan.write_text(plan.replace("blocks = 3", 'until = "2%"\nmax_blocks = 40'))
    assert next_round(request_of(), 1) == [*range(3, 12)], "as many as are certain to be needed"
    assert next_round(request_of(), 12) == [*range(3, 15)], "or as run at once"
    assert machine.sweep_to_its_end().returncode == 0
    assert next_round(request_of(), 1) == []
    narrow = machine.measured()
    ended = machine.sweep_to_its_end("--only-block", "20")
    assert (ended.returncode, machine.measured()) == (0, narrow), "the two cells are known to be narrow"
    assert ended.stderr.count("is done: it needs no further block") == 2
    (machine.out / "converged.json").unlink()
    assert machine.sweep_to_its_end("--only-block", "20").returncode == 0
    assert machine.measured() == narrow + 4, "where nobody has decided, a block is run"


def test_a_block_gets_the_plan_and_what_its_block_has_there(machine: Machine) -> None:
    assert machine.sweep_to_its_end(FAILING="container").returncode == 1
    names = {path.name for path in files_to_send(machine.out, 1)}
    assert {"sweep.json", "plan.json"} <= names
    assert names > {"synthetic-alexnet-bare-metal-b001.json", "synthetic-alexnet-container-b001.1.json"}
    assert not [name for name in names if "b000" in name or "b002" in name or "-w" in name]
    assert [name for name in {path.name for path in files_to_send(machine.out, 0)} if "-w000" in name]


def block(machine: Machine, given: list[str], **env: str) -> Any:
    """The command as ssh would start it, its standard input still open."""
    process = machine.program("sweep", "block", "--name", "night-1", "2", stdin=subprocess.PIPE, **env)
    for line in (*given, GIVEN):
        process.stdin.write(line + "\n")
    process.stdin.flush()
    return process


def given_by(machine: Machine) -> list[str]:
    assert machine.sweep_to_its_end("--only-block", "1").returncode == 0
    return [encode_file(machine.out, path) for path in files_to_send(machine.out, 2)]


def test_a_block_that_is_given_a_file_needs_no_input_and_writes_one_log(machine: Machine) -> None:
    given = machine.place / "given"
    given.write_text(packed([*given_by(machine), GIVEN]))
    ended = machine.run("sweep", "block", "--name", "night-1", "--given", str(given), "2")
    assert ended.returncode == 0, ended.stdout
    assert ended.stderr == ""
    files = [decode(line)[0] for line in ended.stdout.splitlines() if line.startswith(FILE)]
    assert len([name for name in files if name.endswith("-b002.json")]) == 4
    assert ended.stdout.splitlines()[-1] == ENDED


def test_a_block_ends_with_its_input_keeps_what_it_has_and_then_gives_back_what_it_made_alone(machine: Machine) -> None:
    given = given_by(machine)
    process = block(machine, given, SLOW_S="1.5")
    first = process.stdout.readline()
    process.stdin.close()
    process.stdin = None
    said, complained = process.communicate(timeout=60)
    assert process.returncode == 130, complained
    assert ENDED not in said
    assert first
    again = block(machine, given)
    lines = list(again.stdout)
    assert again.wait(60) == 0, again.stderr.read()
    assert lines[-1].strip() == ENDED
    names = [Path(decode(line)[0]).name for line in lines[:-1]]
    trials = [name for name in names if name.endswith("-b002.json")]
    assert len(trials) == len(set(trials)) == 4
    assert set(names) == {*trials, "pool.json"}
    again.communicate()
    assert not held_in(machine.place / "home/blocks")


def test_a_block_removes_what_it_has_written_in_scratch_and_names_what_others_put_there(machine: Machine) -> None:
    given, scratch = machine.place / "given", machine.place / "scratch"
    given.write_text(packed([*given_by(machine), GIVEN]))
    theirs = ("night-1-block-002/thesis.txt", "night-1-block-002/trials/own.json", "notes/a.txt")
    for name in theirs:
        (scratch / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (scratch / name).write_text("mine")
    words = ("--name", "night-1", "--scratch", str(scratch), "--given", str(given), "2")
    ended = machine.run("sweep", "block", *words)
    assert ended.returncode == 0, ended.stdout
    left = {path.relative_to(scratch).as_posix() for path in scratch.rglob("*") if not path.is_dir()}
    assert left == {*theirs}
    assert ended.stdout.count("stays, as it is not of the suite: ") == 2


@pytest.mark.parametrize("name", ["../x", "a b", "", "."])
def test_a_block_takes_no_name_that_leads_elsewhere(name: str, machine: Machine) -> None:
    ended = machine.run("sweep", "block", "--name", name, "0")
    assert ended.returncode == 2
    assert not list(machine.place.rglob("blocks/*"))


PAGES = "\n\n".join((REPOSITORY / f"docs/guide/{name}.md").read_text() for name in ("clusters", "kubernetes"))
"""Those that describe the engines."""


def test_every_key_of_the_engines_is_documented() -> None:
    for model in (SlurmOptions, SshOptions, KubernetesOptions):
        assert not [key for key in model.model_fields if f"`{key}`" not in PAGES]


def test_the_tables_of_the_documentation_are_accepted(machine: Machine) -> None:
    tables = [block for block in PAGES.split("\n\n") if block.lstrip().startswith("[engine]")]
    assert len(tables) == 4
    for table in tables:
        machine.plan.write_text(machine.plan.read_text().split("[engine]")[0] + table.replace("\n    ", "\n"))
        (machine.place / "hosts.toml").write_text(
            "".join(f'[[node]]\nname = "{name}"\nhost = "{name}"\n' for name in ("n1", "n2"))
        )
        ended = machine.sweep_to_its_end("--dry-run")
        assert ended.returncode == 0, (table, ended.stderr)
