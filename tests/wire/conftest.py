"""Assertions of the shared helpers deserve pytest's explanations too."""

import sys
from pathlib import Path

import pytest

# They are plain modules beside the tests, whatever import mode pytest runs in.
sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("wire_cases", "settle_cases")
