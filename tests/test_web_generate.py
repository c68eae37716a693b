"""The page of ``bench web`` that asks services for images, and services that are away, slow, huge, or lie."""

import io
import json
import re
import socket
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from commands.web import generate
from tests.hostile.mutations import MARKUP, STEERING
from tests.test_web import browser, results
from tests.worker.test_serving import listening
from worker.serving.service import Service

__all__ = ["results"]
MNIST_GAN = ("mnist", "gan")


def png(colour: int = 7, side: int = 28, **more: Any) -> bytes:
    out = io.BytesIO()
    Image.new("L", (side, side), colour % 256).save(out, "PNG", **more)
    return out.getvalue()


@pytest.fixture
def ask(results: Path) -> Iterator[Callable[..., str]]:
    """``ask("?model=mnist+gan", vm=SERVICE)``: the page, with a service that listens, or an address, at each place."""
    with ExitStack() as stack:

        def page(query: str, **places: Any) -> str:
            ports = {
                place: stack.enter_context(listening(service))
                for place, service in places.items()
                if not isinstance(service, str)
            }
            urls = places | {place: f"http://127.0.0.1:{port}" for place, port in ports.items()}
            answer = browser(results, services=urls).get(f"/generate{query}")
            assert answer.status_code == 200
            return answer.text

        yield page


def drawing(seed: int | None) -> bytes:
    return png(seed or 0)


def test_each_place_shows_the_image_of_the_seed_with_its_three_numbers(ask: Callable[..., str]) -> None:
    service = Service({MNIST_GAN: drawing}, {MNIST_GAN: {"epoch_s": [1.0, 2.0], "losses": {"generator": 1.0}}})
    page = ask("?model=mnist+gan&seed=9", vm=service, container=service)
    assert page.count("<img src=") == 2
    shown = [Image.open(io.BytesIO(b64decode(text))) for text in re.findall(r"data:image/png;base64,([^\"]+)", page)]
    assert all(image.getpixel((0, 0)) == (9, 9, 9) for image in shown)
    assert page.count("1.5 s, mean of 2") == 2
    assert len(re.findall(r"[\d.e+-]+ ms", page)) == 2
    assert len(re.findall(r"\d+ MiB", page)) == 2
    assert "All images are equal" in page
    away = ask("?model=mnist+gan&seed=9", vm=service, container=service, third="http://127.0.0.1:1")
    assert "The 2 images of 3 places are equal" in away
    other = Service({MNIST_GAN: lambda seed: png((seed or 0) + 1)})
    differing = ask("?model=mnist+gan&seed=9", vm=service, container=other)
    assert "The images differ" in differing
    assert "unknown" in differing


def test_the_form_offers_what_the_services_have_and_a_place_without_the_model_is_named(ask: Callable[..., str]) -> None:
    both = Service({MNIST_GAN: drawing, ("cifar10", "dcgan"): drawing})
    page = ask("", vm=both, container=Service({MNIST_GAN: drawing}))
    assert re.findall(r"<option>([^<]+)</option>", page) == ["cifar10 dcgan", "mnist gan"]
    page = ask("?model=cifar10+dcgan", vm=both, container=Service({MNIST_GAN: drawing}))
    assert page.count("<img src=") == 1
    assert "it does not serve cifar10 dcgan" in page
    assert "No service is named" in ask("")


@pytest.mark.parametrize(
    "answer",
    [
        png()[:40],
        png(side=generate.MOST_PX + 1),
        b"GIF89a" + bytes(40),
        b"<script>alert(1)</script>",
        bytes(generate.MOST_BYTES + 10),
    ],
)
def test_what_is_not_a_png_within_bounds_is_not_shown(ask: Callable[..., str], answer: bytes) -> None:
    page = ask("?model=mnist+gan", vm=Service({MNIST_GAN: lambda _: answer}))
    assert "not a PNG" in page
    assert "<img src=" not in page
    assert "<script>alert" not in page


def test_nothing_but_the_pixels_of_an_image_is_passed_on_and_names_with_markup_are_text(
    ask: Callable[..., str],
) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", "<script>alert(1)</script>")
    page = ask("?model=mnist+gan", vm=Service({MNIST_GAN: lambda _: png(pnginfo=info, icc_profile=b"profile")}))
    shown = b64decode(re.findall(r"data:image/png;base64,([^\"]+)", page)[0])
    assert b"script" not in shown
    assert b"iCCP" not in shown
    page = ask("", vm=Answering(models(model=(MARKUP + STEERING)[:100])))
    assert "<script>" not in page.partition("<main")[2]
    assert "\x1b" not in page


