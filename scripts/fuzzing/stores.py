"""Driver `stores`: a store that a stranger has written. Nothing outside it may be touched, commands
that read may not write, and what cannot be read is no reason to remove anything."""

from __future__ import annotations

import json
from random import Random

from fuzzing.mutations import (
    Mutation,
    Step,
    damaged_bytes,
    linked_to_decoy,
    no_json,
    other_value,
    pick,
    replaced,
)
from fuzzing.plans import Plan
from fuzzing.templates import Templates, reproduce
from fuzzing.values import JSON_VALUES, LONG_NAME, NO_JSON, TRAVERSALS

KINDS = ("pretrain", "train", "attack", "evaluate", "picture")
FILES = {
    "pretrain": ("model.json", "log.jsonl"), "train": ("model.json", "log.jsonl"),
    "attack": ("log.jsonl",), "evaluate": ("records.jsonl", "curve.json"),
    "picture": ("room.json",),
}  # fmt: skip
NAMES = ("graphs", "claims", "artifacts", "work", "damaged")
READING = ("report", "ls", "ls --json", "verify", "gc --dry-run", "reproduce --dry-run")
WRITING = ("gc", "gc", "reproduce", "reproduce --json")


def generate(random: Random, templates: Templates) -> Plan:
    mutation, unreadable = _mutation(random, templates)
    command = random.choice((*READING, *READING, *WRITING))
    plan = Plan(
        "stores", f"{command}: {mutation.what}",
        group=f"{command}: {mutation.group or mutation.what}", wrong=mutation.wrong,
        files=[{"op": "copy", "from": "store", "to": "store"}, *mutation.steps],
        arguments=_words(command),
    )  # fmt: skip
    if command == "report":  # figures take time: one recipe is enough
        touched = {step.get("path") for step in mutation.steps}
        graphs = [f"store/{n}" for n in templates.files("store") if n.startswith("graphs/")]
        left = [graph for graph in graphs if graph not in touched]
        random.shuffle(left)
        spare = left if touched & set(graphs) else left[1:]
        plan.files += [{"op": "remove", "path": path} for path in spare if _is_plain(mutation)]
    if command in READING:
        plan.reads = ["store"]
        plan.writes = ["report.html", "report_files"] if command == "report" else []
    else:
        plan.writes = ["store"]
        plan.keeps = ["store"] if command == "gc" and unreadable else []
    return plan


def _is_plain(mutation: Mutation) -> bool:
    """Whether the store's folders are still where they were."""
    return all(step["op"] != "link" and not step["path"].endswith("/graphs")
               for step in mutation.steps)  # fmt: skip


def _words(command: str) -> list[str]:
    first, *rest = command.split()
    at = ["--store", "store"]
    if first == "report":
        return ["report", *at, "--out", "report.html"]
    if first == "reproduce":
        return reproduce(*at, *rest)
    return ["store", first, *at, *rest]


def _mutation(random: Random, templates: Templates) -> tuple[Mutation, bool]:
    """What was done to the store, and whether a graph cannot be read since."""
    graphs = [name for name in templates.files("store") if name.startswith("graphs/")]
    graph = f"store/{random.choice(graphs)}"
    chance = random.random()
    if chance < 0.2:
        return _name_in_graph(random, templates, graph), False
    if chance < 0.3:
        document = templates.json(graph)
        return other_value(random, graph, document, lambda at: False), False
    if chance < 0.4:
        found = no_json(random, graph, wrong=False)
        if random.random() < 0.3:
            found = replaced(random, graph, wrong=False)
        return found, "missing" not in found.what
    if chance < 0.55:
        return _manifest(random, templates), False
    if chance < 0.72:
        return _content(random), False
    if chance < 0.8:
        return _marker(random), False
    if chance < 0.9:
        return _folders(random), False
    return _strange_names(random), False


def _name_in_graph(random: Random, templates: Templates, graph: str) -> Mutation:
    """A name that leads elsewhere, at every place of a graph where a name stands."""
    document = templates.json(graph)
    places: list[tuple[list[object], str]] = [(["name"], "name"), (["recipe"], "recipe"),
                                              (["preset"], "preset")]  # fmt: skip
    for key in ("cells", "trainings", "pictures"):
        places += [([key, i], key) for i in range(len(document[key]))]
    for i, stage in enumerate(document["stages"]):
        places += [(["stages", i, key], f"stage {key}") for key in ("name", "kind", "label")]
        places += [(["stages", i, "inputs", role], "input") for role in stage["inputs"]]
    at, where = random.choice(places)
    word, name = pick(random, TRAVERSALS)
    steps = [{"op": "json", "path": graph, "at": at, "raw": json.dumps(name)}]
    if where == "stage name" and random.random() < 0.5:  # the cell is to be found there, too
        cells = document["cells"]
        if cells:
            steps.append({"op": "json", "path": graph, "at": ["cells", 0],
                          "raw": json.dumps(name)})  # fmt: skip
    return Mutation(f"graph: {where} is {word}", False, steps)


