"""The networks that TextClassifier can be built on.

A bag of n-grams, and those of the package transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightkit.config.origins import near_files
from lightkit.errors import ConfigError
from lightkit.texts.tokens import INSTALL, Tokenizing

NGRAMS = "ngrams"
PREFIX = "transformers/"
"""Of a name of the package transformers, which downloads it once."""
_KEY = "model.init_args.encoder"
_MOST_TOKENS = 512
_SMALLEST_NORM = 1e-6


class NgramNetwork(nn.Module):
    """A weighted sum of the vectors of a text's n-grams, and a linear layer.

    The weight of an n-gram is ``(1 + log(count)) * rarity``, over the square root of the sum of the
    squares of all of the text, where ``rarity`` is
    ``1 + log((1 + texts) / (1 + texts with the n-gram))`` of the training split, as in retrieval
    (G. Salton and C. Buckley, "Term-weighting approaches in automatic text retrieval", 1988).
    Vectors begin as 0, so that an n-gram that was in no training text adds nothing. A text without
    n-grams has the vector 0, and so the outputs of the bias.

    Args:
        buckets: Numbers of n-grams that there are.
        embedding_size: Length of a vector.
        num_classes: Number of outputs.
        dropout: Part of the vector of a text that is dropped in training.
    """

    rarity: Tensor

    def __init__(
        self, buckets: int, embedding_size: int, num_classes: int, *, dropout: float
    ) -> None:
        super().__init__()
        self.vectors = nn.EmbeddingBag(buckets + 1, embedding_size, mode="sum")
        nn.init.zeros_(self.vectors.weight)
        self.register_buffer("rarity", torch.ones(buckets + 1))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(embedding_size, num_classes)

    def forward(self, ids: Tensor, counts: Tensor) -> Tensor:
        """Return the logits ``(texts, classes)``.

        Args:
            ids: int64 ``(texts, n-grams)``.
            counts: float32 of the same shape; 0 for what is no n-gram.
        """
        weights = torch.where(counts > 0, 1 + counts.clamp_min(1).log(), torch.zeros_like(counts))
        weights = weights * self.rarity[ids]
        weights = functional.normalize(weights, dim=1, eps=_SMALLEST_NORM)
        logits: Tensor = self.head(self.dropout(self._sum_vectors(ids, weights)))
        return logits

    def set_rarity(self, num_with: Tensor, num_texts: int) -> None:
        """Set the rarity of each n-gram.

        Args:
            num_with: Texts of the training split that have it, int64 ``(buckets + 1,)``.
            num_texts: Texts of the training split.
        """
        rarity = 1 + ((1 + num_texts) / (1 + num_with.double())).log()
        self.rarity.copy_(rarity.to(self.rarity))

    def _sum_vectors(self, ids: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of the vectors of each text, ``(texts, embedding_size)``.

        An exported graph has one multiplication of matrices: of an `EmbeddingBag` torch.onnx (2.15)
        makes a loop over the texts, which is right, and six times slower in onnxruntime (1.31).
        """
        if torch.compiler.is_exporting():
            vectors = functional.embedding(ids, self.vectors.weight)
            return torch.bmm(weights[:, None], vectors).squeeze(1)
        summed: Tensor = self.vectors(ids, per_sample_weights=weights)
        return summed


class TransformerNetwork(nn.Module):
    """A model of the package transformers with a head for classes.

    Args:
        config: Of the model, with the number of classes, as a mapping for JSON.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        transformers = import_transformers()
        with _explain_failure("this model cannot be built"):
            own = transformers.AutoConfig.for_model(**config)
            self.model = transformers.AutoModelForSequenceClassification.from_config(
                own, dtype=torch.float32
            )

    @property
    def encoder(self) -> nn.Module:
        """The model without the head."""
        encoder: nn.Module = self.model.base_model
        return encoder

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the logits ``(texts, classes)``.

        Args:
            ids: int64 ``(texts, tokens)``.
            mask: int64 of the same shape; 1 for a token, 0 for what is none.
        """
        logits: Tensor = self.model(input_ids=ids, attention_mask=mask, return_dict=True).logits
        return logits

    def load_pretrained(self, source: str) -> None:
        """Load the weights of a source, in float32.

        The head stays as it is where the source has none for the classes.

        Raises:
            ConfigError: If they cannot be read, or are of another model.
        """
        transformers = import_transformers()
        with _explain_failure(source):
            # without dtype, version 5 keeps that of the file, such as bfloat16, in which AdamW
            # loses small steps
            loaded, found = transformers.AutoModelForSequenceClassification.from_pretrained(
                source, config=self.model.config, dtype=torch.float32, ignore_mismatched_sizes=True,
                output_loading_info=True, trust_remote_code=False,
            )  # fmt: skip
        left_out = {*found["missing_keys"], *(_name_key(key) for key in found["mismatched_keys"])}
        own_encoder = {
            f"{self.model.base_model_prefix}.{name}" for name, _ in self.encoder.named_parameters()
        }
        if own_encoder and own_encoder <= left_out:
            raise ConfigError(
                f"{_KEY}: {source} has none of the weights of a {type(self.model).__name__}."
            )
        state = {
            name: tensor for name, tensor in loaded.state_dict().items() if name not in left_out
        }
        self.model.load_state_dict(state, strict=False)


