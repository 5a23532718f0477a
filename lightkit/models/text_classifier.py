"""The classifier of texts that configs name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pytorch_lightning import LightningModule
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor
from torch.optim import AdamW, Optimizer

from lightkit.config.bounds import NonNegativeFloat, NonNegativeInt, Part, PositiveInt
from lightkit.errors import ConfigError
from lightkit.models.classes import UNKNOWN_CLASSES, ClassifyingModule
from lightkit.models.module import parameter_groups
from lightkit.models.scales import count_documents
from lightkit.models.text_encoders import (
    NGRAMS,
    PREFIX,
    NgramNetwork,
    TransformerNetwork,
    find_source,
    read_source,
)
from lightkit.rows.preprocessing import (
    CHECKPOINT_KEY,
    RowPreprocessing,
    dump_preprocessing,
    load_preprocessing,
)
from lightkit.rows.text import TextPreprocessing
from lightkit.texts.ngrams import NgramHashing

_MOST_CHARACTERS = 100_000
_RATES = {"ngrams": 1e-2, "frozen": 1e-3, "transformer": 2e-5}
_COLUMN = "text"


class TextClassifier(ClassifyingModule, LightningModule):
    """A network that predicts the class of a text.

    It is built when the data is known, so that class count and names come from there. A checkpoint
    holds the names, and of a network of transformers its config and its tokenizer, so that it is
    read without the folder that the training began from. Logs what `ImageClassifier` logs. Batches
    are ``((ids, counts), labels)``, or with weights ``((ids, counts), labels, weights)``, as
    `lightkit.data.TextData` makes them of texts with the model's `row_preprocessing`; weights count
    as for `ImageClassifier`.

    Args:
        encoder: ``ngrams``, a bag of hashed n-grams of words and characters, which trains in
            seconds and downloads nothing; ``transformers/NAME``, a pretrained network of Hugging
            Face's hub, with the text extra; or a folder with such a network, as ``save_pretrained``
            writes it.
        max_length: How much of a text counts, from its start: characters for ``ngrams``, by default
            100,000; tokens for transformers, by default as many as the network takes, at most 512.
        freeze: ``encoder`` trains the head of a network of transformers alone.
        buckets: Numbers that n-grams are hashed to; two of one number are one to the model.
        word_ngrams: Words of the longest n-gram of words; 0 for none. With 2, "not good" is one of
            its own.
        char_ngrams: Characters of the shortest and of the longest n-gram of characters; null for
            none. They are for words with endings, misspellings and languages without spaces, and
            take most of the time.
        embedding_size: Length of the vector of an n-gram.
        dropout: Part of the vector of a text that is dropped in training with ``ngrams``.
        num_classes: Number of classes, where the data does not have it.
        class_names: Names in the order of the labels, where the data has none.
        label_smoothing: Part of each training target that is spread over all classes, from 0 to
            below 1. The losses of validation and test are without it, so that they compare between
            runs.
        learning_rate: At the first step, where the config names no optimizer: AdamW along a cosine
            to zero. The default is 0.01 for ``ngrams``, 0.00002 for transformers and 0.001 where
            their encoder is frozen.
        weight_decay: Of that optimizer, for all but biases and normalisation.
        multilabel: Each text has any number of labels, as for `ImageClassifier`.
        pos_weight: Factor of the training loss where a label is there, of each label; `auto` takes
            the training texts without the label over those with it. Validation and test are without
            it.
        class_weight: Factor of the training loss of each class; `auto` takes all training texts
            over those of the class and the number of classes, so that the mean is 1. Validation and
            test are without it.
    """

    sample_noun: ClassVar[str] = "text"
    input_choices: ClassVar[Mapping[str, Sequence[str]]] = {"encoder": (NGRAMS, f"{PREFIX}*")}
    input_folders: ClassVar[tuple[str, ...]] = ("encoder",)

    def __init__(
        self,
        encoder: str = NGRAMS,
        max_length: PositiveInt | None = None,
        freeze: Literal["none", "encoder"] = "none",
        buckets: PositiveInt = 1 << 17,
        word_ngrams: NonNegativeInt = 1,
        char_ngrams: tuple[int, int] | None = (3, 4),
        embedding_size: PositiveInt = 16,
        dropout: Part = 0.0,
        num_classes: PositiveInt | None = None,
        class_names: list[str] | None = None,
        label_smoothing: Part = 0.0,
        learning_rate: NonNegativeFloat | None = None,
        weight_decay: NonNegativeFloat = 0.01,
        multilabel: bool = False,
        pos_weight: Literal["auto"] | list[float] | None = None,
        class_weight: Literal["auto"] | list[float] | None = None,
    ) -> None:
        super().__init__()
        self.set_labels(
            multilabel=multilabel, num_classes=num_classes, class_names=class_names,
            label_smoothing=label_smoothing,
            class_weight=class_weight, pos_weight=pos_weight,
        )  # fmt: skip
        self.save_hyperparameters()
        self.encoder = encoder
        self.has_ngrams = encoder == NGRAMS
        self.frozen = freeze == "encoder"
        if self.frozen and self.has_ngrams:
            raise ConfigError(
                "model.init_args.freeze: ngrams has no pretrained part. Set it to none."
            )
        self.max_length = max_length
        self.hashing = (
            _make_hashing(buckets, word_ngrams, char_ngrams, max_length)
            if self.has_ngrams
            else None
        )
        self.embedding_size = embedding_size
        self.dropout = dropout
        kind = "ngrams" if self.has_ngrams else "frozen" if self.frozen else "transformer"
        self.learning_rate = _RATES[kind] if learning_rate is None else learning_rate
        self.weight_decay = weight_decay
        self.network: NgramNetwork | TransformerNetwork | None = None
        self.row_preprocessing: TextPreprocessing | None = None
        """How a text becomes the model's inputs; None until the model is built."""
        self._config: dict[str, Any] = {}  # of a network of transformers
        self._missing: ConfigError | None = None
        self._has_weights = self.has_ngrams

    # -- building ----------------------------------------------------------------------------------

    def configure_model(self) -> None:
        """Build the network for the data's classes.

        Weights follow when it is known whether a checkpoint has them.

        Raises:
            ConfigError: If the classes are unknown or contradict each other, or the encoder cannot
                be read.
        """
        names = self.find_classes()
        if names is None or self.network is not None:
            return
        try:
            self._build(names)
        except ConfigError as error:
            if self._trainer is None or self._trainer.state.fn == TrainerFn.FITTING:
                raise
            self._missing = error  # unless a checkpoint brings config and tokenizer

    def build_for_rows(
        self, preprocessing: RowPreprocessing, class_names: Sequence[str] | None
    ) -> None:
        """Build the network for exported weights, see `build_for`.

        Args:
            preprocessing: Of the weights.
            class_names: The classes that they know.

        Raises:
            ConfigError: If the model has others, or the weights are of a model of other rows.
        """
        if not isinstance(preprocessing, TextPreprocessing) or not class_names:
            raise ConfigError(
                f"model: {type(self).__name__} takes texts, and the"
                " weights are not of such a model."
            )
        self.build_for(class_names)
        self.row_preprocessing = preprocessing

    def _build(self, class_names: list[str]) -> None:
        data = getattr(self._trainer, "datamodule", None)
        column = str(getattr(data, "text_column", None) or _COLUMN)
        if self.hashing is not None:
            self.network = NgramNetwork(
                self.hashing.buckets, self.embedding_size, len(class_names), dropout=self.dropout
            )
            self.row_preprocessing = TextPreprocessing(column, self.hashing)
        else:
            config, tokenizing = read_source(self.encoder, len(class_names), self.max_length)
            self._build_transformer(config)
            self.row_preprocessing = TextPreprocessing(column, tokenizing)
        self.build_scores(class_names)
        self.train(self.training)

    def _build_transformer(self, config: dict[str, Any]) -> None:
        network = TransformerNetwork(config)
        self._config = config
        self.network = network
        if self.frozen:
            network.encoder.requires_grad_(requires_grad=False)

    def load_weights(self) -> None:
        """Load the pretrained weights, unless that was done or a checkpoint has brought its own.

        Raises:
            ConfigError: If they cannot be read or do not fit.
        """
        network = self.network
        if self._has_weights or not isinstance(network, TransformerNetwork):
            return
        network.load_pretrained(find_source(self.encoder))
        self._has_weights = True

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the class names, and of a network of transformers its config."""
        super().on_save_checkpoint(checkpoint)
        if self.row_preprocessing is not None:
            checkpoint[CHECKPOINT_KEY] = dump_preprocessing(self.row_preprocessing)
        if self._config:
            checkpoint["transformers_config"] = json.dumps(self._config)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check the classes, and build the network where that was not done.

        Raises:
            ConfigError: If the checkpoint is of another model or of other classes.
        """
        preprocessing = load_preprocessing(checkpoint.get(CHECKPOINT_KEY))
        if not isinstance(preprocessing, TextPreprocessing):
            raise ConfigError(
                "ckpt_path: the checkpoint names no classes, so it was not saved by a"
                " TextClassifier."
            )
        names = self._read_classes(checkpoint, "a TextClassifier")
        config = checkpoint.get("transformers_config")
        if (config is None) != self.has_ngrams:
            raise ConfigError(
                f"ckpt_path: the checkpoint is not of the encoder {self.encoder}"
                " (model.init_args.encoder)."
            )
        if self.network is None and config is not None:
            self._build_transformer(json.loads(config))
            self.build_scores(names)
            self.train(self.training)
        elif self.network is None:
            self._build(names)
        self.row_preprocessing = preprocessing
        self._take_checkpoint(
            checkpoint, names, of=f"encoder {self.encoder} (model.init_args.encoder)"
        )

    def create_optimizer(self) -> Optimizer:
        """Build the AdamW that trains the model where the config names no optimizer.

        Of n-grams most weights are in one table, of which the fused kernel reads each number once a
        step.
        """
        groups = parameter_groups(self, weight_decay=self.weight_decay)
        is_fused = self.has_ngrams and self.device.type in ("cpu", "cuda")
        return AdamW(groups, lr=self.learning_rate, fused=is_fused)

    # -- modes: what is frozen stays in eval mode
    # ----------------------------------------------------------------------

    def _keep_frozen(self, *, mode: bool) -> None:
        if self.frozen and isinstance(self.network, TransformerNetwork):
            self.network.encoder.eval()

    def on_train_start(self) -> None:
        """Put the frozen part into eval mode.

        Take the rarity of n-grams of a new run from its training split.
        """
        super().on_train_start()
        if isinstance(self.network, NgramNetwork) and self.global_step == 0:
            self.network.set_rarity(*count_documents(self.trainer, len(self.network.rarity)))

    on_validation_start = on_test_start = on_predict_start = load_weights

    # -- steps -------------------------------------------------------------------------------------

    def forward(self, ids: Tensor, counts: Tensor) -> Tensor:
        """Return the logits.

        Args:
            ids: Numbers of n-grams or tokens, int64 ``(texts, length)``, see `row_preprocessing`.
            counts: How often each n-gram is in the text, or 1 for a token, of the same shape; 0 for
                what fills up shorter texts.

        Returns:
            ``(texts, classes)``.
        """
        if self.network is None:
            raise self._missing or ConfigError(UNKNOWN_CLASSES)
        logits: Tensor = self.network(ids, counts)
        return logits

    def predict_step(self, batch: Sequence[Any]) -> Tensor:
        """Return the probabilities ``(texts, classes)`` of a batch, with or without labels."""
        inputs = batch if isinstance(batch[0], Tensor) else batch[0]
        return self._compute_probabilities(self(*inputs))

    def _compute_logits(self, inputs: Sequence[Tensor]) -> Tensor:
        logits: Tensor = self(*inputs)
        return logits


def _make_hashing(
    buckets: int, word_ngrams: int, char_ngrams: Sequence[int] | None, max_length: int | None
) -> NgramHashing:
    """Check the arguments of n-grams.

    Raises:
        ConfigError: If there are no n-grams, or the lengths of n-grams of characters are
            impossible.
    """
    chars = None if char_ngrams is None else (int(char_ngrams[0]), int(char_ngrams[1]))
    if chars is not None and not 1 <= chars[0] <= chars[1]:
        raise ConfigError(
            "model.init_args.char_ngrams: expected the shortest and the longest length, from 1 on,"
            f" got {char_ngrams}."
        )
    if chars is None and not word_ngrams:
        raise ConfigError(
            "model.init_args.word_ngrams: 0, and model.init_args.char_ngrams: null leave no"
            " n-grams. Set one of them."
        )
    return NgramHashing(buckets, word_ngrams, chars, max_length or _MOST_CHARACTERS)
