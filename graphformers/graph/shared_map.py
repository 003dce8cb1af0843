"""SharedMap: a dict whose copies share what they do not change.

Entries lie in a fixed number of small dicts. A copy copies the list of them; the first change in
one of them copies that one. So a copy and a change cost as much with a million entries as with
none, up to the size of one small dict, and a copy never sees what is changed in another.
"""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

# Small dicts of a map: 100,000 entries are a hundred in each, which are copied in a microsecond.
BUCKETS = 1024


class SharedMap(Generic[K, V]):
    """A mapping with cheap copies; keys are hashable.

    Attributes:
        changed: Keys that were set or removed since `forget_changes`, in this map and in those that
            it was copied from.

    Example:
        >>> one = SharedMap([("a", 1)])
        >>> other = one.copy()
        >>> other["b"] = 2
        >>> sorted(one), sorted(other), other.changed
        (['a'], ['a', 'b'], {'b'})
    """

    __slots__ = ("_buckets", "_own", "_size", "changed")

    def __init__(self, entries: Iterable[tuple[K, V]] = ()) -> None:
        self._buckets: list[dict[K, V]] = [{} for _ in range(BUCKETS)]
        for key, value in entries:
            self._buckets[hash(key) % BUCKETS][key] = value
        # Which of them no other map has.
        self._own = set(range(BUCKETS))
        self._size = sum(map(len, self._buckets))
        self.changed: set[K] = set()

    def copy(self) -> "SharedMap[K, V]":
        """A copy; later changes of either map are not seen in the other."""
        other: SharedMap[K, V] = SharedMap.__new__(SharedMap)
        other._buckets, other._own = self._buckets.copy(), set()
        other._size, other.changed = self._size, self.changed.copy()
        self._own = set()
        return other

    def forget_changes(self) -> None:
        """Begins a new set of changed keys."""
        self.changed = set()

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for key, _ in self.items():
            yield key

    def __contains__(self, key: K) -> bool:
        return key in self._buckets[hash(key) % BUCKETS]

    def __getitem__(self, key: K) -> V:
        return self._buckets[hash(key) % BUCKETS][key]

    def get(self, key: K) -> V | None:
        """The value of a key, or None."""
        return self._buckets[hash(key) % BUCKETS].get(key)

    def get_all(self, keys: Iterable[K]) -> list[V | None]:
        """The values of some keys, None where there is none."""
        buckets = self._buckets
        return [buckets[hash(key) % BUCKETS].get(key) for key in keys]

    def items(self) -> Iterator[tuple[K, V]]:
        """All keys with their values, in no particular order."""
        for bucket in self._buckets if self._size else ():
            yield from bucket.items()

    def differences(self, other: "SharedMap[K, V]") -> list[K]:
        """The keys whose values are not the same objects in another map.

        Takes as long as what is not shared is large.
        """
        keys: list[K] = []
        for mine, theirs in zip(self._buckets, other._buckets, strict=True):
            if mine is not theirs:
                keys += [key for key in mine if mine[key] is not theirs.get(key)]
                keys += [key for key in theirs if key not in mine]
        return keys

    def __setitem__(self, key: K, value: V) -> None:
        bucket = self._writable(key)
        self._size += key not in bucket
        bucket[key] = value
        self.changed.add(key)

    def pop(self, key: K) -> V | None:
        """Removes a key; returns its value, None if it was not there."""
        if key not in self:
            return None
        self._size -= 1
        self.changed.add(key)
        return self._writable(key).pop(key)

    def _writable(self, key: K) -> dict[K, V]:
        """The small dict of a key, copied unless it is this map's own."""
        place = hash(key) % BUCKETS
        if place not in self._own:
            self._buckets[place] = self._buckets[place].copy()
            self._own.add(place)
        return self._buckets[place]
