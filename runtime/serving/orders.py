"""What operators want of a canary that another process controls: small files in its directory, each followed once."""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from aot.errors import RunError
from aot.runtime.serving.journal import StateError

ORDERS = ("pause", "resume", "promote", "roll back")


@dataclass(frozen=True, slots=True)
class Order:
    """`what`: one of ORDERS; `who` and `why`: for the audit log, neither empty. Raises RunError for another."""

    what: str
    who: str
    why: str

    def __post_init__(self) -> None:
        if self.what not in ORDERS:
            raise RunError(f"an order is one of {', '.join(ORDERS)}; found {self.what!r}")
        for name in ("who", "why"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise RunError(f"an operator's decision has a name and a reason; {name!r} is empty",
                               hint="The audit log keeps both.")  # fmt: skip


def leave_order(directory: str | os.PathLike[str], order: Order) -> str:
    """Leaves an order for the controller, which follows it when it decides next; returns its name.

    It is on disk whole, or not at all. Raises RunError where it cannot be written.
    """
    folder = Path(directory) / "orders"
    name = f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}.json"
    beside = folder / f".{name}"
    try:
        folder.mkdir(exist_ok=True)
        with beside.open("w", encoding="utf-8") as file:
            json.dump(asdict(order), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, folder / name)
    except OSError as error:
        raise StateError(f"the order cannot be written: {error.strerror or error}", where=str(folder)) from error
    return name


def read_orders(directory: Path) -> list[tuple[str, Order | RunError]]:
    """(name, order) of those that wait, the oldest first; an error in place of one that cannot be read."""
    folder = directory / "orders"
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json") and not name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StateError(f"orders cannot be read: {error.strerror or error}", where=str(folder)) from error
    orders: list[tuple[str, Order | RunError]] = []
    for name in names:
        try:
            document = json.loads((folder / name).read_text(encoding="utf-8"))
            orders.append((name, Order(document["what"], document["who"], document["why"])))
        except FileNotFoundError:
            continue
        except RunError as error:
            orders.append((name, error))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            orders.append((name, RunError(f"the order cannot be read: {error!r}")))
    return orders


def finish_order(directory: Path, name: str) -> None:
    """Removes an order; one that stays is not followed again, since the journal has its name."""
    try:
        (directory / "orders" / name).unlink(missing_ok=True)
    except OSError:
        pass
