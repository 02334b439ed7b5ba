"""Driver `arguments`: every command with one or two of its options wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from fuzzing.mutations import Step, pick
from fuzzing.plans import Plan
from fuzzing.templates import MODEL_STAGES, RECIPE, ROUNDS, SHORT, SMOKE, STEPS, Templates
from fuzzing.values import DEEP, DIGITS, LONG_NAME, NO_FLOATS, NO_INTEGERS, TEXTS


@dataclass(frozen=True)
class Command:
    """A command that works, and is cheap, as it stands."""

    words: tuple[str, ...]
    options: dict[str, str | None] = field(default_factory=dict)
    """None for a flag."""
    sets: tuple[str, ...] = ()
    kinds: dict[str, str] = field(default_factory=dict)
    """What kind of value an option takes (VALUES)."""
    writes: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    """Settings that memory depends on."""


RUN = {"--preset": "preset", "--seed": "integer", "--out": "out"}
LEVEL = {"--eps": "share", "--budget": "float"}
ARM_SIZES = ("env.arms", "env.horizon")
TRAIN_SIZES = (*ARM_SIZES, "batches.long_batch", "final_tasks", "evaluate_tasks")
EVALUATION = ("tasks=2", "rounds=1", *SHORT)

COMMANDS = {
    "pretrain": Command(
        ("pretrain", "bandit"), {"--out": "out"}, STEPS, RUN, ("out", "runs"),
        (*TRAIN_SIZES, "model.width", "model.layers"),
    ),
    "distill": Command(
        ("distill", "bandit"), {"--out": "out", "--source": "ts"},
        (*STEPS, "tasks=2", "refresh_every=2"),
        {**RUN, **LEVEL, "--source": "agent", "--attacker": "attacker"}, ("out", "runs"),
        (*TRAIN_SIZES, "model.width", "tasks"),
    ),
    "train": Command(
        ("train", "bandit"), {"--out": "out", "--from": "m"}, ROUNDS,
        {**RUN, **LEVEL, "--from": "model", "--figure": "figure"}, ("out", "runs", "f.png"),
        ("env.horizon", "batches.long_batch", "final_tasks", "evaluate_tasks", "tasks"),
    ),
    "attack": Command(
        ("attack", "bandit"), {"--out": "out", "--target": "ts", "--rounds": "1"},
        ("tasks=2", *SHORT),
        {**RUN, **LEVEL, "--target": "agent", "--rounds": "number", "--figure": "figure"},
        ("out", "runs", "f.png"), (*ARM_SIZES, "tasks"),
    ),
    "evaluate": Command(
        ("evaluate", "bandit"), {"--agents": "ts", "--attackers": "none,swap"}, EVALUATION,
        {**LEVEL, "--preset": "preset", "--seed": "integer", "--agents": "agents",
         "--attackers": "attackers", "--tasks": "count", "--replications": "count",
         "--figure": "figure"}, ("runs", "f.png"), (*ARM_SIZES, "tasks", "replications"),
    ),
    "evaluate linear": Command(
        ("evaluate", "linear_bandit"), {"--agents": "linucb", "--attackers": "none,swap"},
        EVALUATION, {**LEVEL, "--seed": "integer", "--agents": "agents"}, ("runs",),
        (*ARM_SIZES, "env.dimension", "tasks"),
    ),
    "evaluate room": Command(
        ("evaluate", "darkroom2"), {"--agents": "q_learning", "--attackers": "none,swap_goals"},
        EVALUATION, {**LEVEL, "--seed": "integer", "--agents": "agents"}, ("runs",),
        ("env.size", "env.horizon", "tasks"),
    ),
    "picture": Command(
        ("picture", "darkroom2"), {"--agent": "oracle", "--out": "f.png", "--task": "0"},
        EVALUATION, {**LEVEL, "--agent": "agent", "--attacker": "attacker", "--task": "integer",
                     "--out": "figure!", "--seed": "integer", "--preset": "preset"},
        ("runs", "f.png"), ("env.size", "env.horizon", "tasks"),
    ),
    "stress": Command(
        ("stress", "bandit"), {"--agent": "ts", "--suite": "smoke-v0", "--out": "out"}, (),
        {"--agent": "agent", "--suite": "preset", "--out": "out"}, ("out", "runs"),
    ),
    "doctor": Command(("doctor",)),
    "bench": Command(("bench",), {"--quick": None}, (), {"--only": "part", "--threads": "integer"}),
    "demo": Command(("demo",), {"--help": None}),
    "reproduce": Command(
        ("reproduce", RECIPE), {"--dry-run": None, "--replications": "1", "--store": "s"},
        MODEL_STAGES,
        {"--replications": "count", "--seed": "integer", "--preset": "preset",
         "--executor": "executor", "--workers": "number", "--store": "store?"},
        (), ("pretrain.batches.long_batch", "evaluate.tasks", "pretrain.model.width"),
    ),
    "list": Command(("reproduce",), {"--list": None}),
    "report": Command(
        ("report",), {"--store": "store", "--out": "r.html"}, (),
        {"--store": "store", "--out": "page", "--port": "integer"}, ("r.html", "r_files", "store"),
    ),
    "store ls": Command(("store", "ls"), {"--store": "store"}, (), {"--store": "store"}),
    "store verify": Command(("store", "verify"), {"--store": "store"}, (), {"--store": "store"}),
    "store gc": Command(("store", "gc"), {"--store": "store", "--dry-run": None}, (),
                        {"--store": "store"}),
}  # fmt: skip

CALLS: dict[str, str] = {
    "an open bracket": "ts(", "a closed bracket": "ts)", "no value": "ts(prior_std=)",
    "no key": "ts(=1)", "brackets": "ts((((", "no pair": "ts(1)", "NaN": "ts(prior_std=NaN)",
    "inf": "ts(prior_std=Infinity)", "an overflow": "ts(prior_std=1e999)",
    "minus": "ts(prior_std=-1)", "text": "ts(prior_std=x)", "null": "ts(prior_std=null)",
    "digits": f"ts(prior_std={DIGITS})", "deep": f"ts(prior_std={'[' * DEEP})",
    "closed and deep": f"ts(prior_std={'[' * DEEP}{']' * DEEP})", "unknown key": "ts(x=1)",
    "a dunder": "ts(__class__=1)", "twice": "ts(prior_std=1)(prior_std=2)", "after": "ts(a=1)b",
    "module": "no.such.module:X", "relative": "..:X", "dot": ".:X", "no class": "json:",
    "no module": ":X", "a function": "json:dumps", "a module": "os:path", "not called":
    "subprocess:Popen", "an int": "sys:maxsize", "object": "builtins:object", "a dash": "-",
    "zoo": "dpt-bandit-s99", "another room": "dpt-darkroom2-s0", "heat":
    "m(temperature=NaN)", "hot": "m(temperature=Infinity)", "cold":
    "m(temperature=-1)", "greed": "m(greedy=1)", "nothing": "X=",
    "missing": "no/such.safetensors", "slash": "/", "device": "/dev/zero",
    "a pipe": "pipe.safetensors", "a folder": "precious", "loop": "loop.safetensors",
    "a void": "m/void.safetensors", "a pattern": "X=nothing*", "twice ten": "ts," * 3,
    **{f"a text: {k}": v for k, v in TEXTS.items()},
}  # fmt: skip
"""What is no agent."""
PERHAPS = ("a text: a star", "a text: brackets", "another room", "a text: a dash", "a text: dashes")
"""Those that may be one, depending on what is there."""
ATTACKER_CALLS: dict[str, str] = {
    "an open bracket": "swap(", "no value": "swap(budget=)", "NaN": "swap(budget=NaN)",
    "inf": "swap(budget=Infinity)", "minus": "swap(budget=-1)", "too much": "swap(budget=1e9)",
    "overflow": "uniform(range=1e999)", "unknown": "swapp", "a learner": "gaussian",
    "learned of nothing": "learned()", "open": "learned(", "learned of a stranger": "learned(zz)",
    "nested": "learned(learned(ts))", "nested deep": "learned(" * 500, "no key": "swap(=1)",
    "a room's": "swap_goals", "missing": "no/such.safetensors", "device": "/dev/zero",
    "a pipe": "pipe.safetensors", "a loop": "loop.safetensors", "a folder": "precious",
    "a model": "m/model.safetensors", "empty between": "none,,swap",
    **{f"a text: {k}": v for k, v in TEXTS.items()},
}  # fmt: skip
PLACES: dict[str, str] = {
    "below a device": "/dev/null/x", "a device": "/dev/full", "below a file": "keep.txt/x",
    "in proc": "/proc/x/y", "a loop": "loop", "below a loop": "loop/x", "long": LONG_NAME,
    "long below": f"{LONG_NAME}/{LONG_NAME}", "NUL": "a\x00b", "very long": "d/" * 3000,
}  # fmt: skip
"""Where nothing can be made."""
SETS: dict[str, str] = {
    "no equals": "steps", "no key": "=1", "no name": ".=1", "dots": "a..b=1", "unknown": "x=1",
    "unknown below": "env.x=1", "env a number": "env=5", "env a text": 'env="x"', "env null":
    "env=null", "env a list": "env=[]", "env a word": "env=bandit", "env true": "env=true",
    "below a number": "seed.x=1", "deep": f"env={'[' * DEEP}", "deep and closed":
    f"seed={'[' * DEEP}{']' * DEEP}", "deep object": "env=" + '{"a":' * DEEP,
    "many dots": "a" + ".a" * 3000 + "=1", "digits": f"seed={DIGITS}", "a NaN": "env.noise_std=NaN",
    "an inf": "env.noise_std=Infinity", "an overflow": "env.noise_std=1e999",
    "a minus": "env.noise_std=-1", "another env": 'env.name="no_such_env"', "true": "seed=true",
    "a fraction": "seed=1.5", "a text": "seed=x", "beyond int64": f"seed={2**63}", "NUL":
    "se\x00ed=1", "a surrogate": "\udc80=1", "two lines": "a\nb=1", "two lines below":
    "env=\n\n", "empty": "", "a duplicate": 'env={"arms": 3, "arms": "x"}', "threads 0":
    "threads=0", "a list": "seed=[1]", "long": f"{LONG_NAME}=1", "many threads":
    f"threads={10**12}", "a dunder": "__class__=1", "env empty": 'env={"name": null}',
}  # fmt: skip
EXTREMES: dict[str, str] = {
    "1e308": "env.noise_std=1e308", "1e-39": "env.noise_std=1e-39", "1e38": "env.noise_std=1e38",
    "zero": "env.noise_std=0", "an integer": "env.noise_std=1", "one arm": "env.arms=1",
    "one step": "env.horizon=1", "one task": "tasks=1",
    "a rate of 1e308": "optimiser.learning_rate=1e308", "tiny clip": "optimiser.clip_norm=1e-300",
    "a rate of 1e30": "optimiser.learning_rate=1e30", "decay": "optimiser.weight_decay=1e308",
    "a block of one": "block=1", "a huge block": f"block={10**12}", "one head": "model.heads=1",
}  # fmt: skip
"""Strange, and perhaps all right."""
HUGE = (10**12, 2**62, 10**20)
FIGURES: dict[str, str] = {
    "no ending": "f", "another ending": "f.xyz", "only an ending": ".png", "a folder": "d.png",
    "a full disk": "full.png", "a loop": "loop.png", **{k: f"{v}/f.png" for k, v in PLACES.items()},
}  # fmt: skip
FURNITURE: list[Step] = [
    {"op": "copy", "from": "model", "to": "m"}, {"op": "fifo", "path": "pipe.safetensors"},
    {"op": "link", "path": "loop", "to": "loop"},
    {"op": "link", "path": "loop.safetensors", "to": "loop.safetensors"},
    {"op": "link", "path": "loop.png", "to": "loop.png"}, {"op": "folder", "path": "d.png"},
    {"op": "link", "path": "full.png", "to": "/dev/full"},
    {"op": "folder", "path": "m/void.safetensors"},
]  # fmt: skip


def generate(random: Random, templates: Templates) -> Plan:
    name = random.choice(sorted(COMMANDS))
    if random.random() < 0.5:  # most options are there
        name = random.choice(("pretrain", "train", "attack", "evaluate", "evaluate", "reproduce"))
    command = COMMANDS[name]
    options, sets = dict(command.options), list(command.sets)
    words = list(command.words)
    extra: list[str] = []
    chance = random.random()
    if chance < 0.1 or not command.kinds:
        what, wrong = _odd_words(random, words, extra, name)
    elif chance < 0.4 and sets:
        what, wrong = _set(random, command, sets, name)
    else:
        option = random.choice(sorted(command.kinds))
        what, options[option], wrong = _value(random, command.kinds[option])
        what = f"{option} {what}"
        sets = [text for text in sets if not text.startswith(f"{option[2:]}=")]  # they would win
    if command.sets:
        words += SMOKE if "--preset" not in options else ()
    for option, value in options.items():
        words += [option] if value is None else [option, value]
    words += [w for text in sets for w in ("--set", text)]
    files = [*FURNITURE]
    if "--store" in options and name != "reproduce":
        files.append({"op": "copy", "from": "store", "to": "store"})
        files += [{"op": "remove", "path": f"store/{graph}"} for graph in templates.files("store")
                  if graph.startswith(("graphs/bandit_main", "graphs/dark"))]  # fmt: skip
    return Plan("arguments", f"{name}: {what}", wrong=wrong, files=files,
                arguments=[*words, *extra], writes=_writes(command, options))  # fmt: skip


def _writes(command: Command, options: dict[str, str | None]) -> list[str]:
    """What it was told to write, whatever the name, is its own."""
    told = options.get("--out") or ""
    if not told or "\x00" in told or Path(told).name in ("", "..") or Path(told).is_absolute():
        return list(command.writes)
    path = Path(told)
    return [*command.writes, path.parts[0], str(path.with_name(f"{path.stem}_files"))]


def _value(random: Random, kind: str) -> tuple[str, str, bool]:
    """A word for it, an option's value, and whether it is certainly wrong."""
    if kind in ("integer", "number", "count"):
        word, value = pick(random, NO_INTEGERS)
        if kind == "count" and random.random() < 0.3:
            word, value = random.choice((("zero", "0"), ("1e12", str(10**12))))
        return word, value, True
    if kind in ("share", "float"):
        if random.random() < 0.3:
            word = random.choice(("1e308", "1e-39", "1e-320", "0", "1e38", "-0.0"))
            return word, word, kind == "share" and float(word) > 1
        word, value = pick(random, NO_FLOATS)
        return word, value, True
    if kind in ("agent", "agents", "model"):
        word, value = pick(random, CALLS)
        return word, value, word not in PERHAPS
    if kind in ("attacker", "attackers"):
        word, value = pick(random, ATTACKER_CALLS)
        return word, value, word not in PERHAPS
    if kind in ("figure", "figure!"):
        word, value = pick(random, FIGURES)
        return word, value, True
    if kind in ("preset", "executor", "part"):
        word, value = pick(random, TEXTS)
        return word, value, True
    if kind in ("store", "store?", "page") or random.random() < 0.3:
        word, value = pick(random, {**TEXTS, **PLACES})
        return word, value, kind in ("out", "page", "store") and word in PLACES
    word, value = pick(random, PLACES)
    return word, value, kind != "store?"


