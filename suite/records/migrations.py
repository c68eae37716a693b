"""Records and plans of older suites, brought to the present form. Every reader passes what it read through here."""

import json
import re
from collections.abc import Mapping
from typing import Any

from suite.errors import RequestError
from suite.records.record import SCHEMA_VERSION
from suite.untrusted.parse import cleaned, parse

Json = dict[str, Any]
_OLDEST = 1
_CURRENT = re.compile(rb'\s*\{\s*"schema_version":\s*%d\s*[,}]' % SCHEMA_VERSION)
"""How the store begins a record. Of one that another program has formatted the version is found by parsing it."""
_OF_IMAGES = "throughput_images_per_s"
"""The throughput, as version 3 called it until workloads had units of their own."""
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What the migration of something raises that only looks like a record or a plan."""
_IN_JOB = ("scenario", "model", "data", "profile", "recipe", "envelope", "page_cache", "sharing")
_JOB_FIELDS = {*_IN_JOB, "cluster", "workload", "options", "cpu_capability", "dataset"}


class NewerRecordError(RequestError):
    """A record that a later suite has written."""

    kind = "newer-record"


def migrate(record: Json) -> Json:
    """Return a record of any past version at the present one; the argument stays as it is.

    Version 1 had the page cache among the conditions, and without ``exit_s`` its ``launch_s`` held the end of the job,
    too: how much of it was the launch is unknown, and analysis shows it as unexplained. Version 2 had the parts of the
    job beside each other, and choices of the layers as texts in ``options``.

    Raises NewerRecordError for a version that is yet to come, and KeyError for what is no record.
    """
    version = record["schema_version"]
    if version > SCHEMA_VERSION:
        raise NewerRecordError(
            f"its schema version is {version}, this suite reads up to {SCHEMA_VERSION}",
            remedy="read it with the suite that wrote it, or a newer one",
        )
    if version == SCHEMA_VERSION:
        return _in_units(record)
    record = dict(record)
    conditions, timeline = record.get("conditions"), record.get("timeline")
    if isinstance(conditions, dict) and "page_cache" in conditions:
        found = conditions["page_cache"]
        record["conditions"] = {name: value for name, value in conditions.items() if name != "page_cache"}
        record["page_cache"] = record.get("page_cache") or found
    if version == 1 and isinstance(timeline, dict) and "exit_s" not in timeline:
        record["timeline"] = {**timeline, "launch_s": None}
    job = _job(record, record.get("workload"), record.get("data_use"))
    kept = {name: value for name, value in record.items() if name not in _JOB_FIELDS}
    return _in_units({**kept, "schema_version": SCHEMA_VERSION, "job": job})


def current(content: bytes) -> bytes:
    """Return the text of a record at the present version, without characters that could steer a terminal.

    What is no record comes back as it is, for the model to refuse.

    Raises NewerRecordError.
    """
    # Such characters are escaped in JSON, or not ASCII: few records have to be parsed for them.
    odd = b"\\u" in content or b"\x7f" in content or not content.isascii()
    old = b'"%s"' % _OF_IMAGES.encode() in content
    if _CURRENT.match(content) and not odd and not old:
        return content
    try:
        given = parse(content)
    except ValueError:
        return content
    found = cleaned(given) if odd else given
    if found != given:
        content = json.dumps(found, indent=1).encode()
    version = found.get("schema_version") if isinstance(found, dict) else None
    if type(version) is not int or (version == SCHEMA_VERSION and not old) or version < _OLDEST:
        return content
    try:
        return json.dumps(migrate(found), indent=1).encode()
    except _MALFORMED:
        return content


def migrate_plan(plan: object) -> object:
    """Return a stored plan in the present form; what is no plan comes back as it is, for the model to refuse."""
    if not isinstance(plan, dict):
        return plan
    if isinstance(jobs := plan.get("jobs"), list) and all(isinstance(job, dict) for job in jobs):
        return {**plan, "jobs": [_with_unit(job) for job in jobs]}
    if "jobs" in plan or not isinstance(plan.get("models"), list):
        return plan
    workloads = plan.get("workloads") or {}
    parts = {name: plan.get(name) for name in ("cpu_capability", "dataset")}
    try:
        jobs = [{**_job({**plan, "model": model}, workloads.get(model), None), **parts} for model in plan["models"]]
    except _MALFORMED:
        return plan
    kept = {name: value for name, value in plan.items() if name not in {*_JOB_FIELDS, "models", "workloads"}}
    return {**kept, "jobs": [_with_unit(job) for job in jobs]}


def _in_units(record: Json) -> Json:
    """Return a record whose throughput is in the unit of its job; all that older suites trained on were images."""
    ranks = [_renamed(rank) for rank in record.get("ranks") or ()]
    return {**_renamed(record), "ranks": ranks, "job": _with_unit(record["job"])}


def _renamed(part: Json) -> Json:
    return {"throughput_per_s" if name == _OF_IMAGES else name: value for name, value in part.items()}


def _with_unit(job: Json) -> Json:
    return job if "unit" in job or not job.get("sizes") else {**job, "unit": "images"}


def _job(found: Json, sizes: object, data_use: object) -> Json:
    """Return the job of a record, or of one model of a plan, from the fields of version 2."""
    options: Mapping[str, str] = found.get("options") or {}
    workers = options.get("loader_workers", "auto")
    job: Json = {name: found.get(name) for name in _IN_JOB}
    job["distributed"] = found.get("cluster")
    job["recipe"] = found.get("recipe", "reference")
    job["data"] = found.get("data", "synthetic")
    job["sizes"] = sizes
    job["devices"] = {
        "device": options.get("device", "cpu"),
        "devices": int(options.get("devices", 1)),
        "parallel": options.get("parallel", "none"),
    }
    job["isa"] = options.get("isa")
    if "decoder" in options:
        job["loading"] = {
            "decoder": options["decoder"],
            "loader_workers": None if workers == "auto" else int(workers),
        }
    if isinstance(data_use, dict):
        job["dataset"] = {name: data_use.get(name) for name in ("kind", "sha256", "images", "size_bytes")}
        job["dataset"]["device"] = options.get("data_disk")
    job["fio_job"] = options.get("fio_job")
    job["layers"] = {name: options.get(name) for name in ("engine", "accelerator", "image", "gpus", "vfio")}
    return job
