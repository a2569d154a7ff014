"""Assertions of the shared helpers deserve pytest's explanations too."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

# They are plain modules beside the tests, whatever import mode pytest runs in.
sys.path.insert(0, str(Path(__file__).parent))
# How long an example takes says more of the machine than of the code, the more so under sanitizers.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
pytest.register_assert_rewrite("wire_cases", "settle_cases")
