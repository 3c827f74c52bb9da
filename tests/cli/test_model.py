"""fit, embed and sample: files go in, files come out."""

import inspect
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import estimators
from curlicue.cli import console, learning, main, model
from curlicue.cli.learning import Learning
from curlicue.config.kinds import Kind, option
from curlicue.estimator import CURL
from curlicue.growth.measured import Measured
from curlicue.growth.protocol import Tuned
from curlicue.growth.threshold import Threshold
from curlicue.memory.snapshot import Snapshot
from curlicue.streams.files import parts
from elsewhere import ELSEWHERE

EAGER = ("--growth", "threshold", "--c-new", "1e6", "--n-new", 1)
QUIET = ("--growth", "measured", "--memory", "snapshot")  # few rows bring nothing about, and a model settles at once
TINY = ("--n-z", "2", "--encoder", "8", "--decoder", "8", "--batch-size", "10", "--threads", "1")
SETTINGS: dict[str, Any] = {"n_z": 2, "encoder": (8,), "decoder": (8,), "batch_size": 10, "random_state": 0}
SETTINGS |= {"growth": "measured", "memory": "snapshot"}
D = 4
rows = partial(estimators.rows, width=D)


pytestmark = pytest.mark.usefixtures("as_before")


def saved(path: Path | str) -> bytes:
    """All that the future of a model depends on."""
    return estimators.learnt(CURL.load(path))


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has three components."""
    path = tmp_path_factory.mktemp("taught") / "model"
    CURL(**SETTINGS | {"growth": Threshold(c_new=1e6, n_new=1)}, max_components=3).partial_fit(rows(2500)).save(path)
    assert CURL.load(path).n_components_ == 3
    return path


@pytest.fixture(scope="module")
def painter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of images of 3 × 5 pixels."""
    path = tmp_path_factory.mktemp("painter") / "model"
    images = np.random.default_rng(0).random((200, 3, 5))
    CURL(**SETTINGS, likelihood="bernoulli").partial_fit(images).save(path)
    return path


# -- fit ---------------------------------------------------------------------------------------------------------


def test_the_rows_of_the_files_teach_as_partial_fit_does_in_their_order(command):
    a, b = rows(130), rows(70, centre=1.0, seed=1)
    np.save("a.npy", a)
    np.savetxt("b.csv", b, delimiter=",", fmt="%.17g")
    answer = command("fit", "a.npy", "b.csv", "--out", "model", *QUIET, *TINY)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == (
        "Likelihood: gaussian, for the values are float64; --likelihood sets another\n"
        "200 rows, 1 component, saved in model\n"
    )
    torch.set_flush_denormal(True)
    expected = CURL(**SETTINGS).partial_fit(a).partial_fit(b)
    assert saved("model") == estimators.learnt(expected)


def test_epochs_are_passes_over_all_files(command):
    np.save("a.npy", rows(30))
    np.save("b.npy", rows(20, seed=1))
    once = command("fit", *["a.npy", "b.npy"] * 3, "--out", "once", *TINY)
    thrice = command("fit", "a.npy", "b.npy", "--epochs", 3, "--out", "thrice", *TINY)
    assert "150 rows, 1 component" in once.out
    assert "150 rows, 1 component" in thrice.out
    assert saved("once") == saved("thrice")


def test_images_are_learnt_as_pixels(command):
    Path("images").mkdir()
    for n in range(30):
        pixels = np.random.default_rng(n).integers(0, 256, (3, 5), dtype=np.uint8)
        Image.fromarray(pixels).save(f"images/{n:02d}.png")
    answer = command("fit", "images", "--out", "model", *TINY)
    assert answer.out.startswith("Likelihood: bernoulli, for the values are uint8; --likelihood sets another\n")
    curl = CURL.load("model")
    assert curl.likelihood == "bernoulli"
    assert curl.sample(2)[0].shape == (2, 3, 5)
    assert command("fit", "images", "--out", "other", "--likelihood", "gaussian", *TINY).out.startswith("30 rows")
    assert CURL.load("other").likelihood == "gaussian"


def zeros_and_ones(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (n, D), dtype=np.uint8)


