"""What jobs cost: money, preemption, energy; arithmetic on records, made when they are read."""
