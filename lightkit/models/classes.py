"""Base of classifiers.

Classes or labels, their names in a checkpoint, factors in the loss, and thresholds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassConfusionMatrix

from lightkit.errors import ConfigError, join_names
from lightkit.models.backbones import differences
from lightkit.models.label_scores import LabelScores
from lightkit.models.module import (
    MeanLoss,
    ScoredModule,
    Scores,
    Stage,
    build_metrics,
    split_batch,
    widen,
)
from lightkit.reports import figures
from lightkit.task import CLASSIFICATION, MULTILABEL, OutputKind, Task
from lightkit.task.multilabel import DEFAULT_THRESHOLD

if TYPE_CHECKING:
    from typing import Self  # typing has it from Python 3.11 on

log = logging.getLogger("lightkit.models")

Factors = Literal["auto"] | list[float] | None
"""Factors of the training loss, of each class or label."""
UNKNOWN_CLASSES = (
    "model.init_args.class_names: the classes are unknown: the data module has neither class_names"
    " nor num_classes. Expected one of them there, or class_names or num_classes of the model."
)


class PretrainedModule(ScoredModule):
    """A model of classes that is built when the data is known.

    It starts from weights, of which a part may be frozen.

    A subclass has ``_build``, ``load_weights``, and ``_keep_frozen``, which puts the frozen part
    into eval mode.
    """

    class_names: list[str] | None
    num_classes: int | None
    _has_weights: bool
    _has_warned = False
    _is_starting = False

    # -- classes -----------------------------------------------------------------------------------

    def find_classes(self) -> list[str] | None:
        """Return the classes of the model or of its data.

        None where they are unknown and nothing is trained.

        Raises:
            ConfigError: If the classes are unknown or contradict each other.
        """
        found = read_class_names(getattr(self._trainer, "datamodule", None))
        if self.class_names is not None and found is not None:
            check_same_classes(self.class_names, found, by="the model")
        names = (
            self.class_names
            or found
            or (number_classes(self.num_classes) if self.num_classes else None)
        )
        if (
            names is None
            and self._trainer is not None
            and self._trainer.state.fn == TrainerFn.FITTING
        ):
            raise ConfigError(UNKNOWN_CLASSES)
        return None if names is None else self.check_classes(names)

    def check_classes(self, names: Sequence[str]) -> list[str]:
        """Refuse names that cannot be the classes of this model.

        Raises:
            ConfigError: If they cannot.
        """
        return check_class_names(names, self.num_classes)

    def match_classes(self, names: Sequence[str], *, by: str) -> list[str]:
        """Return the classes of weights, which are those of the model if it knows them.

        Args:
            names: The classes.
            by: Origin of the weights, for the error.

        Raises:
            ConfigError: If the model has others.
        """
        if self.class_names is None:
            return list(names)
        return check_same_classes(names, self.class_names, by=by)

    def build_for(self, class_names: Sequence[str]) -> None:
        """Build the network for weights from elsewhere than ``load_weights`` and a checkpoint.

        Args:
            class_names: The classes that those weights know.

        Raises:
            ConfigError: If the model has others.
        """
        self._build(self.check_classes(self.match_classes(class_names, by="the weights")))
        self._has_weights = True

    def _build(self, class_names: list[str]) -> None:
        raise NotImplementedError

    # -- checkpoints -------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the class names."""
        checkpoint["class_names"] = self.class_names

    def _read_classes(self, checkpoint: dict[str, Any], kind: str) -> list[str]:
        """Read the class names of a checkpoint.

        Raises:
            ConfigError: If it has none, or others than the model.
        """
        names = checkpoint.get("class_names")
        if not names:
            raise ConfigError(
                f"ckpt_path: the checkpoint names no classes, so it was not saved by {kind}."
            )
        return self.match_classes(names, by="the checkpoint")

    def _take_checkpoint(
        self, checkpoint: dict[str, Any], class_names: list[str], *, of: str
    ) -> None:
        """Take the classes and the weights of a checkpoint.

        Args:
            checkpoint: The checkpoint.
            class_names: Its classes.
            of: Kind of the model by its arguments, for the error.

        Raises:
            ConfigError: If the weights are those of another model.
        """
        self.class_names = class_names
        is_strict = self._trainer is not None and self.strict_loading
        if is_strict and (
            found := differences(self.state_dict(), checkpoint.get("state_dict", {}))
        ):
            raise ConfigError(f"ckpt_path: the checkpoint is not of {of}. {found}")
        self._has_weights = True

    def _warn_of_left_out(self, metric: str, left_out: Sequence[int], kind: str) -> None:
        """Warn once of classes that a mean over the classes leaves out.

        Args:
            metric: Name of the mean.
            left_out: Numbers of the classes.
            kind: Word for them, and why they are left out.
        """
        if (
            self._has_warned
            or not left_out
            or self.trainer.sanity_checking
            or not self.trainer.is_global_zero
        ):
            return
        self._has_warned = True
        every = self.class_names or []
        names = [every[at] for at in left_out]
        log.warning(
            "%s leaves out %d of %d %s: %s", metric, len(names), len(every), kind, join_names(names)
        )

    # -- modes: what is frozen stays in eval mode
    # ----------------------------------------------------------------------

    def load_weights(self) -> None:
        """Load the weights that the model starts from.

        Unless that was done or a checkpoint has brought its own.
        """
        raise NotImplementedError

    def _keep_frozen(self, *, mode: bool) -> None:
        """Put the frozen part into eval mode, after all was put into a mode."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all but the frozen part, which stays in eval mode."""
        super().train(mode)
        if not self._is_starting:
            self._keep_frozen(mode=mode)
        return self

    def on_fit_start(self) -> None:
        """Load the weights."""
        self.load_weights()
        # Lightning 2.6 warns of modules in eval mode between this hook and the next; here they are
        # meant to be.
        self._is_starting = True
        self.train()

    def on_train_start(self) -> None:
        """Put the frozen part into eval mode."""
        self._is_starting = False
        self.train()


