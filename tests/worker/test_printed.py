"""Rates in the lines that people's tools print; ``samples/printed.txt`` has two hundred, each with what it says."""

from collections import Counter
from collections.abc import Iterator
from math import isclose
from pathlib import Path

import pytest

from tests.worker.judged import heard
from worker.printed.lines import readings
from worker.printed.reader import NumberReader
from worker.protocol import JobError

CORPUS = Path(__file__).parents[1] / "samples/printed.txt"
MEGATRON = " iteration       {}/     100 | elapsed time per iteration (ms): {:.1f} | learning rate: 1.5E-04"
BARS = "".join(
    "".join(f"\rtrain:  50%|#####     | 10/20 [00:00<00:00, {rate:.2f}it/s]" for rate in (33.1, 33.2, 33.0, 33.1))
    + "".join(f"\rval:  50%|#####     | 100/200 [00:00<00:00, {195 + n / 10:.2f}it/s]" for n in range(10))
    + f"\nepochs:  33%|###       | {epoch}/3 [00:01<00:03,  1.63s/it]\n"
    for epoch in (1, 2, 3)
)


def corpus() -> Iterator[tuple[str, list[tuple[float, str]]]]:
    """Yield each line, and what a person reads in it: numbers of things per second."""
    for entry in CORPUS.read_text().splitlines():
        line, mark, said = entry.rpartition(" => ")
        if mark:
            rates = [rate.split() for rate in said.split("; ") if said != "none"]
            yield line, [(float(number), thing) for number, thing in rates]


def judged(line: str, right: list[tuple[float, str]]) -> str:
    read = [(reading.per_s, reading.unit.thing) for reading in readings(line) if reading.per_s]
    things = [thing for _, thing in read] == [thing for _, thing in right]
    if things and all(isclose(own, its, rel_tol=1e-6) for (own, _), (its, _) in zip(read, right, strict=True)):
        return "right"
    return "wrong" if read else "none"


def test_every_line_of_the_corpus_is_read_right() -> None:
    lines = list(corpus())
    assert len(lines) > 200
    verdicts = {line: judged(line, right) for line, right in lines}
    assert [line for line, verdict in verdicts.items() if verdict != "right"] == []
    assert set(Counter(verdicts.values())) == {"right"}


