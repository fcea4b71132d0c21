"""The table of laws is the same where a run found the same."""

import pytest

from conformance.servers.__main__ import steady

pytestmark = pytest.mark.workbench

DETAIL = (
    "http://127.0.0.1:{port} closed the connection before its answer was whole; its last output:"
    ' 127.0.0.1 - - [{moment}] "POST /v1/completions HTTP/1.1" 404 -'
)


def test_neither_port_nor_moment_of_a_run_is_in_the_table() -> None:
    one = DETAIL.format(port=58803, moment="01/Dec/2026 00:01:18")
    other = DETAIL.format(port=60111, moment="02/Dec/2026 11:31:00")

    assert steady(one) == steady(other)
    assert steady(one).startswith("the server closed the connection")
    assert steady(one).endswith('last output: "POST /v1/completions HTTP/1.1" 404 -')
