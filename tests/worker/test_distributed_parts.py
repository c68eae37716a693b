"""Parts of distributed training that need no second process: the layout, the membership, interfaces, the parameters."""

import os
import socket
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.conftest import fails
from worker.distributed.parameters import ALIGNMENT, ELEMENT_BYTES, Parameters, cut, overlapping, starts_of
from worker.distributed.rendezvous import LostError, address_of, first_line, is_network, listener, open_rendezvous
from worker.protocol import JobError
from worker.spec import Membership

SIZES = st.lists(st.integers(1, 100_000), min_size=1, max_size=30)


def membership(**changes: Any) -> Membership:
    values = {"strategy": "parameter-server", "rank": 0, "workers": 2, "servers": 1}
    return Membership(**{**values, "master": "127.0.0.1", "port": 1, "interface": "lo", **changes})


@given(SIZES, st.integers(1, 5), st.integers(1, 400_000))
def test_every_element_is_in_exactly_one_chunk_and_a_variable_in_those_that_hold_its_elements(
    sizes: list[int], servers: int, chunk_bytes: int
) -> None:
    starts, elements = starts_of(sizes)
    if elements < servers * ALIGNMENT:
        return
    chunks = cut(elements, servers, chunk_bytes)
    assert [chunk.start for chunk in chunks] == [0, *(chunk.stop for chunk in chunks[:-1])]
    assert chunks[-1].stop == elements >= sum(sizes)
    # Dealt in turn: a parameter of any size is spread over all servers.
    assert [(chunk.number, chunk.server) for chunk in chunks] == [
        (place, place % servers) for place in range(len(chunks))
    ]
    assert all(0 < chunk.size_bytes <= max(chunk_bytes, ALIGNMENT * ELEMENT_BYTES) for chunk in chunks)
    assert all(start % ALIGNMENT == 0 for start in [*starts, *(chunk.start for chunk in chunks)])
    for start, size in zip(starts, sizes, strict=True):
        held = [chunks[number] for number in overlapping(chunks, start, size)]
        assert sum(min(chunk.stop, start + size) - max(chunk.start, start) for chunk in held) == size


@given(st.lists(st.integers(1, 5_000_000), min_size=1, max_size=20), st.integers(1, 6))
def test_the_servers_have_equal_shares(sizes: list[int], servers: int) -> None:
    _, elements = starts_of(sizes)
    if elements < 1000 * ALIGNMENT * servers:
        return
    chunks = cut(elements, servers)
    shares = [sum(chunk.size_bytes for chunk in chunks if chunk.server == server) for server in range(servers)]
    assert max(shares) <= 1.01 * min(shares)


def test_a_model_that_is_too_small_for_its_servers_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be shared among 3 servers"):
        cut(2 * ALIGNMENT, 3)


def test_servers_have_the_first_ranks() -> None:
    both = membership(servers=2, workers=3, rank=2)
    assert list(both.worker_ranks) == [2, 3, 4]
    assert not both.is_server
    assert both.names([1, 2]) == "server 1 (rank 1), worker 0 (rank 2)"
    assert both.patience_s == both.timeout_s
    assert membership(join_timeout_s=5.0).patience_s == 5


@pytest.mark.parametrize("name", ["nothere0", "", "a-name-that-is-too-long-for-an-interface"])
def test_an_interface_that_is_not_there_is_named_with_those_that_are(name: str) -> None:
    with fails(JobError, "network", r"no network interface .*there are .*lo"):
        address_of(name)


def test_the_rendezvous_listens_at_the_address_of_the_job_alone() -> None:
    port, asked = listener("127.0.0.1")
    os.close(asked)
    rendezvous = open_rendezvous(membership(strategy="all-reduce", workers=1, servers=0, port=port), "127.0.0.1")
    assert rendezvous.announce("127.0.0.1") == {0: "127.0.0.1"}
    socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))


def test_what_gloo_says_is_told_from_other_errors() -> None:
    closed = RuntimeError(
        "[/build/third_party/gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:5. This is typically x"
    )
    assert is_network(closed)
    assert first_line(closed) == "Connection closed by peer [10.0.0.1]:5"
    assert is_network(LostError("gone"))
    assert not is_network(RuntimeError("DefaultCPUAllocator: not enough memory"))
    assert first_line(RuntimeError("plain\nmore")) == "plain"


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.Flatten(), torch.nn.Linear(5 * 16, 7))
    return layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def backward(module: torch.nn.Module, images: torch.Tensor) -> None:
    loss: torch.Tensor = module(images).square().sum()
    loss.backward()  # type: ignore[no-untyped-call]


def test_parameters_in_the_vector_have_their_values_and_layout() -> None:
    before, moved = model(), model()
    parameters = Parameters(moved)
    for one, other in zip(before.parameters(), moved.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
    parameters.values.zero_()
    assert not any(parameter.any() for parameter in moved.parameters())


def test_chunks_are_announced_while_the_backward_pass_goes_on() -> None:
    plain, observed = model(), model()
    parameters = Parameters(observed)
    chunks = cut(parameters.elements, 2, 256)
    announced: list[int] = []
    parameters.observe(chunks, announced.append)
    images = torch.randn(2, 3, 6, 6)
    for _ in range(2):
        announced.clear()
        parameters.expect()
        backward(observed, images)
        assert sorted(announced) == list(range(len(chunks)))
        assert announced[0] == 0  # the last layer's
        parameters.complete()
    backward(plain, images)
    wanted = [parameter.grad for parameter in plain.parameters()][::-1]
    for view, gradient in zip(parameters._views, wanted, strict=True):
        assert gradient is not None
        torch.testing.assert_close(view, gradient)
    assert all(parameter.grad is None for parameter in observed.parameters())


def test_a_variable_that_the_model_does_not_use_has_a_gradient_of_zero() -> None:
    module = torch.nn.ModuleList([torch.nn.Linear(20, 20), torch.nn.Linear(20, 20)])
    parameters = Parameters(module)
    announced: list[int] = []
    chunks = cut(parameters.elements, 1, 512)
    parameters.observe(chunks, announced.append)
    parameters.gradients.fill_(7.0)
    parameters.expect()
    backward(module[0], torch.ones(1, 20))
    assert len(announced) < len(chunks)
    parameters.complete()
    assert sorted(announced) == list(range(len(chunks)))
    unused = parameters._views[:2]  # of the last layer, whose gradients come first
    assert [view.numel() for view in unused] == [20, 400]
    assert not any(view.any() for view in unused)
    assert all(view.any() for view in parameters._views[2:])


def test_a_model_that_is_not_float32_is_refused() -> None:
    with pytest.raises(JobError, match="float64"):
        Parameters(torch.nn.Linear(2, 2).double())
