"""Prices of places, as a user lists them in a file, and the money that a time costs there.

A price is arithmetic on measured times: other prices need no other run. ``docs/guide/costs.md`` describes the file.
"""

import csv
import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError, model_validator

from suite.errors import RequestError, nearest
from suite.part import Part, Seconds, first_problem
from suite.results.files import read_small
from suite.untrusted.files import read_toml

Money = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Named = Annotated[str, Field(min_length=1)]
Numbers = npt.NDArray[np.float64]
MONEY = "money"
SPOT = "money-spot"
RATES = {MONEY: "per_hour", SPOT: "spot_per_hour", "money-reserved": "reserved_per_hour"}
"""The metrics of money, each with the price of an hour that it is made of."""
GUIDE = "docs/guide/costs.md"
_HOURS_A_YEAR = 8760
_ROWS = {"instance": "InstanceType", "region": "Region", "zone": "AvailabilityZone"}
_PRICES = {"per_hour": "Price", "spot_per_hour": "SpotPrice"}
"""The columns of a catalogue by which a row is chosen, and those of its prices, by the keys of the file."""
_STEP_SLACK = 1e-9
"""The share of a step that rounding may add to a time without opening another step."""


class Owned(Part):
    purchase: Money
    life_years: Positive
    yearly: Money = 0.0
    """Space, service and staff for a year, without electricity."""
    watts: Money
    """The power that it draws at work."""
    pue: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """Power usage effectiveness: what the building draws over what its machines do."""
    per_kwh: Money
    use: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the hours of its life in which it is used."""

    @property
    def per_hour(self) -> float:
        return self._standing / self.use + self._running

    @property
    def _standing(self) -> float:
        return (self.purchase / self.life_years + self.yearly) / _HOURS_A_YEAR

    @property
    def _running(self) -> float:
        return self.watts / 1000 * self.pue * self.per_kwh

    def uses(self, ratios: Sequence[float]) -> list[float]:
        """Return the use above which it is cheaper than other money for the same work, given over its own at ``use``.

        Infinite if its electricity alone costs as much.
        """
        spare = [self.per_hour * ratio - self._running for ratio in ratios]
        return [self._standing / money if money > 0 else math.inf for money in spare]


class Catalogue(Part):
    """A row of a price list with SkyPilot's columns."""

    file: Named
    """The CSV, relative to the file of prices."""
    instance: Named
    region: Named
    zone: str | None = None
    """The zone, if those of the region have several prices."""


class PricedPlace(Part):
    """The prices of the trials that ``match`` selects: by the hour, of an owned machine, or from a catalogue."""

    match: Annotated[dict[str, str], Field(min_length=1)]
    """A key of ``bench compare --by`` and its value."""
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")]
    source: Named
    date: datetime.date
    per_hour: Money | None = None
    spot_per_hour: Money | None = None
    reserved_per_hour: Money | None = None
    minimum_s: Seconds = 0.0
    """The least time that is billed."""
    step_s: Positive = 1.0
    """The time that is billed is a multiple of it."""
    owned: Owned | None = None
    catalogue: Catalogue | None = None
    g_per_kwh: Money | None = None
    """The carbon intensity of the electricity, in grams of CO2 equivalent."""

    @model_validator(mode="after")
    def _has_one_price(self) -> Self:
        prices = {"per_hour": self.per_hour, "owned": self.owned, "catalogue": self.catalogue}
        if sum(price is not None for price in prices.values()) != 1:
            raise ValueError(f"give one of {', '.join(prices)}")
        return self

    @property
    def name(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.match.items())

    def rate(self, metric: str) -> float | None:
        """Return the price of an hour; None without such a price. An owned machine has one price for all."""
        if self.owned:
            return self.owned.per_hour if metric == MONEY else None
        rate: float | None = getattr(self, RATES[metric])
        return rate

    def bill(self, metric: str, seconds: Numbers) -> Numbers | None:
        """Return the money for jobs of so many seconds; None without such a price."""
        if self.owned:
            return seconds / 3600 * self.owned.per_hour
        rate = self.rate(metric)
        if rate is None:
            return None
        steps = np.ceil(seconds / self.step_s - _STEP_SLACK)
        return np.maximum(self.minimum_s, steps * self.step_s) / 3600 * rate


