"""A service: a generator behind HTTP in one instance of the target, and who asks it in another.

The two are joined as the ranks of a distributed job are, so that what answers has its envelope to itself, and requests
come over the network that the target has. Weights are drawn from the seed in the server's own process: no file is read.
"""

import json
from collections.abc import Mapping, Sequence

from scenarios.distributed import PORT, RankProcess, record_of
from scenarios.job import metrics_of, recordable, throughput_of
from scenarios.members import plugin_of
from scenarios.own_server import OwnServing
from scenarios.served_pair import Launch, ServedPair, ServiceScenario
from scenarios.serving_options import ServingOptions, load_of
from suite.errors import RequestError, option
from suite.interfaces import Context, Instance, Measurement, Observer
from suite.job.profiles import EXTENTS, Profile
from suite.job.serving import LOADS, TOKEN_LOADS, Serving
from suite.job.sharing import sizes_of
from suite.plan import Trial, planned
from suite.records.record import MetricValue, Timeline
from suite.registries import WORKLOADS
from suite.request.request import RunRequest
from worker.spec import LoadRequest, ServeSpec

SERVER_PHASES = {
    "started": "importing",
    "imported": "building",
    "environment": "building",
    "built": "serving",
    "done": "finishing",
}
CLIENT_PHASES = {
    "started": "preparing",
    "environment": "waiting for the first answer",
    "answered": "measuring",
    "metrics": "finishing",
    "done": "finishing",
}
"""The events of server and client in their order, and the phase that begins with each."""


class Serve(ServiceScenario):
    """A generator that is served on one target."""

    @classmethod
    def of(cls, request: RunRequest) -> ServiceScenario:  # type: ignore[override]
        """Return the scenario of a generator, or of a server of the user's own if the request has its command."""
        if request.value("command") or request.value("port"):
            return OwnServing.of(request)
        return cls()

    @classmethod
    def usual_models(cls, profile: str) -> tuple[str, ...]:
        return (cls.unnamed,)

    def check_model(self, request: RunRequest, model: str) -> None:
        self.check_devices(request)
        if not WORKLOADS.get(model).generates:
            able = ", ".join(name for name in WORKLOADS.own if WORKLOADS.get(name).generates)
            raise RequestError(
                f"{model} makes nothing that could be served", remedy=f"use {option('model')} with one of {able}"
            )

    def part(self, request: RunRequest, profile: Profile, model: str) -> Mapping[str, object]:
        changed = {name: int(value) for name in (*EXTENTS, "channels") if (value := request.value(name)) is not None}
        sizes = sizes_of(profile, model, changed)
        options = request.options(ServingOptions)
        loads = TOKEN_LOADS if sizes.tokens else LOADS
        serving = Serving(
            **load_of(options, loads[profile.name]).model_dump(),
            **sizes.model_dump(include={*EXTENTS, "depth"}),
            channels=sizes.channels or (None if sizes.tokens else 3),
        )
        return {"serving": serving}

    def measure(
        self,
        trial: Trial,
        instances: Sequence[Instance],
        observer: Observer,
        account: Context,
    ) -> Measurement:
        """Serve, and measure what a client sees. Raises MeasurementError, of who failed first, where one fails."""
        serving = planned(trial.job.serving, "its load")
        distributed = planned(trial.job.distributed, "its instances")
        observer.phase("attesting")
        server_address = (instances[0].address, instances[0].port or PORT)
        service_address = instances[0].service or server_address
        spec = _server_spec(trial, serving, *server_address, service_address[0])
        load = LoadRequest(
            address=service_address[0] or "",
            port=service_address[1],
            bodies=(json.dumps({"dataset": trial.job.data, "model": trial.job.model}),),
            **serving.model_dump(include={"requests", "rates", "clients"}),
            seed=trial.seed,
            timeout_s=distributed.comm_timeout_s,
            patience_s=trial.trial_timeout_s,
            threads=trial.instances[1].envelope.threads,
            tokens=spec.shape.decoded or None,
        )
        server = Launch(spec, "--serve", SERVER_PHASES)
        client = Launch(load, "--load", CLIENT_PHASES)
        pair = ServedPair.of(trial, instances, server, client, observer)
        return _measurement(pair.server, pair.client, pair.to_its_end(account))


def _server_spec(
    trial: Trial,
    serving: Serving,
    address: str | None,
    port: int,
    asked_name: str | None,
) -> ServeSpec:
    """Return what the server is to do; clients ask for it by an address or name that may be another."""
    names = []
    if asked_name:
        names.append(asked_name.lower())
    return ServeSpec(
        workload=WORKLOADS.place(trial.job.model),
        plugin=plugin_of(WORKLOADS, trial.job.model, trial.job.workload_sha256),
        dataset=trial.job.data,
        model=trial.job.model,
        **serving.model_dump(include={*EXTENTS, "channels", "depth"}),
        threads=trial.instances[0].envelope.threads,
        seed=trial.seed,
        device=trial.job.devices.device,
        address=address or "",
        port=port,
        names=tuple(names),
    )


def _measurement(server: RankProcess, client: RankProcess, elapsed_s: float) -> Measurement:
    served = server.job.log
    client_log = client.job.log
    cold_s = client_log.events["answered"].arrived_s - served.begun_s
    opened_s = server.instance.node.opening.seconds
    with recordable(client.job.argv):
        return Measurement(
            elapsed_s=elapsed_s,
            throughput_per_s=throughput_of(client_log),
            timeline=Timeline(
                **served.ends(elapsed_s),
                imports_s=served.between("started", "imported"),
                build_s=served.between("imported", "built"),
                measured_s=client_log.between("answered", "metrics"),
            ),
            environment=server.job.environment(),
            metrics={
                "cold-start": MetricValue(value=cold_s, unit="s", better="less"),
                "cold-start-with-opening": MetricValue(value=opened_s + cold_s, unit="s", better="less"),
                **metrics_of(client_log.said("metrics", "metrics")),
            },
            ranks=[record_of(rank) for rank in (server, client)],
            **client_log.clocks("answered", "metrics"),
            usage=served.usage(),
            details={
                **({"asked_at": list(server.instance.service)} if server.instance.service else {}),
                **client_log.said("metrics", "details"),
                "client_usage": dict(client_log.said("done", "usage")),
            },
        )
