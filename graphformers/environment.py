"""What is installed here: versions, the device, backbones. Problems are reported with it."""

import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

from graphformers.errors import GraphFormersError
from graphformers.records import JsonObject
from graphformers.table import Result, Table
from graphformers.version import __version__

# packages that some commands need, and the extras of the installation that bring them
EXTRAS = {
    "usearch": "search",
    "uvicorn": "serve",
    "plotly": "report",
    "tensorboard": "tensorboard",
    "ray": "ray",
}


@dataclass(frozen=True, repr=False)
class Environment(Result):
    """Versions, device and backbones.

    Attributes:
        versions: The version of each package; None if it is not installed.
        device: The device that is used by default, and what is known of it.
        backbones: The folder of each named backbone, or how to install it.
    """

    versions: dict[str, str | None]
    device: str
    backbones: dict[str, str]

    def to_dict(self) -> JsonObject:
        """All attributes, for JSON."""
        return asdict(self)

    def as_table(self) -> Table:
        """A row for each package, the device and each backbone."""
        rows = []
        for name, found in self.versions.items():
            extra = EXTRAS.get(name)
            rows.append((name, found or f"not installed; pip install 'graphformers[{extra}]'"))
        rows.append(("device", self.device))
        rows += [(f"backbone {name}", found) for name, found in self.backbones.items()]
        return Table((), rows)


def describe_environment() -> Environment:
    """Looks at what is installed here."""
    import torch

    from graphformers.model.backbones import INSTALLED, find_backbone
    from graphformers.model.compute import choose_device

    versions: dict[str, str | None] = {
        "graphformers": __version__,
        "Python": platform.python_version(),
        "torch": torch.__version__,
    }
    for name in EXTRAS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    device = choose_device(None)
    about = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    backbones = {}
    for name in INSTALLED:
        try:
            backbones[name] = str(find_backbone(name))
        except GraphFormersError as error:
            backbones[name] = str(error)
    described = f"{device.type}: {about}, {torch.get_num_threads()} CPU threads"
    return Environment(versions, described, backbones)
