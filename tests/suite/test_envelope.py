import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from suite.errors import RequestError
from suite.job.envelope import GIB, Envelope, format_cpu_list, parse_bytes, parse_cpu_list, plan_envelope


def planned(cpus: str | None = None, memory_bytes: int = GIB, threads: int | None = None) -> Envelope:
    return plan_envelope(cpus, memory_bytes, threads, host_cpus=(5, 0, 1, 2), host_memory_bytes=8 * GIB)


@given(st.sets(st.integers(min_value=0, max_value=8191), min_size=1))
def test_a_cpu_list_comes_back_from_its_text(cpus: set[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == tuple(sorted(cpus))


def test_a_cpu_list_is_written_with_the_shortest_runs() -> None:
    assert format_cpu_list((5, 2, 1, 0, 7, 8)) == "0-2,5,7-8"
    assert format_cpu_list(()) == ""


@given(st.integers(min_value=1, max_value=1 << 50))
def test_a_plain_number_is_bytes(count: int) -> None:
    assert parse_bytes(str(count)) == count


def test_without_a_wish_all_allowed_cpus_are_taken_and_a_thread_for_each() -> None:
    assert planned() == Envelope(cpus=(0, 1, 2, 5), memory_bytes=GIB, threads=4)


def test_a_count_takes_the_first_cpus_and_a_list_takes_its_own() -> None:
    assert planned("2").cpus == (0, 1)
    assert planned("2,5").cpus == (2, 5)
    assert planned("2,5", threads=1).threads == 1


@pytest.mark.parametrize("cpus", ["5", "0", "99999999"])
def test_a_wrong_count_of_cpus_is_refused_with_the_arithmetic(cpus: str) -> None:
    with pytest.raises(RequestError, match=rf"--cpus {cpus}: this host allows CPUs 0-2,5 \(4\)") as caught:
        planned(cpus)
    assert caught.value.remedy == "ask for 1 to 4"


def test_cpus_that_the_host_does_not_allow_are_refused_by_number() -> None:
    with pytest.raises(RequestError, match=r"--cpus 0,3-4: no CPU 3-4; this host allows CPUs 0-2,5 \(4\)"):
        planned("0,3-4")


def test_too_much_memory_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(RequestError, match=r"9\.0 GiB of memory asked for, the host has 8\.0 GiB"):
        planned(memory_bytes=9 * GIB)
    assert planned(memory_bytes=8 * GIB).memory_bytes == 8 * GIB


@pytest.mark.parametrize("threads", [0, -1, 3])
def test_a_wrong_number_of_threads_is_refused_with_the_arithmetic(threads: int) -> None:
    with pytest.raises(RequestError, match=f"--threads {threads} on 2 CPUs"):
        planned("2", threads=threads)


@pytest.mark.parametrize("change", [{"cpus": ()}, {"memory_bytes": 0}, {"threads": 0}, {"cpu": 1}])
def test_an_envelope_holds_no_nonsense(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Envelope.model_validate({"cpus": (0,), "memory_bytes": 1, "threads": 1} | change)
