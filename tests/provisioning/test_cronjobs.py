"""Schedules as CronJobs: the manifest, what is refused, and what is found and removed again."""

from pathlib import Path
from typing import Any

import pytest

from provisioning.kubernetes.cluster import Cluster
from provisioning.timers import kubernetes
from provisioning.timers.base import ScheduledJob, parse_schedule
from provisioning.timers.kubernetes import KubernetesTimer
from suite.errors import RequestError
from tests.kubernetes_schema import invalid
from tests.provisioning.kubernetes.namespace import Namespace
from tests.provisioning.test_timers import install, job

ENGINE = '[engine]\nkind = "kubernetes"\nimage = "registry.example.org/virtbench-suite:0123456789ab"\n'
CLAIM = 'claim = "records"\n'


@pytest.fixture
def nightly(tmp_path: Path) -> ScheduledJob:
    return planned(tmp_path, ENGINE + CLAIM)


def planned(tmp_path: Path, engine: str, **changes: Any) -> ScheduledJob:
    plan = tmp_path / "plan.toml"
    plan.write_text(f'name = "pods"\n{engine}')
    return job(**{"plan": plan, "options": ("--keep", "3"), "log": "/home/me/results/night.log", **changes})


@pytest.fixture(params=["batch/v1beta1", "batch/v1"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """A server of 1.20, and today's."""
    found = Namespace(resources=("jobs", "cronjobs") if request.param == "batch/v1" else ("jobs",))
    monkeypatch.setattr(Cluster, "connect", lambda: found)
    return found


@pytest.mark.parametrize("group", ["batch/v1beta1", "batch/v1"])
def test_the_cronjob_is_valid_in_1_20_and_today(nightly: ScheduledJob, group: str) -> None:
    assert invalid(kubernetes.manifest(nightly, group)) == []


def test_a_cronjob_is_installed_replaced_and_removed(cluster: Namespace, nightly: ScheduledJob, tmp_path: Path) -> None:
    timer = KubernetesTimer()
    install(timer, nightly)
    install(timer, planned(tmp_path, ENGINE + CLAIM, schedule=parse_schedule("6h")))
    (one,) = timer.installed()
    assert (one.name, one.when.split(" (")[0]) == ("night", "0 */6 * * *")
    assert "virtbench-night in lab of here" in one.line
    timer.remove("night")
    assert timer.installed() == []
    group = "batch/v1" if "cronjobs" in cluster.resources else "batch/v1beta1"
    place = f"/apis/{group}/namespaces/lab/cronjobs/virtbench-night"
    assert cluster.changes == [f"POST {place}", f"PUT {place}", f"DELETE {place}"]


@pytest.mark.parametrize(
    ("engine", "changes", "said"),
    [
        ("", {}, "by the engine local"),
        (ENGINE, {}, "names no claim"),
        (f'{ENGINE}{CLAIM}context = "far"\n', {}, "names a context"),
        (ENGINE + CLAIM, {"options": ("--notify", "mail")}, "--notify: a pod has neither"),
        (ENGINE + CLAIM, {"name": "Night"}, "cannot be the name of a CronJob"),
        (ENGINE + CLAIM, {"name": "n" * 43}, "cannot be the name of a CronJob"),
    ],
)
def test_what_a_pod_cannot_be_given_is_refused(tmp_path: Path, engine: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said) as error:
        kubernetes.manifest(planned(tmp_path, engine, **changes), "batch/v1")
    assert error.value.remedy


def test_a_nameless_zone_is_refused(nightly: ScheduledJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TZ", raising=False)
    monkeypatch.setattr(kubernetes, "LOCALTIME", tmp_path / "localtime")
    assert kubernetes.time_zone() == "Etc/UTC"
    (tmp_path / "localtime").write_bytes(b"TZif2")
    with pytest.raises(RequestError, match="does not name a time zone"):
        kubernetes.manifest(nightly, "batch/v1")


def test_without_a_cluster_the_reason_is_told_and_a_dry_run_shows_todays_manifest(
    nightly: ScheduledJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    timer = KubernetesTimer()
    assert "there is no kubeconfig" in str(timer.missing())
    assert '"apiVersion": "batch/v1"' in timer.render(nightly)["cronjobs/virtbench-night"]
