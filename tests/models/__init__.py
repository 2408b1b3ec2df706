"""Tests of models; assertions of the contract are shown in full."""

import pytest

pytest.register_assert_rewrite("tests.models.contract")
