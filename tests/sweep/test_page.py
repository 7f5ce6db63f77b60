"""The page over sweeps: what its script is given, what names cannot do to it, and that it stands alone."""

import dataclasses
import itertools
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from jaxzoo.sweep import grid
from jaxzoo.sweep.directory import About
from jaxzoo.sweep.page import TRAIN_POINTS, short_curve
from jaxzoo.sweep.report import write_page
from tests.sweep.small_sweep import ABOUT, EXPERIMENT, POINTS, measured, outcome, row, rows

EVIL = "</script><script>alert(1)</script><b onclick='x'>\"&amp;"
VOID = {"meta", "br", "path", "rect", "use"}


class Page(HTMLParser):
    """What a browser takes the page for: elements with their attributes, and the text of scripts and cells."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.texts, self._open = [], {}, []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)

    def all(self, tag, **attributes):
        """Attributes of the elements of a kind."""
        return [had for name, had in self.elements if name == tag and attributes.items() <= had.items()]

    @property
    def data(self):
        return json.loads(self.texts["script"][0])


def written(tmp_path, *outcomes):
    write_page(outcomes, tmp_path / "report.html")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    return Page(tmp_path / "report.html")


def test_a_card_has_the_score_of_its_mark(tmp_path):
    """Kills: the best seed at the head of a card, where figure, table and claims have the mean of the seeds."""
    about = ABOUT._replace(axes=(*ABOUT.axes, "seed"))
    points = grid(model=("attention",), d_model=(16,), learning_rate=(0.01,), seed=(0, 1, 2))
    made = [row(point, accuracy) for point, accuracy in zip(points, (0.5, 0.9, 0.1), strict=True)]
    found = written(tmp_path, outcome(about=about, rows=made))
    mark, line = found.data["small"]["items"]
    assert mark["value"] == line["value"] == "0.500, mean of 3 seeds"
    assert mark["values"] == line["values"] == ["0.900", "0.500", "0.100"]
    label = "model attention, d_model 16: accuracy 0.500, mean of 3 seeds"
    assert found.all("g", **{"aria-label": label})


def test_marks_and_lines_lead_to_their_runs(tmp_path):
    """Kills: curves of another run, a mark or line without data, a value that is not the best one's."""
    found = written(tmp_path, outcome())
    data = found.data["small"]
    marks = [data["items"][int(mark["data-item"])] for mark in found.all("g", **{"class": "mark"})]
    lines = [data["items"][int(line["data-item"])] for line in found.all("tr") if "data-item" in line]
    assert len(data["items"]) == len(marks) + len(lines) == 8
    assert marks == lines
    assert [(mark["title"], mark["values"], mark["names"]) for mark in marks] == [
        ("model attention, d_model 16", ["0.900", "0.500"], ["learning_rate 0.01", "learning_rate 0.001"]),
        ("model attention, d_model 32", ["1.000", "0.750"], ["learning_rate 0.001", "learning_rate 0.01"]),
        ("model hyena, d_model 16", ["0.125", "diverged"], ["learning_rate 0.001", "learning_rate 0.01"]),
        ("model hyena, d_model 32", ["0.375", "0.250"], ["learning_rate 0.01", "learning_rate 0.001"]),
    ]
    assert [mark["value"] for mark in marks] == ["0.900", "1.000", "0.125", "0.375"]
    best = data["runs"][marks[0]["runs"][0]]
    assert best["valid"] == [[50, 0.0], [100, 0.9]]
    assert best["metrics"] == [["accuracy", "0.900"], ["loss", "0.1"]]
    assert best["facts"] == ["2 s", "100 steps", "16,000 parameters", "1,024 bytes of state"]
    assert data["runs"][marks[2]["runs"][1]]["diverged"]
    label = "model hyena, d_model 32: accuracy 0.375"
    assert found.all("g", **{"aria-label": label})[0]["data-item"] == "3"


@pytest.mark.full
def test_a_run_of_several_points_is_named_by_what_they_share(tmp_path):
    """Kills: a mark that says it is at a point where only its run is, too."""
    points = [{"model": "attention", "d_model": 16, "chunk": chunk, "learning_rate": 0.1} for chunk in (8, 32)]
    made = [row(point, 0.5, id="same") for point in points]
    about = ABOUT._replace(axes=tuple(points[0]))
    data = written(tmp_path, outcome(rows=made, about=about)).data["small"]
    assert [item["title"] for item in data["items"]] == [
        "model attention, d_model 16",
        "model attention, d_model 16, chunk 8",
        "model attention, d_model 16, chunk 32",
    ]
    assert [item["names"] for item in data["items"]] == [["learning_rate 0.1"]] * 3
    assert len(data["runs"]) == 1


@pytest.mark.full
def test_no_word_is_taken_for_markup(tmp_path):
    """Kills: a script from a model's name, a failure, a claim or a title; an attribute that is closed by a quote."""
    harmless = re.sub(r"\S", "x", EVIL)  # breaks into the same lines
    found, plain = written(tmp_path, _with_words(EVIL)), written(tmp_path, _with_words(harmless))
    kinds = [tag for tag, _ in found.elements]
    assert kinds == [tag for tag, _ in plain.elements]
    assert kinds.count("script") == 2
    assert not [had for _, had in found.elements if "onclick" in had]
    assert EVIL in found.texts["td"]
    assert EVIL in found.data[EVIL]["items"][0]["title"]
    assert found.all("section") == [{"id": EVIL}]