def _name_key(key: Any) -> str:
    """Return the name of a tensor of another shape, which comes with the shapes."""
    return str(key if isinstance(key, str) else key[0])


def find_source(name: str) -> str:
    """Return the name or the folder of an encoder as transformers takes it.

    Raises:
        ConfigError: If there is no such folder, or it has no model.
    """
    if name.startswith(PREFIX):
        return name.removeprefix(PREFIX)
    folder = Path(name).expanduser()
    if not (folder / "config.json").is_file():
        found = (
            "has no config.json" if folder.is_dir() else f"does not exist{near_files(folder) or ''}"
        )
        raise ConfigError(
            f"{_KEY}: the folder {folder} {found}. Expected {NGRAMS}, {PREFIX}NAME, or a folder of"
            " a model as save_pretrained of transformers writes it."
        )
    return str(folder)


def import_transformers() -> Any:
    """Import the package transformers, which draws no progress bars and prints no advice.

    Raises:
        ConfigError: If it is not installed, or of another version.
    """
    try:
        transformers: Any = import_module("transformers")  # an extra
        logging: Any = import_module("transformers.utils.logging")
    except ImportError as error:
        raise ConfigError(
            f"{_KEY}: a network of transformers needs that package ({error}): {INSTALL}."
        ) from error
    if int(transformers.__version__.partition(".")[0]) < 5:
        raise ConfigError(
            f"{_KEY}: expected transformers 5 or newer, found"
            f" {transformers.__version__}: {INSTALL} --upgrade."
        )
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    return transformers


@contextmanager
def _explain_failure(source: str) -> Iterator[None]:
    """Turn any exception of transformers into a `ConfigError`."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # transformers raises anything, of files and of the network
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise ConfigError(
            f"{_KEY}: {source} cannot be read by transformers ({type(error).__name__}: {reason})."
        ) from error


def read_source(
    name: str, num_classes: int, max_length: int | None
) -> tuple[dict[str, Any], Tokenizing]:
    """Read the config of a model for a number of classes, and its tokenizer.

    Args:
        name: Of the encoder.
        num_classes: Number of outputs.
        max_length: Tokens of a text that count; None for as many as the model takes, at most 512.

    Returns:
        The config as a mapping for JSON, and the tokenizer.

    Raises:
        ConfigError: If one cannot be read, or the model takes fewer tokens.
    """
    transformers = import_transformers()
    source = find_source(name)
    with _explain_failure(source):
        config = transformers.AutoConfig.from_pretrained(
            source, num_labels=num_classes, trust_remote_code=False
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        backend = tokenizer.backend_tokenizer.to_str()
    padding = _find_padding(config, tokenizer)
    config.pad_token_id = padding
    most = _find_most_tokens(config, tokenizer)
    if max_length is not None and max_length > most:
        raise ConfigError(
            f"model.init_args.max_length: {source} takes {most} tokens at most, got {max_length}."
        )
    chosen = max_length or min(most, _MOST_TOKENS)
    return json.loads(config.to_json_string(use_diff=False)), Tokenizing(backend, chosen, padding)


def _find_padding(config: Any, tokenizer: Any) -> int:
    """Return the number of the token that fills up texts, of models without one that of the end."""
    for owner in (tokenizer, config):
        for name in ("pad_token_id", "eos_token_id"):
            number = getattr(owner, name, None)
            if isinstance(number, int):
                return number
    return 0


def _find_most_tokens(config: Any, tokenizer: Any) -> int:
    """Return how many tokens a model takes.

    A tokenizer that does not know it names a very large number.
    """
    most = int(min(tokenizer.model_max_length, 10**9))
    places = getattr(config, "max_position_embeddings", None)
    return min(most, places) if isinstance(places, int) else most
