import gc
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from PIL import Image

from curlicue.errors import DataError
from curlicue.streams import files
from curlicue.streams.files import Part, check_kind, names, parts, write, write_grid

X = np.arange(24, dtype=np.float64).reshape(8, 3) / 10


def file_of(path: Path) -> Path:
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
    got = list(parts(file_of(tmp_path / f"x{suffix}"), rows))
    assert all(len(part) <= rows for part in got)
    np.testing.assert_allclose(np.concatenate(got), X)


def test_a_line_of_names_above_the_numbers_is_passed_over(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    assert np.concatenate(list(parts(tmp_path / "x.csv"))).tolist() == [[1, 2], [3, 4]]


def rows_of(path: Path, text: str, rows: int = 100) -> list[list[float]]:
    path.write_text(text, encoding="utf-8")
    got = list(parts(path, rows))
    assert all(0 < len(part) <= rows for part in got)
    return np.concatenate(got).tolist()


def test_a_mark_of_the_byte_order_makes_no_names_of_numbers(tmp_path):
    assert rows_of(tmp_path / "x.csv", "\ufeff1,2\n3,4\n") == [[1, 2], [3, 4]]
    assert rows_of(tmp_path / "x.csv", "\ufeffa,b\n3,4\n") == [[3, 4]]


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_blank_lines_are_no_rows(tmp_path, rows):
    text = "\n  \n1,2\n\n\n\n3,4\n \t\n5,6\n\n\n\n\n"
    assert rows_of(tmp_path / "x.csv", text, rows) == [[1, 2], [3, 4], [5, 6]]
    assert rows_of(tmp_path / "x.csv", f"\na,b\n{text}", rows) == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize("text", ["1,2\n3,4#5\n", "1,2\n# 3,4\n", "1,2\n3#,4\n"])
def test_a_sign_that_begins_comments_elsewhere_cuts_no_rows(tmp_path, text):
    (tmp_path / "x.csv").write_text(text)
    assert error_of(tmp_path / "x.csv").startswith(f"{tmp_path / 'x.csv'} cannot be read: row 2 has '")


@pytest.mark.parametrize("line", ["1,,3", ",1,2", ",,", "1,NA,3", "1,two,3"])
def test_a_first_row_with_something_missing_is_an_error_and_no_line_of_names(tmp_path, line):
    (tmp_path / "x.csv").write_text(f"{line}\n4,5,6\n")
    assert error_of(tmp_path / "x.csv").startswith(f"{tmp_path / 'x.csv'} cannot be read: row 1 ")


def test_a_first_row_with_a_value_that_is_nan_is_a_row(tmp_path):
    (first, _) = rows_of(tmp_path / "x.csv", "1,nan\n3,4\n")
    assert first[0] == 1
    assert np.isnan(first[1])


def test_names_that_count_the_columns_are_names_if_rows_follow(tmp_path):
    assert rows_of(tmp_path / "x.csv", "0,1,2\n3,4,5\n") == [[3, 4, 5]]
    assert rows_of(tmp_path / "x.csv", "0,1,2\n\n") == [[0, 1, 2]]
    assert rows_of(tmp_path / "x.csv", "0.0,1.0,2.0\n3,4,5\n") == [[0, 1, 2], [3, 4, 5]]
    assert rows_of(tmp_path / "x.csv", "1,2,3\n3,4,5\n") == [[1, 2, 3], [3, 4, 5]]


def test_a_first_row_of_0_or_of_0_and_1_is_a_sample(tmp_path):
    assert rows_of(tmp_path / "x.csv", "0\n0.5\n") == [[0], [0.5]]
    assert rows_of(tmp_path / "x.csv", "0,1\n1,0\n") == [[0, 1], [1, 0]]


def test_what_pandas_writes_without_an_index_is_read_again(tmp_path):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame(X).to_csv(tmp_path / "x.csv", index=False)
    assert np.array_equal(np.concatenate(list(parts(tmp_path / "x.csv"))), X)


def test_a_large_array_is_not_read_at_once(tmp_path):
    (part, *_) = parts(file_of(tmp_path / "x.npy"), 3)
    assert isinstance(part, np.memmap)


@pytest.mark.parametrize("pack", [np.savez, np.savez_compressed])
def test_a_large_array_in_an_archive_is_not_unpacked_at_once(tmp_path, pack):
    x = np.random.default_rng(0).random((20_000, 10))
    pack(tmp_path / "x.npz", x=x)
    tracemalloc.start()
    n = sum(len(part) for part in parts(tmp_path / "x.npz", 500))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n == 20_000
    assert peak < x.nbytes / 4


def test_an_array_that_lies_by_columns_is_read_by_rows(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.asfortranarray(X))
    np.save(tmp_path / "x.npy", np.asfortranarray(X))
    for suffix in (".npz", ".npy"):
        assert np.array_equal(np.concatenate(list(parts(tmp_path / f"x{suffix}", 3))), X)


@pytest.mark.parametrize("labels", [np.arange(8), np.array(["a"] * 8), np.array(["a"] * 8, dtype=object), np.int64(3)])
def test_labels_beside_a_table_in_an_archive_are_passed_over(tmp_path, labels):
    np.savez(tmp_path / "x.npz", a=labels, x=X, y=labels)
    assert np.array_equal(np.concatenate(list(parts(tmp_path / "x.npz", 3))), X)


def test_an_archive_of_vectors_alone_is_no_table(tmp_path):
    np.savez(tmp_path / "x.npz", a=X[0], b=X[1])
    assert error_of(tmp_path / "x.npz") == (
        f"a in {tmp_path / 'x.npz'} has the shape (3,). Give one row a sample: [n, D], or [n, h, w] for images."
    )


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


@pytest.mark.parametrize("name", ["x.png", "x.tif", "x.pgm"])
def test_pictures_of_16_bits_keep_their_upper_8(tmp_path, name):
    greys = np.array([[0, 255, 256], [4000, 40_000, 65_535]], dtype=np.uint16)
    Image.fromarray(greys).save(tmp_path / name)
    (got,) = parts(tmp_path)
    assert got.dtype == np.uint8
    assert got[0].tolist() == (greys >> 8).tolist()


def test_pictures_of_32_bits_are_scaled_from_black_to_white(tmp_path):
    Image.fromarray(np.array([[-5, 0, 2**30, 2**31 - 1]], dtype=np.int32)).save(tmp_path / "x.tif")
    (got,) = parts(tmp_path)
    assert got[0].tolist() == [[0, 0, 128, 255]]


def test_a_picture_of_floats_is_refused(tmp_path):
    Image.fromarray(np.ones((2, 3), np.float32)).save(tmp_path / "x.tif")
    assert error_of(tmp_path) == (
        f"{tmp_path / 'x.tif'} has floats for pixels: what is black and white is not known. Convert it to 8-bit greys."
    )


@pytest.mark.parametrize("contents", [b"P3 2 2 255 1 2 x", b"P6 2 2 70000 abc", b"P5 2 2 255 a", b"P6 a b c"])
def test_a_damaged_picture_is_one_error_that_names_it(tmp_path, contents):
    (tmp_path / "x.ppm").write_bytes(contents)
    assert error_of(tmp_path).startswith(f"{tmp_path / 'x.ppm'} is no image that can be read (")


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
    os.mkfifo(tmp_path / "pipe.csv")
    assert error_of(tmp_path / "pipe.csv") == (
        f"{tmp_path / 'pipe.csv'} is no file. Learn from what comes in live with CURL.partial_fit or fit_stream."
    )
    (tmp_path / "x.txt").touch()
    assert error_of(tmp_path / "x.txt") == (
        f"{tmp_path / 'x.txt'} is of no kind that can be read. Give .npy, .npz, .csv, .parquet, or a folder of images."
    )
    (tmp_path / "empty").mkdir()
    assert error_of(tmp_path / "empty").startswith(f"{tmp_path / 'empty'} holds no images (")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet"])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9])
def test_a_truncated_file_is_one_error_that_names_it(tmp_path, suffix, kept):
    path = file_of(tmp_path / f"x{suffix}")
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    assert error_of(path).startswith(f"{path} cannot be read: ")


@pytest.mark.parametrize(("named", "written"), [(".npz", ".npy"), (".npy", ".npz"), (".parquet", ".npy")])
def test_one_kind_of_file_under_the_name_of_another_is_one_error(tmp_path, named, written):
    pytest.importorskip("pyarrow", reason="Parquet files need pyarrow") if named == ".parquet" else None
    path = file_of(tmp_path / f"x{written}").rename(tmp_path / f"y{named}")
    assert error_of(path).startswith(f"{path} cannot be read: ")


def test_an_archive_with_a_damaged_member_is_one_error(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(100, 3)))
    contents = bytearray(path.read_bytes())
    contents[1000:1100] = bytes(100)
    path.write_bytes(contents)
    assert error_of(path).startswith(f"{path} cannot be read: ")


