"""Build Kubernetes once from Debian's source package, with Go from Debian; nothing is installed on this host.

``make`` is not used: with Go 1.19 the vendored tree builds in GOPATH mode alone, and needs neither rsync nor jq so.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from tests.kubernetes_cluster.layout import BUILDING, CACHE, PAUSE, PROGRAMS

SUITE = "bookworm"  # the last that has the servers' source
DEBS = ("golang-1.19-go", "golang-1.19-src", "etcd-server", "conntrack", "libnetfilter-conntrack3", "libnfnetlink0")
COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
ANNOUNCED_EVERY = 400  # of about 2,000 packages
UNDESCRIBED = ("code-generator", "sample-")
"""The parts of the source whose types are not the API's."""
# /version is served from the second: without it clients that parse the minor version break.
VERSIONS = ("component-base/version", "client-go/pkg/version")
VERSION = {"gitVersion": "v1.20.2", "gitMajor": "1", "gitMinor": "20"} | {
    "gitTreeState": "clean",
    "buildDate": "2021-01-13T13:20:00Z",
}
TREE = BUILDING / "gopath/src/k8s.io/kubernetes"
DEBIAN = BUILDING / "debian"
GO = DEBIAN / "usr/lib/go-1.19"
KUBERNETES = "k8s.io/kubernetes"


class BuildError(Exception):
    """A step of the build that failed, with the end of its output."""


def built() -> bool:
    return PROGRAMS.is_dir()


def build() -> None:
    """Build what is missing. Raises BuildError; what was compiled until then is used by the next try."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built():
            _build()


def _build() -> None:
    began = time.monotonic()
    _say(f"building Kubernetes {VERSION['gitVersion']} once, 3 to 9 minutes on two CPUs; kept in {PROGRAMS}")
    made = BUILDING / "programs"
    made.mkdir(parents=True, exist_ok=True)
    _fetch()
    _generate_openapi()
    _compile(made)
    _pause(made)
    shutil.copy2(DEBIAN / "usr/bin/etcd", made)
    shutil.copy2(DEBIAN / "usr/sbin/conntrack", made)
    for library in (DEBIAN / "usr/lib").glob("*-linux-gnu/*.so.*"):
        shutil.copy2(library, made)
    made.rename(PROGRAMS)
    shutil.rmtree(BUILDING)
    _say(f"built in {time.monotonic() - began:.0f} s")


def _fetch() -> None:
    """Download and unpack Go, etcd and the source, by apt with lists of its own."""
    if TREE.is_dir():
        return
    apt, source = BUILDING / "apt", BUILDING / "source"
    for place in (apt / "lists/partial", apt / "cache/archives/partial", apt / "debs", TREE.parent):
        place.mkdir(parents=True, exist_ok=True)
    (apt / "debian.sources").write_text(
        f"Types: deb deb-src\nURIs: {_mirror()}\nSuites: {SUITE}\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    (apt / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{apt}/debian.sources";\nDir::Etc::sourceparts "-";\n'
        f'Dir::State::lists "{apt}/lists";\nDir::Cache "{apt}/cache";\nAPT::Sandbox::User "root";\n'
    )
    environment = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    _say("fetching the source, Go and etcd from the Debian mirror (130 MB)")
    _call("apt-get", "-q", "update", environment=environment)
    _call("apt-get", "-q", "download", *DEBS, directory=apt / "debs", environment=environment)
    _call("apt-get", "-q", "source", "--download-only", "kubernetes", directory=apt / "debs", environment=environment)
    for package in (apt / "debs").glob("*.deb"):
        _call("dpkg", "-x", package, DEBIAN)
    shutil.rmtree(source, ignore_errors=True)
    (description,) = (apt / "debs").glob("kubernetes_*.dsc")
    _call("dpkg-source", "--no-check", "-x", description, source)  # apt has checked the signature
    source.rename(TREE)


def _mirror() -> str:
    """Return the Debian mirror that this machine's apt uses, or the public one."""
    listing = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    listing += ["Origin: Debian", "Component: main"]
    found = subprocess.run(listing, check=False, capture_output=True, text=True).stdout.split()
    return found[0] if found else "http://deb.debian.org/debian"


