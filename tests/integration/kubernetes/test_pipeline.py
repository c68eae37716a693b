"""The pipeline in a genuine cluster: from claims to images, and nothing left."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from provisioning.images.image import current
from provisioning.kubernetes.cluster import Cluster
from provisioning.kubernetes.node import ctr, local_name
from tests.integration.bench import bench
from tests.integration.browser import Tab, serving
from tests.integration.test_web import browser, place, site
from tests.kubernetes_cluster import cluster as fixture
from tests.kubernetes_cluster.control import kubectl
from tests.kubernetes_cluster.layout import PROGRAMS
from worker.data.listing import entries_of, identify

__all__ = ["browser", "place", "site"]

pytestmark = [pytest.mark.integration, pytest.mark.thorough]
NAME = "pipeline-test"
PAIRS = [(dataset, model) for dataset in ("mnist", "cifar10") for model in ("gan", "dcgan")]


def pipeline(command: str, *words: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    return bench("kubernetes", "pipeline", command, "--name", NAME, *words, code=code, timeout_s=900)


@pytest.fixture
def image(cluster: fixture.Cluster) -> str:
    """The name of the image by the digest that it has in the node's runtime: the tests have no registry."""
    if not cluster.containerd:
        pytest.skip("the nodes of VIRTBENCH_TEST_KUBECONFIG are not of this machine")
    address, name = cluster.containerd[cluster.nodes[0]], local_name(current().digest)
    listed = subprocess.run(ctr(address, "ls", f"name=={name}"), check=True, capture_output=True, text=True).stdout
    pinned = f"{name.partition(':')[0]}@{next(word for word in listed.split() if word.startswith('sha256:'))}"
    subprocess.run(ctr(address, "tag", "--force", name, pinned), check=True, stdout=subprocess.DEVNULL)
    return pinned


