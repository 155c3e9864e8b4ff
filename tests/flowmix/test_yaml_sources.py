"""What a source of a flow's file may name: whose secrets, files and folders it cannot reach."""

from __future__ import annotations

import time

import pytest

from pipelines.flowmix.yaml_sources import _in_variables


@pytest.mark.parametrize(
    ("login", "held"),
    [
        ('x user="${A}" password="${B}";', True),
        ('x user="${A}" password = "hunter2";', False),
        ("x user=${A} myPassword_2='hunter2'", False),
        ("x ${A} tokenpassword=hunter2", False),
        ('x ${A} password password="";', True),
        ("x ${A} passwords of=people", True),
    ],
)
def test_variables_hold_every_password_of_a_login(login: str, held: bool) -> None:
    assert _in_variables(login) == held


@pytest.mark.parametrize("text", ["password", "password ", "xpassword\t=", "a"])
def test_a_long_login_takes_no_longer_than_others(text: str) -> None:
    began = time.process_time()
    _in_variables("${A}" + text * 8_000 + "; user=x")
    assert time.process_time() - began < 1
