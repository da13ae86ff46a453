"""Sample Factory's APPO in turns, on the CPU; see turns.py.

It uses its own Atari example (sf_examples.atari: 84x84, 4 frames, a lost life ends the episode, rewards clipped; Adam)
with its "convnet_atari" and 512 units, which is Nature-CNN. It does not normalize observations and returns, although
that is its default, since no other contestant does and it takes time.
"""

import argparse
from importlib.metadata import version
from typing import Any

from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.train import make_runner
from sf_examples.atari.train_atari import parse_atari_args

from turns import Turns

FOREVER = 10**9
WORKERS = 2  # asynchronous, each with two alternating groups of environments


def make_env(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Makes sf_examples' own environment, after registering the games in this process."""
    from ale_py.registration import register_v0_v4_envs
    from sf_examples.atari.atari_utils import make_atari_env

    register_v0_v4_envs()  # type: ignore[no-untyped-call]
    return make_atari_env(name, cfg, env_config, render_mode)


class TakeTurns(AlgoObserver):
    """Takes turns. An iteration is the learner's work on one data set: all epochs of all its minibatches."""

    def __init__(self) -> None:
        self.turns: Any = None
        self.num_parameters = 0

    def on_init(self, runner: Any) -> None:
        self.turns = Turns(lambda: int(runner.buffer_mgr.policy_versions[0]))
        # Done before training begins, since learning in the meantime would count for the first turn.
        network = create_actor_critic(runner.cfg, runner.env_info.obs_space, runner.env_info.action_space)
        self.num_parameters = sum(parameter.numel() for parameter in network.parameters())

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        cfg = runner.cfg
        if training_iteration_since_resume > 1:
            self.turns.iterated(cfg.batch_size * cfg.num_batches_per_epoch)
            return
        self.turns.ready(
            peer=f"sample-factory {version('sample-factory')}",
            parameters=self.num_parameters,
            optimizer=cfg.optimizer,
            observation=list(runner.env_info.obs_space["obs"].shape),
            envs=cfg.num_workers * cfg.num_envs_per_worker,
            horizon=cfg.rollout,
            workers=cfg.num_workers,
            splits=cfg.worker_num_splits,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--game", required=True, help="Atari game, as in Pong")
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--horizon", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--minibatches", type=int, default=1)
    options = parser.parse_args()
    settings = {
        "env": f"atari_{options.game.lower()}",
        "train_dir": "train_dir",
        "device": "cpu",
        "seed": 0,
        "async_rl": True,
        "num_workers": WORKERS,
        "num_envs_per_worker": options.envs // WORKERS,
        "worker_num_splits": 2,
        "rollout": options.horizon,
        "batch_size": options.envs * options.horizon // options.minibatches,
        "num_batches_per_epoch": options.minibatches,
        "num_epochs": options.epochs,
        "normalize_input": False,
        "normalize_returns": False,
        "train_for_env_steps": 10**12,
        # The clock must not trigger anything, since it continues during other contestants' turns.
        "heartbeat_reporting_interval": FOREVER,
        "save_every_sec": FOREVER,
        "save_best_every_sec": FOREVER,
        "experiment_summaries_interval": FOREVER,
        "log_to_file": False,
    }
    register_env(str(settings["env"]), make_env)
    runner = make_runner(parse_atari_args([f"--{name}={value}" for name, value in settings.items()]))[1]
    runner.register_observer(TakeTurns())
    runner.init()
    runner.run()


if __name__ == "__main__":
    main()