@pytest.mark.parametrize("dark", [0, 200])  # rows of 0 alone tell nothing
def test_zeros_and_ones_of_uint8_are_learnt_as_bool(command, dark):
    x = zeros_and_ones(530)
    x[:dark] = 0
    np.save("a.npy", x)
    np.save("b.npy", x.astype(bool))
    answer = command("fit", "a.npy", "--out", "model", *TINY)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("Likelihood: bernoulli, for the values are ")
    assert command("fit", "b.npy", "--out", "other", *TINY).code == 0
    assert saved("model") == saved("other")
    assert command("embed", "model", "a.npy").out == command("embed", "model", "b.npy").out != ""
    for out, file in (("model", "a.npy"), ("other", "b.npy")):
        assert command("fit", file, "--out", out, "--update", "--skip", 217, "--threads", 1).code == 0
    assert saved("model") == saved("other")


def test_pixels_after_zeros_and_ones_are_told_with_their_rows_and_may_be_skipped(command):
    x = zeros_and_ones(630)
    x[250] = 7
    np.save("a.npy", x)
    answer = command("fit", "a.npy", "--out", "model", *TINY)
    assert answer.code == 1
    assert answer.err.startswith(
        "curlicue: a.npy, rows 201 to 400: a value is 7, but the first rows of uint8 are all of 0 and 1. "
        "Give either zeros and ones or pixels of 0 to 255. What came before is learnt and saved. Go on with: "
    )
    assert command("fit", "a.npy", "--out", "model", "--update", "--skip", 251, "--threads", 1).code == 0


def test_zeros_and_ones_may_be_learnt_as_real_values(command):
    np.save("a.npy", zeros_and_ones(30))
    np.save("b.npy", zeros_and_ones(30).astype(float))
    assert command("fit", "a.npy", "--out", "model", "--likelihood", "gaussian", *TINY).code == 0
    assert command("fit", "b.npy", "--out", "other", *TINY).code == 0
    assert saved("model") == saved("other")


def words(settings: object) -> list[str]:
    """Settings as they are written on the command line."""
    said = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        name = f"--{field.name.replace('_', '-')}"
        if isinstance(value, Kind):
            said += [name, option(type(value)), *words(value)]
        elif isinstance(value, bool):
            said.append(name if value else f"--no-{name[2:]}")
        else:
            said += [name, *map(str, value if isinstance(value, tuple) else [value])]
    return said


GROWTH = [
    Threshold(c_new=-12.5, n_new=6, burn_in=7, wait=8, passes=9, tuned=Tuned.HEADS),
    Measured(deviations=1.5, n_new=6, window=7.5, wait=8, passes=9, tuned=Tuned.ALL),
]


@pytest.mark.parametrize("growth", GROWTH, ids=lambda each: type(each).__name__)
def test_every_setting_arrives(command, growth):
    np.save("a.npy", rows(30))
    settings = Learning(
        likelihood="gaussian",
        n_z=3,
        encoder=(9, 8),
        decoder=(7,),
        growth=growth,
        max_components=5,
        memory=Snapshot(snapshots=9, labelled=False, emission="threshold", counts="seen"),
        learning_rate=0.01,
        batch_size=5,
        seed=4,
    )
    assert command("fit", "a.npy", "--out", "model", *words(settings)).code == 0
    asked = {**vars(settings), "random_state": settings.seed}
    del asked["seed"]
    assert {name: CURL.load("model").get_params()[name] for name in asked} == asked


def test_growth_and_memory_may_be_none(command):
    np.save("a.npy", rows(30))
    assert command("fit", "a.npy", "--out", "none", "--growth", "none", "--memory", "none", *TINY).code == 0
    curl = CURL.load("none")
    assert (curl.growth, curl.memory) == (None, None)


def test_the_defaults_are_those_of_the_estimator():
    told = {field.name: getattr(Learning(), field.name) for field in fields(Learning)}
    assert (told.pop("seed"), told.pop("likelihood")) == (0, None)
    defaults = {name: inspect.signature(CURL).parameters[name].default for name in told}
    kinds = {name: option(type(told[name])) for name in ("growth", "memory")}
    assert told | kinds == defaults
    assert all(told[name] == type(told[name])() for name in kinds)


