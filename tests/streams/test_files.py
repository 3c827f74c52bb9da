import gc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from curlicue.errors import DataError
from curlicue.streams import files
from curlicue.streams.files import parts

X = np.arange(24, dtype=np.float64).reshape(8, 3) / 10


def write(path: Path) -> Path:
    match path.suffix:
        case ".npy":
            np.save(path, X)
        case ".npz":
            np.savez(path, a=X[:5], b=X[5:])
        case ".csv":
            np.savetxt(path, X, delimiter=",")
        case ".parquet":
            pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
            from pyarrow import parquet

            parquet.write_table(pa.table({f"c{i}": X[:, i] for i in range(3)}), path)
    return path


@pytest.mark.parametrize("rows", [1, 3, 8, 100])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".parquet"])
def test_all_samples_come_in_their_order_and_never_more_than_asked_for_at_a_time(tmp_path, suffix, rows):
    got = list(parts(write(tmp_path / f"x{suffix}"), rows))
    assert all(len(part) <= rows for part in got)
    np.testing.assert_allclose(np.concatenate(got), X)


def test_a_line_of_names_above_the_numbers_is_passed_over(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    assert np.concatenate(list(parts(tmp_path / "x.csv"))).tolist() == [[1, 2], [3, 4]]


def test_a_large_array_is_not_read_at_once(tmp_path):
    (part, *_) = parts(write(tmp_path / "x.npy"), 3)
    assert isinstance(part, np.memmap)


def picture(path: Path, size: tuple[int, int] = (4, 3), grey: int = 7) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (grey, grey, grey)).save(path)


def test_a_folder_is_its_images_in_the_order_of_their_names(tmp_path):
    for n, name in enumerate(("a/2.png", "b.png", "a/1.PNG")):
        picture(tmp_path / name, grey=10 * n)
    (tmp_path / "notes.txt").write_text("no image")
    (got,) = parts(tmp_path)
    assert got.shape == (3, 3, 4)
    assert got.dtype == np.uint8
    assert got[:, 0, 0].tolist() == [20, 0, 10]


def error_of(path: Path) -> str:
    with pytest.raises(DataError) as error:
        list(parts(path))
    gc.collect()  # a file left open would warn now
    assert "\n" not in str(error.value)
    return str(error.value)


def test_images_of_several_sizes_are_refused(tmp_path):
    picture(tmp_path / "a.png")
    picture(tmp_path / "b.png", size=(5, 3))
    assert error_of(tmp_path) == (
        f"{tmp_path / 'b.png'} has 5×3 pixels, {tmp_path / 'a.png'} has 4×3. Bring all images to one size."
    )


def test_what_is_no_image_is_named(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    assert error_of(tmp_path).startswith(f"{tmp_path / 'a.png'} is no image that can be read (")


def test_what_is_not_there_or_of_no_known_kind_is_told(tmp_path):
    assert error_of(tmp_path / "x.npy") == f"There is no file or folder {tmp_path / 'x.npy'}. Check the name."
    (tmp_path / "x.txt").touch()
    assert error_of(tmp_path / "x.txt") == (
        f"{tmp_path / 'x.txt'} is of no kind that can be read. Give .npy, .npz, .csv, .parquet, or a folder of images."
    )
    (tmp_path / "empty").mkdir()
    assert error_of(tmp_path / "empty").startswith(f"{tmp_path / 'empty'} holds no images (")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet"])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9])
def test_a_truncated_file_is_one_error_that_names_it(tmp_path, suffix, kept):
    path = write(tmp_path / f"x{suffix}")
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    assert error_of(path).startswith(f"{path} cannot be read: ")


@pytest.mark.parametrize(("named", "written"), [(".npz", ".npy"), (".npy", ".npz"), (".parquet", ".npy")])
def test_one_kind_of_file_under_the_name_of_another_is_one_error(tmp_path, named, written):
    pytest.importorskip("pyarrow", reason="Parquet files need pyarrow") if named == ".parquet" else None
    path = write(tmp_path / f"x{written}").rename(tmp_path / f"y{named}")
    assert error_of(path).startswith(f"{path} cannot be read: ")


def test_words_among_the_numbers_are_one_error(tmp_path):
    (tmp_path / "x.csv").write_text("1,2\n3,four\n")
    assert error_of(tmp_path / "x.csv").startswith(f"{tmp_path / 'x.csv'} cannot be read: ")


def test_objects_are_not_unpickled(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[print]], dtype=object), allow_pickle=True)
    assert "cannot be read" in error_of(tmp_path / "x.npy")


def test_a_vector_is_no_table(tmp_path):
    np.save(tmp_path / "x.npy", X[0])
    assert error_of(tmp_path / "x.npy") == (
        f"{tmp_path / 'x.npy'} has the shape (3,). Give one row a sample: [n, D], or [n, h, w] for images."
    )


def test_without_pyarrow_a_parquet_file_says_what_to_install(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    path.touch()
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert error_of(path) == "Parquet files need pyarrow. Install it with: pip install 'curlicue[parquet]'"
    assert files.ROWS > 0