def test_a_header_that_promises_more_than_there_is_is_one_error(tmp_path):
    path = tmp_path / "x.npz"
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10**12)}
    with ZipFile(path, "w") as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, header)
    assert error_of(path).startswith(f"{path} cannot be read: ")


def test_words_among_the_numbers_are_one_error(tmp_path):
    (tmp_path / "x.csv").write_text("1,2\n3,four\n")
    assert error_of(tmp_path / "x.csv").startswith(f"{tmp_path / 'x.csv'} cannot be read: ")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("3,four", "row 8 has 'four' where a number should be"),
        ("3,1_000", "row 8 has '1_000' where a number should be"),
        ("3,٤", "row 8 has '٤' where a number should be"),
        ("3,", "row 8 lacks a value"),
        ("3,4,5", "row 8 has 3 values, those before it 2"),
    ],
)
@pytest.mark.parametrize("rows", [3, 7, 100])  # among others, the first of its part, and of all
def test_a_bad_row_far_down_is_told_by_its_number(tmp_path, line, wrong, rows):
    (tmp_path / "x.csv").write_text("a,b\n" + "1,2\n" * 6 + f"\n1,2\n{line}\n" + "1,2\n")
    with pytest.raises(DataError) as error:
        list(parts(tmp_path / "x.csv", rows))
    assert str(error.value) == f"{tmp_path / 'x.csv'} cannot be read: {wrong}. Repair or leave it out."


