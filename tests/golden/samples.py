"""What is recorded on: a graph, a tokenizer, weights, a backbone and foreign files, all made here.

Nothing here comes from graphformers or from other tests. All random numbers come from Random.random
and from the raw bits of Philox, whose streams are fixed; no library's sampling may change them.
"""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

LINES_OF_WORDS = """
graph text node link vector model layer paper author field query search index train
batch loss step rank token word mask head size depth width tree path edge
hub ring set map list key value score test split seed start round state
cache page disk file folder table row column type time year
"""
WORDS = LINES_OF_WORDS.split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
KINDS = ("cites", "extends", "")
NUM_NODES, NUM_LINKS, NUM_TOPICS = 300, 1200, 20


class Draw:
    """Choices made of nothing but Random.random."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def below(self, count: int) -> int:
        return int(self._random.random() * count)

    def one(self, values: Any) -> Any:
        return values[self.below(len(values))]


def tokenizer_json() -> str:
    """A BERT-like tokenizer: words of the graph, single letters and digits, and pieces of them."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    vocabulary = [*SPECIAL, *WORDS, *letters, *(f"##{letter}" for letter in letters)]
    numbers = {word: i for i, word in enumerate(vocabulary)}
    made = tokenizers.Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made.to_str()


def make_nodes(seed: int = 0) -> dict[str, list[Any]]:
    """Nodes of a topic share words; every tenth has no number of its own, a few have no text."""
    draw = Draw(seed)
    texts = []
    for i in range(NUM_NODES):
        topic = [WORDS[(i % NUM_TOPICS) * 2], WORDS[(i % NUM_TOPICS) * 2 + 1]]
        words = [
            draw.one(topic) if draw.chance(0.4) else draw.one(WORDS)
            for _ in range(1 + draw.below(9))
        ]
        words += [str(i)] if i % 10 else []
        texts.append(
            "" if i % 97 == 50 else " ".join(words) + (" naïve 漢字!" if i % 41 == 0 else "")
        )
    return {
        "id": [f"n{i}" if i % 13 else f"n/{i} ü" for i in range(NUM_NODES)],
        "text": texts,
        "year": [1990 + draw.below(20) if i % 30 else None for i in range(NUM_NODES)],
        "venue": [draw.one(["North", "South", "East"]) for _ in range(NUM_NODES)],
    }


def make_links(ids: list[str], seed: int = 1) -> dict[str, list[Any]]:
    """Typed links, most within a topic; a hub, repetitions, loops, six nodes alone."""
    draw = Draw(seed)
    found: dict[str, list[Any]] = {"source": [], "target": [], "type": [], "time": []}
    for i in range(NUM_LINKS):
        one = draw.below(NUM_NODES - 6)
        other = draw.below(NUM_NODES - 6)
        if draw.chance(0.7):
            other = one % NUM_TOPICS + NUM_TOPICS * draw.below(NUM_NODES // NUM_TOPICS - 1)
        elif draw.chance(0.2):
            other = 7
        elif draw.chance(0.02):
            other = one
        ends = (one, other) if draw.chance(0.5) else (other, one)
        found["source"].append(ids[ends[0]])
        found["target"].append(ids[ends[1]])
        found["type"].append(draw.one(KINDS))
        found["time"].append(float(2000 + i % 17))
    return found


def make_texts(count: int, seed: int = 2) -> list[str]:
    draw = Draw(seed)
    return [" ".join(draw.one(WORDS) for _ in range(1 + draw.below(14))) for _ in range(count)]


def weight(name: str, shape: tuple[int, ...], scale: float) -> np.ndarray:
    """A weight that depends on its neutral name and shape alone; scales of norms lie around one.

    Even numbers between -scale and scale, times the root of three: `scale` is their deviation.
    """
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    bits = np.random.Philox(key=key).random_raw(int(np.prod(shape, dtype=np.int64)))
    even = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1
    found = (scale * 3**0.5 * even).reshape(shape)
    return (found + name.endswith("norm.weight")).astype(np.float32)


# of each family of language models: what its layers call their six linear maps and their two norms
BERT_NAMES = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
    "attention.output.LayerNorm",
    "output.LayerNorm",
)
MPNET_NAMES = (
    "attention.attn.q",
    "attention.attn.k",
    "attention.attn.v",
    "attention.attn.o",
    "intermediate.dense",
    "output.dense",
    "attention.LayerNorm",
    "output.LayerNorm",
)
DISTILBERT_NAMES = (
    "attention.q_lin",
    "attention.k_lin",
    "attention.v_lin",
    "attention.out_lin",
    "ffn.lin1",
    "ffn.lin2",
    "sa_layer_norm",
    "output_layer_norm",
)
FAMILIES = {  # names, where layers stand, prefix, settings
    "bert": (BERT_NAMES, "encoder.layer", "", {"model_type": "bert"}),
    "roberta": (
        BERT_NAMES,
        "encoder.layer",
        "roberta.",
        {"model_type": "roberta", "pad_token_id": 1, "layer_norm_eps": 1e-5},
    ),
    "mpnet": (
        MPNET_NAMES,
        "encoder.layer",
        "mpnet.",
        {"model_type": "mpnet", "relative_attention_num_buckets": 8, "pad_token_id": 1},
    ),
    "distilbert": (
        DISTILBERT_NAMES,
        "transformer.layer",
        "distilbert.",
        {"model_type": "distilbert"},
    ),
    "unilm": (
        BERT_NAMES,
        "encoder.layer",
        "bert.",
        {"model_type": "unilm2", "rel_pos_bins": 8, "max_rel_pos": 16},
    ),
    "2021": (BERT_NAMES, "encoder.layer", "bert.", {}),
}
LAYERS, SIZE, INNER, HEADS, POSITIONS = 3, 16, 24, 2, 40


