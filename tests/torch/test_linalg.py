"""Linear algebra of torch.export programs: systems, factors, singular values; against eager torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.torch.programs import check, check_compiled

torch = pytest.importorskip("torch")
linalg = torch.linalg


def square(*lead: int, size: int = 4) -> Any:
    """Matrices that are far from singular."""
    generator = torch.Generator().manual_seed(size + len(lead))
    return torch.randn((*lead, size, size), generator=generator) + 2 * torch.eye(size)


def positive(x: Any) -> Any:
    return x @ x.mT + torch.eye(x.shape[-1])


ONE: dict[str, Callable[[Any], Any]] = {
    "inverse": linalg.inv,
    "inverse and info": lambda x: tuple(linalg.inv_ex(x)),
    "determinants": lambda x: (linalg.det(x), *linalg.slogdet(x), torch.logdet(positive(x))),
    "lu": lambda x: tuple(linalg.lu(x)),
    "lu of wide and tall": lambda x: (*linalg.lu(x[..., :2, :]), *linalg.lu(x[..., :2])),
    "lu factors": lambda x: tuple(linalg.lu_factor(x)),
    "cholesky": lambda x: (linalg.cholesky(positive(x)), linalg.cholesky(positive(x), upper=True)),
    "cholesky that fails": lambda x: linalg.cholesky_ex(-positive(x)).info,
    "cholesky inverse": lambda x: torch.cholesky_inverse(linalg.cholesky(positive(x))),
    "qr": lambda x: (*linalg.qr(x), *linalg.qr(x[..., :3], "complete"), *linalg.qr(x[..., :2, :])),
    "r alone": lambda x: linalg.qr(x, "r").R,
    "exponential": lambda x: torch.matrix_exp(x * 0.5),
    "singular values": lambda x: (linalg.svdvals(x), linalg.svdvals(x[..., :2]), linalg.svdvals(x[..., :3, :])),
    "nuclear norm": lambda x: (linalg.matrix_norm(x, "nuc"), linalg.matrix_norm(x, 2), linalg.cond(x)),
    "svd put together": lambda x: _together(linalg.svd(x[..., :3], full_matrices=False)),
    "whole bases": lambda x: (lambda u: (u.mT @ u).round(decimals=4).abs())(linalg.svd(x[..., :2]).U),
    "eigenvalues": lambda x: (linalg.eigvalsh(x), linalg.eigvalsh(x, "U")),
    "eigenvectors put together": lambda x: _whole(linalg.eigh(positive(x))),
    "pseudo-inverse": lambda x: (
        linalg.pinv(x[..., :2]),
        linalg.pinv(x * 0),
        linalg.pinv(x, atol=0.5),
        linalg.pinv(x, hermitian=True),
    ),
    "rank": lambda x: linalg.matrix_rank(x[..., :1] @ x[..., :1, :]),
    "power": lambda x: (linalg.matrix_power(x, 3), linalg.matrix_power(x, -2)),
}


def _together(parts: Any) -> Any:
    left, values, right = parts
    return left * values[..., None, :] @ right, values


def _whole(parts: Any) -> Any:
    values, vectors = parts
    return vectors * values[..., None, :] @ vectors.mT, values


@pytest.mark.parametrize("name", ONE)
def test_one_matrix(name: str) -> None:
    for lead in ((), (2, 3)):
        check(ONE[name], square(*lead))


SYSTEMS: dict[str, Callable[[Any, Any], Any]] = {
    "solve": lambda a, b: (linalg.solve(a, b), linalg.solve(a, b.mT, left=False)),
    "triangular": lambda a, b: (
        linalg.solve_triangular(a, b, upper=True), linalg.solve_triangular(a, b, upper=False, unitriangular=True),
        linalg.solve_triangular(a, b.mT, upper=True, left=False),
    ),
    "by lu": lambda a, b: tuple(
        linalg.lu_solve(*linalg.lu_factor(a), right, left=left, adjoint=adjoint)
        for right, left in ((b, True), (b.mT, False)) for adjoint in (False, True)
    ),
    "by cholesky": lambda a, b: (
        torch.cholesky_solve(b, linalg.cholesky(positive(a))),
        torch.cholesky_solve(b, linalg.cholesky(positive(a), upper=True), upper=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SYSTEMS)
def test_systems(name: str) -> None:
    check(SYSTEMS[name], square(), square()[:, :2])
    check(SYSTEMS[name], square(2, 3), square(2, 3)[..., :2])


def test_vectors_and_open_batches() -> None:
    check(linalg.solve, square(), square()[0])
    others = [(square(2), square(2)[..., 0])]
    check(linalg.solve, square(5), square()[0].expand(5, 4), open_axes=((0,), (0,)), others=others)


def test_compiled(tmp_path: Path) -> None:
    def function(a: Any, b: Any) -> Any:
        return (
            linalg.solve(a, b), linalg.inv(a), linalg.cholesky(positive(a)), linalg.qr(a).R, linalg.svdvals(a),
            linalg.eigvalsh(positive(a)), linalg.pinv(b), torch.matrix_exp(a), linalg.slogdet(a).logabsdet,
        )  # fmt: skip

    check_compiled(function, square(6), square(6)[..., :3], cache=tmp_path)
