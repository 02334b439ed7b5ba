"""From what a user says to a configuration: defaults, then an environment's preset, then what was
said directly, then `--set`. What is wrong is a one-line error that names the key and the remedy."""

from __future__ import annotations

import copy
import difflib
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from mithridate.config import Config, EnvConfig
from mithridate.errors import Caution, UserError, shown, unknown
from mithridate.files import DEEPEST, json_or_text
from mithridate.registry import ENVS
from mithridate.sizes import check_size

PRESETS = ("smoke", "laptop", "paper")
FIRST_EDITION = "laptop-v1"
"""The laptop preset of the first edition, for whoever trains its models again; where an environment
says nothing about it, it is the laptop preset."""
StageKind = Literal["pretrain", "distill", "train", "attack", "evaluate"]
ConfigT = TypeVar("ConfigT", bound=Config)


def parse(config_type: type[ConfigT], data: Mapping[str, Any], where: str = "config") -> ConfigT:
    """`data` as a `config_type`, or a one-line error that names the key and the remedy. What no
    memory could hold is an error, too."""
    if not isinstance(data, Mapping):
        raise UserError(f"{where}: expected keys and values, not {_input(data)}")
    data = dict(data)
    env_field = config_type.model_fields.get("env")
    if env_field is not None and isinstance(data.get("env"), Mapping):
        data["env"] = _parse_env(data["env"], where)
    try:
        config = config_type.model_validate(data)
    except ValidationError as error:
        raise _one_line(error, config_type, where) from None
    if env_field is not None:
        check_size(config)
    for text in config.cautions():
        warnings.warn(text, Caution, stacklevel=2)
    return config


def resolve(
    config_type: type[ConfigT],
    stage: StageKind,
    env: str | EnvConfig,
    preset: str = "laptop",
    sets: Sequence[str] = (),
    **direct: Any,
) -> ConfigT:
    """Defaults, then the environment's preset for this stage, then `direct`, then `--set`s. An
    environment with a configuration of its own keeps it."""
    data = preset_settings(stage, env, preset)
    name = data["env"]["name"]
    _merge(data, {key: value for key, value in direct.items() if value is not None})
    short = data.get("batches", {}).pop("short_length", None)  # it may have to follow the horizon
    for text in sets:
        _merge(data, _assignment(text))
    if not isinstance(data["env"], dict):
        raise UserError(f"--set env: expected keys and values, not {_input(data['env'])}")
    if data["env"].get("name") != name:
        raise UserError(f"--set env.name: the environment is the argument '{name}'")
    if data.get("preset", preset) != preset:
        raise UserError("--set preset: it is an option of its own, --preset")
    parsed = _parse_env(data["env"], "config")
    data["env"] = parsed
    if short is not None and isinstance(data["batches"], dict):
        data["batches"].setdefault("short_length", min(short, parsed.horizon))
    return parse(config_type, data)


def preset_settings(stage: StageKind, env: str | EnvConfig, preset: str) -> dict[str, Any]:
    """What a preset says about a stage in an environment, which may be there already."""
    if preset not in (*PRESETS, FIRST_EDITION):
        raise unknown("preset", shown(preset), PRESETS)
    data: dict[str, Any] = {}
    if isinstance(env, str) or ENVS.known(env.name) is not None:  # or somebody's own, without any
        found = ENVS.get(env if isinstance(env, str) else env.name)
        data |= {"env": {"name": found.registered_name}, **_of_environment(stage, found)}
        presets = found.presets.get(stage, {})
        earlier = preset == FIRST_EDITION and preset not in presets
        _merge(data, presets.get("laptop" if earlier else preset, {}))
    if not isinstance(env, str):
        data["env"] = env.to_json()
    if stage == "evaluate":
        data["preset"] = preset  # attackers that are trained for it have settings of their own
    return data


def _of_environment(stage: StageKind, env: Any) -> dict[str, Any]:
    """What an environment's class says about attacks in it, for a stage that has any."""
    if stage == "pretrain":
        return {}
    said: dict[str, Any] = {"budget": env.budget}
    if stage == "attack":
        said["attacker"] = env.learned_attack
    if stage == "train":
        threats = {env.learned_attack: 0.8, "none": 0.2}
        said["threats"] = [{"attacker": name, "share": s} for name, s in threats.items()]
    return said


def _parse_env(data: Mapping[str, Any], where: str) -> EnvConfig:
    name = data.get("name")
    if not isinstance(name, str):
        raise UserError(f"{where} env: 'name' should be the environment's, not {_input(name)}")
    config: EnvConfig = parse(ENVS.get(name).Config, data, where=f"{where} env")
    return config


def _assignment(text: str) -> dict[str, Any]:
    """'a.b=1' as {'a': {'b': 1}}; the value is JSON, or else a plain string."""
    key, equals, value = text.partition("=")
    keys = key.split(".")
    if not equals or not all(keys) or len(keys) > DEEPEST:
        raise UserError(f"--set '{shown(text)}': expected key=value or key.subkey=value")
    parsed = json_or_text(value, f"--set '{text}'")
    for part in reversed(keys):
        parsed = {part: parsed}
    result: dict[str, Any] = parsed
    return result


def _merge(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Deep merge; `other` wins."""
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(dict(value) if isinstance(value, Mapping) else value)


def _one_line(error: ValidationError, config_type: type[Config], where: str) -> UserError:
    first = error.errors()[0]
    path = [shown(part, 80) for part in first["loc"]]
    dotted = ".".join(path)
    if first["type"] == "extra_forbidden":
        valid = _keys_at(config_type, path[:-1])
        close = difflib.get_close_matches(path[-1], valid, n=1, cutoff=0.4)
        hint = f"; did you mean '{'.'.join([*path[:-1], close[0]])}'?" if close else ""
        return UserError(f"{where}: unknown key '{dotted}'{hint} (keys: {', '.join(valid)})")
    message = shown(first["msg"].removeprefix("Value error, "), 500)
    if first["type"] == "missing":
        return UserError(f"{where}: '{dotted}' is missing")
    got = "" if first["type"] == "value_error" else f", not {_input(first['input'])}"
    prefix = f"'{dotted}': " if dotted else ""
    return UserError(f"{where}: {prefix}{message[0].lower()}{message[1:]}{got}")


def _input(value: Any) -> str:
    """What was given, as an error shows it."""
    return shown(json.dumps(value, default=str), 80)


def _keys_at(config_type: type[Config], path: Sequence[str]) -> list[str]:
    """The valid keys of the (sub)configuration at `path`."""
    for part in path:
        field = config_type.model_fields.get(part)
        annotation = None if field is None else field.annotation
        if not (isinstance(annotation, type) and issubclass(annotation, Config)):
            return []
        config_type = annotation
    return sorted(config_type.model_fields)
