"""The worker's command line: ``python3 -m worker [--attest | --probe | --aggressor | ...]``."""

import time

# The first instruction: what comes after, the imports above all, is the worker's own time and not the launch's.
STARTED_S = time.monotonic()


def _main() -> int:
    import sys

    from worker.main import main

    return main(sys.argv[1:], started_s=STARTED_S)


if __name__ == "__main__":
    raise SystemExit(_main())
