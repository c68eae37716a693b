"""The check of manifests itself: what it must find, in the schema of 1.20 and in today's."""

from typing import Any

import pytest

from tests.kubernetes_schema import invalid


def pod(**container: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "i", **container}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}}


def test_a_sound_pod_is_valid_in_both() -> None:
    assert invalid(pod(ports=[{"containerPort": 80}], resources={"limits": {"cpu": "1"}})) == []


def test_a_misspelt_field_is_found_in_both() -> None:
    found = invalid(pod(imagePullPolice="Never"))
    assert found == [
        "Pod.spec.containers[0].imagePullPolice is unknown to 1.20",
        "Pod.spec.containers[0].imagePullPolice is unknown today",
    ]


@pytest.mark.parametrize("kind", ["RoleBinding", "ClusterRoleBinding"])
def test_a_missing_field_is_found(kind: str) -> None:
    manifest = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "r"}}
    with pytest.raises(ValueError, match="roleRef"):  # the client's own word for it
        invalid(manifest)


def test_a_number_in_place_of_a_text_is_found_by_1_20() -> None:
    cron = {
        "apiVersion": "batch/v1beta1",
        "kind": "CronJob",
        "metadata": {"name": 1},
        "spec": {"schedule": "* * * * *"},
    }
    assert invalid(cron) == ["CronJob.metadata.name: 1 is no string", "CronJob.spec.jobTemplate is missing"]
