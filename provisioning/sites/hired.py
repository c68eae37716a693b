"""Machines that a cloud lends for one run: made before its plan, and removed at its end, however that comes."""

import re
from dataclasses import replace

from provisioning import ledger, paths
from provisioning.clouds.hire import INVENTORY, MachineOrder, hired_machines
from provisioning.sites.base import RunInputs
from provisioning.sites.here import refuse_adopted
from provisioning.sites.machines import Machines
from suite.errors import RequestError, option
from suite.registries import CLOUDS
from suite.request.request import RunRequest
from suite.targets import BASELINE, ON_REAL_MACHINES


class HiredMachines(Machines):
    """The site of every cloud, by its name; once they are there, the machines are those of an inventory."""

    name = "hired"

    @classmethod
    def chosen_by(cls, request: RunRequest) -> bool:
        return request.joining.site in CLOUDS

    @classmethod
    def with_usual_targets(cls, inputs: RunInputs) -> RunInputs:
        """Return the inputs with the targets that the cloud's machines are; of a joined job, those without a guest."""
        targets = CLOUDS.get(str(inputs.request.joining.site)).targets
        return inputs.on(ON_REAL_MACHINES if inputs.scenario.joined else targets)

    @classmethod
    def resolve(cls, inputs: RunInputs) -> Machines:
        request = inputs.request
        joined = inputs.scenario.joined
        refuse_adopted(inputs.image)
        order = order_of(request, inputs.scenario.instances(request) if joined else 1)
        site = f"{option('site')} {order.source}"
        # The machines of a joined job boot the guests of its targets, and are bare metal themselves.
        foreign = sorted({*((BASELINE,) if joined else request.targets.target)} - {*order.lender.targets})
        if foreign:
            raise RequestError(
                f"{site} lends machines for {' and '.join(order.lender.targets)}, and none for {' and '.join(foreign)}",
                remedy=f"choose another {option('site')}, or other targets with {option('target')}",
            )
        directory = paths.state("hired") / ledger.fresh("machines")
        there = request.changed(site=None, hire=None, inventory=directory / INVENTORY)
        if inputs.lifetime is None:
            order.looked_up(inputs.note)
            raise RequestError(
                f"{site}: the cloud has what {option('hire')} names, but a plan needs the machines, which "
                "bench run makes when it measures",
                remedy=f"leave --dry-run out; or hire them with bench machines up, and give {option('inventory')}",
            )
        inputs.lifetime.enter_context(ledger.holding("directory", str(directory)))
        inputs.lifetime.enter_context(hired_machines(order, directory, inputs.note, listed=not joined))
        return super().resolve(replace(inputs, request=there))


def order_of(request: RunRequest, count: int) -> MachineOrder:
    """Return the machines that the request hires. Raises RequestError for words that the cloud does not understand."""
    source = str(request.joining.site)
    text = request.joining.hire or ""
    site = f"{option('site')} {source}"
    # A value may hold commas, such as the command line of a kernel.
    parts = []
    if text:
        parts = [part.partition("=") for part in re.split(r",(?=[a-z-]+=)", text)]
    given: dict[str, object] = {key.replace("-", "_"): value for key, _, value in parts}
    cloud = given.pop("cloud", "")
    within = given.pop("within", None)
    remedy = f"write {option('hire')} cloud=NAME,KEY=VALUE,... with options of bench machines up --from {source}"
    if "count" in given:
        raise RequestError(f"{option('hire')} {text}: the scenario decides how many", remedy="leave count out")
    if not cloud or not all(value for _, _, value in parts):
        why = f"{text} gives no cloud, or a key without a value" if text else f"is missing with {site}"
        raise RequestError(f"{option('hire')} {why}", remedy=remedy)
    try:
        options = {**given, "count": count}
        return MachineOrder.of(site, source, str(cloud), str(within) if within else None, options)
    except RequestError as error:
        raise error.within(f"{option('hire')} {text}") from error
