"""Assertions of the shared helper deserve pytest's explanations too."""

import sys
from pathlib import Path

import pytest

# The helper is a plain module beside the tests, whatever import mode pytest runs in.
sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("wire_cases")