@pytest.mark.parametrize(
    ("printed", "choice", "throughput", "thing"),
    [
        ("step 10 loss 2.8000 tok/s 12010\nstep 20 loss 2.6000 tok/s 12020", "auto", 12015, "tokens"),
        ("train: 410.2 ± 3.1 images/s", "auto", 410.2, "images"),
        ("980 msec per loop\n1.02 sec per loop\n1.01 sec per loop", r"(?P<seconds>[\d.]+)", 1 / 1.01, "loops"),
        (MEGATRON.format(3, 125), r"\): (?P<seconds>[\d.]+)", 8, ""),
        (MEGATRON.format(3, 125), r"iteration .*: (?P<seconds>[\d.]+) \|", 8, ""),
        ("step 1   time    125.00   ms", r"time +(?P<seconds>[\d.]+)", 8, ""),
        ("time:            125.000 milliseconds", r"time: +(?P<seconds>[\d.]+)", 8, ""),
        ("time 125 \N{GREEK SMALL LETTER MU}s", r"time (?P<seconds>[\d.]+)", 8000, ""),
        ("time 125 \N{MICRO SIGN}s", r"time (?P<seconds>[\d.]+)", 8000, ""),
        ("time 125 usec\ntime 125 microseconds\ntime 125us", r"time (?P<seconds>[\d.]+)", 8000, ""),
        ("step_time_ms: 125", r"step_time_ms: (?P<seconds>[\d.]+)", 8, ""),
        ("time [ms] = 125", r"= (?P<seconds>[\d.]+)", 8, ""),
        ("time 0.5 | lr: 0.1", r"time (?P<seconds>[\d.]+)", 2, ""),
        ("time 0.5 loss: 3", r"time (?P<seconds>[\d.]+)", 2, ""),
        ("time 0.5 min", r"time (?P<seconds>[\d.]+)", 1 / 30, ""),
        ("speed 12.5 kimg/s", r"speed (?P<throughput>[\d.]+)", 12500, "images"),
        ("speed 600 tokens/min", r"speed (?P<throughput>[\d.]+)", 10, "tokens"),
        ("tokens/s: 12.5", r": (?P<throughput>[\d.]+)", 12.5, "tokens"),
        ("12 rows", r"(?P<throughput>\d+) rows", 12, "rows"),
        ("12 widgets", r"(?P<throughput>\d+) widgets", 12, "widgets"),
        ("speed 1 234.5 images/s", r"speed (?P<throughput>[\d .]+) images", 1234.5, "images"),
        ('{"event": "a", "throughput": 100}\n' + '{"metrics": {"throughput": 50.0}}\n' * 7, "json", 50, ""),
        (':::MLLOG {"value": {"throughput": 1234.5}, "metadata": {"step": 100}}', "json", 1234.5, ""),
        ('{"throughput": "12.5 img/s"}', "json", 12.5, "images"),
        ('{"train": {"ips": 5}, "val": {"ips": 9}}', "json:train.ips", 5, ""),
        (str({"loss": "2.31", "speed": "12.5 img/s"}), "auto", 12.5, "images"),
        ("\x1b[32m12.5\x1b[0mit/s", "auto", 12.5, "iterations"),
        ("\x1b[2K\x1b[1G12.5it/s\x1b[2K\x1b[1G14.5it/s", "auto", 13.5, "iterations"),
        ("1.0it/s\x08\x08\x08\x08\x08\x08\x083.0it/s", "auto", 2, "iterations"),
        (BARS, "train it/s", 33.1, "iterations"),
        (BARS, "val iterations/s", 195.45, "iterations"),
        ("5000 files/s", "files/s", 5000, "files"),
        ("SPS: 1250", "sps units/s", 1250, "units"),
        ("410 images/s, 2.5 it/s", "auto", 410, "images"),
        ("images/s: 410.2\nimages/s: 411.2\ntotal images/s: 400", "auto", 410.7, "images"),
    ],
)
def test_a_rate_is_read_with_its_unit(printed: str, choice: str, throughput: float, thing: str) -> None:
    reader = heard(printed, choice)
    assert reader.throughput() == pytest.approx(throughput)
    series = reader.chosen()
    assert series is not None
    assert series.thing == thing


@pytest.mark.parametrize(
    ("printed", "choice", "named"),
    [
        ("time 0.5 ticks", r"time (?P<seconds>[\d.]+)", "the unit ticks is not known"),
        ("time (ticks): 0.5", r": (?P<seconds>[\d.]+)", "the unit ticks is not known"),
        ("speed 12.5 furlongs", r"speed (?P<throughput>[\d.]+)", "the unit furlongs is not known"),
        ("time (ms): 12.5 s", r": (?P<seconds>[\d.]+)", "time (ms): 12.5 s"),
        ("410.2 ± 3.1 images/s", r"(?P<throughput>[\d.]+) images/s", "410.2 ± 3.1 images/s"),
        ("1 234.5 images/s", r"(?P<throughput>[\d.]+) images/s", "1 234.5 images/s"),
        ("speed 12,345", r"speed (?P<throughput>[\d,]+)", "speed 12,345"),
        ('{"value": {"throughput": NaN}}', "json", '{"value": {"throughput": NaN}}'),
        ('{"train": {"throughput": 5}, "val": {"throughput": 9}}', "json", "json:train.throughput (once, median 5)"),
        ('{"train": {"throughput": 5}}\n{"val": {"throughput": 9}}', "json", "json:val.throughput (once, median 9)"),
        (BARS, "test it/s", "train iterations/s (12 times, median 33.1)"),
    ],
)
def test_what_cannot_be_ordered_is_not_read_and_is_named(printed: str, choice: str, named: str) -> None:
    with pytest.raises(JobError) as raised:
        heard(printed, choice).throughput()
    assert named in str(raised.value)
    assert "--throughput" in str(raised.value.remedy)