class ClassifyingModule(PretrainedModule):
    """A model of one class or of any number of labels a sample.

    A subclass calls `set_labels` in its constructor, and `build_scores` when it is built.
    """

    task: Task = CLASSIFICATION
    output_kind: OutputKind = CLASSIFICATION.output_kind
    """Kind of the output of ``forward``; a subclass whose ``forward`` gives something else sets its
    own."""
    sample_noun: ClassVar[str] = "sample"
    """Word for a sample in messages; an ``s`` makes several."""
    _in_bar = frozenset({"val/loss", "val/accuracy", "val/map"})

    def set_labels(
        self,
        *,
        multilabel: bool,
        num_classes: int | None,
        class_names: Sequence[str] | None,
        label_smoothing: float,
        class_weight: Factors,
        pos_weight: Factors,
    ) -> None:
        """Take the arguments of a constructor that are about classes and labels.

        Raises:
            ConfigError: If one has an impossible value, or has no effect.
        """
        if not 0 <= label_smoothing < 1:
            raise ConfigError(
                "model.init_args.label_smoothing: expected at least 0 and below 1, got"
                f" {label_smoothing}."
            )
        if pos_weight is not None and not multilabel:
            raise ConfigError(
                "model.init_args.pos_weight: without multilabel: true it is"
                " model.init_args.class_weight."
            )
        if class_weight is not None and multilabel:
            raise ConfigError(
                "model.init_args.class_weight: with multilabel: true it is"
                " model.init_args.pos_weight."
            )
        if multilabel:
            self.task = MULTILABEL
            self.output_kind = MULTILABEL.output_kind
        self.multilabel = multilabel
        self.thresholds: tuple[float, ...] | None = None
        """Probability from which on each label is predicted; None before a validation of the
        training."""
        self.label_smoothing = label_smoothing
        self.pos_weight = pos_weight
        self.class_weight = class_weight
        self.num_classes = num_classes
        self.class_names = check_class_names(class_names, num_classes) if class_names else None
        self._label_weights: Tensor | None = None  # of the training loss

    # -- classes -----------------------------------------------------------------------------------

    def find_classes(self) -> list[str] | None:
        """Return the classes of the model or of its data.

        None where they are unknown and nothing is trained.

        Raises:
            ConfigError: If the classes are unknown or contradict each other, or model and data do
                not agree on the number of labels of a sample.
        """
        self._check_data()
        return super().find_classes()

    def check_classes(self, names: Sequence[str]) -> list[str]:
        """Refuse names that cannot be the classes of this model.

        Raises:
            ConfigError: If they cannot.
        """
        return check_class_names(names, self.num_classes, least=1 if self.multilabel else 2)

    def _check_data(self) -> None:
        """Check whether model and data agree on the labels of a sample.

        Raises:
            ConfigError: If the data has several labels a sample and the model one, or the other way
                round.
        """
        has_several = getattr(getattr(self._trainer, "datamodule", None), "is_multilabel", None)
        if has_several is None or has_several == self.multilabel:
            return
        article = "an" if self.sample_noun[0] in "aeiou" else "a"
        each = f"{article} {self.sample_noun}"
        has = f"several labels {each}" if has_several else f"one label {each}"
        raise ConfigError(
            f"model.init_args.multilabel: it is {str(self.multilabel).lower()}, and the data has"
            f" {has}. Set it to {str(has_several).lower()}."
        )

    def build_scores(self, class_names: list[str]) -> None:
        """Build the metrics for classes, which the model has from now on."""
        self.class_names = class_names
        metrics = build_metrics(self.task, len(class_names))
        self.scores = Scores(
            metrics, train=MetricCollection({"loss": MeanLoss()}) if self.multilabel else None
        )
        if not self.multilabel:
            self.confusion = MulticlassConfusionMatrix(len(class_names), validate_args=False)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the class names and the thresholds."""
        super().on_save_checkpoint(checkpoint)
        if self.thresholds is not None:
            checkpoint["thresholds"] = list(self.thresholds)

    def _take_checkpoint(
        self, checkpoint: dict[str, Any], class_names: list[str], *, of: str
    ) -> None:
        """Take the classes, the thresholds and the weights of a checkpoint."""
        if self.multilabel and checkpoint.get("thresholds") is not None:
            self.set_thresholds(checkpoint["thresholds"])
        super()._take_checkpoint(checkpoint, class_names, of=of)

    def on_fit_start(self) -> None:
        """Load the weights, and find the factors of the loss."""
        super().on_fit_start()
        self._label_weights = self._find_label_weights()

    def set_thresholds(self, thresholds: Sequence[float]) -> None:
        """Set the probability from which on each label is predicted."""
        self.thresholds = tuple(map(float, thresholds))
        self.task = MULTILABEL.decide_by(self.thresholds)

    # -- steps -------------------------------------------------------------------------------------

    def training_step(self, batch: Sequence[Any]) -> Tensor:
        """Return the loss of a batch."""
        return self._step("train", batch, label_smoothing=self.label_smoothing)["loss"]

    def _step(
        self, stage: Stage, batch: Sequence[Any], *, label_smoothing: float = 0.0
    ) -> dict[str, Tensor]:
        inputs, targets, weights = split_batch(batch)
        logits = self._compute_logits(inputs)
        self._check_targets(logits, targets)
        losses = self._compute_own_loss(stage, logits, targets, weights, label_smoothing)
        return self._count(stage, logits, targets, weights, losses=losses)

    def _compute_logits(self, inputs: Any) -> Tensor:
        """Compute the logits of a batch in a step."""
        raise NotImplementedError

    def _compute_probabilities(self, logits: Tensor) -> Tensor:
        """Compute the probabilities of classes, or of labels that are independent of each other."""
        logits = widen(logits)
        return logits.sigmoid() if self.multilabel else logits.softmax(dim=1)

    # -- loss --------------------------------------------------------------------------------------

    def _compute_own_loss(
        self,
        stage: Stage,
        logits: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        label_smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss to minimise and the mean that metrics count.

        With the factors of classes or labels.
        """
        options: dict[str, Any] = {} if self.multilabel else {"label_smoothing": label_smoothing}
        if self.multilabel:
            targets = targets.to(logits.dtype)
            if label_smoothing:
                targets = targets * (1 - label_smoothing) + label_smoothing / 2
        if stage != "train" or self._label_weights is None:
            return self._compute_loss(stage, logits, targets, weights, **options)
        options["pos_weight" if self.multilabel else "weight"] = self._label_weights.to(
            logits.dtype
        )
        losses = self.task.compute_losses(logits, targets, reduction="none", **options)
        # a mean over the samples: that of torch divides by the factors of a batch, and batches
        # would not count alike
        return self._weigh_losses(stage, losses.mean(dim=1) if losses.ndim > 1 else losses, weights)

    def _find_label_weights(self) -> Tensor | None:
        """Return the factors of the training loss of classes or labels, float32 ``(classes,)``.

        None without.

        Raises:
            ConfigError: If there are not as many as classes, or the data does not count its labels.
        """
        factors = find_factors(
            self.pos_weight if self.multilabel else self.class_weight,
            self.class_names or [],
            trainer=self._trainer,
            noun=self.sample_noun,
            is_multilabel=self.multilabel,
        )
        return None if factors is None else factors.to(self.device)

    # -- scores ------------------------------------------------------------------------------------

    def _count(
        self,
        stage: Stage,
        logits: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        *,
        losses: tuple[Tensor, Tensor],
    ) -> dict[str, Tensor]:
        """Count a batch in the metrics, and return the outputs of its step.

        Args:
            stage: Of the batch.
            logits: ``(batch, classes)``.
            targets: ``(batch,)`` of classes, ``(batch, labels)`` of labels, or shares of classes
                ``(batch, classes)``, of which the largest counts.
            weights: ``(batch,)``, or None.
            losses: The loss to minimise, and the mean that metrics count.
        """
        if not self.multilabel and targets.ndim == logits.ndim:
            targets = targets.argmax(dim=1)
        outputs = self._count_outputs(stage, "logits", logits, targets, weights, losses)
        is_drawn = stage == "val" and not self.multilabel and not self.trainer.sanity_checking
        if is_drawn and find_picture_loggers(self.trainer):
            counted = slice(None) if weights is None else weights > 0
            self.confusion.update(logits.detach()[counted], targets[counted])
        return outputs

    def on_validation_epoch_end(self) -> None:
        """Log the validation metrics, and draw the confusion matrix.

        Choose the thresholds of labels in a training.
        """
        if self.multilabel:
            self._log_labels("val", chooses=self.trainer.state.fn == TrainerFn.FITTING)
            return
        super().on_validation_epoch_end()
        if not self.confusion.update_called:
            return
        counts = self.confusion.compute()  # by every process, because it sums over them
        self.confusion.reset()
        if self.trainer.is_global_zero:
            names = self.class_names or list(map(str, range(len(counts))))
            pixels = figures.to_pixels(figures.draw_confusion_matrix(counts.cpu().numpy(), names))
            log_picture(
                self.trainer, "val/confusion_matrix", torch.from_numpy(pixels).permute(2, 0, 1)
            )

    def on_test_epoch_end(self) -> None:
        """Log the test metrics."""
        if self.multilabel:
            self._log_labels("test", chooses=False)
        else:
            super().on_test_epoch_end()

    def _log_labels(self, stage: Stage, *, chooses: bool) -> None:
        """Log the metrics of several labels, with the thresholds of the model or with new ones."""
        metric = cast(LabelScores, self.scores.of(stage)["labels"])
        own = self.thresholds or [DEFAULT_THRESHOLD] * metric.num_labels
        metric.thresholds = None if chooses else own
        has_counted = metric.update_called
        self._log_scores(stage)
        if not has_counted:
            return
        if chooses and not self.trainer.sanity_checking and metric.thresholds is not None:
            self.set_thresholds(metric.thresholds)
        self._warn_of_left_out(f"{stage}/map", metric.left_out, "labels, which no sample has")


