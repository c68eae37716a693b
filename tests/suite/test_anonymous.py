"""Anonymous records: whatever names a person, a machine or a cluster is replaced, and nothing else."""

import json
from typing import Any

import pytest

from suite.errors import RequestError
from suite.results.anonymous import Anonymiser

HOST, USER, ORGANISATION = "ringelnatz", "mfickelscher", "quastenflosser"


def anonymous(value: Any) -> Any:
    anonymiser = Anonymiser([value])
    replaced = anonymiser.replaced(value)
    anonymiser.refuse_remains("record.json", json.dumps(replaced, indent=1).encode())
    return replaced


def of_host(text: str) -> dict[str, Any]:
    """A record of a host and a user whose names are known from other fields, with one more text."""
    return {"environment": {"hostname": HOST}, "note": f"/home/{USER}/x", "text": text}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{USER} on {HOST}", "user-1 on host-1"),
        (f"{HOST}.{ORGANISATION}.example", "host-1"),
        (f"grafana-{USER}-0 of {HOST}_old", "grafana-user-1-0 of host-1_old"),
        ("at 81.2.69.142", "at 198.18.0.1"),
        ("at 192.168.77.13, then 10.203.44.5:8080", "at 198.18.0.1, then 198.18.0.2:8080"),
        ("at 2a02:8109:dead::7.", "at 2001:db8::1."),
        ("fe80::5054:ff:fe12:3456%eth0", "2001:db8::1"),
        ("[2a02:8109::7]:29500", "[2001:db8::1]:29500"),
        ("52:54:00:ab:cd:ef", "02:00:00:00:00:01"),
        ("file:///home/other/x s3://bucket/data", "https://url-1.example https://url-2.example"),
        (f"ssh://{USER}@{HOST}:22/x", "https://url-1.example"),
        ("File ~/secret/x.py", "File /path-2"),
    ],
)
def test_names_and_addresses_of_every_form_are_replaced(text: str, expected: str) -> None:
    assert anonymous(of_host(text))["text"] == expected


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1 and ::1",
        "13:50:44 of 2026-11-30T13:50:44+00:00",
        "0000:1a:00.0",
        "torch::nms of 1.2.3",
        "/usr/lib/python3/x.py",
        "images/s",
        "torch@2.13",
    ],
)
def test_what_only_looks_like_an_address_a_path_or_an_account_stays(text: str) -> None:
    assert anonymous(of_host(text))["text"] == text


def test_an_address_of_mail_gives_its_user_and_its_domain_away_nowhere() -> None:
    value = {"a": f"<m.fickelscher@{ORGANISATION}.example>", "b": f"registry.{ORGANISATION}.example, m.fickelscher"}
    text = json.dumps(anonymous(value))
    assert ORGANISATION not in text
    assert "fickelscher" not in text


def test_pods_images_and_what_users_call_their_clusters_are_replaced() -> None:
    value = {
        "environment": {
            "pod": {
                "node": f"gpu-7.{ORGANISATION}.example",
                "image_id": f"registry.{ORGANISATION}.example:5000/team/virtbench@sha256:{'a' * 64}",
                "others": [f"team/{USER}-notebook", "kube-system/kube-proxy-x"],
                "changed": [f"metadata.annotations.{ORGANISATION}.example/team: none, a"],
                "boot_id": "0f5b7c3a-1d2e-4f60-8a9b-c0d1e2f3a4b5",
            },
            "kernel": "4.18.0.80-el8",
        },
        "request": {
            "engine:kubernetes": {"context": f"gke_{ORGANISATION}_west", "namespace": "default", "node": "gpu-7,gpu-8"},
            "joining": {"inventory": f"{ORGANISATION}/hosts.toml", "hire": f"cloud={ORGANISATION},flavor=large"},
            "targets": {"image": f"{ORGANISATION}:new"},
        },
        "job": {"layers": {"image": "b" * 64}, "model": "gan"},
    }
    replaced = anonymous(value)
    text = json.dumps(replaced)
    for secret in (ORGANISATION, USER, "notebook", "gpu-7", "gpu-8", "0f5b7c3a", "west", "large"):
        assert secret not in text, secret
    assert replaced["environment"]["pod"]["image_id"].endswith(f"@sha256:{'a' * 64}")
    assert len(set(replaced["environment"]["pod"]["others"])) == 2
    assert replaced["environment"]["kernel"] == "4.18.0.80-el8"
    assert replaced["job"] == value["job"]


def test_a_data_set_of_a_request_is_a_path_and_that_of_a_job_a_word() -> None:
    value = {"request": {"data": {"data": "mnist:/srv/x"}}, "job": {"data": "mnist"}}
    assert anonymous(value) == {"request": {"data": {"data": "mnist:/path-1"}}, "job": {"data": "mnist"}}


@pytest.mark.parametrize("name", ["user", "host", "vm", "gan", "default", "smoke", "disk"])
def test_a_user_and_a_host_with_the_name_of_a_constant_change_no_constant(name: str) -> None:
    value = {
        "environment": {"hostname": name},
        "job": {
            "confinement": "user",
            "model": "gan",
            "target": "vm",
            "allocator": "default",
            "role": "host",
            "a": name,
        },
        "note": f"/home/{name}/x",
    }
    replaced = anonymous(value)
    assert replaced["environment"]["hostname"] == "host-1"
    assert replaced["job"] == value["job"]
    assert replaced["note"] == "/path-1"


def test_the_names_of_trials_stay_those_of_their_files() -> None:
    value = {"trial_id": f"synthetic-{USER}-container-b000", "job": {"model": USER}, "note": f"/home/{USER}/x"}
    assert anonymous(value)["trial_id"] == value["trial_id"]


def test_a_name_that_is_left_as_a_key_is_refused() -> None:
    value = {"environment": {"hostname": HOST}, "rates": [{f"{HOST}-eth0": 940}]}
    with pytest.raises(RequestError, match=f"would still hold '{HOST}'"):
        anonymous(value)


def test_what_is_anonymous_already_stays_and_gets_no_second_meaning() -> None:
    record = {"hostname": "cellar", "path": "/data/set", "address": "10.1.2.3"}
    once = Anonymiser([record]).replaced(record)
    assert once["hostname"] == "host-1"
    again = Anonymiser([once])
    assert again.replaced(once) == once
    again.refuse_remains("record.json", json.dumps(once).encode())
    mixed = [{"hostname": "attic"}, {"hostname": "host-1"}]
    anonymiser = Anonymiser(mixed)
    hosts = [anonymiser.replaced(part)["hostname"] for part in mixed]
    assert len({*hosts}) == 2
    assert "attic" not in hosts