@pytest.mark.parametrize(
    ("printed", "named"),
    [
        ("Iteration 0 (0 iter/s, 6.71s/10 iters), loss = 8.2", "printed without a number: iterations/s"),
        ("2026-01-01 10:00:00 tokens/s not yet known, step 1", "printed without a number: tokens/s"),
        (
            "1 234.5 images/s\n1 240.0 images/s",
            "2 of 2 printed throughputs cannot be read, such as in: 1 234.5 images/s",
        ),
        ("5000 files/s", "printed: files/s (once, median 5000)"),
        (
            "step 3 tps: 410\nthroughput = 5",
            "printed: tps units/s (once, median 410), throughput units/s (once, median 5)",
        ),
        ("12.3 GFlop/s\n0.52 m/s\n10 MB/s", "throughput: none is printed"),
        ('{"throughput": 5}', "--throughput json reads its JSON"),
        (BARS, "train iterations/s (12 times, median 33.1), val iterations/s (30 times, median 195.4), epochs"),
        (BARS, "--throughput 'train iterations/s'"),
        ("12.5 samples/s, 250 tokens/s", "samples/s (once, median 12.5), tokens/s (once, median 250)"),
    ],
)
def test_without_one_rate_auto_reads_none_and_says_why(printed: str, named: str) -> None:
    reader = heard(printed, "auto")
    assert reader.throughput() is None
    assert named in " | ".join(reader.notes())


@pytest.mark.parametrize(
    ("mark", "printed", "rate"),
    [
        ("point", "12,345", 12345),
        ("comma", "12,345", 12.345),
        ("comma", "1.234,5", 1234.5),
        ("point", "1,234.5", 1234.5),
    ],
)
def test_a_comma_is_what_the_option_says(mark: str, printed: str, rate: float) -> None:
    for choice in ("auto", r"(?P<throughput>[\d.,]+) images/s"):
        reader = NumberReader(choice, mark)
        reader.read(f"{printed} images/s".encode(), ended=True)
        assert reader.throughput() == rate


def timed(*printed: tuple[float, str]) -> NumberReader:
    """Return a reader of a program of 100 s that has printed texts at these moments."""
    now = [0.0]
    reader = NumberReader("auto", clock=lambda: now[0])
    reader.begin()
    for at_s, text in printed:
        now[0] = at_s
        reader.read(f"{text}\n".encode())
    now[0] = 100.0
    reader.read(b"", ended=True)
    return reader


TRAINING = tuple((float(at_s), "train 5 it/s") for at_s in range(20, 90, 10))


@pytest.mark.parametrize(
    ("printed", "throughput", "named"),
    [
        (((1, "9 samples/s"), (20, "8 samples/s")), None, "samples/s was last printed after 20 s of 100 s"),
        (((80, "9 samples/s"), (90, "8 samples/s")), None, "samples/s was first printed after 80 s of 100 s"),
        (((99, "9 samples/s"), (99, "8 samples/s")), 8.5, "samples/s (2 times"),  # held back by a buffer
        (((1, "download 9 samples/s"), *TRAINING), 5, "download samples/s was last printed after 1 s"),
        ((*TRAINING, (90, "test 9 it/s"), (95, "test 8 it/s")), 5, "test iterations/s was first printed after 90 s"),
    ],
)
def test_a_rate_of_another_time_than_the_training_is_not_chosen(
    printed: tuple[tuple[float, str], ...], throughput: float | None, named: str
) -> None:
    reader = timed(*printed)
    assert reader.throughput() == throughput
    assert named in " | ".join(reader.notes())


def test_names_that_vary_take_no_memory() -> None:
    reader = heard(
        "".join(f"file {chr(97 + n % 26)}{chr(97 + n // 26)} {n}.5 images/s\n" for n in range(1, 600)), "auto"
    )
    assert len(reader.series) < 20
    assert reader.throughput() is None