def _with_words(word):
    """A sweep that has a word wherever a user has one."""
    point = {"model": word, "d_model": 16, "learning_rate": 0.001}
    texts = {"text": word, "source": word, "quote": word, "rule": word}
    claims = [dataclasses.replace(claim, **texts) for claim in EXPERIMENT.claims]
    return outcome(
        name=word,
        about=About(word, word, word, word, word, (word,), ABOUT.axes, 8),
        experiment=dataclasses.replace(EXPERIMENT, claims=claims, draw=_draw_one),
        rows=[row(point, 0.5, machine=word)],
        failures=[{"id": "a", "point": point, "error": word}],
    )


def _draw_one(results):
    from jaxzoo.sweep.figure import curve
    from jaxzoo.utils.figure import panels

    figure, ((panel,),) = panels(1, 1, size=(3, 3), title="")
    (name,) = results.values("model")
    curve(panel, results, x="d_model", points=[{"model": name}], label=name, series=0)
    return figure


@pytest.mark.full
def test_the_page_asks_for_nothing_else(tmp_path):
    """Kills: a font, script, picture or style from elsewhere, which a page on a disk or a plane does not get."""
    found = written(tmp_path, outcome())
    named = [value for _, had in found.elements for name, value in had.items() if name in ("src", "href", "data")]
    assert named
    assert all(value.startswith("#") for value in named)
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org/)", found.source)
    (policy,) = [had["content"] for had in found.all("meta") if had.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("node"), reason="needs node to read JavaScript")
def test_the_script_is_javascript(tmp_path):
    """Kills: a page that stands still after a slip of the pen, or a name that two of its files declare."""
    _, script = written(tmp_path, outcome()).texts["script"]
    file = tmp_path / "page.js"
    file.write_text(script, encoding="utf-8")
    subprocess.run(["node", "--check", str(file)], check=True, capture_output=True)


@pytest.mark.full
def test_sweeps_stand_side_by_side(tmp_path):
    """Kills: ids of two figures that clash, a link to nothing, a page that one unfinished sweep brings down."""
    points = [{"model": "cat", "d_model": 8}, {"model": "cat", "d_model": 16}]
    about = ABOUT._replace(axes=("model", "d_model"), n_runs=2)
    others = [
        outcome(name="again"),
        outcome(name="empty", rows=[]),
        outcome(name="half", rows=rows()[:3], failures=[{"id": "f", "point": POINTS[0], "error": "no disk"}]),
        outcome(name="computed", rows=[measured(p, hits=1.5) for p in points], about=about),
    ]
    found = written(tmp_path, outcome(), *others)
    ids = [had["id"] for _, had in found.elements if "id" in had]
    assert len(ids) == len(set(ids))
    links = [had["href"] for had in found.all("a")]
    assert links == ["#top", *(f"#{name}" for name in ("small", "again", "empty", "half", "computed"))]
    assert "no figure yet: no run is finished" in found.texts["p"]
    assert "3 of 8 points are finished, 5 are missing, 1 of them because their run failed." in found.texts["p"]
    assert "model attention, d_model 16, learning_rate 0.001: no disk" in found.texts["li"]
    assert found.data["empty"] == {"runs": [], "items": []}
    with pytest.raises(ValueError, match="two sweeps of a page have the name 'small': rename a directory"):
        write_page([outcome(), outcome()], tmp_path / "report.html")


@pytest.mark.full
def test_a_verdict_is_a_symbol_and_a_word(tmp_path):
    """Kills: a verdict that only its colour tells; one of another claim."""
    found = written(tmp_path, outcome())
    pattern = r'<b aria-hidden="true">(.)</b> ([a-z ]+)</strong><div><p>“We see that (\w+ beats \w+)\.'
    verdicts = re.findall(pattern, found.source)
    assert verdicts == [
        ("✓", "held", "attention beats hyena"),
        ("✗", "not held", "hyena beats attention"),
        ("○", "not tested", "attention beats rwkv"),
    ]
    assert [had["class"] for had in found.all("li") if "class" in had] == ["held", "not-held", "not-tested"]


@pytest.mark.full
def test_equal_sweeps_give_an_equal_page(tmp_path):
    """Kills: a date or a random id in a page that is committed."""
    first = written(tmp_path, outcome()).source
    assert written(tmp_path, outcome()).source == first


def test_a_curve_is_short_and_keeps_its_ends():
    """Kills: a page of megabytes, a loss that is not a number in JSON, a curve without its last point."""
    pairs = [(step, 1 / 3 + step) for step in range(1000)]
    found = short_curve([*pairs, (1000, float("nan")), (1001, float("inf"))], TRAIN_POINTS)
    assert len(found) == TRAIN_POINTS
    assert (found[0], found[-1]) == ([0, 0.3333], [999, 999.3])
    steps = [step for step, _ in found]
    gaps = {b - a for a, b in itertools.pairwise(steps)}
    assert max(gaps) - min(gaps) <= 1
    assert short_curve(pairs[:3], TRAIN_POINTS) == [[0, 0.3333], [1, 1.333], [2, 2.333]]
