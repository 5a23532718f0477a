"""The webhook notifier in a real training, with a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from lightkit import runs
from lightkit.callbacks import RunRecorder, SlackNotifier, WebhookNotifier
from lightkit.errors import ConfigError, Interrupted, OutOfTime
from tests.receiving import CANARY, Receiver, receiving

pytestmark = pytest.mark.slow  # real trainings and servers


class Marigold(LightningModule):
    """A plane, which is out of stock in one step where asked for."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.fails_at = fails_at

    def _loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        if self.global_step == self.fails_at:
            raise ValueError("batches are out of stock & <gone>")
        return self._loss(batch)

    def on_train_epoch_end(self) -> None:
        self.log("train/late", float(self.current_epoch))

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val/loss", self._loss(batch))

    def test_step(self, batch: Any, index: int) -> None:
        self.log("test/loss", self._loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader() -> DataLoader[Any]:
    x = torch.ones(4, 2)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=2)


def trainer(notifier: WebhookNotifier, **arguments: Any) -> Trainer:
    return Trainer(
        **{
            "callbacks": [notifier],
            "accelerator": "cpu",
            "max_epochs": 3,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            **arguments,
        }
    )


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def messages_of(receiver: Receiver) -> list[tuple[Any, ...]]:
    return [
        (message["kind"], message["status"], message["stage"], message["epoch"])
        for message in (request.json for request in receiver.requests)
    ]


@pytest.fixture(autouse=True)
def run(tmp_path: Path) -> Iterator[runs.Run]:
    """An active run."""
    with runs.activate(runs.create(tmp_path, "tulips")) as active:
        yield active


def fitted(notifier: WebhookNotifier, module: Marigold | None = None, **arguments: Any) -> None:
    trainer(notifier, **arguments).fit(module or Marigold(), loader(), loader())


def test_headers_are_sent_and_a_failure_has_its_last_lines(
    receiver: Receiver, run: runs.Run
) -> None:
    notifier = WebhookNotifier(
        receiver.url(), headers={"Authorization": "Bearer abc"}, every_n_epochs=2
    )
    notifier.mask = lambda text: text.replace("out of stock", "***")
    recorder = RunRecorder(run, events=runs.EventStream(run.events_path))
    with pytest.raises(ValueError, match="out of stock") as caught:
        fitted(notifier, Marigold(fails_at=5), callbacks=[notifier, recorder])
    notifier.send_end(caught.value)
    notifier.sender.close()
    assert messages_of(receiver) == [
        ("start", "running", "fit", 0),
        ("epoch", "running", "fit", 1),
        ("failure", "failed", "fit", 1),
    ]
    epoch, failure = receiver.requests[1].json, receiver.requests[2].json
    assert epoch["metrics"]["train/late"] == 1.0  # logged after the callbacks had their turn
    assert epoch["metrics"]["val/loss"] > 0
    assert failure["error"].endswith("ValueError: batches are *** & <gone>")
    assert "training_step" in failure["error"]
    assert receiver.requests[0].headers["authorization"] == "Bearer abc"
    assert receiver.requests[0].headers["content-type"] == "application/json; charset=utf-8"


def test_a_trial_and_other_ranks_report_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier = WebhookNotifier(receiver.url())
    fitted(notifier, fast_dev_run=True)
    monkeypatch.setattr(Trainer, "is_global_zero", False)
    fitted(notifier)
    notifier.sender.close()
    assert receiver.requests == []


def test_only_the_chosen_events_are_reported(receiver: Receiver) -> None:
    notifier = WebhookNotifier(receiver.url(), events=["end"])
    assert [kind for kind in notifier.kinds if kind in ("start", "end")] == ["end"]
    fitted(notifier)
    notifier.send_end(None)
    notifier.sender.close()
    assert [kind for kind, *_ in messages_of(receiver)] == ["end"]


def test_the_command_reports_the_end_in_its_own_words(receiver: Receiver, run: runs.Run) -> None:
    notifier = WebhookNotifier(receiver.url())
    address = {
        "tracking_uri": "https://***@mlflow.example/base/",
        "experiment_id": "3",
        "run_id": "9f",
    }
    (run.folder / "mlflow.json").write_text(json.dumps(address))
    fitted(notifier, max_epochs=1)
    notifier.send_end(Interrupted(15, checkpoint=Path("last.ckpt")))
    notifier.send_end(Interrupted(15))
    notifier.send_end(OutOfTime("the deadline has come"))
    notifier.sender.close()
    assert [status for _, status, *_ in messages_of(receiver)] == [
        "running",
        "preempted",
        "interrupted",
        "preempted",
    ]
    assert [kind for kind, *_ in messages_of(receiver)][1:] == ["end", "end", "end"]
    last = receiver.requests[-1].json
    assert (last["job"], last["run"], last["folder"]) == ("tulips", run.id, str(run.folder))
    assert last["mlflow_url"] == "https://mlflow.example/base/#/experiments/3/runs/9f"
    assert (last["exit_code"], last["error"]) == (75, "the deadline has come")


def test_a_notifier_shows_no_address(receiver: Receiver) -> None:
    notifier = WebhookNotifier(receiver.url())
    assert CANARY not in repr(notifier)
    assert notifier.state_dict() == {}


def test_without_an_address_nothing_is_sent() -> None:
    notifier = WebhookNotifier(None)
    assert notifier.kinds == ()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"webhook_url": f"hooks/{CANARY}"}, "webhook_url of WebhookNotifier: expected an address"),
        (
            {"every_n_epochs": 0},
            "WebhookNotifier: expected every_n_epochs of 1 or more, timeout_s above 0",
        ),
        ({"timeout_s": 0}, "got 1, 0 and 3"),
        ({"timeout_s": float("inf")}, "got 1, inf and 3"),
        ({"retries": -1}, "got 1, 10 and -1"),
    ],
    ids=["address", "every", "time-out", "forever", "retries"],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WebhookNotifier(**{"webhook_url": "https://host/x", **arguments})
    assert says in str(caught.value)
    assert CANARY not in str(caught.value)


def test_whom_slack_calls_is_checked() -> None:
    with pytest.raises(
        ConfigError, match="mention of SlackNotifier: expected channel, here or the id of a member"
    ):
        SlackNotifier("https://host/x", mention="<!channel>")
