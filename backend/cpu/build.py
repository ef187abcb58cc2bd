"""From C sources to one shared object, the same bytes for the same input.

Every source is compiled to an object of its own, in parallel, through a content-addressed cache;
the objects are then linked, in the order given, without libc, paths, times or build ids.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aot.backend.cpu.isa import Isa
from aot.backend.cpu.source import compile_fault, link_fault
from aot.errors import CompilerError, TargetError

FLAGS = (
    "-std=gnu11",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-fno-builtin",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-ident",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wno-psabi",
    "-Werror=implicit-function-declaration",
)
GCC_FLAGS = ("-fno-tree-loop-distribute-patterns", "-fcf-protection=none")
LINK_FLAGS = (
    "-shared",
    "-nostdlib",
    "-s",
    "-Wl,-z,defs",  # what is called must be there now, not when the artifact is loaded
    "-Wl,--build-id=none",
    "-Wl,-z,noexecstack",
    "-Wl,-z,relro",
    "-Wl,-z,max-page-size=4096",
    "-Wl,--hash-style=gnu",
)
# Compilers may call these even in freestanding code.
SUPPORT = """\
typedef __SIZE_TYPE__ size;
__attribute__((visibility("hidden"))) void *memcpy(void *to, const void *from, size n) {
  void *const result = to;
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
  return result;
}
__attribute__((visibility("hidden"))) void *memmove(void *to, const void *from, size n) {
  char *a = to; const char *b = from;
  if ((size)(a - b) >= n) return memcpy(to, from, n);
  while (n--) { a[n] = b[n]; __asm__ volatile("" : : : "memory"); }
  return to;
}
__attribute__((visibility("hidden"))) void *memset(void *to, int value, size n) {
  void *const result = to;
  __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(value) : "memory");
  return result;
}
__attribute__((visibility("hidden"))) int memcmp(const void *left, const void *right, size n) {
  const unsigned char *a = left, *b = right;
  for (size i = 0; i < n; i++) if (a[i] != b[i]) return a[i] - b[i];
  return 0;
}
"""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler: the command, what it calls itself, and the flags that only it knows."""

    command: tuple[str, ...]
    version: str
    flags: tuple[str, ...]

    def isa_flags(self, isa: Isa) -> tuple[str, ...]:
        """The flags of an instruction set; zig writes its names with underscores."""
        if not self.version.startswith("zig"):
            return isa.flags
        return tuple(flag.replace("x86-64-", "x86_64_") for flag in isa.flags)


def find_compiler(requested: str = "") -> Compiler:
    """The compiler to use: the requested command, else cc, gcc, clang, else the ziglang package.

    Raises TargetError where there is none, or where the requested one does not run.
    """
    return _find(requested)


@cache
def _find(requested: str) -> Compiler:
    if requested:
        found = _identify(tuple(requested.split()))
        if found is None:
            raise TargetError(
                f"the C compiler {requested!r} does not run", hint="Name a gcc, clang or zig cc, with --cc or AOTC_CC."
            )
        return found
    for command in (("cc",), ("gcc",), ("clang",), (sys.executable, "-m", "ziglang", "cc")):
        found = _identify(command)
        if found is not None:
            return found
    raise TargetError(
        "no C compiler found (looked for cc, gcc, clang, python -m ziglang)",
        hint="Install gcc 11 or newer, clang 14 or newer, or `pip install aotc[cpu]`.",
    )


def _identify(command: tuple[str, ...]) -> Compiler | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        macros = subprocess.run(
            [*command, "-dM", "-E", "-x", "c", "-"], input=b"", capture_output=True, timeout=120, check=True
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None
    defined = dict(line.split(" ", 2)[1:] for line in macros.splitlines() if line.count(" ") >= 2)
    version = defined.get("__VERSION__", "").strip('"')
    if "__clang__" in defined:
        name = "zig cc" if "ziglang" in command else "clang"
        return Compiler(command, f"{name} {version}", ())
    return Compiler(command, f"gcc {version}", GCC_FLAGS)


def build(
    sources: Sequence[tuple[str, str]], isa: Isa, compiler: Compiler, cache_dir: Path | None, jobs: int = 0
) -> bytes:
    """Compiles (symbol, source) pairs and links them; each source defines the function KERNEL.

    Raises CompilerError with the compiler's first lines if a source does not compile; OperatorError if it is a user's.
    """
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        work = Path(folder)
        units = [*sources, ("", SUPPORT)]

        def one(number: int) -> Path:
            symbol, source = units[number]
            return _object(symbol, source, isa, compiler, cache_dir, work / f"{number}.o")

        with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
            objects = list(pool.map(one, range(len(units))))
        # A response file: thousands of objects do not fit on a command line.
        for number, path in enumerate(objects):
            if path.parent != work:
                (work / f"{number}.o").write_bytes(path.read_bytes())
        (work / "objects").write_text("\n".join(f"{number}.o" for number in range(len(objects))))
        command = [*compiler.command, *LINK_FLAGS, *compiler.isa_flags(isa), "-o", "kernels.so", "@objects"]
        try:
            _run(command, "", "linking the kernels", work)
        except _CompilerFailed as error:
            raise link_fault([source for _, source in units], error.lines) or error from None
        return (work / "kernels.so").read_bytes()


def _object(symbol: str, source: str, isa: Isa, compiler: Compiler, cache_dir: Path | None, path: Path) -> Path:
    flags = [*FLAGS, *compiler.flags, *compiler.isa_flags(isa)]
    key = hashlib.sha256("\0".join([compiler.version, *flags, symbol, source]).encode()).hexdigest()
    cached = None if cache_dir is None else cache_dir / "cpu" / key[:2] / f"{key}.o"
    if cached is not None and cached.exists():
        return cached
    define = [f"-DKERNEL={symbol}"] if symbol else []
    try:
        _run([*compiler.command, *flags, *define, "-c", "-x", "c", "-", "-o", str(path)], source, symbol, path.parent)
    except _CompilerFailed as error:
        raise compile_fault(source, error.lines) or error from None
    if cached is not None:
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            aside = cached.with_name(f"{cached.name}.{os.getpid()}.{path.name}")
            shutil.copyfile(path, aside)
            os.replace(aside, cached)
        except OSError:
            return path  # a cache that cannot be written is only slower
    return path


class _CompilerFailed(CompilerError):
    """A compiler or linker failed; `lines` are what it said."""

    lines: Sequence[str] = ()


def _run(command: Sequence[str], source: str, what: str, folder: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
    try:
        done = subprocess.run(
            command, input=source.encode(), capture_output=True, cwd=folder, env=environment, check=False
        )
    except OSError as error:
        raise TargetError(f"cannot run {command[0]}: {error.strerror}", where=what) from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines()
        problems = [line for line in lines if "error" in line] or lines
        failed = _CompilerFailed("the C compiler failed: " + "; ".join(problems[:6]), where=what)
        failed.lines = lines
        raise failed