def helps(out: str) -> dict[str, str]:
    """What the help says of each option, on one line."""
    pages = [" ".join(page.replace("│", " ").split()) for page in re.split(r"\n\W{1,2}(?=--[a-z])", out)]
    return {page.split()[0].strip(","): page for page in pages}


DEFAULTS = {"--n-z": "16", "--encoder": "256 128", "--decoder": "256", "--max-components": "100", "--device": "cpu"}
DEFAULTS |= {
    "--learning-rate": "0.001",
    "--batch-size": "100",
    "--seed": "0",
    "--growth": "structure",
    "--n-new": "100",
}
DEFAULTS |= {"--deviations": "2.0", "--c-new": "-200.0", "--memory": "reservoir", "--snapshots": "change"}
DEFAULTS |= {"--labelled": "--labelled", "--likelihood": "bernoulli for images and other uint8 or bool, else gaussian"}
DEFAULTS |= {"--wait": "20 with --growth measured, 100 with --growth threshold"}


def test_the_help_tells_each_setting_with_its_default(command):
    told = helps(command("fit", "--help").out)
    assert {name: told[name].rpartition("default: ")[2].rstrip(")") for name in DEFAULTS} == DEFAULTS


def test_births_are_told_with_the_rows_that_brought_them(command):
    np.save("a.npy", rows(2500))
    answer = command("fit", "a.npy", "--out", "model", *EAGER, "--max-components", 2, *TINY)
    (born,) = re.findall(r"^a\.npy, rows (\d+) to (\d+): component 1 is born from 0$", answer.out, re.MULTILINE)
    assert int(born[1]) - int(born[0]) == 199
    assert answer.out.endswith("2500 rows, 2 components, saved in model\n")


def test_columns_far_from_standardised_are_told(command):
    x = rows(50)
    x[:, 2] = 5  # constant columns are nobody's fault
    np.save("good.npy", x)
    assert command("fit", "good.npy", "--out", "good", *TINY).err == ""
    x[:, 1] = 1000 * x[:, 1] + 3000
    np.save("bad.npy", x)
    answer = command("fit", "bad.npy", "--out", "bad", *TINY)
    assert answer.code == 0
    assert answer.err == (
        f"Column 2 of bad.npy has mean {x[:, 1].mean():.3g} and standard deviation {x[:, 1].std():.3g}. "
        "Standardise all columns (mean 0, deviation 1), or little will be learnt.\n"
    )


def test_going_on_with_update_is_the_same_as_all_at_once(command):
    np.save("a.npy", rows(200))
    np.save("b.npy", rows(130, centre=1.0))
    command("fit", "a.npy", "b.npy", "--out", "whole", *QUIET, *TINY)
    command("fit", "a.npy", "--out", "model", *QUIET, *TINY)
    before = saved("model")
    answer = command("fit", "b.npy", "--out", "model", "--update", "--threads", 1)
    assert (answer.code, answer.out, answer.err) == (0, "130 rows, 1 component, saved in model\n", "")
    assert before != saved("model") == saved("whole")


def test_a_model_may_go_on_and_answer_on_another_device_than_it_began_on(command, file):
    CURL(**SETTINGS, device=str(ELSEWHERE)).partial_fit(X).save("model")
    shutil.copytree("model", "copy")
    for call in (("fit", file, "--out", "copy", "--update"), ("embed", "model", file), ("sample", "model")):
        refused = command(*call, "--device", "nowhere")
        assert (refused.code, refused.out) == (1, "")
        assert refused.err.startswith("curlicue: There is no device 'nowhere' here (")
        assert command(*call, "--device", "cpu").code == 0
    assert CURL.load("copy").device == "cpu"
    assert CURL.load("model").device == str(ELSEWHERE)


@pytest.mark.parametrize("skip", [200, 430])  # at the end of a piece, of a file and a piece of the next
def test_rows_that_are_skipped_are_those_that_were_learnt(command, skip):
    a, b = rows(230), rows(300, seed=1)
    np.save("a.npy", a)
    np.save("b.npy", b)
    np.save("before.npy", np.concatenate([a, b])[:skip])
    command("fit", "a.npy", "b.npy", "--out", "whole", *QUIET, *TINY)
    command("fit", "before.npy", "--out", "model", *QUIET, *TINY)
    assert command("fit", "a.npy", "b.npy", "--out", "model", "--update", "--skip", skip, "--threads", 1).code == 0
    assert saved("model") == saved("whole")


