"""Which examples there are, how they are split, in which order they come, and what is refused."""

import os
import socket

import numpy as np
import pytest

import isomorph as iso
from isomorph.backends.trainer import Batch
from isomorph.errors import IsomorphError
from isomorph.training.data import Order, evaluation_batches
from isomorph.training.sources import open_dataset, stratified_split, window_count

IMAGES = 'input("B", 1, 8, 8)\nflatten()\nlinear()\noutput("B", 10)'
BYTES = 'ids = input("B", "T", dtype="int64")\nembedding(256, 4)\npos_embed(50)\nlinear(256)\noutput("B", "T", 256)'
VECTORS = 'input("B", 3)\nlinear(2)\noutput("B", 2)'


def refusal(text: str, data: str, **options) -> str:
    with pytest.raises(IsomorphError) as error:
        open_dataset(data, iso.resolve(text), **options)
    return str(error.value)


# -- order -------------------------------------------------------------------------------------


def test_every_epoch_shows_every_example_once_and_in_another_order():
    order = Order(count=10, seed=3)
    indices, epochs = order.places(0, 30)
    for epoch in range(3):
        assert sorted(indices[epochs == epoch]) == list(range(10))
    assert list(indices[:10]) != list(indices[10:20])


def test_the_order_depends_on_seed_and_place_alone():
    straight, _ = Order(7, seed=1).places(0, 40)
    order = Order(7, seed=1)
    pieces = [order.places(start, 4)[0] for start in (36, 0, 20, 4, 8, 12, 16, 24, 28, 32)]
    assert list(pieces[0]) == list(straight[36:])
    assert [list(piece) for piece in pieces[1:2]] == [list(straight[:4])]
    assert list(pieces[2]) == list(straight[20:24])
    other, _ = Order(7, seed=2).places(0, 40)
    assert list(other) != list(straight)


def test_a_batch_may_span_epochs_and_be_larger_than_the_data():
    indices, epochs = Order(3, seed=0).places(2, 8)
    assert list(epochs) == [0, 1, 1, 1, 2, 2, 2, 3]
    assert sorted(indices[1:4]) == [0, 1, 2]


def test_a_batch_is_cut_into_equal_parts():
    batch = Batch({"x": np.arange(6)[:, None]}, np.arange(6))
    parts = batch.parts(3)
    assert [part.targets.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    assert [part.inputs["x"][:, 0].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]


# -- digits ------------------------------------------------------------------------------------


def test_digits_are_split_once_and_for_all_by_class():
    datasets = pytest.importorskip("sklearn.datasets")
    _, labels = datasets.load_digits(return_X_y=True)
    rest, test = stratified_split(labels, 360)
    assert len(test) == 360
    assert len(rest) == 1797 - 360
    assert not set(rest) & set(test)
    # 360 / 1797 of 178, 182, 177, 183, 181, 182, 181, 179, 174, 180 digits, which are 35 to 37 of each.
    shares = np.bincount(labels) * 360 / 1797
    assert np.all(np.abs(np.bincount(labels[test]) - shares) < 1)
    again = stratified_split(labels, 360)
    assert list(again[1]) == list(test)


def test_no_test_digit_is_trained_on_whatever_the_validation_share():
    pytest.importorskip("sklearn")
    plan = iso.resolve(IMAGES)
    for share in (0.0, 0.1, 0.5):
        data = open_dataset("digits", plan, validation=share)
        held_out = round(1437 * share)
        assert [data.count(s) for s in ("train", "validation", "test")] == [1437 - held_out, held_out, 360]
        images = {
            split: {
                array.tobytes()
                for batch in evaluation_batches(data, split, 512)
                for array in batch.inputs["x"]
            }
            for split in ("train", "validation", "test")
        }
        assert not images["test"] & (images["train"] | images["validation"])


def test_digits_take_the_shape_of_the_network():
    pytest.importorskip("sklearn")
    first = {}
    for shape in ("1, 8, 8", "8, 8", "64"):
        flat = "flatten()\n" if "," in shape else ""
        plan = iso.resolve(f'input("B", {shape})\n{flat}linear()\noutput("B", 10)')
        batch = next(evaluation_batches(open_dataset("digits", plan), "test", 2))
        first[shape] = batch.inputs["x"]
        assert batch.inputs["x"].dtype == np.float32
    assert first["1, 8, 8"].shape == (2, 1, 8, 8)
    assert np.array_equal(first["64"].ravel(), first["8, 8"].ravel())
    assert first["64"].max() == 1.0  # 16 of 16
    assert first["64"].min() == 0.0


def test_digits_refuse_another_network():
    pytest.importorskip("sklearn")
    assert refusal(VECTORS, "digits") == (
        "E_CONSTRAINT: digits are single images [B, 1, 8, 8], [B, 8, 8], [B, 64] of real numbers; "
        "the network takes x=[B, 3] float32"
    )
    assert refusal('input("B", 64)\nlinear(7)', "digits") == (
        "E_ARGUMENT: digits: target 7 is no class of a network that scores 7\n"
        "  targets run from 0 to 6; -100 marks one to ignore"
    )


# -- text --------------------------------------------------------------------------------------


def test_text_predicts_the_next_byte(tmp_path):
    content = bytes(range(200))
    path = tmp_path / "text"
    path.write_bytes(content)
    data = open_dataset(f"text:{path}", iso.resolve(BYTES), length=10, validation=0.0)
    # The first 180 bytes are for training. (180 - 10) // 10 = 17 windows of 10 fit after any first byte 0..9.
    assert data.count("train") == 17
    assert data.count("validation") == 0
    assert data.count("test") == window_count(20, 10) == 1
    batch = data.take("train", np.array([0, 16]), np.array([0, 5]))
    ids, targets = batch.inputs["ids"], batch.targets
    assert ids.shape == targets.shape == (2, 10)
    assert ids.dtype == targets.dtype == np.int64
    assert np.array_equal(targets, ids + 1)  # the bytes count up
    assert ids.max() < 180


def test_windows_are_cut_elsewhere_in_every_epoch_and_stay_inside(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(200)))
    data = open_dataset(f"text:{path}", iso.resolve(BYTES), length=10, validation=0.0)
    starts = set()
    for epoch in range(200):
        batch = data.take("train", np.array([0, 16]), np.array([epoch, epoch]))
        first, last = batch.inputs["ids"][0, 0], batch.targets[1, -1]
        assert last - first == 170  # 17 windows and the target after them
        starts.add(int(first))
    assert starts == set(range(10))


