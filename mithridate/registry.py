"""Names for environments, agents, attackers and kinds of attacks.

A new one is one file and one decorator:

    @AGENTS.register("my_agent")
    class MyAgent: ...

Registering also enrols the class in the contract tests (`tests/test_contracts.py`).
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from mithridate.errors import UserError, shown, unknown
from mithridate.files import json_or_text

T = TypeVar("T", bound=type)


class Registry(Generic[T]):
    """Maps names to classes of one kind; the built-in ones load on the first look-up."""

    def __init__(self, kind: str, package: str, needs: Sequence[str] = ()) -> None:
        """`needs`: what its classes must have."""
        self.kind = kind
        self._package = package
        self._needs = needs
        self._classes: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        def add(cls: T) -> T:
            if self._classes.get(name, cls).__qualname__ != cls.__qualname__:
                raise ValueError(f"{self.kind} '{name}' is already registered")
            self._check(cls)
            self._classes[name] = cls
            cls.registered_name = name  # type: ignore[attr-defined]
            return cls

        return add

    def _check(self, cls: T) -> None:
        for need in self._needs:
            if not hasattr(cls, need):
                close = difflib.get_close_matches(need, vars(cls), n=1)
                hint = f"; did you mean '{need}' by '{close[0]}'?" if close else ""
                raise UserError(f"{self.kind} class {cls.__name__} has no '{need}'{hint}")

    def names(self) -> list[str]:
        importlib.import_module(self._package)
        return sorted(self._classes)

    def known(self, name: str) -> str | None:
        """The registered name that is meant, whatever its case; None if there is none."""
        if not isinstance(name, str):
            raise UserError(f"{self.kind}: its name must be a string, not {shown(name, 40)}")
        if name in self.names():
            return name
        return next((n for n in self._classes if n.lower() == name.lower()), None)

    def get(self, name: str) -> T:
        found = self.known(name)
        if found is None:
            raise unknown(self.kind, name, self._classes)
        return self._classes[found]

    def create(self, name: str, /, **parameters: Any) -> Any:
        """An instance of the class called `name`, its `Config` filled from `parameters`."""
        from mithridate.settings import parse

        cls = self.get(name)
        config_type = getattr(cls, "Config", None)
        if config_type is None:
            if parameters:
                raise UserError(f"{self.kind} '{name}' takes no parameters")
            return cls()
        return cls(parse(config_type, parameters, where=f"{self.kind} '{name}'"))

    def make(self, text: str, **defaults: Any) -> Any:
        """The same from 'name' or 'name(key=value,…)'. Of the defaults, those that its `Config`
        knows count, where the text says nothing."""
        name, parameters = parse_call(text, self.kind)
        fields = getattr(getattr(self.get(name), "Config", None), "model_fields", {})
        known = {key: value for key, value in defaults.items() if key in fields}
        return self.create(name, **(known | parameters))


def parse_call(text: str, kind: str = "agent") -> tuple[str, dict[str, Any]]:
    """'name(key=value,…)' as the name and its parameters."""
    match = re.fullmatch(r"([^()]+)(?:\((.*)\))?", text)
    text = shown(text)
    if not match:
        raise UserError(f"{kind} '{text}': expected name or name(key=value,…)")
    name, inside = match[1], match[2]
    parameters: dict[str, Any] = {}
    for pair in inside.split(",") if inside else []:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals:
            raise UserError(f"{kind} '{text}': expected key=value, not '{shown(pair)}'")
        parameters[key] = json_or_text(value, f"{kind} '{text}'")
    return name, parameters


ENVS: Registry[Any] = Registry(
    "environment", "mithridate.envs",
    ("Config", "presets", "attacks", "learned_attack", "budget", "peer", "sample_tasks", "reset",
     "step", "observe", "action_values", "optimal_action", "score", "sample_contexts"),
)  # fmt: skip
AGENTS: Registry[Any] = Registry("agent", "mithridate.agents", ("reset", "act", "observe"))
ATTACKERS: Registry[Any] = Registry(
    "attacker", "mithridate.attackers", ("Config", "reset", "poison", "cost")
)
KINDS: Registry[Any] = Registry(
    "attack kind", "mithridate.evaluation.kinds", ("trained", "column", "title", "rounds")
)
