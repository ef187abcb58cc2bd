from aot.kernel import Kernel
from aot.backend.cpu.isa import Isa
from aot.backend.base import Emitted
def prefers_winograd(kernel: Kernel, isa: Isa) -> bool:
    return False
def emit_winograd(kernel: Kernel, isa: Isa) -> Emitted:
    raise AssertionError
