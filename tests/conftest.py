"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes, or is in the making, says something of the machine and nothing of what is tested.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