@pytest.mark.parametrize(("header", "n"), [('"a","b"', 2), ("a,b,c,d", 4), ('"a,b",c', 2)])
def test_as_many_names_as_values_must_stand_above_rows(tmp_path, header, n):
    (tmp_path / "x.csv").write_text(f"{header}\n1,2,3\n")
    assert f"cannot be read: there are {n} names above rows of 3 values." in error_of(tmp_path / "x.csv")
    (tmp_path / "y.csv").write_text('"a,b",c\n1,2\n')
    assert next(iter(parts(tmp_path / "y.csv", 10))).shape == (1, 2)


@pytest.mark.parametrize("reason", ["it is broken", "it is broken.", "it is broken.\nSee there"])
def test_a_reason_is_a_sentence_of_its_own(tmp_path, monkeypatch, reason):
    def failing(path: Path, rows: int) -> Iterator[np.ndarray]:
        raise ValueError(reason)
        yield X

    monkeypatch.setitem(files.READERS, ".npy", failing)
    path = file_of(tmp_path / "x.npy")
    assert error_of(path) == f"{path} cannot be read: it is broken. Repair or leave it out."


def test_objects_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([[print]], dtype=object))
    assert "Object arrays cannot be loaded" in error_of(tmp_path / "x.npz")
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


# -- writing ---------------------------------------------------------------------------------------------------------

F32 = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
Y = np.arange(8)[::-1].copy()


def in_parts(n: int = 3) -> Iterator[Part]:
    for start in range(0, 8, n):
        yield {"y": Y[start : start + n], "values": F32[start : start + n]}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_that_was_written_is_read_again_to_the_last_digit(tmp_path, suffix):
    pytest.importorskip("pyarrow", reason="Parquet files need pyarrow") if suffix == ".parquet" else None
    path = tmp_path / "new" / f"x{suffix}"
    write(path, in_parts(), "v")
    got = np.concatenate(list(parts(path)))
    assert np.array_equal(got[:, 0], Y)
    assert np.array_equal(got[:, 1:].astype(np.float32), F32)


def test_columns_have_names(tmp_path):
    write(tmp_path / "x.csv", in_parts(), "v")
    assert (tmp_path / "x.csv").read_text().splitlines()[0] == "y,v0,v1,v2"
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet files need pyarrow")
    write(tmp_path / "x.parquet", in_parts(), "v")
    schema = parquet.read_schema(tmp_path / "x.parquet")
    assert schema.names == ["y", "v0", "v1", "v2"]
    assert [str(kind) for kind in schema.types] == ["int64", *["float"] * 3]


