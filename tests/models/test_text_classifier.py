"""The classifier of texts.

Empty bags, weights of n-grams, what is frozen, checkpoints and pretrained weights.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import Trainer
from torch.nn import functional

from lightkit.data import TextData
from lightkit.errors import ConfigError
from lightkit.models import TextClassifier
from lightkit.models.text_encoders import NgramNetwork, TransformerNetwork
from lightkit.rows.text import TextPreprocessing
from tests.texts.tiny import WORDS, write_tiny_bert


def make_network() -> NgramNetwork:
    """Build a network whose vectors are not 0, as after a training."""
    network = NgramNetwork(100, 8, 3, dropout=0.0).eval()
    torch.nn.init.normal_(network.vectors.weight, generator=torch.Generator().manual_seed(2))
    return network


pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")


def write_table(folder: Path, num: int = 60) -> Path:
    """Write JSON lines of two classes, each with words of its own."""
    random = np.random.default_rng(3)
    halves = WORDS[: len(WORDS) // 2], WORDS[len(WORDS) // 2 :]
    lines = []
    for at in range(num):
        text = " ".join(random.choice(halves[at % 2], 2 + at % 7))
        split = "train" if at < num * 2 // 3 else "val" if at < num * 5 // 6 else "test"
        lines.append(
            json.dumps({"text": text, "label": ["first", "second"][at % 2], "split": split}) + "\n"
        )
    path = folder / "texts.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def make_trainer(folder: Path, **options: Any) -> Trainer:
    given = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        **options,
    }
    return Trainer(
        default_root_dir=folder, enable_model_summary=False, num_sanity_val_steps=0, **given
    )


def test_a_text_without_ngrams_has_the_outputs_of_the_bias() -> None:
    network = make_network()
    ids = torch.tensor([[3, 7, 0], [0, 0, 0]])
    counts = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    with torch.no_grad():
        logits = network(ids, counts)
        alone = network(ids[:1, :2], counts[:1, :2])
    assert torch.equal(logits[1], network.head.bias)
    assert torch.allclose(logits[0], alone[0])
    assert torch.isfinite(logits).all()


def test_the_vector_of_a_text_is_the_weighted_sum_of_its_ngrams() -> None:
    network = make_network()
    network.rarity[7] = 3.0
    weights = torch.tensor([1 + np.log(2.0), 3.0])
    weights = (weights / weights.square().sum().sqrt()).float()
    table = network.vectors.weight
    expected = functional.linear(
        weights[0] * table[3] + weights[1] * table[7], network.head.weight, network.head.bias
    )
    with torch.no_grad():
        found = network(torch.tensor([[3, 7]]), torch.tensor([[2.0, 1.0]]))
    assert torch.allclose(found[0], expected, atol=1e-6)


def test_an_exported_graph_computes_the_same_for_any_length() -> None:
    network = make_network()
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=1)
    ids = torch.randint(1, 101, (3, 5), generator=torch.Generator().manual_seed(0))
    counts = torch.ones(3, 5)
    counts[1] = 0
    dims = {0: batch, 1: length}
    program = torch.export.export(network, (ids, counts), dynamic_shapes=(dims, dims)).module()
    for rows, width in ((3, 5), (1, 1), (2, 3)):
        inputs = ids[:rows, :width], counts[:rows, :width]
        assert torch.allclose(program(*inputs), network(*inputs), atol=1e-6)


def test_ngrams_are_learnt_and_a_checkpoint_brings_what_a_text_becomes(tmp_path: Path) -> None:
    path = write_table(tmp_path)
    model = TextClassifier(buckets=4096)
    trainer = make_trainer(tmp_path, max_epochs=6)
    trainer.fit(model, TextData(str(path), batch_size=8, num_workers=0))
    found = trainer.test(model, TextData(str(path), num_workers=0), verbose=False)[0]
    assert found["test/accuracy"] == 1.0
    check_rarity(model, path)
    checkpoint = tmp_path / "model.ckpt"
    trainer.save_checkpoint(checkpoint)

    again = TextClassifier(buckets=4096)
    scores = make_trainer(tmp_path).test(
        again, TextData(str(path), num_workers=0), ckpt_path=checkpoint, verbose=False
    )
    assert scores[0] == pytest.approx(found)
    assert again.row_preprocessing == model.row_preprocessing
    with pytest.raises(ConfigError, match="not of encoder ngrams"):
        make_trainer(tmp_path).test(
            TextClassifier(buckets=1000),
            TextData(str(path), num_workers=0),
            ckpt_path=checkpoint,
            verbose=False,
        )


def check_rarity(model: TextClassifier, path: Path) -> None:
    """Compare the rarity of the n-grams of a word with that of the training texts that have it."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [row["text"] for row in rows if row["split"] == "train"]
    num_with = sum(WORDS[0] in text.split() for text in texts)
    words = TextClassifier(buckets=4096, word_ngrams=1, char_ngrams=None).hashing
    assert words is not None
    number = int(words.hash_texts([WORDS[0]]).ids[0])
    assert isinstance(model.network, NgramNetwork)
    expected = 1 + np.log((1 + len(texts)) / (1 + num_with))
    assert float(model.network.rarity[number]) == pytest.approx(expected)
    assert 0 < num_with < len(texts)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"freeze": "encoder"}, "freeze: ngrams has no pretrained part"),
        ({"char_ngrams": None, "word_ngrams": 0}, "leave no n-grams"),
        ({"char_ngrams": (4, 3)}, "char_ngrams: expected the shortest and the longest"),
        ({"pos_weight": "auto"}, "without multilabel"),
    ],
    ids=["freeze", "none", "lengths", "weights"],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TextClassifier(**arguments)


