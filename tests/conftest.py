"""Fixtures that several test packages share."""

pytest_plugins = ("tests.fixtures_chain",)
