import pytest
from acme_operators import OPERATORS

from aot.testing import check_operator


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.op.name)
def test_operator(operator):
    check_operator(operator)
