"""Finds whether a certificate speaks for the machine of some records."""

from analysis.load.records import Records
from suite.selftest.certificate import Certificate

_COLUMNS = {
    "hostname": "hostname",
    "cpu_model": "host_cpu_model",
    "kernel": "host_kernel",
    "image": "userland_sha256",
}
"""The columns of trials that must hold what the certificate's machine has."""


def speaks_for(certificate: Certificate, records: Records) -> bool:
    """Return whether host, CPU model, kernel and image of all trials that are ok are those of the self-test."""
    ok = records.trials[records.trials["ok"].astype(bool)]
    machine = certificate.machine.model_dump()
    return len(ok) > 0 and all((ok[column] == machine[name]).all() for name, column in _COLUMNS.items())
