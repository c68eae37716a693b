"""What is tried in the machine, in order of value. A step is a script of the shell, and fails with its exit status."""

from dataclasses import dataclass

from tests.machine.disks import IMAGES, USER

WORK = "bench run --scenario synthetic --model vae --profile smoke --steps 2 --cpus 2 --wait --out"
PREPARE = f"""
python3 - <<'END'
import glob, json, os
# The disk keeps whole seconds: without this, bench would hash gigabytes on an emulated CPU once.
for path in glob.glob("/{IMAGES}/*/image.json"):
    image = json.load(open(path))
    for name, stamp in image["files"].items():
        stamp["mtime_ns"] = os.stat(os.path.join(os.path.dirname(path), name)).st_mtime_ns
    json.dump(image, open(path, "w"))
END
"""
FACTS = """
uname -r; stat -f -c 'cgroup %T' /sys/fs/cgroup; cat /sys/fs/cgroup/cgroup.subtree_control
systemctl --version | head -1; systemctl is-system-running --wait || systemctl --failed --no-legend
python3 --version; podman --version; docker --version; runc --version | head -1; bwrap --version; slurmd -V
qemu-system-x86_64 --version | head -1
cat /sys/module/apparmor/parameters/enabled; cut -d' ' -f1 /sys/kernel/security/apparmor/profiles | sort | tr '\\n' ' '
"""
ATTESTED = """
bench audit "$@"
python3 - "$@" <<'END'
import glob, json, sys
records = [json.load(open(path)) for place in sys.argv[1:] for path in glob.glob(place + "/trials/*.json")]
assert records, "no record"
for record in records:
    envelope, target = record["job"]["envelope"], record["environment"]["target"]
    attested = {key: target[key] for key in ("cgroup_version", "cpus", "memory_bytes", "seccomp")}
    told = record["outcome"]["status"], record["outcome"]["message"]
    print(record["trial_id"], *told, attested, record["substitutes"])
    assert record["outcome"]["status"] == "ok", record["outcome"]
    if "memory-limit" not in record["trial_id"] and "memory:not-limited" not in record["substitutes"]:
        assert target["memory_bytes"] == envelope["memory_bytes"], target["memory_bytes"]
    assert len(target["cpus"]) == len(envelope["cpus"]) and target["cgroup_version"] == 2, attested
END
"""
TAKEN = f"""
image=/{IMAGES}/$(ls /{IMAGES}); own=/home/{USER}/.local/share/virtbench/images/$(basename $image)
mkdir -p $own; cp -a -n $image/tree $image/image.json $own/; chown -R {USER}: /home/{USER}/.local
# A change of the owner removes these bits.
cd $image; find tree -type f -perm /6000 | while read -r file; do chmod --reference="$file" "$own/$file"; done
chmod 755 /{IMAGES}; ln -s $image/*.img $image/*.tar $own/
"""
KILLED = f"""
for target in "bare-metal" "container --engine podman"; do
    rm -rf killed; setsid {WORK} killed --target $target > killed.log 2>&1 & bench=$!
    for second in $(seq 300); do
        grep -q virtbench <<< "$(podman ps --format '{{{{.Names}}}}'; ls /sys/fs/cgroup)" && break; sleep 1
    done
    sleep 5; kill -9 $bench; cat killed.log
    bench clean
    left=$(pgrep -af 'python3 -m worker'; ls -d /sys/fs/cgroup/virtbench-* 2>/dev/null
        podman ps -a -q; grep /run/virtbench /proc/mounts) || true
    if test -n "$left"; then echo "left: $left"; exit 1; fi
done
"""
PLAN = """
mkdir -p plans; cat > plans/{name}.toml <<'END'
name = "{name}"
targets = ["bare-metal", "container"]
blocks = 1
[matrix]
scenario = ["synthetic"]
model = ["vae"]
profile = ["smoke"]
[options]
engine = "{engine}"
cpus = "2"
steps = 2
{engine_table}
END
"""
SCHEDULED = (
    PLAN.format(name="fired", engine="runc", engine_table="")
    + """
bench sweep schedule plans/fired.toml --every 1m --with systemd
systemctl list-timers --all --no-pager | grep virtbench-fired
for second in $(seq 600); do
    test 2 = $(find results/fired-scheduled -name '*-b000.json' 2>/dev/null | wc -l) && break; sleep 2
done
bench sweep schedule --list
journalctl --no-pager -u virtbench-fired.service | tail -20
bench sweep schedule --remove fired
systemctl stop virtbench-fired.service || true
test -z "$(systemctl list-timers --all --no-pager --no-legend 'virtbench*')"
set -- $(dirname $(dirname results/fired-scheduled/*/*/trials/*.json) | sort -u)
"""
)
SLURM = """
mkdir -p /var/lib/slurm/state /var/lib/slurm/spool; chown slurm: /var/lib/slurm/state
systemctl start munge slurmctld slurmd
for second in $(seq 60); do sinfo -h -o %T | grep -q idle && break; sleep 2; done; sinfo
"""
ROOTLESS = """
export DOCKER_HOST=unix://$XDG_RUNTIME_DIR/docker.sock PATH=$PATH:/usr/sbin:/sbin
daemon=$(find /usr/share/docker.io -name dockerd-rootless.sh)
systemd-run --user --quiet --unit=rootless --property=Delegate=yes --setenv=PATH="$PATH" sh "$daemon"
for second in $(seq 300); do docker version > /dev/null 2>&1 && break; sleep 1; done
docker info --format '{{.SecurityOptions}} memory {{.MemoryLimit}} cpuset {{.CPUSet}}' || {
    journalctl --user --no-pager -u rootless | tail -20; exit 1; }
"""


