"""The chi-square test that the laws are counted with."""

import math
from collections import Counter

import pytest

from chi_square import chi_square_p


def test_the_chi_square_tail():
    """Against the closed form for 2 degrees of freedom and the 5% point for 1."""
    thirds = dict.fromkeys(range(3), 1 / 3)
    assert chi_square_p(Counter({0: 100, 1: 100, 2: 100}), thirds) == 1
    found = chi_square_p(Counter({0: 80, 1: 120, 2: 100}), thirds)  # statistic 8
    assert found == pytest.approx(math.exp(-4))
    found = chi_square_p(Counter({0: 531, 1: 469}), {0: 0.5, 1: 0.5})  # 3.844; the point is 3.841
    assert found == pytest.approx(0.05, abs=1e-3)
    assert chi_square_p(Counter({0: 1}), {1: 1.0}) == 0
