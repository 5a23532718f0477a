"""What Ray needs, before anything is started."""

from __future__ import annotations

import pytest

from lightkit.errors import ConfigError
from lightkit.launch import ray
from lightkit.launch.cluster import Job
from lightkit.launch.plan import LaunchSettings, plan_launch


def test_a_missing_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "find_spec", lambda _: None)
    plan = plan_launch(LaunchSettings(engine="ray", processes=2), strategy="ddp", processes=None)
    assert plan is not None
    job = Job(plan, [], {}, ".", ".")
    with pytest.raises(ConfigError, match=r"pip install 'lightkit-train\[ray\]'"):
        ray.drive(job)


@pytest.mark.parametrize(
    ("hosts", "local", "group", "gpus"),
    [
        (
            "aabb",
            ["0 2", "1 2", "0 2", "1 2"],
            ["0 2", "0 2", "1 2", "1 2"],
            ["0,1", "0,1", "2,3", "2,3"],
        ),
        # uneven: each counts as a machine
        ("aab", ["0 1"] * 3, ["0 3", "1 3", "2 3"], ["0", "1", "2"]),
    ],
)
def test_ranks_of_a_machine_see_its_gpus(
    hosts: str, local: list[str], group: list[str], gpus: list[str]
) -> None:
    places = [(host, [str(gpu)]) for gpu, host in enumerate(hosts)]
    found = [ray.rank_environment(rank, places, "a 1 key") for rank in range(len(hosts))]
    assert [f"{each['LOCAL_RANK']} {each['LOCAL_WORLD_SIZE']}" for each in found] == local
    assert [f"{each['GROUP_RANK']} {each['GROUP_WORLD_SIZE']}" for each in found] == group
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == gpus
    assert [each["RANK"] for each in found] == [str(rank) for rank in range(len(hosts))]