def test_a_skip_may_end_anywhere(command):
    x = rows(530)
    np.save("a.npy", x)
    command("fit", "a.npy", "--out", "skipped", "--skip", 217, *QUIET, *TINY)
    torch.set_flush_denormal(True)
    expected = CURL(**SETTINGS).partial_fit(x[217:400]).partial_fit(x[400:])  # the rest of its piece first
    assert saved("skipped") == estimators.learnt(expected)


# -- fit: what cannot work ---------------------------------------------------------------------------------------

REFUSED = [
    ("--out model", "No files were named. Give .npy, .npz, .csv, .parquet files or folders of images."),
    ("none.npy --out model", "There is no file or folder none.npy. Check the name."),
    (
        "a.npy a.txt --out model",
        "a.txt is of no kind that can be read. Give .npy, .npz, .csv, .parquet, or a folder of images.",
    ),
    ("a.npy --out there", "there is there already. It holds no saved model: choose another --out."),
    ("a.npy --out a.txt", "a.txt is there already. It holds no saved model: choose another --out."),
    (
        "a.npy --out model --update",
        "model holds no saved model. Make one with: curlicue fit FILE --out model",
    ),
    (
        "a.npy --out there --update --n-z 3 --seed 0",
        "--update goes on with the settings the model has. Leave out --n-z, --seed.",
    ),
    ("a.npy --out model --skip -1", "The 'skip' setting must be an int in the range [0, inf). Got -1 instead."),
    ("a.npy --out model --seed -1", "The 'seed' setting must be an int in the range [0, 4294967295]. Got -1 instead."),
    ("a.npy --out model --epochs 0", "The 'epochs' setting must be an int in the range [1, inf). Got 0 instead."),
    (
        "a.npy --out model --skip 30",
        "--skip 30 passes over all rows there are. Nothing was learnt; choose a smaller number.",
    ),
    (
        "a.npy --out model --memory snapshot --snapshots 0 --growth measured --likelihood gaussian",
        "The 'snapshots' setting must be an int in the range [1, inf), 'dynamic' or 'change'. Got 0 instead.",
    ),
    (
        "a.npy --out model --memory snapshot --snapshots T --growth measured --likelihood gaussian",
        "Snapshots of a period (T) are for runs. Give a number of steps instead.",
    ),
    (
        "a.npy --out model --memory none --snapshots 3",
        "--snapshots goes with --memory snapshot. Leave it out, or add that.",
    ),
    (
        "a.npy --out model --c-new -3",
        "--c-new goes with --growth threshold. Leave it out, or add that.",
    ),
    (
        "a.npy --out model --encoder conv --likelihood gaussian",
        "A 'conv' network takes images [height, width] or [height, width, channels]. Samples have the shape (4,): "
        "give images, or widths such as (256, 128).",
    ),
    (
        "a.npy --out model --batch-size 0",
        "The 'batch_size' setting must be an int in the range [1, inf). Got 0 instead.",
    ),
    ("empty.csv --out model", "There are no rows in empty.csv. Give files that have some."),
    (
        "words.parquet --out model",
        "words.parquet, rows 1 to 2: not all values are numbers (object). Leave out what is none.",
    ),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_cannot_work_is_one_line_of_error_and_changes_nothing(command, tmp_path, words, message):
    np.save("a.npy", rows(30))
    Path("a.txt").touch()
    Path("empty.csv").touch()
    Path("there").mkdir()
    Path("there/anything").touch()
    if "parquet" in words:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pa.table({"a": ["x", "y"], "b": [1.0, 2.0]}), "words.parquet")
    before = contents(tmp_path)
    answer = command("fit", *words.split())
    assert (answer.code, answer.out, answer.err) == (1, "", f"curlicue: {message}\n")
    assert contents(tmp_path) == before
    assert not Path("model").exists()


