"""The worker's command line: ``python3 -m worker [--attest | --probe | --aggressor | --command | ...]``."""

import time

# The first instruction: what comes after, the imports above all, is the worker's own time and not the launch's.
STARTED_S = time.monotonic()


if __name__ == "__main__":
    import sys

    from worker.main import main

    raise SystemExit(main(sys.argv[1:], started_s=STARTED_S))
