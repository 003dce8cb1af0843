"""SharedMap: a dict, and copies that do not see each other's changes."""

import hypothesis.strategies as st
from hypothesis import given

from graphformers.graph.shared_map import SharedMap

KEY = st.one_of(st.integers(0, 30), st.tuples(st.integers(0, 3), st.integers(0, 3)))
STEP = st.tuples(st.sampled_from(["set", "pop", "copy"]), KEY, st.integers(), st.integers(0, 9))


@given(start=st.dictionaries(KEY, st.integers()), steps=st.lists(STEP, max_size=60))
def test_it_is_a_dict_and_so_are_its_copies(
    start: dict[object, int], steps: list[tuple[str, object, int, int]]
) -> None:
    maps, dicts = [SharedMap(start.items())], [dict(start)]
    for what, key, value, number in steps:
        place = number % len(maps)
        if what == "set":
            maps[place][key] = dicts[place][key] = value
        elif what == "pop":
            assert maps[place].pop(key) == dicts[place].pop(key, None)
        else:
            maps.append(maps[place].copy())
            dicts.append(dicts[place].copy())
        for one, plain in zip(maps, dicts, strict=True):
            assert (dict(one.items()), len(one)) == (plain, len(plain))
            assert set(one) == set(plain)
            assert one.get_all([key, *start]) == [plain.get(other) for other in [key, *start]]
            assert (key in one) == (key in plain)
            for another, other in zip(maps, dicts, strict=True):
                found = one.differences(another)
                assert len(set(found)) == len(found)
                for key in plain.keys() | other.keys():
                    assert key in found or plain.get(key) == other.get(key)
                    assert key not in found or plain.get(key) is not other.get(key)


def test_changed_keys_are_known_in_copies() -> None:
    one = SharedMap([(1, "a"), (2, "b")])
    one[3] = "c"
    other = one.copy()
    other[1] = "d"
    other.pop(2)
    assert (one.changed, other.changed) == ({3}, {1, 2, 3})
    other.forget_changes()
    other[5] = "e"
    assert (one.changed, other.changed) == ({3}, {5})