def _generate_openapi() -> None:
    """Write the one generated file that the source package lacks."""
    package = "pkg/generated/openapi"
    if (TREE / package / "zz_generated.openapi.go").exists():
        return
    _say("generating the API's description")
    generator = BUILDING / "openapi-gen"
    _call_go("build", "-o", generator, f"{KUBERNETES}/vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    header = "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"
    words = ["--logtostderr", "-i", ",".join(sorted(_described())), "-p", f"{KUBERNETES}/{package}"]
    words += ["-O", "zz_generated.openapi", "-h", header, "-r", str(BUILDING / "violations")]
    _call(generator, *words, directory=TREE, environment=_go_environment())


def _described() -> Iterator[str]:
    """Yield the packages that ask for a description: what make calls KUBE_OPENAPI_DIRS."""
    parts = (part.name for part in (TREE / "staging/src/k8s.io").iterdir())
    vendored = [f"vendor/k8s.io/{part}" for part in parts if not part.startswith(UNDESCRIBED)]
    for top in (TREE / name for name in (*vendored, "pkg", "cmd", "plugin")):
        for place, directories, files in os.walk(top, followlinks=True):
            directories[:] = [name for name in directories if name not in ("testdata", "_examples")]
            sources = (Path(place, name) for name in files if name.endswith(".go"))
            if any(b"+k8s:openapi-gen=" in source.read_bytes() for source in sources):
                yield f"{KUBERNETES}/{Path(place).relative_to(TREE)}"


def _compile(made: Path) -> None:
    _say("compiling; the first lines come after a minute")
    packages = [f"{KUBERNETES}/vendor/k8s.io/{name}" for name in VERSIONS]
    flags = [f"-X {package}.{key}={value}" for package in packages for key, value in VERSION.items()]
    words = ["-tags", "providerless,dockerless", "-trimpath", "-ldflags", " ".join(["-s -w", *flags])]
    _call_go("build", "-v", *words, "-o", f"{made}/", *(f"{KUBERNETES}/cmd/{name}" for name in COMMANDS))


def _pause(made: Path) -> None:
    """Make the image of a pod's first container, as an archive in docker's format."""
    layer, place = made / "layer.tar", BUILDING / "pause"
    _call("gcc", "-Os", "-static", "-s", "-o", place, TREE / "build/pause/linux/pause.c")
    with tarfile.open(layer, "w") as tar:
        tar.add(place, "pause")
    root = {"type": "layers", "diff_ids": [f"sha256:{sha256(layer.read_bytes()).hexdigest()}"]}
    config = {"architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/pause"]}, "rootfs": root}
    (BUILDING / "config.json").write_text(json.dumps(config))
    manifest = [{"Config": "config.json", "RepoTags": [PAUSE], "Layers": ["layer.tar"]}]
    (BUILDING / "manifest.json").write_text(json.dumps(manifest))
    with tarfile.open(made / "pause.tar", "w") as tar:
        for path in (BUILDING / "config.json", layer, BUILDING / "manifest.json"):
            tar.add(path, path.name)
    layer.unlink()


def _go_environment() -> dict[str, str]:
    places = {"GOROOT": GO, "GOPATH": BUILDING / "gopath", "GOCACHE": BUILDING / "cache", "HOME": BUILDING / "home"}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    fixed = {"GO111MODULE": "off", "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOPROXY": "off"}
    path = f"{GO}/bin:{os.environ['PATH']}"
    return {**os.environ, **{name: str(place) for name, place in places.items()}, **fixed, "PATH": path}


def _call_go(*words: str | Path) -> None:
    """Run Go at the lowest priority; with -v it names every package, of which some are announced."""
    said: list[str] = []
    argv = ["nice", "-n", "19", str(GO / "bin/go"), *map(str, words)]
    began = time.monotonic()
    with subprocess.Popen(
        argv, cwd=TREE, env=_go_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if len(said) % ANNOUNCED_EVERY == 0:
                _say(f"{len(said)} packages compiled, {time.monotonic() - began:.0f} s")
    _check(argv, process.returncode, "".join(said))


def _call(*argv: str | Path, directory: Path = BUILDING, environment: dict[str, str] | None = None) -> None:
    ended = subprocess.run(
        argv, check=False, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    _check(argv, ended.returncode, ended.stdout)


def _check(argv: Sequence[str | Path], status: int, said: str) -> None:
    if status:
        raise BuildError(f"{' '.join(map(str, argv[:6]))} ended with {status}:\n{said[-2000:]}")


def _say(text: str) -> None:
    print(f"kubernetes: {text}", file=sys.stderr, flush=True)