def test_a_place_that_cannot_be_written_is_told_before_all_is_learnt(command, monkeypatch):
    Path("file").touch()
    np.save("a.npy", rows(400))
    learnt: list[int] = []
    monkeypatch.setattr(CURL, "partial_fit", lambda self, X, f=CURL.partial_fit: (learnt.append(len(X)), f(self, X)))
    answer = command("fit", "a.npy", "--out", "file/model", *TINY)
    assert answer.code == 1
    assert answer.err == "curlicue: [Errno 20] Not a directory: 'file/model'\n"
    assert learnt == [200]


def spoil(x: np.ndarray) -> np.ndarray:
    x[499, 2] = np.nan
    return x


BAD: dict[str, tuple[Callable[[], object], str, int]] = {
    "a value that is no number": (
        lambda: np.save("c.npy", spoil(rows(600))),
        "c.npy, row 500, column 3: a value is nan. Fill it in, or leave out the row.",
        460,
    ),
    "a column too few": (
        lambda: np.save("c.npy", rows(600)[:, 1:]),
        "c.npy has 3 values a row, the model learnt from 4. Give files with the same columns.",
        60,
    ),
    "a value too large": (
        lambda: np.save("c.npy", 1e30 * rows(600)),
        r"c.npy, rows 1 to 200: X has values up to [^\n]*\. Scale them\.",
        60,
    ),
}


@pytest.mark.parametrize("damage", BAD)
def test_bad_rows_are_named_and_what_came_before_is_saved_to_go_on_from(command, damage):
    spoil, message, n = BAD[damage]
    np.save("a.npy", rows(40))
    np.save("b.npy", rows(20, seed=1))
    spoil()
    answer = command("fit", "a.npy", "b.npy", "c.npy", "--out", "model", *TINY)
    assert answer.code == 1
    told = re.fullmatch(
        r"curlicue: (.*) What came before is learnt and saved\. Go on with: curlicue (fit .*)\n", answer.err
    )
    assert told
    assert told[1] == message or re.fullmatch(message, told[1])
    assert told[2] == f"fit a.npy b.npy c.npy --out model --threads 1 --update --skip {n}"

    np.save("c.npy", rows(600))  # repaired
    assert command(*told[2].split()).code == 0
    command("fit", "a.npy", "b.npy", "c.npy", "--out", "whole", *TINY)
    assert saved("model") == saved("whole")


def test_words_in_a_table_are_told_with_their_rows(command):
    np.savetxt("a.csv", rows(300), delimiter=",")
    lines = Path("a.csv").read_text().splitlines()
    Path("a.csv").write_text("\n".join(["a,b,c,d", *lines[:250], "1,2,three,4", *lines[250:]]))
    answer = command("fit", "a.csv", "--out", "model", *TINY)
    assert answer.code == 1
    assert answer.err.startswith("curlicue: a.csv cannot be read: row 251 has 'three' where a number should be. ")
    assert answer.err.endswith("Go on with: curlicue fit a.csv --out model --threads 1 --update --skip 200\n")
    assert answer.err.count("\n") == 1


def test_when_the_first_rows_are_bad_nothing_is_left_behind(command):
    np.save("a.npy", np.full((30, D), np.inf))
    answer = command("fit", "a.npy", "--out", "model", *TINY)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "curlicue: a.npy, row 1, column 1: a value is inf. Fill it in, or leave out the row.\n"
    assert not Path("model").exists()


def named(path: str, names: str) -> str:
    np.savetxt(path, rows(300)[:, :3], delimiter=",", header=names, comments="")
    return path


def test_columns_in_another_order_are_refused(command):
    a, b = named("a.csv", "t,p,v"), named("b.csv", "t,v,p")
    refused = "Column 2 of b.csv is 'v', where the model learnt 'p'. Give the same columns in the same order."
    assert refused in command("fit", a, b, "--out", "model", *TINY).err
    assert list(CURL.load("model").feature_names_in_) == ["t", "p", "v"]
    assert command("embed", "model", b).err == f"curlicue: {refused}\n"
    assert command("fit", b, "--out", "model", "--update").err == f"curlicue: {refused}\n"
    answer = command("embed", "model", a)
    assert (answer.code, answer.err) == (0, "")


