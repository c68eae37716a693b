"""The ranks of a distributed job and their rendezvous. Plain values: no torch."""

from dataclasses import dataclass

STRATEGIES = ("parameter-server", "parameter-server-async", "all-reduce")


@dataclass(frozen=True)
class Membership:
    """One rank's view of the job. Ranks count the servers first and then the workers.

    Rank 0 holds the rendezvous (a TCP store at ``master``:``port``), and is the last one to leave: a server outlives
    all workers in any case. ``timeout_s`` is how long a rank may be silent before it counts as lost;
    ``join_timeout_s`` how long the ranks wait for each other at the start, where one may boot longer than another.
    """

    strategy: str
    rank: int
    workers: int
    servers: int
    master: str
    port: int
    interface: str
    timeout_s: float = 60.0
    join_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy is {self.strategy!r}; it can be {', '.join(STRATEGIES)}")
        if self.workers < 1:
            raise ValueError(f"workers is {self.workers}; a job needs one at least")
        if self.strategy == "all-reduce" and self.servers:
            raise ValueError(f"servers is {self.servers}; all-reduce has none")
        if self.strategy != "all-reduce" and self.servers < 1:
            raise ValueError(f"servers is {self.servers}; {self.strategy} needs one at least")
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank is {self.rank}; with {self.world} ranks it is 0 to {self.world - 1}")
        if min(self.timeout_s, self.patience_s) <= 0:
            raise ValueError("timeouts must be longer than no time")

    @property
    def world(self) -> int:
        return self.servers + self.workers

    @property
    def server_ranks(self) -> range:
        return range(self.servers)

    @property
    def worker_ranks(self) -> range:
        return range(self.servers, self.world)

    @property
    def is_server(self) -> bool:
        return self.rank < self.servers

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.world) if rank != self.rank]

    @property
    def patience_s(self) -> float:
        """Return how many seconds the ranks have to find each other."""
        return self.timeout_s if self.join_timeout_s is None else self.join_timeout_s

    def name(self, rank: int) -> str:
        """``server 0 (rank 0)``, ``worker 1 (rank 2)``: what the user asked for, and what torch's own messages say."""
        role, number = ("server", rank) if rank < self.servers else ("worker", rank - self.servers)
        return f"{role} {number} (rank {rank})"

    def names(self, ranks: list[int]) -> str:
        return ", ".join(map(self.name, ranks))