class Answering:
    """A service that answers each path with what it is told, as WSGI has it."""

    def __init__(
        self, models: bytes, image: bytes = b"", status: str = "200 OK", timing: str = "generate;dur=1"
    ) -> None:
        self._answers = {"/models": models, "/generate": image}
        self._status, self._timing = status, timing

    def __call__(self, environ: Mapping[str, Any], start: Any) -> Iterable[bytes]:
        start(self._status, [("Server-Timing", self._timing), ("Location", "http://127.0.0.1:9/")])
        return [self._answers[environ["PATH_INFO"]]]


def models(**changes: Any) -> bytes:
    return json.dumps({"models": [{"dataset": "mnist", "model": "gan", **changes}], "memory_bytes": 1}).encode()


@pytest.mark.parametrize(
    "lying",
    [
        *(b"{", b"[]", b'{"models": 1}', b"[" * 100_000, b"\xff\xfe"),
        *(models(epoch_s=[each]) for each in ("x", -1, 1e400)),
        *(models(dataset=each) for each in ("x" * 101, ["mnist"])),
        *(b'{"models": [], "memory_bytes": -1}', b'{"models": [], "memory_bytes": 1e30}'),
    ],
)
def test_a_list_of_models_that_is_none_is_said_to_be_none(ask: Callable[..., str], lying: bytes) -> None:
    page = ask("?model=mnist+gan", vm=Answering(lying), container=Service({MNIST_GAN: drawing}))
    assert "it is not a service of this suite" in page
    assert page.count("<img src=") == 1, "the other place is shown"


@pytest.mark.parametrize("status", ["404 Not Found", "302 Found", "500 Oops", "204 No Content"])
def test_another_server_is_no_service_and_redirects_are_not_followed(ask: Callable[..., str], status: str) -> None:
    assert f"is {status[:3]}: it is not a service of this suite" in ask("", vm=Answering(b"", status=status))


@pytest.mark.parametrize("timing", ["", "generate;dur=x", "generate;dur=" + "9" * 500, "x;dur=1", "generate;dur=-1"])
def test_a_time_that_is_none_is_unknown(ask: Callable[..., str], timing: str) -> None:
    page = ask("?model=mnist+gan", vm=Answering(models(), png(), timing=timing))
    assert page.count("<img src=") == 1
    assert " ms" not in page


def test_a_place_that_is_away_is_named(ask: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for address in (f"127.0.0.1:{port}", "no-such-name.invalid:5000"):
        page = ask("", vm=f"http://{address}")
        assert "no answer: " in page
        assert "within" not in page.partition("<main")[2], "it did not wait so long"


@contextmanager
def dripping(first: bytes) -> Iterator[str]:
    """A server that begins to answer and then sends a byte now and then, for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                try:
                    peer.sendall(first)
                    while not over.wait(0.05):
                        peer.sendall(b"x")
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        thread.join()


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n{"])
def test_a_slow_service_is_given_up(ask: Callable[..., str], first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "WITHIN_S", 0.5)
    begin_s = time.monotonic()
    with dripping(first) as url:
        page = ask("", vm=url)
    assert time.monotonic() - begin_s < 60, "the service never ends"
    assert 'class="problem"' in page


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    listed=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
        lambda part: (
            st.lists(part, max_size=3)
            | st.dictionaries(
                st.sampled_from(["models", "dataset", "model", "epoch_s", "memory_bytes"]), part, max_size=4
            )
        ),
        max_leaves=12,
    ),
    image=st.binary(max_size=200),
)
def test_any_answer_of_a_service_is_a_page(
    monkeypatch: pytest.MonkeyPatch, results: Path, listed: Any, image: bytes
) -> None:
    answers = {"/models": json.dumps(listed).encode(), "/generate": image}
    monkeypatch.setattr(generate, "_asked", lambda _url, path, _body=None: (answers[path], None))
    page = browser(results, services={"vm": "http://127.0.0.1:1"}).get("/generate?model=mnist+gan&seed=1")
    assert page.status_code == 200
    assert "<img src=" not in page.text


@pytest.mark.parametrize("query", ["?seed=x", "?seed=-1", "?seed=99999999999999999999", "?model=%00&seed=1", "?model="])
def test_any_query_is_answered(ask: Callable[..., str], query: str) -> None:
    assert "<h1>Generate</h1>" in ask(query, vm=Service({MNIST_GAN: drawing}))