def backbone_shapes(family: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a language model's weights by the names that its makers gave them."""
    names, layers, prefix, _ = FAMILIES[family]
    count = len(json.loads(tokenizer_json())["model"]["vocab"])
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (count, SIZE),
        "embeddings.position_embeddings.weight": (POSITIONS, SIZE),
        "embeddings.LayerNorm.weight": (SIZE,),
        "embeddings.LayerNorm.bias": (SIZE,),
    }
    if family in ("bert", "roberta"):
        shapes["embeddings.token_type_embeddings.weight"] = (2, SIZE)
    for layer in range(LAYERS):
        for i, name in enumerate(names):
            outer, inner = (INNER if i == 4 else SIZE), (INNER if i == 5 else SIZE)
            shape = (outer, inner) if i < 6 else (SIZE,)
            shapes[f"{layers}.{layer}.{name}.weight"] = shape
            shapes[f"{layers}.{layer}.{name}.bias"] = shape[:1]
    if family == "mpnet":
        shapes["encoder.relative_attention_bias.weight"] = (8, HEADS)
    if family in ("unilm", "2021"):
        shapes["rel_pos_bias.weight"] = (HEADS, 8 + 2 * (family == "2021"))
    for name in ("query", "key", "value") if family == "2021" else ():
        shapes[f"encoder.graph_attention.{name}.weight"] = (SIZE, SIZE)
        shapes[f"encoder.graph_attention.{name}.bias"] = (SIZE,)
    return {f"{prefix}{name}": shape for name, shape in shapes.items()}


