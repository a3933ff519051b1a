"""How long fuzzing takes: EPP_FUZZ_EXAMPLES examples a law (a few by default)."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fuzz",
    max_examples=int(os.environ.get("EPP_FUZZ_EXAMPLES", "60")),  # noqa: TID251 - a test's own knob
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("fuzz")