def test_a_model_that_diverges_is_not_saved(command):
    np.save("a.npy", rows(600))
    answer = command("fit", "a.npy", "--out", "model", "--learning-rate", "1e30", *TINY)
    assert answer.code == 1
    assert "a.npy, rows 1 to 200: learning has diverged. Start anew with a lower --learning-rate" in answer.err
    assert not Path("model").exists()


# -- fit: stopping -----------------------------------------------------------------------------------------------


def spawn(*arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "curlicue", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def stream() -> tuple[str, str]:
    np.save("an a.npy", rows(900))
    np.save("b.npy", rows(500, centre=3.0))
    return "an a.npy", "b.npy"


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("never stopped"))
        main(["fit", *stream(), "--epochs", "2", "--out", "model", *TINY])
        return saved("model")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_fit_saves_and_the_command_it_names_ends_as_if_never_stopped(command, never_stopped, number):
    files = stream()
    process = spawn("fit", *files, "--epochs", 2, "--out", "model", *TINY)
    deadline = time.monotonic() + 60
    while not Path("model").exists():  # made when the first rows are learnt
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == 128 + number
    told = re.fullmatch(r"Stopped after row (\d+); nothing is lost\. Go on with: curlicue (fit .*)\n", errors)
    assert told
    n = int(told[1])
    assert 0 < n < 2800
    assert told[2] == f"fit 'an a.npy' b.npy --out model --epochs 2 --threads 1 --update --skip {n}"

    assert saved("model") != never_stopped
    assert command(*shlex.split(told[2])).out.endswith(" saved in model\n")
    assert saved("model") == never_stopped


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_fit_that_is_stopped_before_it_began_leaves_nothing(command, monkeypatch, number, code):
    np.save("a.npy", rows(30))
    monkeypatch.setattr(model, "use_threads", lambda threads: None)
    monkeypatch.setattr(console, "rows_line", lambda f=console.rows_line: (signal.raise_signal(number), f())[1])
    answer = command("fit", "a.npy", "--out", "model", *TINY)
    assert (answer.code, answer.out, answer.err) == (code, "", "Stopped after row 0; nothing was learnt yet.\n")
    assert not Path("model").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_fit_that_is_stopped_twice_ends_at_once_and_names_no_way_on(command, monkeypatch, number, code):
    np.save("a.npy", rows(30))
    twice = lambda self, X: (signal.raise_signal(number), signal.raise_signal(number))  # noqa: E731
    monkeypatch.setattr(CURL, "partial_fit", twice)
    answer = command("fit", "a.npy", "--out", "model", *TINY)
    assert (answer.code, answer.out, answer.err) == (code, "", "")
    assert not Path("model").exists()


def test_what_a_killed_first_save_left_behind_does_not_hinder_the_next(command):
    np.save("a.npy", rows(30))
    Path("model").mkdir()
    Path("model/.state-0123456789abcdef.safetensors.77.part").write_bytes(b"half")
    assert command("fit", "a.npy", "--out", "model", *TINY).code == 0
    assert sorted(path.suffix for path in Path("model").iterdir()) == [".json", ".safetensors"]
    answer = command("fit", "a.npy", "--out", "model", *TINY)
    told = "model is there already. Go on learning with --update, or choose another --out."
    assert (answer.code, answer.out, answer.err) == (1, "", f"curlicue: {told}\n")


def test_now_and_then_it_is_saved_and_says_at_which_row(command, monkeypatch):
    np.save("a.npy", rows(500))
    monkeypatch.setattr(learning, "SAVE_EVERY", 0.0)
    command("fit", "a.npy", "--out", "model", *TINY)
    assert command("fit", "a.npy", "--out", "other", *TINY).out.splitlines()[1:] == [
        "row 200: K 1, saved",
        "row 400: K 1, saved",
        "row 500: K 1, saved",
        "500 rows, 1 component, saved in other",
    ]


def test_in_a_terminal_a_live_line_counts_the_rows(command, monkeypatch):
    screen = StringIO()
    wide = Console(file=screen, force_terminal=True, width=80, color_system=None, _environ={"TERM": "xterm"})
    monkeypatch.setattr(console, "out", wide)
    np.save("a.npy", rows(500))
    assert command("fit", "a.npy", "--out", "model", *TINY).code == 0
    frames = re.findall(r"(\d+) rows  K 1", screen.getvalue())
    assert frames[-1] == "500"
    assert screen.getvalue().endswith("500 rows, 1 component, saved in model\n")