def _set(random: Random, command: Command, sets: list[str], name: str) -> tuple[str, bool]:
    chance = random.random()
    prefix = f"{random.choice(('pretrain', 'train', 'evaluate'))}." if name == "reproduce" else ""
    if chance < 0.3 and command.sizes:
        size, value = random.choice(command.sizes), random.choice(HUGE)
        if size.endswith("width"):
            value = random.choice((2**20, 2**40))
        elif size.endswith(("arms", "horizon", "long_batch")):
            value = random.choice((10**9, *HUGE))
        sets.append(f"{size}={value}")
        # A list of stages needs no memory for what they would need.
        return f"--set {size} huge", name != "reproduce" or value >= 2**63
    if chance < 0.5:
        word, text = pick(random, EXTREMES)
        sets.append(prefix + text)
        return f"--set {word}", False
    word, text = pick(random, SETS)
    sets.append(prefix + text)
    return f"--set {word}", True


def _odd_words(random: Random, words: list[str], extra: list[str], name: str) -> tuple[str, bool]:
    """An argument too many, an unknown option, another environment or command."""
    word, text = pick(random, TEXTS)
    chance = random.random()
    if chance < 0.3:
        extra.append(f"--unknown-{text}")
        return f"an unknown option, {word}", "--help" not in COMMANDS[name].options
    if chance < 0.6:
        extra += ["--", text]
        eager = {"--help", "--list"} & COMMANDS[name].options.keys()
        return f"one argument too many, {word}", not eager
    at = random.randrange(len(words))
    words[at] = text
    eager = {"--help", "--list"} & COMMANDS[name].options.keys()
    return f"word {at + 1} is {word}", not eager and not text.startswith("-")
