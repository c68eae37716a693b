"""What is tried in the machine, in order of value. A step is a script of the shell, and fails with its exit status."""

from dataclasses import dataclass

from tests.machine.disks import IMAGES, USER

WORK = "bench run --scenario synthetic --model vae --profile smoke --steps 2 --cpus 2 --out"
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
python3 --version; podman --version; docker --version; runc --version | head -1; bwrap --version; slurmd -V; qemu-system-x86_64 --version | head -1
cat /sys/module/apparmor/parameters/enabled; cut -d' ' -f1 /sys/kernel/security/apparmor/profiles | sort | tr '\\n' ' '
"""
ATTESTED = """
python3 - "$@" <<'END'
import glob, json, sys
records = [json.load(open(path)) for place in sys.argv[1:] for path in glob.glob(place + "/trials/*.json")]
assert records, "no record"
for record in records:
    envelope, target = record["job"]["envelope"], record["environment"]["target"]
    attested = {key: target[key] for key in ("cgroup_version", "cpus", "host_cpus", "memory_bytes", "seccomp")}
    print(record["trial_id"], record["outcome"]["status"], record["outcome"]["message"], attested, record["substitutes"])
    assert record["outcome"]["status"] == "ok", record["outcome"]
    if "memory-limit" not in record["trial_id"] and "memory:not-limited" not in record["substitutes"]:
        assert target["memory_bytes"] == envelope["memory_bytes"], target["memory_bytes"]
    assert len(target["cpus"]) == len(envelope["cpus"]) and target["cgroup_version"] == 2, attested
END
"""
TAKEN = f"""
image=/{IMAGES}/$(ls /{IMAGES}); own=/home/{USER}/.local/share/virtbench/images/$(basename $image)
mkdir -p $own; cp -a -n $image/tree $image/image.json $own/; chown -R {USER}: /home/{USER}/.local
chmod 755 /{IMAGES}; ln -s $image/*.img $image/*.tar $own/
"""
KILLED = f"""
setsid {WORK} killed --target bare-metal --target container --engine podman > killed.log 2>&1 & bench=$!
for second in $(seq 300); do
    grep -q virtbench <<< "$(podman ps --format '{{{{.Names}}}}'; ls /sys/fs/cgroup)" && break; sleep 1
done
sleep 5; kill -9 $bench; cat killed.log
bench clean
left=$(pgrep -af 'python3 -m worker' || true; ls -d /sys/fs/cgroup/virtbench-* 2> /dev/null || true; podman ps -a -q; mount | grep /run/virtbench || true)
if test -n "$left"; then echo "left: $left"; exit 1; fi
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
SCHEDULED = PLAN.format(name="fired", engine="runc", engine_table="") + """
bench sweep schedule plans/fired.toml --every 1m --with systemd
systemctl list-timers --all --no-pager | grep virtbench-fired
for second in $(seq 600); do ls results/fired-scheduled/*/*/trials/*.json 2> /dev/null | wc -l | grep -qx 2 && break; sleep 2; done
bench sweep schedule --list
journalctl --no-pager -u virtbench-fired.service | tail -20
bench sweep schedule --remove fired
systemctl stop virtbench-fired.service || true
test -z "$(systemctl list-timers --all --no-pager --no-legend 'virtbench*')"
set -- results/fired-scheduled/*/*
"""
SLURM = PLAN.format(name="queued", engine="runc", engine_table='[engine]\nkind = "slurm"\npoll_s = 2') + """
mkdir -p /var/lib/slurm/state /var/lib/slurm/spool; systemctl start munge slurmctld slurmd
for second in $(seq 60); do sinfo -h -o %T | grep -q idle && break; sleep 2; done; sinfo
timeout 1500 bench sweep run plans/queued.toml || { tail -50 results/queued/logs/*; exit 1; }
set -- results/queued/*/
"""


@dataclass(frozen=True)
class Step:
    name: str
    script: str
    user: str = "root"
    within_s: float = 1800.0


def _run(place: str, *words: str) -> str:
    return f"rm -rf {place}; {WORK} {place} {' '.join(words)} || failed=$?\nset -- {place}; {ATTESTED}\nexit ${{failed:-0}}\n"


def _probe(place: str, *words: str) -> str:
    return _run(place, *words).replace("--scenario synthetic --model vae", "--scenario probe").replace("--steps 2", "")


STEPS = (
    Step("prepare", PREPARE),
    Step("versions", FACTS),
    Step("doctor", "bench doctor"),
    Step("bare metal, runc", _run("runc", "--target bare-metal --target container --engine runc")),
    Step("podman", _run("podman", "--target container --engine podman")),
    Step("docker", _run("docker", "--target container --engine docker")),
    Step("probe", _probe("probe", "--probe syscall --target bare-metal --target container --engine podman")),
    Step("user: the image", TAKEN),
    Step("user: doctor", "id; cat /sys/fs/cgroup/$(cut -d: -f3 /proc/self/cgroup)/cgroup.controllers; bench doctor", USER),
    Step("user: podman", _run("podman", "--target container --engine podman"), USER),
    Step("user: bare metal", _run("metal", "--target bare-metal"), USER),
    Step("CPU quota, memory", _run("quota", "--target bare-metal --ablate pinning --ablate memory-limit")),
    Step("CPU quota, memory: podman", _run("quota2", "--target container --engine podman --ablate pinning --ablate memory-limit")),
    Step("io.max", _probe("disk", "--probe disk --target bare-metal --target container --engine podman --ablate disk-limit")),
    Step("kill -9, clean", KILLED),
    Step("schedule", SCHEDULED + ATTESTED),
    Step("Slurm", SLURM + ATTESTED),
)