def find_factors(
    factors: Factors,
    names: Sequence[str],
    *,
    trainer: Trainer | None,
    noun: str,
    is_multilabel: bool = False,
) -> Tensor | None:
    """Return the factors of the training loss of classes or labels, float32 ``(classes,)``.

    None without.

    Those of ``auto`` are the training samples over the samples of the class and the number of
    classes; of labels the training samples without the label over those with it.

    Args:
        factors: As a config has them.
        names: Of the classes or labels.
        trainer: Has the data, which counts its labels; without one there are no automatic factors.
        noun: Word for a sample in messages.
        is_multilabel: Whether a sample has any number of labels.

    Raises:
        ConfigError: If there are not as many as classes, or the data does not count its labels.
    """
    if factors is None:
        return None
    key = _name_factors(is_multilabel=is_multilabel)
    if not names:
        raise ConfigError(f"{key}: the target is a value, and has no classes. Leave it out.")
    if factors == "auto":
        factors = _balance(names, trainer, noun, is_multilabel=is_multilabel)
    if len(factors) != len(names) or not all(0 <= factor < math.inf for factor in factors):
        raise ConfigError(
            f"{key}: expected {len(names)} factors of 0 or more, one for each of "
            f"{join_names(names, most=10)}; got {factors}."
        )
    return torch.tensor(factors, dtype=torch.float32)


