"""The outcome of a gate as JUnit XML, which CI services show row by row.

Elements and attributes are those of the schema of Jenkins' xUnit plugin (junit-10.xsd), which GitLab reads, too.
"""

from collections import Counter
from collections.abc import Mapping
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from analysis.compare.regression import Regression
from analysis.report.answers.answer import AnswerRow
from analysis.report.formatting import one_line, percent
from analysis.report.gate import MEANINGS, judged_rows
from suite.untrusted.terminal import clean

_RESULTS: Mapping[str, str | None] = {
    "slower": "failure",
    "fails more": "failure",
    "incomplete": "error",
    "cannot tell": "skipped",
    "not slower": None,
}
"""The element of a test case for each outcome; a test without one has passed."""
_COUNTERS = {"failure": "failures", "error": "errors", "skipped": "skipped"}
_SUITE = "bench compare --fail-above"


def junit(regression: Regression) -> str:
    """Return a document with one suite, in which every judged row is a test case."""
    rows = judged_rows(regression)
    counts = Counter(_COUNTERS[result] for row in rows if (result := _RESULTS[row.word]))
    totals = {"tests": str(len(rows))} | {name: str(counts[name]) for name in _COUNTERS.values()}
    root = Element("testsuites", {"name": _SUITE, **{name: totals[name] for name in ("tests", "failures", "errors")}})
    suite = SubElement(root, "testsuite", {"name": _SUITE, **totals})
    properties = SubElement(suite, "properties")
    facts = {
        "outcome": regression.outcome or "",
        "exit code": str(regression.exit_code),
        "fail above": percent(regression.fail_above or 0.0),
        "runs": ", ".join(map(str, regression.places)),
    }
    for name, value in facts.items():
        SubElement(properties, "property", {"name": name, "value": _attribute(value)})
    for row in rows:
        _add_case(suite, row)
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _add_case(suite: Element, row: AnswerRow) -> None:
    case = SubElement(suite, "testcase", {"classname": _SUITE, "name": _attribute(row.subject)})
    why = "; ".join(row.why)
    result = _RESULTS[row.word]
    if result is None:
        SubElement(case, "system-out").text = _text(f"{row.number} {why}")
        return
    message = f"{row.word} {row.number}".strip()
    attributes = {"message": _attribute(message)}
    if result != "skipped":  # which has no type in the schema
        attributes["type"] = row.word
    SubElement(case, result, attributes).text = _text(f"{MEANINGS[row.word]}: {why}")


def _attribute(text: str) -> str:
    return one_line(_text(text))


def _text(text: str) -> str:
    """Return a text without the characters that XML 1.0 excludes, even as references."""
    return "".join(character for character in clean(text) if character not in "\ufffe\uffff")
