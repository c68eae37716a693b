"""The parts of a job: everything that decides the meaning of a number."""
