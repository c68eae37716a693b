"""Two tables of facts are compared in one way: exactly, within a tolerance, or by the part of a value that counts."""

import pytest

from suite.differ import FactRule, differ, flattened, gib


def test_facts_differ_in_the_order_of_the_first_table_and_unknown_ones_too() -> None:
    found = list(differ({"b": 1, "a": None, "c": 3}, {"a": 2, "c": 3, "d": 4, "e": None}))
    assert [(fact.path, fact.first, fact.second) for fact in found] == [("b", 1, None), ("a", None, 2), ("d", None, 4)]


@pytest.mark.parametrize(("other", "same"), [(100, True), (102, True), (98.1, True), (103, False), (None, False)])
def test_numbers_may_differ_by_a_share_of_the_smaller_one(other: float | None, same: bool) -> None:
    rules = {"memory*": FactRule(tolerance=0.02)}
    assert (list(differ({"memory": 100}, {"memory": other}, rules)) == []) is same
    assert (list(differ({"memory": other}, {"memory": 100}, rules)) == []) is same


def test_only_the_part_that_counts_decides() -> None:
    rules = {"cpus": FactRule(counts=len)}
    assert list(differ({"cpus": [0, 1]}, {"cpus": [4, 5]}, rules)) == []
    assert len(list(differ({"cpus": [0, 1]}, {"cpus": [4]}, rules))) == 1


def test_a_difference_is_named_by_its_label_with_both_values() -> None:
    rules = {"memory_bytes": FactRule("memory", text=gib)}
    (memory,) = differ({"memory_bytes": 2 << 30}, {"memory_bytes": None}, rules)
    assert memory.between("a", "b") == "memory: a 2 GiB, b unknown"
    assert memory.against == "memory 2 GiB against unknown"
    (batch,) = differ({"batch_size": "2"}, {"batch_size": "4"})
    assert batch.against == "batch size 2 against 4"


def test_objects_inside_each_other_are_flattened_and_lists_are_values() -> None:
    assert flattened({"a": {"b": 1, "c": {"d": [2]}}, "e": None, "f": {}}) == {"a.b": 1, "a.c.d": [2], "e": None}
