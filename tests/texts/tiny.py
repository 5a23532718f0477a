"""A small network of transformers with random weights, and a tokenizer trained on some words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

WORDS = (
    *("the", "ball", "game", "won", "team", "goal", "vote", "law", "party", "court", "tax", "debt"),
    *("bank", "price", "film", "song", "stage", "actor"),
)


def write_tiny_bert(folder: Path, *, half: bool = True) -> Path:
    """Write a folder as ``save_pretrained`` does.

    Weights in bfloat16 if ``half``, 64 places, 16 numbers a token.
    """
    transformers: Any = pytest.importorskip("transformers", reason="needs the extra text")
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
    }
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer = normalizers.BertNormalizer(lowercase=True)
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=150, special_tokens=list(special.values()), show_progress=False
    )
    trained.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    numbers = [(name, trained.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    trained.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=numbers
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained, model_max_length=64, **special
    )
    tokenizer.save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=trained.get_vocab_size(), hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = transformers.BertModel(config)
    network.to(torch.bfloat16 if half else torch.float32).save_pretrained(folder)
    return folder
