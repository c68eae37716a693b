"""Reads the text of a record, which a stranger may have written."""

import json
import re

from suite.errors import RequestError
from suite.records.record import SCHEMA_VERSION
from suite.untrusted.parse import cleaned, parse

_CURRENT = re.compile(rb'\s*\{\s*"schema_version":\s*%d\s*[,}]' % SCHEMA_VERSION)
"""The beginning of a record as the store writes it. The version of any other text is found by parsing it."""


class NewerRecordError(RequestError):
    """A record that a later suite has written."""

    kind = "newer-record"


def clean_record(content: bytes) -> bytes:
    """Return the text of a record without characters that could steer a terminal.

    Text that is not JSON comes back unchanged, for the model to refuse. Raises NewerRecordError.
    """
    # Such characters are escaped in JSON, or not ASCII: few records have to be parsed for them.
    odd = b"\\u" in content or b"\x7f" in content or not content.isascii()
    if _CURRENT.match(content) and not odd:
        return content
    try:
        record = parse(content)
    except ValueError:
        return content
    version = record.get("schema_version") if isinstance(record, dict) else None
    if type(version) is int and version > SCHEMA_VERSION:
        raise NewerRecordError(
            f"its schema version is {version}, this suite reads up to {SCHEMA_VERSION}",
            remedy="read it with the suite that wrote it, or a newer one",
        )
    safe = cleaned(record) if odd else record
    return content if safe == record else json.dumps(safe, indent=1).encode()
