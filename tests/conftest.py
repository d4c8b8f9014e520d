"""Settings of all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# The same examples every time, so that a red run is about the change at hand. GRADIAN_FUZZ=1 looks for new ones.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("fuzz", max_examples=1000, deadline=None)
settings.load_profile("fuzz" if os.environ.get("GRADIAN_FUZZ") else "steady")
