import json

import pytest
import torch

from curlicue.records.state import Fields, MisfitError, State, joined, split

STATE = {
    "t": 3,
    "names": ["a", "b"],
    "weights": torch.arange(6.0).view(2, 3),
    "inner": {"rows": 2, "deeper": {"flags": torch.tensor([True, False])}},
}


def fields(**state: object) -> Fields:
    return Fields(state, "state")


def refusal(*how: object, on: Fields) -> str:
    method, *arguments = how
    with pytest.raises(MisfitError) as error:
        getattr(on, str(method))(*arguments)
    return str(error.value)


# -- one flat dictionary for tensors and one for JSON ----------------------------------------------------------------


def test_a_state_is_split_into_tensors_and_plain_values_by_their_paths():
    tensors, values = split(STATE)
    assert tensors.keys() == {"weights", "inner/deeper/flags"}
    assert values == {"t": 3, "names": ["a", "b"], "inner/rows": 2}


@pytest.mark.parametrize(
    "state", [STATE, {}, {"a/b": {"c~d": 1, "~1": {"/": 2}}}], ids=["nested", "empty", "odd names"]
)
def test_what_was_split_is_joined_again(state: State):
    tensors, values = split(state)
    assert joined(tensors, json.loads(json.dumps(values))) == state


def test_an_empty_state_within_another_leaves_no_trace_and_reads_as_empty():
    assert split({"growth": {}}) == ({}, {})
    empty = fields().state("growth")
    assert "seen" not in empty
    empty.end()


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        (["a", "a/b"], "a/b lies in what is no state"),
        (["a/b", "a"], "a is in it twice"),
        (["a/b/c", "a/b"], "a/b is in it twice"),
    ],
)
def test_a_path_cannot_be_a_value_and_a_state_at_once(paths, reason):
    with pytest.raises(MisfitError, match=reason):
        joined({}, dict.fromkeys(paths, 1))


def test_a_path_cannot_be_a_tensor_and_a_value_at_once():
    with pytest.raises(MisfitError, match="a is in it twice"):
        joined({"a": torch.zeros(1)}, {"a": 1})


# -- field by field ------------------------------------------------------------------------------------------------


def test_fields_come_back_as_they_were_written():
    read = Fields(STATE, "state")
    assert read.count("t") == 3
    assert read.value("names", list) == ["a", "b"]
    assert torch.equal(read.tensor("weights", (2, 3), torch.float32), STATE["weights"])
    inner = read.state("inner")
    assert inner.count("rows") == 2
    assert inner.state("deeper").tensor("flags", (None,), torch.bool).tolist() == [True, False]
    read.end()


def test_what_is_read_is_a_copy_so_that_two_readers_do_not_touch_each_other():
    weights = torch.zeros(3)
    fields(weights=weights).tensor("weights", (3,), torch.float32).add_(1)
    assert not weights.any()


def test_reading_leaves_the_state_whole():
    state = dict(STATE)
    Fields(state, "state").count("t")
    assert state.keys() == STATE.keys()


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (torch.zeros(2, 4), "float32 [2, 4]"),
        (torch.zeros(3), "float32 [3]"),
        (torch.zeros(2, 3).double(), "float64 [2, 3]"),
        ([[0, 0, 0]], "list"),
        ({"a": 1}, "present"),
    ],
)
def test_a_tensor_of_another_type_or_shape_is_refused_with_what_was_seen_and_wanted(value, seen):
    told = refusal("tensor", "w", (2, 3), torch.float32, on=fields(w=value))
    assert told == f"state/w is {seen} in it, but these settings make it float32 [2, 3]"


def test_a_length_that_is_not_known_may_be_any_but_the_others_may_not():
    assert len(fields(w=torch.zeros(5, 3)).tensor("w", (None, 3), torch.float32)) == 5
    told = refusal("tensor", "w", (None, 4), torch.float32, on=fields(w=torch.zeros(5, 3)))
    assert told == "state/w is float32 [5, 3] in it, but these settings make it float32 [any, 4]"


@pytest.mark.parametrize(
    ("value", "kind", "told"),
    [
        (True, int, "bool in it, but these settings make it int"),
        (1, bool, "int in it, but these settings make it bool"),
        (1.0, int, "float in it, but these settings make it int"),
        (None, list, "NoneType in it, but these settings make it list"),
        (torch.zeros(1), int, "float32 [1] in it, but these settings make it int"),
    ],
)
def test_a_value_of_another_type_is_refused(value, kind, told):
    assert refusal("value", "n", kind, on=fields(n=value)) == f"state/n is {told}"


def test_a_count_is_not_negative():
    assert fields(n=0).count("n") == 0
    assert refusal("count", "n", on=fields(n=-1)) == "state/n is -1 in it, but these settings make it at least 0"


@pytest.mark.parametrize(
    ("how", "wanted"),
    [(("count", "n"), "int"), (("value", "n", list), "list"), (("tensor", "n", (2,), torch.bool), "bool [2]")],
)
def test_a_missing_field_is_refused(how, wanted):
    assert refusal(*how, on=fields()) == f"state/n is absent in it, but these settings make it {wanted}"


def test_a_field_is_read_once():
    read = fields(n=1)
    read.count("n")
    assert "absent" in refusal("count", "n", on=read)


def test_tensors_like_others_have_their_names_shapes_and_types():
    like = {"a": torch.zeros(2), "b": torch.zeros(1, dtype=torch.int64)}
    held = {"a": torch.ones(2), "b": torch.ones(1, dtype=torch.int64)}
    assert fields(model=held).tensors_like("model", like).keys() == {"a", "b"}
    assert "model/b is absent" in refusal("tensors_like", "model", like, on=fields(model={"a": torch.ones(2)}))


@pytest.mark.parametrize("state", [3, [1], None, torch.zeros(1)])
def test_a_state_that_is_none_is_refused(state):
    assert "state/growth is " in refusal("state", "growth", on=fields(growth=state))


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_in_the_end_what_nobody_read_is_refused_however_deep_it_lies(depth):
    state: State = {"surplus": 1}
    for _ in range(depth):
        state = {"inner": state}
    read = Fields(state, "state")
    inner = read
    for _ in range(depth):
        inner = inner.state("inner")
    where = "/inner" * depth
    assert refusal("end", on=read) == f"state{where}/surplus is int in it, but these settings make it absent"


def test_a_state_that_nobody_read_is_refused_in_the_end():
    assert (
        refusal("end", on=fields(inner={"a": 1})) == "state/inner is present in it, but these settings make it absent"
    )
