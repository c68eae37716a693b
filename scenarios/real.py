"""Training on a data set: what the job reads is decoded, cropped and normalised while it trains."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from scenarios.job import Devices, run_job
from scenarios.reading import Loading
from suite.errors import MeasurementError
from suite.interfaces import Instance, Measurement, Observer
from suite.plan import Trial


class Real:
    """The paper's benchmark on real data, on one instance."""

    name = "real"

    def __init__(
        self,
        device: str = "cpu",
        devices: int = 1,
        parallel: str = "none",
        loader_workers: int | None = None,
        decoder: str = "auto",
        **_of_others: object,
    ) -> None:
        self._devices = Devices(device, devices, parallel)
        self._loading = Loading(loader_workers, decoder)

    def measure(
        self,
        trial: Trial,
        instances: Sequence[Instance],
        observer: Observer,
        account: AbstractContextManager[object],
    ) -> Measurement:
        """Raises MeasurementError when the job does not come to its end, or the data set is not as planned."""
        if trial.job.dataset is None:
            raise MeasurementError(
                "training on real data was planned without a data set", kind="dataset", remedy="name one with --data"
            )
        (instance,) = instances
        return run_job(trial, instance.node, observer, account, self._devices, self._loading)
