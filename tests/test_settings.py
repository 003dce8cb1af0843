"""Settings classes: descriptions, bounds and defaults of their fields."""

import inspect
from dataclasses import dataclass
from pathlib import Path

import pytest

from graphformers.embedding.settings import Cluster, CompactionSettings, EmbedSettings
from graphformers.errors import GraphFormersError
from graphformers.graph.settings import ImportSettings
from graphformers.serve.settings import Limits, ServeSettings
from graphformers.settings import Settings, describe, naming_options, setting, usage
from graphformers.splits.settings import SplitSettings
from graphformers.training.settings import TrainConfig

CLASSES = (
    ImportSettings,
    SplitSettings,
    EmbedSettings,
    Cluster,
    CompactionSettings,
    Limits,
    ServeSettings,
)


@pytest.mark.parametrize("settings", CLASSES)
def test_every_setting_has_a_description_of_one_sentence(settings: type[Settings]) -> None:
    for entry in describe(settings):
        assert entry.help.endswith("."), entry.name
        assert ". " not in entry.help, entry.name
        assert entry.help[0].isupper() or entry.help.startswith("sessions:"), entry.name


@pytest.mark.parametrize("settings", CLASSES)
def test_an_option_takes_a_value_unless_it_is_a_flag(settings: type[Settings]) -> None:
    for entry in describe(settings):
        names, _, metavar = entry.option.partition(" ")
        assert not entry.option or all(name.startswith("--") for name in names.split("/"))
        assert bool(metavar) == (bool(entry.option) and entry.type != "bool"), entry.name


def test_mutable_defaults_are_made_for_each_object() -> None:
    defaults = {entry.name: entry.default for entry in describe(ImportSettings)}
    assert defaults["columns"] == {}
    assert ImportSettings().columns is not ImportSettings().columns


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SplitSettings(test=2.0**41), "expected a share between 0 and 1 or a whole number"),
        (lambda: SplitSettings(candidates=1), "candidates=1 given, expected at least 2"),
        (lambda: ServeSettings("x", port=70_000), "port=70000 given, expected 0 to 65535"),
        (lambda: Limits(seconds=0.0), "seconds=0.0 given, expected more than 0"),
        (lambda: EmbedSettings(workers=-1), "workers=-1 given, expected 0 to 512"),
    ],
)
def test_values_out_of_bounds_are_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(GraphFormersError, match=message):
        make()


def test_help_on_settings_lists_their_fields() -> None:
    """Inherited fields come first, each with its description."""

    @dataclass(frozen=True)
    class Parent(Settings):
        """One setting."""

        one: int = setting(1, "The first.")

    @dataclass(frozen=True)
    class Child(Parent):
        """Two settings.

        Of a test.
        """

        two: float = setting(2.0, "The second.")

    expected = (
        "Two settings.\n\nOf a test.\n\nAttributes:\n    one: The first.\n    two: The second."
    )
    assert inspect.getdoc(Child) == expected


def test_messages_spell_settings_for_python_and_for_the_command_line() -> None:
    values = {
        "skip_bad": True,
        "header": False,
        "columns": {"text": "a title", "id": "key"},
        "keep": ("year", "venue"),
        "window": 30.0,
    }
    assert ImportSettings.usage(**values) == (
        "skip_bad=True, header=False, columns={'text': 'a title', 'id': 'key'}, "
        "keep=['year', 'venue'], window=30.0"
    )
    with naming_options():
        assert ImportSettings.usage(**values) == (
            "--skip-bad --no-header --column 'text=a title' --column id=key --keep year,venue "
            "--window 30"
        )
        assert usage("keep_start", True) == "--keep-start"
        assert EmbedSettings.usage(num_neighbors=5) == "--neighbors 5"
        # not an option of its own: --set max_steps=9
        assert TrainConfig.usage(max_steps=9) == "max_steps=9"
    assert usage("nodes", Path("a.csv")) == "nodes='a.csv'"