def _queued(name: str, engine: str) -> str:
    plan = PLAN.format(name=name, engine=engine, engine_table='[engine]\nkind = "slurm"\npoll_s = 2')
    run = f"timeout 1500 bench sweep run plans/{name}.toml || {{ tail -50 results/{name}/logs/*; exit 1; }}"
    # Without root, too, bare metal and the container have one userland.
    compared = f"bench compare results/{name} | tee compared; if grep 'no ratio is formed' compared; then exit 1; fi"
    runs = f"set -- $(dirname $(dirname results/{name}/*/trials/*.json) | sort -u)"
    return f"{plan}\n{run}\n{compared}\n{runs}\n{ATTESTED}"


@dataclass(frozen=True)
class Step:
    name: str
    script: str
    user: str = "root"
    within_s: float = 1800.0


def _run(place: str, *words: str) -> str:
    run = f"rm -rf {place}; {WORK} {place} {' '.join(words)} || failed=$?"
    return f"{run}\nset -- {place}; {ATTESTED}\nexit ${{failed:-0}}\n"


def _probe(place: str, *words: str) -> str:
    return _run(place, *words).replace("--scenario synthetic --model vae", "--scenario probe").replace("--steps 2", "")


SYSCALL = "--probe syscall --target bare-metal --target container"
STEPS = (
    Step("prepare", PREPARE),
    Step("versions", FACTS),
    Step("doctor", "bench doctor"),
    Step("bare metal, runc", _run("runc", "--target bare-metal --target container --engine runc")),
    Step("podman, docker", _run("engines", "--target container --engine podman --engine docker")),
    Step("probe", _probe("probe", f"{SYSCALL} --engine podman --engine docker --engine runc")),
    Step("user: the image", TAKEN),
    Step(
        "user: doctor", "id; cat /sys/fs/cgroup/$(cut -d: -f3 /proc/self/cgroup)/cgroup.controllers; bench doctor", USER
    ),
    Step("user: podman", _run("podman", "--target container --engine podman"), USER),
    Step("user: bare metal", _run("metal", "--target bare-metal"), USER),
    Step("CPU quota, memory", _probe("quota", f"{SYSCALL} --engine podman --ablate pinning --ablate memory-limit")),
    Step(
        "io.max",
        _probe("disk", "--probe disk --target bare-metal --target container --engine podman --ablate disk-limit"),
    ),
    Step("kill -9, clean", KILLED),
    Step("schedule", SCHEDULED + ATTESTED),
    Step("Slurm", SLURM + _queued("queued", "runc")),
    Step("user: Slurm, Charliecloud", _queued("unprivileged", "charliecloud"), USER),
    # Its daemon loads the image, for a quarter of an hour and more.
    Step("user: rootless docker", ROOTLESS + _run("rootless", "--target container --engine docker"), USER, 5400.0),
)