@pytest.mark.parametrize(("ids", "length", "count"), [(10, 10, 0), (11, 10, 1), (29, 10, 1), (30, 10, 2)])
def test_window_counts(ids, length, count):
    assert window_count(ids, length) == count


def test_the_shortest_text_has_one_window(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"abcdefghijklm")  # 90% are 12 bytes: room for one window of 10 at two places
    data = open_dataset(f"text:{path}", iso.resolve(BYTES), length=10, validation=0.0)
    assert data.count("train") == 1
    for epoch in range(20):
        batch = data.take("train", np.array([0]), np.array([epoch]))
        assert bytes(batch.targets[0].astype(np.uint8)) in b"abcdefghijkl"


def test_text_takes_the_length_of_the_network():
    assert open_dataset("text:pydoc", iso.resolve(BYTES)).length == 50  # pos_embed(50)
    fixed = BYTES.replace('"T"', "30")
    assert open_dataset("text:pydoc", iso.resolve(fixed)).length == 30


def test_text_refuses(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(b"abc")
    assert refusal(BYTES, f"text:{path}") == (
        f"E_ARGUMENT: text:{path} has 3 bytes; 2 are left for training, and one example takes 51\n"
        "  give a longer file, or shorter examples (--length)"
    )
    path.write_bytes(b"")
    assert refusal(BYTES, f"text:{path}") == f"E_ARGUMENT: the data file {path} is empty"
    assert refusal(BYTES, "text:/no/such") == (
        "E_ARGUMENT: cannot read the data /no/such: No such file or directory\n  check the path"
    )
    assert refusal(IMAGES, "text:pydoc") == (
        "E_CONSTRAINT: text needs a network from ids [B, T] to scores [B, T, 256]; "
        "this one takes x=[B, 1, 8, 8] float32 and gives [B, 10]"
    )
    assert refusal(BYTES, "text:pydoc", length=51) == (
        "E_CONSTRAINT: the network takes T <= 50, not --length 51"
    )
    few = BYTES.replace("linear(256)", "linear(99)").replace('"T", 256', '"T", 99')
    assert refusal(few, "text:pydoc") == (
        "E_CONSTRAINT: there are 256 different bytes, but the network scores 99 ids"
    )


# -- NumPy archives ----------------------------------------------------------------------------


def archive(tmp_path, **arrays) -> str:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    return f"npz:{path}"


def test_an_archive_is_split_by_class(tmp_path):
    x, y = np.arange(300.0).reshape(100, 3), np.repeat([0, 1], 50)
    data = open_dataset(archive(tmp_path, x=x, y=y), iso.resolve(VECTORS), validation=0.25)
    assert [data.count(s) for s in ("train", "validation", "test")] == [60, 20, 20]
    for split, each in (("train", 30), ("validation", 10), ("test", 10)):
        targets = np.concatenate([batch.targets for batch in evaluation_batches(data, split, 7)])
        assert np.bincount(targets).tolist() == [each, each]


def test_an_archive_may_bring_its_own_test_examples(tmp_path):
    x, y = np.zeros((10, 3)), np.zeros(10, int)
    data = archive(tmp_path, x=x, y=y, x_test=np.ones((4, 3)), y_test=np.ones(4, int))
    opened = open_dataset(data, iso.resolve(VECTORS), validation=0.0)
    assert [opened.count(s) for s in ("train", "validation", "test")] == [10, 0, 4]
    assert next(evaluation_batches(opened, "test", 9)).inputs["x"].min() == 1.0


def test_several_inputs_come_by_name(tmp_path):
    plan = iso.resolve(
        'ids = input("B", "T", dtype="int64")\nm = input("B", "T", dtype="bool")\n'
        "embedding(ids, 9, 4)\nattention(2, mask=m)\nlinear(5)"
    )
    arrays = {"ids": np.ones((6, 7), np.int32), "m": np.ones((6, 7), bool), "y": np.full((6, 7), -100)}
    data = open_dataset(archive(tmp_path, **arrays), plan, validation=0.0)
    batch = data.take("train", np.array([0]), np.array([0]))
    assert batch.inputs["ids"].dtype == np.int64
    assert batch.inputs["m"].dtype == bool
    assert batch.targets.shape == (1, 7)


def test_an_archive_refuses(tmp_path):
    x, y = np.zeros((10, 3)), np.zeros(10, int)

    def told(**arrays) -> str:
        return refusal(VECTORS, archive(tmp_path, **arrays)).replace(f"{tmp_path}/", "")

    assert told(x=x) == "E_ARGUMENT: npz:data.npz has no array 'y'; it has: x"
    assert told(x=np.zeros((10, 4)), y=y) == (
        "E_CONSTRAINT: npz:data.npz: x has shape [10, 4], the network expects [B, 3]"
    )
    assert told(x=x, y=y[:9]) == (
        "E_CONSTRAINT: npz:data.npz: x has shape [10, 3], the network expects [B, 3] (9 examples)"
    )
    assert told(x=x, y=np.full(10, 2)) == (
        "E_ARGUMENT: npz:data.npz: target 2 is no class of a network that scores 2\n"
        "  targets run from 0 to 1; -100 marks one to ignore"
    )
    assert told(x=x, y=y + 0.5) == (
        "E_DTYPE: npz:data.npz: y must hold whole numbers, one class each, got float64"
    )
    assert told(x=x.astype(complex), y=y) == (
        "E_DTYPE: npz:data.npz: x must be float32 or convertible to it, got complex128"
    )
    assert told(x=np.zeros((0, 3)), y=np.zeros(0, int)) == "E_ARGUMENT: npz:data.npz: x holds no examples"


def test_ids_outside_a_table_are_refused_before_training(tmp_path):
    text = 'ids = input("B", "T", dtype="int64")\nembedding(9, 4, name="words")\nlinear(5)'
    for wrong in (9, -1):
        ids = np.array([[0, 8], [3, wrong]])
        message = refusal(text, archive(tmp_path, x=ids, y=np.zeros((2, 2), int)))
        assert message.replace(f"{tmp_path}/", "") == (
            f"E_ARGUMENT: npz:data.npz: id {wrong} of the input ids is outside the table of words, which has 9 rows"
        )
    path = tmp_path / "text"
    path.write_bytes(b"abc" * 200)
    assert refusal(BYTES.replace("embedding(256, 4)", "embedding(98, 4)"), f"text:{path}") == (
        f"E_ARGUMENT: text:{path}: id 98 of the input ids is outside the table of n0, which has 98 rows"
    )


def test_an_archive_is_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("sprung").touch, ())

    data = archive(tmp_path, x=np.array([Trap()], dtype=object), y=np.zeros(1, int))
    assert refusal(VECTORS, data).startswith("E_ARGUMENT")
    assert not (tmp_path / "sprung").exists()
    (tmp_path / "data.npz").write_bytes(b"no archive at all")
    assert refusal(VECTORS, data).startswith(f"E_ARGUMENT: {tmp_path}/data.npz is no usable NumPy archive")