def _manifest(random: Random, templates: Templates) -> Mutation:
    kind = random.choice(KINDS)
    path = f"store/artifacts/{kind}-*/manifest.json"
    chance = random.random()
    document = templates.json(path)
    if chance < 0.25:
        return no_json(random, path, wrong=False)
    if chance < 0.5:
        name = random.choice(sorted(document["files"]))
        word, other = pick(random, TRAVERSALS)
        return Mutation(
            f"manifest: a file is {word}",
            False,
            [{"op": "key", "path": path, "at": ["files", name], "to": other}],
        )
    if chance < 0.6:
        return replaced(random, path, wrong=False)
    return other_value(random, path, document, lambda at: False)


def _content(random: Random) -> Mutation:
    """A file of an artifact, its checksum made right again or not."""
    kind = random.choice(KINDS)
    name = random.choice(FILES[kind])
    folder = f"store/artifacts/{kind}-*"
    path = f"{folder}/{name}"
    seal = [{"op": "seal manifest", "path": folder}] if random.random() < 0.75 else []
    steps: list[Step]
    chance = random.random()
    if chance < 0.1:
        found = damaged_bytes(random, path)
        return Mutation(found.what, False, [*found.steps, *seal])
    if chance < 0.2:
        return replaced(random, path, wrong=False)
    if chance < 0.25:
        return linked_to_decoy(random, path)
    if chance < 0.4:
        word, text = pick(random, NO_JSON)
        steps = [{"op": "write", "path": path, "text": text}]
    else:
        keys = {
            "records.jsonl": ("mean", "ci95", "agent", "attacker", "target", "replication", "norm",
                              "tasks", "level", "level_budget", "budget", "eps"),
            "curve.json": ("step", "mean"), "model.json": ("env", "sha256", "model"),
            "log.jsonl": ("step", "score_mean", "seconds"),
            "room.json": ("rewards", "offsets", "path", "title", "score", "form"),
        }  # fmt: skip
        key = random.choice(keys[name])
        word, raw = pick(random, JSON_VALUES)
        word = f"{key} {word}"
        step = {"op": "line" if name.endswith("l") else "json", "path": path, "at": [key],
                "raw": raw, "number": random.randrange(3)}  # fmt: skip
        steps = [step]
    sealed = ", sealed" if seal else ""
    return Mutation(f"{name}: {word}{sealed}", False, [*steps, *seal])


def _marker(random: Random) -> Mutation:
    path = "store/store.json"
    if random.random() < 0.3:
        raw = random.choice(("99", "0", "null", '"1"', "-1", "1e308"))
        return Mutation("store.json: another format", True,
                        [{"op": "json", "path": path, "at": ["format"], "raw": raw}])  # fmt: skip
    if random.random() < 0.5:
        found = no_json(random, path)
        return Mutation(found.what, True, found.steps)
    return replaced(random, path, wrong=False)


def _folders(random: Random) -> Mutation:
    """One of the store's own folders is something else."""
    name = random.choice(NAMES)
    path = f"store/{name}"
    if random.random() < 0.7:
        to = random.choice(("../precious", "../../precious", "@ROOT@/precious", "../store-2",
                            "@ROOT@/one/artifacts", "..", "/", "."))  # fmt: skip
        return Mutation(f"{name} links to {'a decoy' if 'p' in to or 's' in to else to}", False,
                        [{"op": "link", "path": path, "to": to}])  # fmt: skip
    if random.random() < 0.5:
        return Mutation(f"{name} is read-only", False,
                        [{"op": "chmod", "path": path, "mode": 0o555}])  # fmt: skip
    return replaced(random, path, wrong=False)


def _strange_names(random: Random) -> Mutation:
    """Things with names that the store would not give, or that belong to nobody."""
    where = random.choice(NAMES)
    known = "evaluate-0123456789abcdef"
    word, name = random.choice((
        ("two lines", "a\nb"), ("long", LONG_NAME[:250]), ("brackets", "[a-"), ("a star", "a*"),
        ("no number", f"{known}.x"), ("a huge number", f"{known}.{'9' * 200}"), ("dot", ".hidden"),
        ("a fraction", f"{known}.1.5"), ("superscript", f"{known}.²"), ("minus", f"{known}.-1"),
        ("json", "x.json"), ("only json", ".json"), ("emoji", "\U0001f9ea.json"),
        ("empty ext", "x."),
    ))  # fmt: skip
    path = f"store/{where}/{name}"
    steps = {
        "file": [{"op": "write", "path": path, "text": "x"}],
        "folder": [{"op": "folder", "path": path}],
        "fifo": [{"op": "fifo", "path": path}],
        "link": [{"op": "link", "path": path, "to": random.choice((
            "../../precious", "../../keep.txt", "@ROOT@/precious", "/nonexistent", name))}],
    }  # fmt: skip
    kind = random.choice(sorted(steps))
    return Mutation(f"{where}/ has a {kind} called {word}", False, steps[kind])