# -- transformers ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("tiny") / "bert")


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_a_frozen_encoder_keeps_its_weights_in_float32_and_is_in_eval_mode(
    bert: Path, tmp_path: Path
) -> None:
    path = write_table(tmp_path)
    model = TextClassifier(encoder=str(bert), freeze="encoder")
    make_trainer(tmp_path).fit(model, TextData(str(path), batch_size=8, num_workers=0))
    network = model.network
    assert isinstance(network, TransformerNetwork)
    assert not any(module.training for module in network.encoder.modules())
    stored = read_weights(bert)
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    own = network.encoder.state_dict()
    assert stored.keys() == own.keys()
    for name, tensor in own.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, stored[name].float()), name
    assert model.learning_rate == 1e-3


def test_a_checkpoint_of_a_transformer_is_read_without_its_folder(
    bert: Path, tmp_path: Path
) -> None:
    path = write_table(tmp_path)
    folder = tmp_path / "moved"
    shutil.copytree(bert, folder)
    torch.manual_seed(0)
    model = TextClassifier(encoder=str(folder), learning_rate=0.01)
    trainer = make_trainer(tmp_path, max_epochs=4)
    trainer.fit(model, TextData(str(path), batch_size=8, num_workers=0))
    found = trainer.test(model, TextData(str(path), num_workers=0), verbose=False)[0]
    assert found["test/accuracy"] >= 0.9
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    shutil.rmtree(folder)
    again = TextClassifier(encoder=str(folder))
    scores = make_trainer(tmp_path).test(
        again, TextData(str(path), num_workers=0), ckpt_path=tmp_path / "model.ckpt", verbose=False
    )
    assert scores[0] == pytest.approx(found)
    assert isinstance(again.row_preprocessing, TextPreprocessing)
    assert again.row_preprocessing == model.row_preprocessing


def test_a_head_of_the_same_classes_is_taken_over(bert: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "tuned"
    shutil.copytree(bert, folder)
    config = transformers.AutoConfig.from_pretrained(bert, num_labels=2)
    network = transformers.AutoModelForSequenceClassification.from_config(config)
    network.save_pretrained(folder)
    path = write_table(tmp_path)
    for num, takes_over in ((2, True), (3, False)):
        names = [f"class {at}" for at in range(num)]
        model = TextClassifier(encoder=str(folder), class_names=names)
        model.configure_model()
        model.load_weights()
        assert isinstance(model.network, TransformerNetwork)
        head = model.network.model.classifier.weight
        assert head.shape[0] == num
        assert torch.equal(head, network.classifier.weight) == takes_over
    assert path.exists()


def test_a_folder_of_something_else_is_reported(bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    shutil.copytree(bert, folder)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    model = TextClassifier(encoder=str(folder), num_classes=2)
    with pytest.raises(
        ConfigError, match=r"model\.init_args\.encoder: .*odd cannot be read by transformers"
    ):
        model.configure_model()
    with pytest.raises(ConfigError, match=r"the folder .*nowhere does not exist"):
        TextClassifier(encoder=str(tmp_path / "nowhere"), num_classes=2).configure_model()
    with pytest.raises(ConfigError, match="takes 64 tokens at most, got 100"):
        TextClassifier(encoder=str(bert), num_classes=2, max_length=100).configure_model()
