"""Rates in printed lines: every usual notation is read, and a doubtful one is counted instead of guessed."""

import time

import pytest

from worker.protocol import JobError
from worker.rates import LONGEST_LINE_BYTES, MOST_NUMBERS, NumberReader

RATE = "(?P<throughput>[0-9.,]+)"
BAR = "5/10 [00:08<00:08, 9.9it/s]"


@pytest.mark.parametrize(
    ("printed", "pattern", "rates"),
    [
        # The forms of tqdm, whichever of them the pattern is written for.
        ("\r?it/s \r1.60s/it \r1.05it/s \r20ms/it", f"{RATE}it/s", [0.625, 1.05, 50]),
        ("1.60s/it\n2.00s/it", f"{RATE}s/it", [0.625, 0.5]),
        ("1.60s/it\n1.05it/s", f"{RATE} ?(it/s|s/it)", [0.625, 1.05]),
        ("1.60s/it\n1.05it/s", f"{RATE}it/s|(?P<seconds>[0-9.]+)s/it", [0.625, 1.05]),
        ("1.2k images/s\n990 images/s\n2M images/s", f"{RATE} images/s", [1200, 990, 2e6]),
        ("1.20kimg/s\n990img/s", f"{RATE}k?img/s", [1200, 990]),
        ("1.2k tokens/s", f"{RATE}k tokens/s", [1200]),
        ("5MB/s\n7MB/s", f"{RATE}MB/s", [5, 7]),
        # Times are no rates, and the pattern may match a part of a number.
        ("time 20.00ms\ntime 0.5s\ntime 2", r"time (?P<seconds>\d+)", [50, 2, 0.5]),
        ("time=0.05 s/step\ntime=250ms/it\ntime=2", "time[ =](?P<seconds>[0-9.]+)", [20, 4, 0.5]),
        ("1.60s/it\n4ms/step\n0.25 s/step\n0.5 sec/batch", r"(?P<seconds>[\d.]+) ?(ms|sec|s)/", [0.625, 250, 4, 2]),
        ("1.5e3 samples/s\n1.2e+03samples/s", r"(?P<throughput>[\d.]+) ?samples/s", [1500, 1200]),
        ("rate 1,234.5 img/s loss 2", r"rate (?P<throughput>[\d.]+).*loss", [1234.5]),
        ("12.5 images/s", r"(?P<throughput>\d+) images/s", [12.5]),
        ("1,234.5 images/s\n1,234,567 images/s", f"{RATE} images/s", [1234.5, 1234567]),
        ("train 100 images/s, test 300 images/s", f"{RATE} images/s", [100, 300]),
        ("3,0.25,17.5,9", r"^\d+,[\d.]+,(?P<throughput>[\d.]+),\d+$", [17.5]),
        # Objects behind a progress bar on the same line, and in long lines.
        (f'{BAR}{{"step": 2, "throughput": 50.0}}{{"throughput": "1.2k"}}', "json", [50, 1200]),
        ('w.py:3: print(json.dumps({"throughput": rate}))\n{"throughput": 5}', "json", [5]),
        (f'{{"losses": [{"1, " * 5000}1], "throughput": 50}}', "json", [50]),
        ("x" * 4090 + "rate=12345 img/s", r"rate=(?P<throughput>\d+)", [12345]),
        ("x" * 3835 + "rate=12345 img/s", r"(?P<throughput>\d+) img", [12345]),
        ("x " * 4090 + "15 rows" + " y" * 9000 + " 17 rows", r"(?P<throughput>\d+) rows", [15, 17]),
    ],
)
def test_all_rates_of_a_line_are_read_in_every_form(printed: str, pattern: str, rates: list[float]) -> None:
    reader = read(printed, pattern)
    assert reader.numbers == pytest.approx(rates, rel=1e-12)
    assert (reader.unread, [*reader.notes()]) == (0, [])


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("1,234 images/s", f"{RATE} images/s"),
        ("1,234 images/s", r"(?P<throughput>\d+) images/s"),
        ("1,234 images/s", r"(?P<throughput>\d+).*/s"),
        ("1.234,5 images/s", f"{RATE} images/s"),
        ("1.234.567 images/s", f"{RATE} images/s"),
        ("nan images/s", r"(?P<throughput>\S+) images/s"),
        ("time 20.00ms", "time (?P<throughput>[0-9.]+)"),
        ("time 0.00s", "time (?P<seconds>[0-9.]+)"),
        ("time 1:23", "time (?P<seconds>[0-9]+)"),
        ("time 1m20s", "time (?P<seconds>[0-9]+)"),
        ("time 5 min", "time (?P<seconds>[0-9]+)"),
        ("time 2 h", "time (?P<seconds>[0-9]+)"),
        ('{"throughput": "x"}', "json"),
        ('{"throughput": NaN}', "json"),
        ('{"throughput": true}', "json"),
        ('{"throughput": 5, "loss": inf}', "json"),
        ("{'throughput': 5.0}", "json"),
    ],
)
def test_a_rate_that_cannot_be_read_is_refused_with_its_line_and_never_guessed(line: str, pattern: str) -> None:
    good = "time 5" if pattern.startswith("time") else '{"throughput": 5}' if pattern == "json" else "5 images/s"
    reader = read("\n".join([good] * 18 + [line]), pattern)
    with pytest.raises(JobError) as refused:
        reader.throughput()
    assert str(refused.value) == f"1 of 19 printed throughputs cannot be read, such as in: {line}"
    assert "1.2k or 1.60s/it" in str(refused.value.remedy)
    reader = read("\n".join([good] * 19 + [line]), pattern)
    assert reader.throughput() == (0.2 if "seconds" in pattern else 5)
    assert [*reader.notes()] == [f"1 of 20 printed throughputs cannot be read, such as in: {line}"]


