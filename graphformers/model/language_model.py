"""Writes the text encoder of a model as a language model that other libraries load.

The folder is one of sentence-transformers; transformers and `from_backbone` load it, too. It
encodes a text as the model does for a node without neighbours.
"""

import json
import os
from pathlib import Path

from graphformers.artifact import check_name, check_place, draft_of, put_folder_in_place
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.files import full_disk, sync
from graphformers.model.backbones import save_tensors
from graphformers.model.checkpoints import write_settings, write_weights
from graphformers.model.encoder import GraphFormers
from graphformers.model.registry import network_class
from graphformers.settings import usage

MODULES = "modules.json"


def save_language_model(model: GraphFormers, path: str | Path, *, force: bool = False) -> None:
    """Writes the text encoder of a model as a folder of sentence-transformers.

    Args:
        model: The model.
        path: The folder to write.
        force: Replace a folder of sentence-transformers that exists.

    Raises:
        GraphFormersError: The folder exists, or the model does not encode texts without neighbours
            as a language model does.
    """
    config, target = model.config, Path(path)
    if not network_class(config).is_plain_without_neighbors(config):
        raise GraphFormersError(
            f"this {model.network.title} encodes a text without neighbours in another way than a "
            f"language model; train it with isolated_graph_token=false, as the recipe auto does, "
            f"or train the method plm"
        )
    check_replaceable(target, force=force)
    prefix = "text."
    weights = {
        name.removeprefix(prefix): tensor
        for name, tensor in model.network.state_dict().items()
        if name.startswith(prefix)
    }
    pooling = {
        "word_embedding_dimension": config.hidden_size,
        "pooling_mode_cls_token": config.pooling == "cls",
        "pooling_mode_mean_tokens": config.pooling == "mean",
    }
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
    ]
    files = {
        "config.json": write_settings(config),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.max_tokens,
            **model.tokenizer.special_names(),
        },
        MODULES: modules,
        "sentence_bert_config.json": {"max_seq_length": config.max_tokens, "do_lower_case": False},
        "config_sentence_transformers.json": {"similarity_fn_name": config.similarity},
        "1_Pooling/config.json": pooling,
    }
    try:
        with draft_of(target) as draft:
            draft.path("1_Pooling").mkdir()
            for name, content in files.items():
                draft.path(name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            draft.path("tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
            save_tensors(draft.path("model.safetensors"), write_weights(config, weights))
            for place in [*draft.folder.rglob("*"), draft.folder]:
                sync(place)
            check_replaceable(target, force=force)
            put_folder_in_place(draft.folder, target)
    except OSError as error:
        raise full_disk(error, target) from error


def check_replaceable(path: Path, *, force: bool) -> None:
    """Raises an error if a folder must not be written."""
    check_name(path)
    if not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir())):
        check_place(path)
    elif not (path / MODULES).is_file():
        raise ArtifactError(
            f"{path}: exists and is not a folder of sentence-transformers; it is never replaced, "
            f"choose another name"
        )
    elif not force:
        raise ArtifactError(f"{path}: exists already; {usage('force', True)} replaces it")
