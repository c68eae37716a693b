"""The certificate that this machine has, for the commands that show runs."""

from analysis.load.records import Records
from analysis.selftest.matching import speaks_for
from provisioning.paths import home
from suite.selftest.certificate import FILE, Certificate, read_certificate


def certificate_of(records: Records) -> Certificate | None:
    """Return this machine's last certificate; None if there is none, or if the records are of another machine."""
    found = read_certificate(home() / FILE)
    return found if found and speaks_for(found, records) else None
