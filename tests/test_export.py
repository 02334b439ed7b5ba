"""Records and curves as data frames, rliable's dictionary and statistics; SciPy is the oracle."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import mithridate as mi
from mithridate.aggregates import (
    bootstrap,
    improvement,
    interquartile_mean,
    probability_of_improvement,
    resampled,
)
from mithridate.errors import UserError
from mithridate.report.html import render
from mithridate.report.records import Records
from mithridate.report.views import summarise
from mithridate.rng import Rng


def scores(runs, columns, seed=0, shift=0.0):
    return np.random.default_rng(seed).normal(shift, 1.0, (runs, columns))


# Statistics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2), (3, 5), (10, 13)])
def test_the_interquartile_mean_is_scipys_trimmed_mean(shape):
    stats = pytest.importorskip("scipy.stats")
    for seed in range(5):
        x = scores(*shape, seed)
        assert interquartile_mean(x) == pytest.approx(stats.trim_mean(x, 0.25, axis=None))
    several = np.stack([scores(*shape, seed) for seed in range(4)])
    assert np.allclose(interquartile_mean(several), [interquartile_mean(x) for x in several])


def test_the_interquartile_mean_by_hand():
    assert interquartile_mean(np.array([[1.0, 2.0], [3.0, 1000.0]])) == 2.5
    assert interquartile_mean(np.array([[-1000.0, 2.0, 4.0]])) == pytest.approx(-994 / 3), "no cut"


def test_the_probability_of_improvement_is_mann_and_whitneys():
    stats = pytest.importorskip("scipy.stats")
    x, y = scores(7, 4).round(), scores(5, 4, seed=1, shift=0.5).round()  # with ties
    each = [stats.mannwhitneyu(x[:, c], y[:, c]).statistic / 35 for c in range(4)]
    assert probability_of_improvement(x, y) == pytest.approx(np.mean(each))
    assert probability_of_improvement(x, y, "lower") == pytest.approx(1 - np.mean(each))
    assert probability_of_improvement(x, x) == 0.5
    assert (
        probability_of_improvement(x + 100, y) == 1 and probability_of_improvement(x, y + 99) == 0
    )


def test_the_bootstrap_is_like_scipys():
    stats = pytest.importorskip("scipy.stats")
    x = scores(40, 1, seed=3)
    low, high = bootstrap(interquartile_mean, x, rng=Rng(1), resamples=20_000)[1:]
    theirs = stats.bootstrap(
        (x[:, 0],), lambda a, axis: stats.trim_mean(a, 0.25, axis=axis), method="percentile",
        n_resamples=20_000, rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    width = theirs.high - theirs.low
    assert abs(low - theirs.low) < 0.05 * width and abs(high - theirs.high) < 0.05 * width


def test_an_interval_holds_the_truth_as_often_as_it_says():
    inside = 0
    for seed in range(200):
        x = scores(30, 2, seed)
        _, low, high = bootstrap(interquartile_mean, x, rng=Rng(seed), resamples=400)
        inside += low <= 0 <= high
    assert 0.88 < inside / 200 <= 0.99


def test_resampling_is_stratified_and_seeded():
    x = np.arange(6.0).reshape(3, 2)
    drawn = resampled(x, Rng(5), 500)
    assert drawn.shape == (500, 3, 2)
    assert set(drawn[..., 0].ravel()) == {0.0, 2.0, 4.0}, "each column from its own runs"
    assert set(drawn[..., 1].ravel()) == {1.0, 3.0, 5.0}
    assert (np.diff(drawn, axis=2) != 1).any(), "and each for itself"
    assert (drawn == resampled(x, Rng(5), 500)).all()
    assert (drawn != resampled(x, Rng(6), 500)).any()


def test_one_run_has_no_interval():
    assert bootstrap(interquartile_mean, scores(1, 4), rng=Rng(0))[1:] == (None, None)
    assert improvement(scores(3, 2), scores(1, 2), "lower", Rng(0)).low is None


# Data frames --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evaluation():
    env = mi.make_env("bandit", arms=3, horizon=10)
    return mi.evaluate(env, ["ts", "ucb1"], attackers=("none", "swap"), tasks=5, replications=2)


def test_an_evaluation_in_pandas(evaluation):
    pandas = pytest.importorskip("pandas")
    frame = evaluation.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 8
    cell = frame[(frame.agent == "ts") & (frame.column == "swap")]
    assert cell["mean"].mean() == pytest.approx(evaluation.cell("ts", "swap")[0])
    assert frame["mean"].dtype == "float64" and frame["replication"].dtype == "int64"
    assert frame.target.isna().all()
    curves = mi.read_curves(evaluation).to_pandas()
    assert len(curves) == 8 * 10
    ends = curves[curves.step == 10].set_index(["agent", "column", "replication"])["mean"]
    for row in frame.itertuples():
        assert ends[row.agent, row.column, row.replication] == pytest.approx(row.mean, rel=1e-5)


def test_the_same_in_polars(evaluation):
    polars = pytest.importorskip("polars")
    frame = evaluation.to_polars()
    assert isinstance(frame, polars.DataFrame) and frame.shape == (8, 18)
    assert frame["target"].null_count() == 8 and frame["target"].dtype == polars.String
    assert frame["mean"].to_list() == evaluation.to_pandas()["mean"].tolist()
    assert evaluation.curve_rows().to_polars().height == 80


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_without_the_library_it_is_one_line(evaluation, library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError) as error:
        getattr(evaluation, f"to_{library}")()
    assert (
        str(error.value) == f"to_{library}() needs {library}: pip install 'mithridate[{library}]'"
    )


def test_frames_are_only_imported_when_they_are_asked_for():
    code = (
        "import sys, mithridate as mi; mi.read_records; mi.evaluate('bandit', ['ts'], tasks=2);"
        "assert not {'pandas', 'polars'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_store_a_file_and_a_report_say_the_same(finished, tmp_path):
    from mithridate.report.exports import export

    found = mi.read_records(finished.root)
    [section] = summarise(finished)
    assert [r["mean"] for r in found] == [r["mean"] for r in section.records]
    assert set(found.values("plan")) == {section.name}
    export(finished, tmp_path)
    of_file = mi.read_records(tmp_path / f"{section.name}.jsonl")
    assert of_file.to_pandas().drop(columns="plan").equals(found.to_pandas().drop(columns="plan"))
    curves = mi.read_curves(finished)
    assert {(r["agent"], r["column"]) for r in curves} == {(r["agent"], r["column"]) for r in found}


def test_what_is_no_store_is_one_line(tmp_path):
    with pytest.raises(UserError, match="there is no store at"):
        mi.read_records(tmp_path / "nothing")
    (tmp_path / "bad.jsonl").write_text('{"agent": 3}\n')
    with pytest.raises(UserError, match="is damaged"):
        mi.read_records(tmp_path / "bad.jsonl")


# rliable ------------------------------------------------------------------------------------------


def records(*agents, columns=("none", "swap"), replications=3, environment="bandit", **more):
    draw = np.random.default_rng(0)
    return Records(
        [
            {
                "agent": agent, "environment": environment, "column": column, "attacker": column,
                "kind": "clean", "replication": r, "mean": 10 * i + draw.normal(), "level": 0.4,
                "level_budget": 3.0, "plan": "p", **more,
            }
            for i, agent in enumerate(agents) for column in columns for r in range(replications)
        ]
    )  # fmt: skip


def together(*parts):
    return Records([row for part in parts for row in part])


def test_rliables_dictionary():
    found = records("a", "b")
    matrix = found.rliable()
    assert {name: m.shape for name, m in matrix.items()} == {"a": (3, 2), "b": (3, 2)}
    assert matrix["a"][1, 1] == found.where(agent="a", column="swap", replication=1)[0]["mean"]
    assert (found.rliable(more_is_better=True)["b"] == -matrix["b"]).all(), "regret"
    room = records("a", "b", environment="darkroom2")
    assert (room.rliable(more_is_better=True)["b"] == room.rliable()["b"]).all(), "reward"
    assert found.rliable("swap")["a"].shape == (3, 1)
    several = records("a", "b", columns=("none", "swap", "mirror"))
    some = Records([r for r in several if not (r["agent"] == "b" and r["column"] == "mirror")])
    assert some.rliable()["a"].shape == (3, 2), "the columns that all have"


def test_its_statistics():
    found = records("a", "b")
    means = found.interquartile_means()
    assert means["a"].low <= means["a"].value <= means["a"].high < means["b"].low
    assert means == found.interquartile_means(), "seeded"
    assert means["a"].low != found.interquartile_means(seed=1)["a"].low
    assert found.probability_of_improvement("a", "b") == (1.0, 1.0, 1.0), "less regret"
    room = records("a", "b", environment="darkroom2")
    assert room.probability_of_improvement("a", "b").value == 0.0


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda r: r.rliable("swop"), "unknown column 'swop'; did you mean 'swap'"),
        (lambda r: r.where(agents="a"), "unknown column 'agents'; did you mean 'agent'"),
        (lambda r: r.probability_of_improvement("a", "c"), "unknown agent 'c'"),
        (lambda r: together(r, records("a", environment="darkroom2")).rliable(), "2 environments"),
        (lambda r: together(r, records("d", columns=("mirror",))).rliable(), "no column in common"),
        (lambda r: r.where(agent="nobody").rliable(), "0 environments"),
    ],
)  # fmt: skip
def test_questions_without_an_answer_are_one_line(ask, said):
    with pytest.raises(UserError, match=said) as error:
        ask(records("a", "b"))
    assert "\n" not in str(error.value)


def test_the_report_shows_them(finished):
    [section] = summarise(finished)
    [table] = section.tables
    assert len(table.aggregates) > 3 and table.aggregates[0].improvement is None
    found = mi.read_records(finished).where(level=table.level.eps)
    for view in table.aggregates:
        mine = [r["mean"] for r in found if r["agent"] == view.victim]
        assert view.mean.value == pytest.approx(interquartile_mean(np.array([mine])))
    page = render(finished)
    assert "Over all attackers: interquartile means" in page
    assert page == render(finished), "a pure function of records"
    first = table.aggregates[0]
    assert f'<th scope="row">{first.victim}</th><td>{first.mean.value:.1f}' in page