@pytest.mark.parametrize(("line", "steps"), [("Step 1500 | 12 tok/s", 1500), ("Step 1,500 | 12 tok/s", None)])
def test_a_step_that_may_be_two_numbers_is_not_read(line: str, steps: int | None) -> None:
    assert read(line, r"Step (?P<step>\d+).*?(?P<throughput>[\d.]+) tok/s").steps == steps


def test_more_rates_than_are_kept_are_thinned_out_evenly() -> None:
    count = 2 * MOST_NUMBERS + 3
    reader = read("".join(f"{rate}it/s\n" for rate in range(1, count + 1)), f"{RATE}it/s")
    assert reader.throughput() == pytest.approx(count / 2, rel=1e-4)
    assert MOST_NUMBERS / 2 <= len(reader.numbers) <= MOST_NUMBERS
    assert [*reader.notes()] == [f"the command printed {count} throughputs; one in 4 is kept"]


def test_a_line_without_an_end_takes_no_memory() -> None:
    reader = NumberReader(f"{RATE} rows")
    for _ in range(5 * LONGEST_LINE_BYTES // 4096):
        reader.read(b"x " * 2048)
        assert len(reader._pending) <= LONGEST_LINE_BYTES
    reader.read(b"5 rows", ended=True)
    assert reader.numbers == [5]


@pytest.mark.parametrize(("pattern", "s_per_mb"), [(None, 0.02), ("json", 0.25), (r"(?P<throughput>\d+) rows", 0.25)])
def test_a_flood_of_lines_costs_little(pattern: str | None, s_per_mb: float) -> None:
    begin_s = time.process_time()
    reader = read("x" * 99 + "\n", pattern, times=10_000)
    assert time.process_time() - begin_s < s_per_mb
    assert reader.last


def read(printed: str, pattern: str | None, times: int = 1) -> NumberReader:
    """Read a text in pieces that end anywhere, as a pipe gives them."""
    reader, content = NumberReader(pattern), printed.encode() * times
    for begin in range(0, len(content), 60_001):
        reader.read(content[begin : begin + 60_001])
    reader.read(b"", ended=True)
    return reader


@pytest.mark.parametrize(
    ("printed", "throughput", "note"),
    [
        ("epoch 1: 412.3 images/s\nepoch 2: 410.1 images/s, lr 0.1", 411.2, "images/s, printed 2 times"),
        ("\r  3/64 [00:01<00:30,  1.60s/it]\r 4/64 [00:01<00:30,  2.00it/s]", 1.3125, "it/s, printed 2 times"),
        ("412 img/sec\n3/64 [00:01<00:30,  2.10it/s]\n1.2kimg/sec", 806, "img/s, printed 2 times"),
        ("33.5 samples per second\n12 items/step", 33.5, "samples/s, printed 1 times"),
        ("100 images/s, 990 tokens/s", None, "none, as rates in several units are printed: images, tokens"),
        ("1,234 images/s", None, "none, images/s, printed 0 times"),
        ("Downloading 12.3MB/s 14.1 MiB/s 3 kbit/s\n100 GFLOP/s", None, None),
    ],
)
def test_the_usual_rates_are_found_by_themselves_and_several_units_never_guessed(
    printed: str, throughput: float | None, note: str | None
) -> None:
    reader = NumberReader("auto")
    reader.read(printed.encode(), ended=True)
    assert reader.throughput() == (throughput and pytest.approx(throughput))
    assert len(reader.chosen().numbers) == (0 if throughput is None else reader.chosen().rates)
    assert next(reader.notes(), None) == (note and f"throughput: {note}; give --throughput-pattern to choose another")