# -- other -------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["digit", "digits:x", "text", "text:", "csv:file", ""])
def test_an_unknown_specification_lists_the_known_ones(data):
    message = refusal(IMAGES, data)
    assert message.startswith(f"E_ARGUMENT: there is no data {data!r}\n")
    assert "npz:FILE" in message


def test_training_needs_one_output_of_scores(tmp_path):
    two = 'input("B", 3)\na, b = split(1)\noutput(a=("B", 1), b=("B", 2))'
    data = archive(tmp_path, x=np.zeros((4, 3)), y=np.zeros(4, int))
    assert refusal(two, data) == (
        "E_CONSTRAINT: training needs a network with one output, a score for every class; "
        'this one has 2: a, b\n  give it one, as in output("B", 10)'
    )


# -- what would spoil a run --------------------------------------------------------------------


@pytest.mark.parametrize(("share", "form"), [(0.9999, "0.9999"), (0.99999, "0.99999")])
def test_a_validation_split_that_takes_all_is_refused(tmp_path, share, form):
    assert refusal(IMAGES, "digits", validation=share) == (
        f"E_ARGUMENT: digits: validation={form} of 1,437 examples leaves none for training\n"
        "  hold out less (--validation), or give more examples"
    )
    data = archive(tmp_path, x=np.zeros((10, 3)), y=np.zeros(10, int))
    assert refusal(VECTORS, data, validation=share).startswith(
        f"E_ARGUMENT: {data}: validation={form} of 8 examples leaves none for training"
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_numbers_that_are_not_finite_are_refused(tmp_path, value):
    x = np.zeros((10, 3))
    x[4, 1] = value
    data = archive(tmp_path, x=x, y=np.zeros(10, int))
    assert refusal(VECTORS, data) == (
        f"E_ARGUMENT: {data}: x[4, 1] is {value}, which is no finite number in float32\n"
        "  clean the data: one such number makes every weight nan"
    )


@pytest.mark.parametrize("value", [2**63, 2**64 - 100, 2])
def test_unsigned_targets_do_not_wrap(tmp_path, value):
    # 2**64 - 100 as int64 is -100, the mark of a target to ignore.
    data = archive(tmp_path, x=np.zeros((2, 3)), y=np.array([1, value], np.uint64))
    assert refusal(VECTORS, data).startswith(
        f"E_ARGUMENT: {data}: target {value} is no class of a network that scores 2\n"
    )


def test_ids_that_do_not_fit_their_dtype_are_refused(tmp_path):
    text = 'ids = input("B", "T", dtype="int32")\nembedding(4, 2)\nlinear(3)\noutput("B", "T", 3)'
    data = archive(tmp_path, ids=np.array([[0, 2**32 + 1]] * 4), y=np.zeros((4, 2), int))
    assert refusal(
        text, data
    ) == f"E_ARGUMENT: {data}: x[0, 1] is 4294967297, which does not fit in int32".replace("x[", "ids[")


def test_other_files_are_no_archives(tmp_path):
    hint = "\n  write it with numpy.savez(FILE, x=..., y=...); arrays of Python objects are not read"
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("x,y\n1,2\n")
    np.savez(tmp_path / "objects.npz", x=np.array([None], dtype=object), y=np.zeros(1, int))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "objects.npz").read_bytes()[:60])
    for name, reason in (
        ("one.npy", "it holds a single array"),
        ("text.npz", "it is another file"),
        ("objects.npz", "x is damaged or holds Python objects"),
        ("cut.npz", "File is not a zip file"),
    ):
        path = tmp_path / name
        assert (
            refusal(VECTORS, f"npz:{path}")
            == f"E_ARGUMENT: {path} is no usable NumPy archive: {reason}{hint}"
        )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("kind", ["text", "npz"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path, kind):
    text = BYTES if kind == "text" else VECTORS
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
    for place, what in (
        (tmp_path / "pipe", "a pipe"),
        (tmp_path / "s", "a socket"),
        (tmp_path, "a directory"),
        ("/dev/zero", "a device"),
    ):
        assert refusal(text, f"{kind}:{place}") == (
            f"E_ARGUMENT: cannot read the data {place}: it is {what}, expected a regular file\n  check the path"
        )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_file_that_is_exchanged_for_a_pipe_is_not_waited_for(tmp_path, monkeypatch):
    place = tmp_path / "data"
    place.write_bytes(b"abc")
    opened = os.open

    def exchange(path, *arguments):
        place.unlink()
        os.mkfifo(place)
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", exchange)
    assert "it is a pipe, expected a regular file" in refusal(BYTES, f"text:{place}")
