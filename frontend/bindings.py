"""Symbols of a model's inputs: their names, the user's bindings, and equalities found on the way.

When two extents must be equal and are not known to be, `Bindings.resolve` finds the weakest condition on
the input symbols that makes them so; the import is then repeated under it. The conditions become
guards of the artifact, so a run that breaks one is refused with the user's names.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from aot import dims as dimension
from aot.dims import Dim, DimExpr, Symbol
from aot.errors import ModelError, OptionError

DimOption = int | str | tuple[int, int | None] | Symbol | DimExpr

_UNNAMED = frozenset({"", "?", "-1", "None", "none", "unk", "unknown"})
_EXPRESSION = re.compile(r"[+*/()%,]|\s-\s|-\d+$")
_LARGEST_BOUND = 1 << 40
_SHOWN = 2048  # combinations of sizes that show whether a condition is stronger than need be
# Divisors to try for a symbol, smallest first: what strided layers ask for.
_DIVISORS = tuple(sorted({2**i * odd for i in range(8) for odd in (1, 3, 5, 7)} - {1}))


class Bindings:
    """What each symbol of the inputs stands for.

    `dims` maps a symbol's name (the model's text or the plain name) or "input.axis" to a number, a
    range (lo, hi), or the name of another symbol.
    """

    def __init__(self, dims: Mapping[str, DimOption] | None = None, wished: Mapping[str, str] | None = None) -> None:
        self.options = dict(dims or {})
        self.wished = dict(wished or {})  # better names for sizes that data gives
        self.display: dict[str, str] = {}
        self._needed_by: dict[str, list[str]] = {}  # who asked for a condition on a symbol
        self._used: set[str] = set()
        self._by_text: dict[str, Symbol] = {}
        self._replaced: dict[str, Dim] = {}
        self._unbacked: set[str] = set()  # the sizes from data of this import
        self._made: dict[str, int] = {}  # in which order sizes from data were first made
        self._place: dict[str, str] = {}  # INPUT.AXIS where each of the model's texts first stands
        self._axis: dict[str, int] = {}  # where each symbol first stands in an input

    def restart(self) -> None:
        """Forgets which options were used; the conditions found so far stay."""
        self._used.clear()
        self._unbacked.clear()

    def input_dim(
        self, name: str, axis: int, declared: int | str | None, bounds: tuple[int, int | None] = (1, None)
    ) -> Dim:
        """The extent of an input's axis, after options and conditions; `bounds` are those that the model declares."""
        key = f"{name}.{axis}"
        if key in self.options:
            self._used.add(key)
            found = self._from_option(key, self.options[key], f"{name}_d{axis}")
            return _inside(key, found, bounds)
        if isinstance(declared, int) and declared >= 0:
            return declared
        text = declared if isinstance(declared, str) else ""
        if text in _UNNAMED or _EXPRESSION.search(text):
            text = key
        self._place.setdefault(text, key)
        dim = self._named(text, f"{name}_d{axis}" if text == key else text, bounds)
        if text in self._by_text:
            self._axis.setdefault(self._by_text[text].name, axis)
        return dim

    def has_option(self, place: tuple[str, int]) -> bool:
        """Whether an option names this axis of this input."""
        return f"{place[0]}.{place[1]}" in self.options

    def solved_dim(
        self, name: str, axis: int, text: str, bounds: tuple[int, int | None], scale: int, offset: int
    ) -> Dim:
        """The symbol of an input's axis whose extent is `scale * text + offset`, after options and conditions."""
        key = f"{name}.{axis}"
        if key not in self.options:
            return self._named(text, text, bounds)
        self._used.add(key)
        option = self.options[key]
        ends = (option, option) if isinstance(option, int) else option
        lo, hi = ends if isinstance(ends, tuple) else (None, None)
        if lo is not None:
            least, most = -((offset - lo) // scale), None if hi is None else (hi - offset) // scale
            if most is None or least < most:
                return _inside(key, self._named(text, text, (max(least, bounds[0]), most)), bounds)
            if least == most:
                return _inside(key, least, bounds)
        raise OptionError(
            f"a size of the form {scale}*{text} + {offset} is wanted, got {option if lo is None or lo != hi else lo}",
            where=f"dimension {key}",
            hint=f"Give such a size, or options for {text}.",
        )

    def _named(self, text: str, wish: str, bounds: tuple[int, int | None] = (1, None)) -> Dim:
        """The extent behind a symbol of the model, by the model's own text for it."""
        if text not in self._by_text:
            plain = self._fresh(wish)
            self.display[plain] = text
            self._by_text[text] = Symbol(plain, *bounds)
        symbol = self._by_text[text]
        for key in (text, symbol.name):
            if key in self.options:
                self._used.add(key)
                return _inside(key, self._apply(self._from_option(key, self.options[key], symbol.name)), bounds)
        return self._apply(symbol.dim)

    def unbacked(self, wish: str, lo: int, hi: int | None = None) -> Dim:
        """A new size that data gives when the program runs, after conditions; its name follows the wish."""
        plain = self._fresh(wish)
        self._unbacked.add(plain)
        text = self.wished.get(plain, plain)
        if text != plain:
            plain = self._fresh(text)
            self._unbacked.add(plain)
        self.display.setdefault(plain, text)
        self._made.setdefault(plain, len(self._made))
        return self._apply(Symbol(plain, lo, hi, origin="unbacked").dim)

    def _from_option(self, key: str, option: DimOption, wish: str) -> Dim:
        if isinstance(option, bool) or not isinstance(option, int | str | tuple | Symbol | DimExpr):
            raise OptionError(f"{option!r} is not a size, a range or a name", where=f"dimension {key}")
        if isinstance(option, int):
            if option < 0:
                raise OptionError(f"a size of {option} is negative", where=f"dimension {key}")
            return option
        if isinstance(option, str):
            if not option or option == key:
                raise OptionError("a name for a dimension must differ from it", where=f"dimension {key}")
            return self._named(option, option)
        if isinstance(option, Symbol):
            self.display.setdefault(option.name, key)
            return self._apply(option.dim)
        if isinstance(option, DimExpr):
            for symbol in dimension.symbols_of(option):
                self.display.setdefault(symbol.name, symbol.name)
            return self._apply(option)
        lo, hi = option
        if lo < 0 or (hi is not None and hi < lo):
            raise OptionError(f"the range {lo}..{hi} is empty or negative", where=f"dimension {key}")
        if lo == hi:
            return lo
        found = self._by_text.get(key) or next((s for s in self._by_text.values() if s.name == wish), None)
        if found is None:
            found = Symbol(self._fresh(wish))
            self.display[found.name] = key
            self._by_text[key] = found
        return self._apply(replace(found, lo=lo, hi=hi).dim)

    def _fresh(self, wish: str) -> str:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", wish)
        if not plain or plain[0].isdigit() or plain in ("min", "max"):
            plain = f"d_{plain}"
        taken = {symbol.name for symbol in self._by_text.values()} | self._unbacked
        name, number = plain, 2
        while name in taken:
            name, number = f"{plain}_{number}", number + 1
        return name

    def _apply(self, dim: Dim) -> Dim:
        return dimension.substitute(dim, lambda symbol: self._replaced.get(symbol.name, symbol.dim))

    def better_names(self, declared: Iterable[tuple[Dim, str]]) -> dict[str, str]:
        """The names that outputs declare for sizes that data gives, by the names that these have now."""
        found: dict[str, str] = {}
        for dim, text in declared:
            for symbol in dimension.symbols_of(dim):
                plain = symbol.dim == dim and symbol.origin != "input" and symbol.name in self._unbacked
                if plain and text not in _UNNAMED and not _EXPRESSION.search(text) and text not in self._by_text:
                    found.setdefault(symbol.name, text)
        return {name: text for name, text in found.items() if name != text}

    def check_used(self) -> None:
        """Raises OptionError for an option that names no dimension of the model."""
        unknown = [key for key in self.options if key not in self._used]
        if unknown:
            known = [
                f"{name} ({self._place[name]})" if self._place.get(name, name) != name else name
                for name in sorted({*self.display.values(), *self.display})
            ]
            raise OptionError(
                f"the model has no dimension {', '.join(map(repr, unknown))}",
                hint=f"It has {', '.join(known) or 'none'}; INPUT.AXIS names any size.",
            )

    def resolve(self, left: Dim, right: Dim, where: str, example: Mapping[str, int] | None = None) -> bool:
        """Finds a condition that makes the two equal, and keeps it. False where there is none.

        One that refuses no sizes at which they are equal is taken before the others. `example`: sizes, by symbol, that
        the model is known to take; a condition that refuses them is none.
        """
        found = list(self._trials(left, right))
        found = [trial for trial in found if example is None or _admits(trial, example)]
        trial = next((trial for trial in found if _is_weakest(left, right, trial)), found[0] if found else None)
        if trial is None:
            return False
        self._keep(trial, where)
        return True

    def has_weakest(self, left: Dim, right: Dim) -> bool:
        """Whether `resolve` finds a condition that refuses no sizes at which the two are equal."""
        return any(_is_weakest(left, right, trial) for trial in self._trials(left, right))

    def _trials(self, left: Dim, right: Dim) -> Iterator[Mapping[str, Dim]]:
        """The conditions that make the two equal, best first."""
        trials = [*_conditions(left, right, self._made), *_equal_factors(left - right, self._axis)]
        for whole, part in ((left, right), (right, left)):  # a count that is a multiple of the other: by what is 1
            factor = dimension.exact_div(whole, part) if part != 0 else None
            trials += [] if factor is None else _conditions(factor, 1, self._made)
        for trial in trials:

            def put(found: Symbol, trial: Mapping[str, Dim] = trial) -> Dim:
                return trial.get(found.name, found.dim)

            if dimension.substitute(left, put) == dimension.substitute(right, put):
                yield trial

    def _keep(self, trial: Mapping[str, Dim], where: str) -> None:
        """Puts dims in the place of symbols, from the next import on."""

        def put(found: Symbol) -> Dim:
            return trial.get(found.name, found.dim)

        self._replaced = {name: dimension.substitute(old, put) for name, old in self._replaced.items()}
        self._replaced = dict(trial) | self._replaced
        for name in trial:
            self._needed_by.setdefault(name, []).append(where)

    def bound(self, dim: Dim, where: str) -> bool:
        """Finds a least size that keeps `dim`, the room of a window, from being negative, and keeps it.

        False where none is needed, or none does it. Raises ModelError where no size has room.
        """
        if dimension.bounds(dim)[1] < 0:
            raise ModelError("the window is larger than every size that the model and dims allow", where=where)
        wanted = dimension.maximum(dim, 0)
        for trial in _conditions(wanted, dim, self._made) if wanted != dim else ():
            for name, replaced in trial.items():
                old = next(symbol for symbol in dimension.symbols_of(dim) if symbol.name == name)
                new = dimension.plain_symbol(replaced)
                if len(trial) > 1 or old.origin != "input" or new != replace(old, lo=max(old.lo, new.lo if new else 0)):
                    continue

                def put(found: Symbol, trial: Mapping[str, Dim] = trial) -> Dim:
                    return trial.get(found.name, found.dim)

                if dimension.substitute(wanted, put) == dimension.substitute(dim, put):
                    self._keep(trial, where)
                    return True
        return False

    def conditions(self) -> list[str]:
        """What sizes must be beyond what the model and the options say, one line for all sizes with the same."""
        found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        declared = {symbol.name: symbol for symbol in self._by_text.values()}
        for name, nodes in self._needed_by.items():
            symbol = declared.get(name, Symbol(name))
            option = self.options.get(name, self.options.get(self.display.get(name, name)))
            if isinstance(option, tuple):
                symbol = replace(symbol, lo=option[0], hi=option[1])
            words = _condition(symbol, self._replaced[name])
            if words:
                found.setdefault((words, tuple(dict.fromkeys(nodes))), []).append(name)
        return [
            self.user_text(f"{' and '.join(names)} must {words}") + f" (needed by {counted(nodes)})"
            for (words, nodes), names in found.items()
        ]

    def places(self, *dims: Dim) -> str:
        """Where the symbols of dimensions stand in the inputs, to be put behind a message; "" for none."""
        names = dict.fromkeys(symbol.name for dim in dims for symbol in dimension.symbols_of(dim))
        texts = (self.display.get(name, name) for name in names)
        found = [f"{text} is {self._place[text]}" for text in texts if self._place.get(text, text) != text]
        return f" ({', '.join(found)})" if found else ""

    def user_text(self, text: str) -> str:
        """A message with the symbols' plain names replaced by the model's own text."""

        def put(match: re.Match[str]) -> str:
            return self.display.get(match.group(), match.group())

        return re.sub(r"[A-Za-z_]\w*", put, text)


def counted(names: Sequence[str]) -> str:
    """The first of names, and how many more there are."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def _condition(declared: Symbol, dim: Dim) -> str:
    """What a symbol must do to be `dim`, beyond its declared bounds; "" where that is nothing more."""
    if isinstance(dim, int):
        return f"equal {dim}"
    symbol = dimension.plain_symbol(dim)
    if symbol is None or symbol.name != declared.name:
        return f"equal {dim}"  # the bounds of the other symbol are its own condition
    words = []
    if symbol.divisor != declared.divisor:
        words.append(f"be a multiple of {symbol.divisor}")
    above = symbol.lo if symbol.lo > max(declared.lo, symbol.divisor) else None
    below = symbol.hi if symbol.hi is not None and (declared.hi is None or symbol.hi < declared.hi) else None
    if above is not None and below is not None:
        words.append(f"be from {above} to {below}")
    elif above is not None:
        words.append(f"be at least {above}")
    elif below is not None:
        words.append(f"be at most {below}")
    return " and ".join(words)


def _admits(trial: Mapping[str, Dim], sizes: Mapping[str, int]) -> bool:
    """Whether sizes of symbols meet a condition; symbols without a size meet any."""
    for name, dim in trial.items():
        if name not in sizes or any(symbol.name not in sizes for symbol in dimension.symbols_of(dim)):
            continue
        size, only = sizes[name], dimension.plain_symbol(dim)
        if dimension.evaluate(dim, sizes) != size:
            return False
        if only is not None and (size < only.lo or size % only.divisor or (only.hi is not None and size > only.hi)):
            return False
    return True


def _is_weakest(left: Dim, right: Dim, trial: Mapping[str, Dim]) -> bool:
    """Whether a condition refuses no sizes at which the two are equal, as far as small sizes show."""
    symbols = dict.fromkeys((*dimension.symbols_of(left), *dimension.symbols_of(right)))
    return not any(not _admits(trial, sizes) and are_equal(left, right, sizes) for sizes in small_sizes(symbols))


def small_sizes(symbols: Collection[Symbol]) -> Iterator[dict[str, int]]:
    """Combinations of the smallest sizes of symbols but 0, by name: what they show is taken to hold for all."""
    shown = max(3, round(_SHOWN ** (1 / max(len(symbols), 1))))
    choices = []
    for symbol in symbols:
        least = -(-max(symbol.lo, 1) // symbol.divisor) * symbol.divisor
        steps = range(least, least + shown * symbol.divisor, symbol.divisor)
        choices.append([size for size in steps if symbol.hi is None or size <= symbol.hi])
    for point in itertools.product(*choices):
        yield {symbol.name: size for symbol, size in zip(symbols, point, strict=True)}


def are_equal(left: Dim, right: Dim, sizes: Mapping[str, int]) -> bool:
    """Whether two dimensions are equal for these sizes; one that divides by 0 equals nothing."""
    try:
        return dimension.evaluate(left, sizes) == dimension.evaluate(right, sizes)
    except ZeroDivisionError:
        return False


def _conditions(left: Dim, right: Dim, made: Mapping[str, int]) -> Iterator[dict[str, Dim]]:
    """Candidate conditions, best first: what replaces symbols, by name."""
    difference = left - right

    # A size that data gives may be said to equal what is known before it, and not the reverse: the latest comes first.
    def age(symbol: Symbol) -> int:
        return -1 - made.get(symbol.name, -1)

    symbols = sorted(dimension.symbols_of(difference), key=age)
    solved = sorted(
        (
            (symbol, dim)
            for symbol in symbols
            if (dim := _solve(difference, symbol)) is not None
            and all(age(other) > age(symbol) or age(other) == age(symbol) == 0 for other in dimension.symbols_of(dim))
        ),
        key=lambda pair: (
            age(pair[0]),
            not isinstance(pair[1], int),
            dimension.bounds(pair[1])[0] < pair[0].lo,
            len(str(pair[1])),
        ),
    )
    for symbol, dim in solved:
        lo, hi = dimension.bounds(dim)
        if hi < symbol.lo or (symbol.hi is not None and lo > symbol.hi):
            continue
        if isinstance(dim, int) and dim % symbol.divisor:
            continue
        replaced = {symbol.name: dim}
        other = dimension.plain_symbol(dim)
        if other is not None and other.origin == symbol.origin:
            merged = _merge(symbol, other)
            if merged is None:
                continue
            replaced = {symbol.name: merged.dim, other.name: merged.dim}
        yield replaced
    for symbol in symbols:
        usual = dimension.typical_extent(symbol)
        ranges = list(_bound_candidates(difference, symbol))
        # Where both sides of a bound would do, the one with the usual sizes: the other leaves 0 or 1 element.
        for least, most in sorted(
            ranges, key=lambda ends: not ends[0] <= usual <= (usual if ends[1] is None else ends[1])
        ):
            yield {symbol.name: replace(symbol, lo=least, hi=most).dim}
    for symbol in symbols:
        for least, most in _level_candidates(left, right, symbol):
            yield {symbol.name: least if least == most else replace(symbol, lo=least, hi=most).dim}
    exact = dimension.exact_quotients(difference)
    if exact:
        yield {symbol.name: found.dim for symbol, found in exact.items()}
    for symbol in symbols:
        for divisor in _DIVISORS if symbol.origin == "input" else ():
            if divisor % symbol.divisor == 0 and divisor != symbol.divisor:
                least = -(-max(symbol.lo, 1) // divisor) * divisor
                if symbol.hi is None or symbol.hi >= least:
                    yield {symbol.name: replace(symbol, divisor=divisor, lo=least).dim}
    sides = [set(dimension.symbols_of(side)) for side in (left, right)]
    alone = [sorted(side - sides[1 - number], key=str) for number, side in enumerate(sides)]
    if [len(found) for found in alone] == [1, 1]:  # the same of two sizes: stronger than need be, and what is meant
        (one,), (other,) = alone
        merged = _merge(one, other) if one.origin == other.origin == "input" else None
        if merged is not None:
            yield {one.name: merged.dim, other.name: merged.dim}


def _equal_factors(difference: Dim, axis: Mapping[str, int]) -> Iterator[dict[str, Dim]]:
    """Symbols of a quotient's two sides that may be one: `a * b // c`, where nothing says that c divides a * b.

    Exporters name the batch of each input on its own; a reshape of one by the batch of another then divides so.
    Symbols of the same axis come first.
    """
    for call in dimension.calls_of(difference):
        divisor = dimension.plain_symbol(call.args[1]) if call.function == "floordiv" else None
        if divisor is None:
            continue
        found = [s for s in dimension.symbols_of(call.args[0]) if s.origin == "input" and s.name != divisor.name]
        for symbol in sorted(found, key=lambda s: axis.get(s.name, -1) != axis.get(divisor.name, -2)):
            merged = _merge(divisor, symbol)
            if merged is not None:
                yield {divisor.name: merged.dim, symbol.name: merged.dim}


def _merge(left: Symbol, right: Symbol) -> Symbol | None:
    """`right` with the bounds of both; None where no size fits."""
    lo = max(left.lo, right.lo)
    ends = [symbol.hi for symbol in (left, right) if symbol.hi is not None]
    hi = min(ends) if ends else None
    if hi is not None and hi < lo:
        return None
    return replace(right, lo=lo, hi=hi, divisor=math.lcm(left.divisor, right.divisor))


def _solve(difference: Dim, symbol: Symbol) -> Dim | None:
    """The value of a symbol that makes a difference zero, where the symbol occurs once and linearly."""
    terms, _ = dimension.terms_of(difference)
    coefficients = [coefficient for monomial, coefficient in terms if monomial == (symbol,)]
    if len(coefficients) != 1:
        return None
    rest = difference - symbol.dim * coefficients[0]
    if symbol in dimension.symbols_of(rest):
        return None
    return dimension.exact_div(-rest, coefficients[0])


def _bound_candidates(difference: Dim, symbol: Symbol) -> Iterator[tuple[int, int | None]]:
    """Bounds on a symbol that decide a min or max in which it meets a number."""
    for call in dimension.calls_of(difference):
        if call.function not in ("min", "max"):
            continue
        for number in call.args:
            for other in call.args:
                if not isinstance(number, int) or dimension.symbols_of(other) != (symbol,):
                    continue
                growing, reached = (-other, -number) if _shrinks(other, symbol) else (other, number)
                least = _least(growing, symbol, reached)
                if least is None:
                    continue
                # It is at least `reached` from `least` on, and at most that until `limit`.
                above = _least(growing, symbol, reached + 1)
                limit = above - 1 if above is not None else None
                if limit is not None and limit >= symbol.lo and (symbol.hi is None or limit < symbol.hi):
                    yield symbol.lo, limit
                if least > symbol.lo and (symbol.hi is None or least <= symbol.hi):
                    yield least, symbol.hi


def _level_candidates(left: Dim, right: Dim, symbol: Symbol) -> Iterator[tuple[int, int]]:
    """Ranges of a symbol in which a size that only grows with it is one number."""
    growing, number = (left, right) if isinstance(right, int) else (right, left)
    if not isinstance(number, int) or dimension.symbols_of(growing) != (symbol,):
        return
    first, above = _least(growing, symbol, number), _least(growing, symbol, number + 1)
    if first is None or above is None:
        return
    first, last = max(first, symbol.lo), above - 1 if symbol.hi is None else min(above - 1, symbol.hi)
    # The whole range first; then the parts in which a min or max inside is decided as well.
    for least, most in ((first, last), *_bound_candidates(left - right, symbol)):
        low, high = max(first, least), last if most is None else min(last, most)
        if low <= high:
            yield low, high


def _shrinks(dim: Dim, symbol: Symbol) -> bool:
    """Whether a dimension becomes smaller as its only symbol grows."""
    near, far = (dimension.evaluate(dim, {symbol.name: size}) for size in (symbol.lo, symbol.lo + (1 << 30)))
    return far < near


def _least(dim: Dim, symbol: Symbol, number: int) -> int | None:
    """The least size of a symbol for which a dimension that only grows with it reaches a number."""

    def reaches(size: int) -> bool:
        return dimension.evaluate(dim, {symbol.name: size}) >= number

    low, high = 0, 1
    while not reaches(high):
        low, high = high, high * 2
        if high > _LARGEST_BOUND:
            return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle + 1, high)
    return low


def _inside(key: str, dim: Dim, bounds: tuple[int, int | None]) -> Dim:
    """A dim that an option gives. Raises OptionError beyond what the model declares, where it may be wrong."""
    lo, hi = bounds
    least, most = dimension.bounds(dim)
    if (hi is not None and most > hi) or (lo > 1 and least < lo):
        asked = str(dim) if isinstance(dim, int) else f"{least:g}..{'' if most == math.inf else f'{most:g}'}"
        raise OptionError(
            f"{asked} is asked for, and the model holds for {lo}..{'' if hi is None else hi} alone",
            where=f"dimension {key}",
            hint="Ask for less, or export the model for a wider range.",
        )
    return dim