@dataclass(frozen=True)
class Prices:
    """The places of a file, in its order; all are in one currency."""

    path: Path
    places: tuple[PricedPlace, ...]

    @property
    def currency(self) -> str:
        return self.places[0].currency

    @property
    def offered(self) -> list[str]:
        return [name for name in RATES if self._offers(name)]

    def _offers(self, metric: str) -> bool:
        return any(site.rate(metric) is not None for site in self.places)

    def places_of(self, trials: Sequence[Mapping[str, str]]) -> list[PricedPlace | None]:
        """Return the place of each trial, given its settings; None for a trial without a price.

        Raises RequestError for an unknown key, a place without a trial, and a trial of two places.
        """
        names = sorted(set[str]().union(*trials))
        chosen: list[PricedPlace | None] = [None] * len(trials)
        for number, site in enumerate(self.places):
            key, value = next(iter(site.match.items()))
            unknown = site.match.keys() - set(names)
            if unknown:
                key = min(unknown)
                raise self.refusal(
                    number,
                    f"match.{key}",
                    "no record has this key",
                    nearest(key, names),
                )
            matching = [index for index, settings in enumerate(trials) if site.match.items() <= settings.items()]
            if not matching:
                values = sorted({settings.get(key, "") for settings in trials})
                raise self.refusal(
                    number,
                    f"match.{key}",
                    f"no record matches {site.name}",
                    nearest(value, values),
                )
            for index in matching:
                other = chosen[index]
                if other:
                    ambiguity = f"records of {site.name} match {other.name}, too"
                    raise self.refusal(number, "match", ambiguity, "let each record match one place")
                chosen[index] = site
        return chosen

    def refusal(self, number: int, key: str, reason: str, remedy: str) -> RequestError:
        return RequestError(f"{self.path}: place.{number}.{key}: {reason}", remedy=remedy)


class _File(Part):
    place: Annotated[tuple[PricedPlace, ...], Field(min_length=1)]


def read_prices(path: Path) -> Prices:
    """Read a file of prices. Raises RequestError with the file and the key."""
    try:
        content = read_toml(path, f"--prices {path}", f"see {GUIDE}")
        prices = Prices(path, _File.model_validate(content).place)
        for number, site in enumerate(prices.places):
            if site.currency != prices.currency:
                currencies = f"{site.currency}, and place.0 is in {prices.currency}"
                raise prices.refusal(
                    number,
                    "currency",
                    currencies,
                    "convert all prices to one currency",
                )
        listed = [_listed(prices, number, site) for number, site in enumerate(prices.places)]
        return Prices(path, tuple(listed))
    except ValidationError as error:
        raise RequestError(f"{path}: {first_problem(error)}", remedy=f"correct it there; see {GUIDE}") from error


def _listed(prices: Prices, number: int, site: PricedPlace) -> PricedPlace:
    """Return a place with the prices of its catalogue."""
    wanted = site.catalogue
    if wanted is None:
        return site
    file = prices.path.parent / wanted.file
    try:
        rows = list(csv.DictReader(read_small(file).decode().splitlines(), restval=""))
        for key, column in _ROWS.items():
            value = getattr(wanted, key)
            names = sorted({row[column] for row in rows})
            rows = [row for row in rows if value in (None, row[column])]
            if not rows:
                raise prices.refusal(
                    number,
                    f"catalogue.{key}",
                    f"{file} has no {value}",
                    nearest(value, names[:20]),
                )
        offers = set()
        for row in rows:
            offers.add(tuple(row[column] or None for column in _PRICES.values()))
        if len(offers) > 1:
            raise prices.refusal(
                number,
                "catalogue.zone",
                f"{file} has several prices",
                f"give {' or '.join(names)}",
            )
    except (OSError, ValueError, KeyError, csv.Error) as error:
        remedy = f"name a CSV with SkyPilot's columns; see {GUIDE}"
        raise prices.refusal(
            number,
            "catalogue.file",
            f"{file} cannot be read: {error}",
            remedy,
        ) from error
    offer = dict(zip(_PRICES, offers.pop(), strict=True))
    return PricedPlace.model_validate({**site.model_dump(), **offer, "catalogue": None})