# -- embed -------------------------------------------------------------------------------------------------------

X = rows(50, seed=7)


@pytest.fixture
def file() -> str:
    np.save("x.npy", X)
    return "x.npy"


def columns(curl: CURL) -> np.ndarray:
    return np.column_stack([curl.predict(X), curl.transform(X), curl.score_samples(X)]).astype(np.float32)


def numbers(lines: list[str]) -> np.ndarray:
    """What is below a line of names."""
    return np.array([line.split(",") for line in lines[1:]], dtype=np.float32)


def table(path: str) -> np.ndarray:
    return np.concatenate(list(parts(Path(path)))).astype(np.float32)


def test_an_embedding_goes_to_the_standard_output_and_nothing_else_does(command, taught, file):
    answer = command("embed", taught, file, "--bound")
    lines = answer.out.splitlines()
    assert (answer.code, answer.err) == (0, "")
    assert lines[0] == "component,z0,z1,bound"
    assert np.array_equal(numbers(lines), columns(CURL.load(taught)))
    assert all(line.split(",")[0] in "012" for line in lines[1:])


def test_the_bound_is_given_only_when_asked_for(command, taught, file):
    assert command("embed", taught, file).out.startswith("component,z0,z1\n")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_hold_what_the_estimator_says(command, taught, file, suffix):
    pytest.importorskip("pyarrow") if suffix == ".parquet" else None
    answer = command("embed", taught, file, "--bound", "--out", f"new/e{suffix}")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    assert np.array_equal(table(f"new/e{suffix}"), columns(CURL.load(taught)))


def test_arrays_hold_what_the_estimator_says(command, taught, file):
    curl = CURL.load(taught)
    assert command("embed", taught, file, file, "--bound", "--out", "e.npz").code == 0
    assert command("embed", taught, file, "--out", "e.npy").code == 0
    with np.load("e.npz") as arrays:
        assert set(arrays) == {"component", "embedding", "bound"}
        assert np.array_equal(arrays["component"], np.tile(curl.predict(X), 2))
        assert np.array_equal(arrays["embedding"], np.tile(curl.transform(X), (2, 1)))
        assert np.array_equal(arrays["bound"], np.tile(curl.score_samples(X), 2))
    assert np.array_equal(np.load("e.npy"), curl.transform(X))


def test_a_large_file_is_embedded_in_parts(command, taught, monkeypatch):
    np.save("x.npy", np.zeros((40_000, D)))
    size = Path("x.npy").stat().st_size
    curl = CURL.load(taught)
    monkeypatch.setattr(CURL, "transform", lambda self, x: np.zeros((len(x), 2), np.float32))  # quick
    monkeypatch.setattr(CURL, "predict", lambda self, x: np.zeros(len(x), np.int64))
    monkeypatch.setattr(CURL, "load", lambda path, device: curl)
    tracemalloc.start()
    assert command("embed", taught, "x.npy", "--out", "e.npz").code == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.load("e.npz")["component"]) == 40_000
    assert peak < size / 2


@pytest.mark.parametrize("subcommand", [("embed", "model", "x.npy"), ("sample", "model")])
def test_a_file_of_unknown_kind_is_an_error_before_any_work(command, file, subcommand):
    answer = command(*subcommand, "--out", "e.txt")
    kinds = ".csv, .parquet, .npz, .npy" + (", .png" if subcommand[0] == "sample" else "")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == f"curlicue: e.txt is of no kind that can be written. Give a name that ends in {kinds}.\n"


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".npy"])
def test_an_existing_file_is_replaced_only_by_a_whole_one(command, taught, file, tmp_path, suffix):
    pytest.importorskip("pyarrow") if suffix == ".parquet" else None
    bad = X.copy()
    bad[20, 1] = np.nan
    np.save("bad.npy", bad)
    out = Path(f"e{suffix}")
    out.write_text("old")
    before = contents(tmp_path)
    answer = command("embed", taught, file, "bad.npy", "--out", out)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "curlicue: bad.npy, row 21, column 2: a value is nan. Fill it in, or leave out the row.\n"
    assert contents(tmp_path) == before
    assert command("embed", taught, file, "--out", out).code == 0
    assert contents(tmp_path).keys() == before.keys()
    assert out.read_bytes() != b"old"