def write_backbone(place: Path, family: str = "bert") -> None:
    """A language model as its makers would save it; that of 2021 as a file of torch."""
    reader = json.loads(tokenizer_json())
    weights = {}
    for name, shape in backbone_shapes(family).items():
        neutral = name.replace("LayerNorm", "norm").replace("layer_norm", "norm")
        weights[name] = weight(neutral, shape, 0.1 if family == "bert" else 0.3)
    place.mkdir(parents=True)
    if family == "2021":
        import torch

        tensors = {name: torch.from_numpy(found) for name, found in weights.items()}
        torch.save(tensors, place / "checkpoint.bin")
    else:
        from safetensors.numpy import save_file

        save_file(weights, str(place / "model.safetensors"))
    (place / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    config = {
        "vocab_size": len(reader["model"]["vocab"]),
        "hidden_size": SIZE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "position_embedding_type": "absolute",
        "pad_token_id": 0,
    }
    if family == "distilbert":
        config |= {"dim": SIZE, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": INNER}
        config |= {"activation": "gelu", "dropout": 0.0, "attention_dropout": 0.0}
    config |= FAMILIES[family][3]
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")


def write_tables(place: Path) -> None:
    """The graph as two tables, and the files of an update."""
    nodes = make_nodes()
    links = make_links(nodes["id"])
    place.mkdir(parents=True, exist_ok=True)
    rows = zip(nodes["id"], nodes["text"], nodes["year"], nodes["venue"], strict=True)
    lines = [
        f'{id},"{text}",{"" if year is None else year},{venue}' for id, text, year, venue in rows
    ]
    (place / "papers.csv").write_text("\n".join(["id,title,year,venue", *lines]) + "\n", "utf-8")
    ends = zip(links["source"], links["target"], links["type"], strict=True)
    lines = [f"{one},{other},{kind}" for one, other, kind in ends]
    (place / "links.csv").write_text("\n".join(["source,target,type", *lines]) + "\n", "utf-8")
    new = "id,title,year\nq1,a graph of new nodes,2011\nq2,another text,2012\nn5,a changed text,\n"
    (place / "new.csv").write_text(new, "utf-8")
    (place / "new_links.csv").write_text("source,target,type\nq1,n5,cites\nq2,n7,\n", "utf-8")
    (place / "gone.txt").write_text("n9\nn10\n", "utf-8")
    (place / "bad.csv").write_text("id,title\na,First\na,Second\n,Third\nb,\nc,Fourth\n", "utf-8")


DBLP = """[
{"id":1,"title":"First paper","year":2001,"references":[2,99]}
,{"id":2,"title":"Second paper","year":2002,"references":[3]}
,{"id":3,"title":"Third paper","year":2003,"references":[1,2]}
]"""
ENTITIES = (
    "Q1\tDr. J. Smith is a cat. It sleeps.\nQ2\tA dog\twith a tab.\nQ3\tThe U.S. Navy. It floats.\n"
)
TRIPLES = "Q1\tP31\tQ2\nQ2\tP31\tQ3\nQ3\tP17\tQ1\n"
AMAZON = """# Full information about Amazon Share the Love products
Total items: 3

Id:   0
ASIN: 0771044445
  discontinued product

Id:   1
ASIN: 0827229534
  title: Patterns of Preaching: A Sermon Sampler
  group: Book
  salesrank: 396585
  similar: 2  0738700797  156101074X
  categories: 1
   |Books[283155]|Subjects[1000]
  reviews: total: 1  downloaded: 1  avg rating: 5
    2000-7-28  cutomer: A2JW67OY8U6HHK  rating: 5  votes:  10  helpful:   9

Id:   2
ASIN: 0738700797
  title: Candlemas: Feast of Flames
  group: Book
  salesrank: 168596
  similar: 0
"""
DEBIAN = """Package: zsh
Version: 1
Depends: libc6 (>= 2.15), zsh-common (= 1) | zsh-data:any [amd64] <!nocheck>
Description: shell with lots of features
 Zsh is a UNIX command interpreter.
 .
 It has everything.
Section: shells

Package: zsh-common
Description: architecture independent files for Zsh

Package: zsh-data
Suggests: zsh
Description: data
"""
ITEMS = "id,title\ni1,Shoes\ni2,Socks\ni3,Hat\ni4,Glove\n"
VIEWS = """user,time,item
u1,2024-05-01 12:00:00,i1
u1,2024-05-01 12:20:00,i2
u1,2024-05-01 12:45:00,i3
u2,2024-05-01 12:10:00,i2
u2,2024-05-01 12:00:00,i1
u2,2024-05-02 12:00:00,i4
"""
PAIRS = "cats|'|dogs|'||'|mice\tdogs|'|cats\n\nbirds|'|\tcats\n \n"
LINES = "\n".join(
    [
        '{"paperId": 7, "abstract": "graphs of texts", "tags": ["a"]}',
        '{"paperId": "8", "abstract": "more", "tags": null}',
    ]
)
PYTHON = {
    "__init__.py": '"""A package of shapes."""\nfrom .round import Circle\n',
    "round.py": '"""Round things."""\nfrom .base import Shape\n\n\nclass Circle(Shape):\n'
    '    """A round shape."""\n\n    def area(self):\n        """How much it covers."""\n'
    "        return self.square() * 3\n\n    def square(self):\n"
    '        """The radius, squared."""\n',
    "base.py": '"""What all shapes share."""\n\n\nclass Shape:\n    """Has an outline."""\n',
}
SOURCES: dict[str, tuple[str, dict[str, str], list[str], list[str], dict[str, Any]]] = {
    # name: format, files, files of nodes, files of links, settings
    "dblp": ("dblp", {"dblp.json": DBLP}, ["dblp.json"], [], {}),
    "wikidata": (
        "wikidata5m",
        {"text.txt": ENTITIES, "train.txt": TRIPLES},
        ["train.txt", "text.txt"],
        [],
        {},
    ),
    "amazon": ("amazon", {"amazon-meta.txt": AMAZON}, ["amazon-meta.txt"], [], {}),
    "debian": ("debian", {"Packages": DEBIAN}, ["Packages"], [], {}),
    "sessions": (
        "sessions",
        {"items.csv": ITEMS, "log.csv": VIEWS},
        ["items.csv", "log.csv"],
        [],
        {"window": 60.0},
    ),
    "pairs": ("pairs", {"train.tsv": PAIRS}, ["train.tsv"], [], {}),
    "lines": (
        "tables",
        {"papers.jsonl": LINES, "links.tsv": "citing\tcited\twhen\n7\t8\t2024-05-01\n8\t8\t\n"},
        ["papers.jsonl"],
        ["links.tsv"],
        {"columns": {"time": "when"}, "keep": ()},
    ),
    "bare": (
        "tables",
        {"nodes.csv": "a,one text\nb,two texts\n", "links.csv": "a,b\n"},
        ["nodes.csv"],
        ["links.csv"],
        {"header": False, "columns": {"id": "1", "text": "2", "src": "1", "dst": "2"}},
    ),
}