def _name_factors(*, is_multilabel: bool) -> str:
    """Return the key of the factors in a config."""
    return f"model.init_args.{'pos_weight' if is_multilabel else 'class_weight'}"


def _balance(
    names: Sequence[str], trainer: Trainer | None, noun: str, *, is_multilabel: bool
) -> list[float]:
    """Return the automatic factors; 1 for a class without a training sample.

    Raises:
        ConfigError: If the data does not count its labels.
    """
    data: Any = getattr(trainer, "datamodule", None)
    counts = getattr(data, "label_counts", None)
    if counts is None:
        raise ConfigError(
            f"{_name_factors(is_multilabel=is_multilabel)}: auto needs the number of training"
            f" {noun}s of each class, and {type(data).__name__} has no label_counts. Set"
            f" {len(names)} factors."
        )
    missing = [name for name, count in zip(names, counts, strict=True) if not count]
    if missing and trainer is not None and trainer.is_global_zero:
        log.warning(
            "model: no training %s has %s, so that its factor is 1", noun, join_names(missing)
        )
    if is_multilabel:
        return [(data.counts["train"] - count) / count if count else 1.0 for count in counts]
    return [sum(counts) / (len(counts) * count) if count else 1.0 for count in counts]


def find_picture_loggers(trainer: Trainer) -> list[Any]:
    """List the loggers that have ``add_picture``; the same in every process of a run."""
    return [logger for logger in trainer.loggers if hasattr(logger, "add_picture")]


