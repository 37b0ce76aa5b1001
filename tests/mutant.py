"""A bug that is easy to write and hard to see, and the gate that must catch it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` stands in `file` once, and becomes `new`; then the tests of `gate` fail by `error`."""

    name: str
    file: str
    old: str
    new: str
    gate: str  # a test, as pytest names it; several are separated by a space
    error: str = "assert|AssertionError|DID NOT RAISE"  # how the gate fails: a regular expression
    is_slow: bool = False  # its gate takes more than some seconds: not in the suite

    @property
    def tests(self) -> list[str]:
        return self.gate.split()
