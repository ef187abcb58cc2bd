"""NVIDIA drivers as people name them (550, 550.54.14) and as CUDA does (12.4, 12040)."""

from __future__ import annotations

import re

BRANCHES: tuple[tuple[int, int, str], ...] = (
    (384, 9000, "384.81"),
    (390, 9010, "390.46"),
    (396, 9020, "396.26"),
    (410, 10000, "410.48"),
    (418, 10010, "418.39"),
    (440, 10020, "440.33"),
    (450, 11000, "450.36.06"),
    (455, 11010, "455.23"),
    (460, 11020, "460.27.03"),
    (465, 11030, "465.19.01"),
    (470, 11040, "470.42.01"),
    (495, 11050, "495.29.05"),
    (510, 11060, "510.39.01"),
    (515, 11070, "515.43.04"),
    (520, 11080, "520.61.05"),
    (525, 12000, "525.60.13"),
    (530, 12010, "530.30.02"),
    (535, 12020, "535.54.03"),
    (545, 12030, "545.23.06"),
    (550, 12040, "550.54.14"),
    (555, 12050, "555.42.02"),
    (560, 12060, "560.28.03"),
    (565, 12070, "565.57.01"),
    (570, 12080, "570.26"),
    (575, 12090, "575.51.03"),
    (580, 13000, "580.65.06"),
)
"""(branch, the version of CUDA that it supports, its first version for Linux): CUDA's release notes, table "CUDA
Toolkit and Corresponding Driver Versions". A branch keeps its version of CUDA."""


def cuda_version(text: str) -> int | None:
    """CUDA's version, such as 12040, of a driver's branch or version ("550", "550.54"), or of CUDA's ("12.4", "12040").

    Of a branch that is not in the table, that of the nearest older one, which it supports too. None for anything else,
    and for branches before the table.
    """
    if re.fullmatch(r"\d{3,4}0", text) and int(text) >= BRANCHES[0][1]:
        return int(text)
    if found := re.fullmatch(r"(\d\d?)\.(\d{1,2})", text):
        return 1000 * int(found[1]) + 10 * int(found[2])
    if found := re.fullmatch(r"(\d{3})(?:\.\d+){0,2}", text):
        return max((cuda for branch, cuda, _ in BRANCHES if branch <= int(found[1])), default=None)
    return None


def cuda_text(cuda: int) -> str:
    """12040 as "12.4"."""
    return f"{cuda // 1000}.{cuda % 1000 // 10}"


def driver_text(cuda: int) -> str:
    """The oldest driver that supports a version of CUDA, in words."""
    first = next((version for _, supports, version in BRANCHES if supports >= cuda), None)
    return f"a driver for CUDA {cuda_text(cuda)}" if first is None else f"{first} (CUDA {cuda_text(cuda)})"