def log_picture(trainer: Trainer, name: str, image: Tensor) -> None:
    """Hand a picture to every logger that takes one; to be called by the first process alone."""
    for logger in find_picture_loggers(trainer):
        logger.add_picture(name, image, trainer.global_step)


def number_classes(num_classes: int) -> list[str]:
    """Name classes by their labels, for data without class names."""
    return [str(label) for label in range(num_classes)]


def read_class_names(data: object) -> list[str] | None:
    """Take the class names of a data module, or number them where it has a count alone.

    None where it has neither.
    """
    if names := getattr(data, "class_names", None):
        return [str(name) for name in names]
    count = getattr(data, "num_classes", None)
    return number_classes(count) if isinstance(count, int) and count > 0 else None


def check_class_names(
    names: Sequence[str], num_classes: int | None, *, least: int = 2
) -> list[str]:
    """Refuse names that cannot be the classes of a classifier.

    Raises:
        ConfigError: If there are fewer than two, some are equal, or the model has another count.
    """
    names = list(names)
    if len(names) < least:
        raise ConfigError(
            f"A classifier needs at least two classes; found {len(names)}: {', '.join(names)}."
        )
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ConfigError(f"Class names must differ; found more than once: {', '.join(twice)}.")
    if num_classes not in (None, len(names)):
        raise ConfigError(
            f"model.init_args.num_classes is {num_classes}, and there are {len(names)} classes: "
            f"{join_names(names, most=10)}. Leave num_classes out to take the data's."
        )
    return names


def check_same_classes(names: Sequence[str], current: Sequence[str], *, by: str) -> list[str]:
    """Check that two lists name the same classes in the same order.

    Numbers agree with any names of their count.

    Args:
        names: As stored or set.
        current: As the data or the model has them.
        by: Origin of ``names``, for the error.

    Returns:
        The one of the two that has names.

    Raises:
        ConfigError: If they do not agree.
    """
    names = list(names)
    current = list(current)
    if len(names) == len(current) and number_classes(len(names)) in (names, current):
        return current if names == number_classes(len(names)) else names
    if names == current:
        return names
    same = sorted(names) == sorted(current)
    raise ConfigError(
        f"The classes of {by} are not those of the data{', but in another order' if same else ''}:"
        f" {by} has {len(names)} ({join_names(names, most=10)}), the data {len(current)}"
        f" ({join_names(current, most=10)}). Use the data that it was"
        " made for, or train a new model."
    )