def test_other_columns_than_the_model_knows_are_an_error(command, taught):
    np.save("x.npy", X[:, :3])
    answer = command("embed", taught, "x.npy")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        "curlicue: x.npy has 3 values a row, the model learnt from 4. Give files with the same columns.\n"
    )


@pytest.mark.parametrize("subcommand", [("embed", "none", "x.npy"), ("sample", "none")])
def test_without_a_model_the_way_to_one_is_told(command, file, subcommand):
    answer = command(*subcommand)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "curlicue: none holds no saved model. Make one with: curlicue fit FILE --out none\n"


def test_whoever_reads_the_output_may_stop_at_any_time(taught):
    np.save("x.npy", rows(5000))
    process = spawn("embed", taught, "x.npy")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "component,z0,z1\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 141


# -- sample ------------------------------------------------------------------------------------------------------


def test_samples_go_to_the_standard_output(command, taught):
    answer = command("sample", taught, "-n", 5, "--seed", 3)
    lines = answer.out.splitlines()
    assert (answer.code, answer.err) == (0, "")
    assert lines[0] == "component,x0,x1,x2,x3"
    x, y = CURL.load(taught).sample(5, random_state=3)
    assert np.array_equal(numbers(lines), np.column_stack([y, x]).astype(np.float32))


def test_samples_depend_on_the_seed_alone(command, taught):
    once, again, other = (command("sample", taught, "--seed", seed).out for seed in (1, 1, 2))
    assert once == again != other
    assert command("sample", taught).out == command("sample", taught, "--seed", 0, "--n", 10).out
    curl = CURL.load(taught)
    curl.sample(3)
    assert np.array_equal(curl.sample(4, random_state=1)[0], CURL.load(taught).sample(4, random_state=1)[0])


def test_samples_are_of_the_component_asked_for(command, taught):
    lines = command("sample", taught, "--component", 2).out.splitlines()[1:]
    assert [line.split(",")[0] for line in lines] == ["2"] * 10
    answer = command("sample", taught, "--component", 3)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "curlicue: There are the components 0 to 2. Got 3 instead.\n"
    answer = command("sample", taught, "--seed", -1)
    assert answer.err == "curlicue: The 'seed' setting must be an int in the range [0, 4294967295]. Got -1 instead.\n"
    answer = command("sample", taught, "-n", 0)
    assert answer.err == "curlicue: The 'n' setting must be an int in the range [1, inf). Got 0 instead.\n"


def test_samples_in_files_are_the_samples(command, taught, painter):
    x, y = CURL.load(taught).sample(10, random_state=0)
    for suffix in (".csv", ".npz", ".npy"):
        assert command("sample", taught, "--out", f"s{suffix}").code == 0
    assert np.array_equal(table("s.csv"), np.column_stack([y, x]).astype(np.float32))
    assert np.array_equal(np.load("s.npy"), x)
    with np.load("s.npz") as arrays:
        assert np.array_equal(arrays["x"], x)
        assert np.array_equal(arrays["component"], y)
    assert command("sample", painter, "--out", "i.npy").code == 0
    assert np.load("i.npy").shape == (10, 3, 5)
    assert command("embed", painter, "i.npy").code == 0


def test_samples_of_images_are_a_picture(command, painter):
    assert command("sample", painter, "-n", 5, "--out", "s.png").code == 0
    x, _ = CURL.load(painter).sample(5, random_state=0)
    with Image.open("s.png") as image:
        pixels = np.asarray(image)
    assert pixels.shape == (2 * 4 - 1, 3 * 6 - 1)
    assert np.array_equal(pixels[:3, :5], 255 * x[0])
    assert np.array_equal(pixels[4:, 6:11], 255 * x[4])


def test_rows_are_no_picture(command, taught):
    answer = command("sample", taught, "--out", "s.png")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        f"curlicue: A .png shows images [h, w], but {taught} learnt samples of 4 values. Choose .csv or .npy.\n"
    )
    assert not Path("s.png").exists()