def test_numbers_of_double_precision_keep_it(tmp_path):
    x = np.random.default_rng(0).normal(size=(5, 2))
    write(tmp_path / "x.csv", [{"x": x}], "x")
    assert np.array_equal(np.concatenate(list(parts(tmp_path / "x.csv"))), x)


@pytest.mark.parametrize("n", [1, 3, 8])
def test_arrays_that_grew_in_parts_are_whole(tmp_path, n):
    write(tmp_path / "x.npz", in_parts(n), "v")
    with np.load(tmp_path / "x.npz") as arrays:
        assert set(arrays) == {"y", "values"}
        assert np.array_equal(arrays["y"], Y)
        assert np.array_equal(arrays["values"], F32)
    write(tmp_path / "x.npy", in_parts(n), "v")
    assert np.array_equal(np.load(tmp_path / "x.npy"), F32)
    assert np.load(tmp_path / "x.npy").dtype == np.float32


def test_an_array_may_grow_past_any_number_of_digits(tmp_path):
    write(tmp_path / "x.npy", ({"x": np.full((5000, 1), n, np.int8)} for n in range(25)), "x")
    assert np.load(tmp_path / "x.npy", mmap_mode="r").shape == (125_000, 1)
    assert np.load(tmp_path / "x.npy")[-1] == 24


def test_images_keep_their_shape_in_arrays(tmp_path):
    write(tmp_path / "x.npy", [{"x": np.ones((4, 2, 3))}], "x")
    assert np.load(tmp_path / "x.npy").shape == (4, 2, 3)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".npy"])
def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path, suffix):
    pytest.importorskip("pyarrow", reason="Parquet files need pyarrow") if suffix == ".parquet" else None

    def failing() -> Iterator[Part]:
        yield from in_parts()
        raise DataError("far enough")

    (tmp_path / f"x{suffix}").write_text("old")
    with pytest.raises(DataError, match="far enough"):
        write(tmp_path / f"x{suffix}", failing(), "v")
    assert [path.name for path in tmp_path.iterdir()] == [f"x{suffix}"]
    assert (tmp_path / f"x{suffix}").read_text() == "old"


def test_what_cannot_be_written_is_told(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"x\.txt is of no kind that can be written\. Give a name that ends in \.csv, "):
        check_kind(tmp_path / "x.txt")
    check_kind(tmp_path / "x.png", ".png")
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(DataError, match=r"x\.csv is a folder\. Give the name of a file\."):
        check_kind(tmp_path / "x.csv")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(DataError, match="Parquet files need pyarrow"):
        check_kind(tmp_path / "x.parquet")


def test_a_grid_shows_every_image_once_from_black_to_white(tmp_path):
    images = np.linspace(-2, 3, 5 * 2 * 3).reshape(5, 2, 3)
    write_grid(tmp_path / "x.png", images)
    with Image.open(tmp_path / "x.png") as image:
        grid = np.asarray(image)
    assert grid.shape == (2 * 3 - 1, 3 * 4 - 1)
    tiles = [grid[y : y + 2, x : x + 3] for y in (0, 3) for x in (0, 4, 8)]
    assert np.array_equal(np.stack(tiles[:5]), np.rint((images + 2) * 51).astype(np.uint8))
    assert set(tiles[5].flat) == {128}


def test_a_column_of_dates_in_a_parquet_file_is_one_error(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
    from pyarrow import parquet

    dates = np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[ns]")
    parquet.write_table(pa.table({"when": dates, "x": [0.1, 0.2]}), tmp_path / "x.parquet")
    assert error_of(tmp_path / "x.parquet").startswith(f"{tmp_path / 'x.parquet'} cannot be read: ")


def test_names_of_columns_are_those_in_the_file(tmp_path):
    (tmp_path / "x.csv").write_text('\n"a, b",c \n1,2\n')
    assert names(tmp_path / "x.csv") == ("a, b", "c")
    (tmp_path / "y.csv").write_text("1,2\n")
    assert names(tmp_path / "y.csv") is None
    assert names(file_of(tmp_path / "x.npy")) is None
    assert names(tmp_path / "none.csv") is None
    assert names(file_of(tmp_path / "x.parquet")) == ("c0", "c1", "c2")