@contextmanager
def forwarded(cluster: fixture.Cluster) -> Iterator[str]:
    """Yield the address on this host at which the pipeline's service answers."""
    kubectl = [f"{PROGRAMS}/kubectl", f"--kubeconfig={cluster.kubeconfig}"]
    argv = [*kubectl, "port-forward", f"service/{NAME}-serve", ":5000"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield f"http://{process.stdout.readline().split()[2]}"
        finally:
            process.terminate()


def choose(page: Tab, address: str, dataset: str, model: str) -> None:
    """Choose a model on the page, and check its image and its three numbers."""
    page.open(f"{address}/generate")
    page.run(f"document.getElementById('model').value = '{dataset} {model}'")
    page.run("document.getElementById('seed').value = 7; document.querySelector('main button').click()")
    page.wait(f"document.querySelectorAll('main img[alt^=\"{dataset} {model} with seed 7\"]').length == 1")
    width = {"mnist": 28, "cifar10": 32}[dataset]
    assert page.run("[...document.images].map((image) => image.naturalWidth)") == [width]
    text = page.run("document.body.innerText")
    assert all(number in text for number in (" s, mean of 2", " ms", " MiB")), text


@pytest.mark.timeout(1800)
def test_four_models_of_two_data_sets_are_trained_and_chosen_on_the_page(
    cluster: fixture.Cluster, api: Cluster, image: str, storage_class: str, sets: Path, tmp_path: Path, request: Any
) -> None:
    asked = ("--image", image, "--profile", "smoke", "--storage-class", storage_class, "--epochs", "2")
    other = pipeline("up", *asked, "--data", "mnist:sets/cifar10", code=1)
    assert "/data/sets/cifar10 is no readable data set of kind mnist: there is no" in other.stderr
    assert "what to do: put the four files" in other.stderr
    pipeline("down")
    late = pipeline("up", *asked, "--data", "mnist:sets/mnist", "--deadline", "1s", code=1)
    assert f"Job {NAME}-train-gan-mnist: Job was active longer than specified deadline" in late.stderr
    pipeline("down")
    missing = pipeline("up", *asked, "--data", "mnist:no-such-claim/mnist", code=2)
    assert "there is no claim no-such-claim in the namespace default" in missing.stderr
    words = ("--model", "gan", "--model", "dcgan", "--data", "mnist:sets/mnist", "--data", "cifar10:sets/cifar10")
    up = pipeline("up", *asked, *words)
    assert "returned a test image of gan mnist, dcgan mnist, gan cifar10, dcgan cifar10" in up.stderr
    jobs = [part for part in json.loads(pipeline("status", "--json").stdout)["parts"] if part["kind"] == "Job"]
    told = {part["name"]: part["trained"] for part in jobs}
    listed = api.get(api.path("services", f"{NAME}-serve:http", part="proxy/models"))["models"]
    assert [(entry["dataset"], entry["model"]) for entry in listed] == PAIRS
    for entry, (dataset, model) in zip(listed, PAIRS, strict=True):
        assert told[f"{NAME}-train-{model}-{dataset}"].items() <= entry.items()
        assert (len(entry["epoch_s"]), entry["steps"]) == (2, 30)
        sha256 = identify(sets / dataset, [*entries_of(sets / dataset)])[1]
        assert entry["data"] == {"kind": dataset, "images": 60, "digest": "contents", "sha256": sha256}
        assert entry["peak_memory_bytes"] > 100 << 20
    assert pipeline("status").stdout.count("complete 2 epochs, median ") == 4
    if shutil.which("chromium"):
        page, services, results = request.getfixturevalue("browser"), tmp_path / "services.toml", tmp_path / "results"
        results.mkdir()
        with forwarded(cluster) as address:
            services.write_text(f'cluster = "{address}"\n')
            with serving(results, "--services", str(services)) as (welcome, _):
                page.enter(welcome)
                for pair in PAIRS:
                    choose(page, welcome.partition("/?")[0], *pair)
    pipeline("down", "--claim")
    assert json.loads(pipeline("status", "--json").stdout)["parts"] == []
    assert api.get(api.path("persistentvolumeclaims", "sets"))["status"]["phase"] == "Bound", "it is the user's"


@pytest.mark.timeout(420)
def test_from_a_claim_to_an_image_and_nothing_is_left(
    api: Cluster, image: str, storage_class: str, tmp_path: Path
) -> None:
    asked = ("--image", image, "--profile", "smoke", "--storage-class", storage_class)
    missing = pipeline("up", *asked, "--image", f"{image[:-8]}{'0' * 8}", code=1)
    assert "ImagePull" in missing.stderr
    assert "what to do: import it; if it is there, name it as the registry does" in missing.stderr
    pipeline("down")
    # The claim has stayed, and is taken.
    up = pipeline("up", *asked)
    assert f"Job {NAME}-train-gan-synthetic: complete" in up.stderr
    assert "the service returned a test image" in up.stderr
    assert (tmp_path / "models/gan-synthetic.pt").stat().st_size > 0
    parts = json.loads(pipeline("status", "--json").stdout)["parts"]
    ready = dict.fromkeys(("Deployment", "Service", "NetworkPolicy", "PersistentVolumeClaim"), "ready")
    assert {part["kind"]: part["state"] for part in parts} == {**ready, "Job": "complete"}
    assert "the service returned a test image" in pipeline("up", *asked).stderr, "what is there is gone on with"
    refused = pipeline("up", *asked, "--access-mode", "ReadWriteMany", code=2)
    assert "has the access mode ReadWriteOnce" in refused.stderr
    immutable = pipeline("up", *asked, "--seed", "1", code=2)
    assert f"Job {NAME}-train-gan-synthetic exists already: the server rejects it: spec.template: " in immutable.stderr
    assert "field is immutable" in immutable.stderr
    policy = api.path("networkpolicies", f"{NAME}-network", "networking.k8s.io/v1")
    service = api.path("services", f"{NAME}-serve")
    conflict = 'spec.ingress: conflict with "OpenAPI-Generator" using networking.k8s.io/v1'
    for path, spec, labels, said in (
        (policy, {"ingress": [{}]}, None, conflict),
        (policy, {}, {}, "does not belong to this pipeline: it has no label"),
        (service, {"type": "NodePort"}, None, "OpenAPI-Generator has added to it: spec.externalTrafficPolicy, "),
    ):
        live = api.get(path)
        metadata = live["metadata"] if labels is None else {**live["metadata"], "labels": labels}
        api.request("PUT", path, {**live, "spec": {**live["spec"], **spec}, "metadata": metadata})
        assert said in pipeline("up", *asked, code=2).stderr
        live["metadata"]["resourceVersion"] = api.get(path)["metadata"]["resourceVersion"]
        api.request("PUT", path, live)
    manifests = tmp_path / "pipeline.json"
    manifests.write_text(pipeline("up", *asked, "--dry-run").stdout)
    first = ("-f", str(manifests), "-l", "app.kubernetes.io/component=train")
    applied = kubectl("apply", "--dry-run=server", "--output=name", *first)
    assert {line.partition("/")[0] for line in applied.stdout.splitlines()} == {
        "persistentvolumeclaim",
        "networkpolicy.networking.k8s.io",
        "job.batch",
    }, applied.stderr
    pipeline("down")
    left = json.loads(pipeline("status", "--json").stdout)["parts"]
    assert [part["kind"] for part in left] == ["PersistentVolumeClaim"]
    pipeline("down", "--claim")
    assert json.loads(pipeline("status", "--json").stdout)["parts"] == []
