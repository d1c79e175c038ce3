from __future__ import annotations

from hypothesis import HealthCheck, settings

# A slow machine is not a bug: time is judged by pytest-timeout, over the whole test.
settings.register_profile("semel", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("semel")
