"""Algorithms that fail on purpose (`Exploding` unless its learning rate is low, `Struck` in one learner), one that
draws the same random numbers in every learner, and one with its own replay."""

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from accel_rl.algos.a2c import A2C, A2CSettings
from accel_rl.algos.base import MakeUpdate, Stats
from accel_rl.algos.ppo import PPO
from accel_rl.config.fields import setting
from accel_rl.rollout import Rollout
from accel_rl.updates import Loss

TAME = 1e-3  # up to this learning rate nothing goes wrong


@dataclass(frozen=True)
class ExplodingSettings(A2CSettings):
    learning_rate: float = setting(2e-3, "step size", above=0)
    at_rollout: int = setting(7, "the rollout that goes wrong, counted from 1", least=1)
    how: str = setting("loss", "what goes wrong", choices=("loss", "gradient", "raise"))
    silent: bool = setting(False, "no statistics")


class InfiniteGradient:
    """An update whose loss is finite and whose gradient is not."""

    def __init__(self, update: Any, parameter: Tensor):
        self.update, self.parameter = update, parameter
        self.graphed = update.graphed

    def minimize(self, loss: Loss, batch: tuple[Any, ...], *arguments: Any, **options: Any) -> Stats:
        def steep(*part: Any) -> tuple[Tensor, Stats]:
            loss_sum, terms = loss(*part)
            zero = (self.parameter - self.parameter.detach()).sum()
            return loss_sum + zero.sqrt(), terms

        stats: Stats = self.update.minimize(steep, batch, *arguments, **options)
        return stats

    def once(self, body: Any, *arguments: Any) -> Any:
        return body(self, *arguments)


class Exploding(A2C):
    """A2C that explodes. how: loss: rewards become nan; gradient: it is infinite, with a finite loss; raise: it is
    infinite, and then `learn` fails."""

    Settings = ExplodingSettings
    settings: ExplodingSettings

    def learn(self, rollout: Rollout, update: Any) -> Stats:
        number = rollout.first_step // rollout.reward.numel() + 1
        settings, update_here = self.settings, update
        goes_wrong = number == settings.at_rollout and settings.learning_rate > TAME
        if goes_wrong and settings.how in ("gradient", "raise"):
            update_here = InfiniteGradient(update, self.policy.policy_head.bias)
        wrong_loss = goes_wrong and settings.how == "loss"
        stats = super().learn(without_rewards(rollout) if wrong_loss else rollout, update_here)
        if goes_wrong and settings.how == "raise":
            raise ValueError("cannot go on")
        return {} if settings.silent else stats


def without_rewards(rollout: Rollout) -> Rollout:
    return replace(rollout, reward=torch.full_like(rollout.reward, torch.nan))


@dataclass(frozen=True)
class StruckSettings(A2CSettings):
    how: str = setting("raise", "what happens", choices=("raise", "drift", "sampling", "lock", "all_reduce"))
    at_step: int = setting(100, "when, in agent steps of the run", least=0)
    mark: str = setting("", "a file for the id of the process that waits to be killed")


class Struck(A2C):
    """A2C in which one learner fails, or halts and waits to be killed, in a run with seed 0.

    how: raise: `learn` of learner 1 fails; drift: it changes its parameters outside of any update; sampling: it halts
    before a rollout; lock: it halts while it holds the locks of a chunk and of the statistics, half rewritten;
    all_reduce: it waits for learner 0, which comes only once it is gone."""

    Settings = StruckSettings
    settings: StruckSettings

    def setup(self, seed: int, make_update: MakeUpdate) -> None:
        super().setup(seed, make_update)
        self.is_first = seed == 0

    def before_rollout(self, step: int) -> None:
        self.is_time = step >= self.settings.at_step
        if self.is_time and self.settings.how == "sampling" and not self.is_first:
            halt(self.settings.mark)

    def learn(self, rollout: Rollout, update: Any) -> Stats:
        how, mark = self.settings.how, Path(self.settings.mark)
        if self.is_time and how == "all_reduce":
            if self.is_first:
                wait_for_end(mark)
            else:
                write_id(mark)
        elif self.is_time and not self.is_first:
            if how == "raise":
                raise ValueError("cannot go on")
            if how == "drift":
                with torch.no_grad():
                    self.policy.policy_head.bias.add_(1e-3)
            if how == "lock" and mark.with_name("checkpoint.pt").exists():
                store = update.exchange.store
                for part in (store.chunks[1], store.statistics):
                    part.acquire()
                    for tensor in part.staging.values():
                        tensor.view(-1)[: -(-tensor.numel() // 2)].fill_(torch.nan)
                halt(mark)
        return super().learn(rollout, update)


class SameDrawsPPO(PPO):
    """PPO that draws the same numbers for all environments in every learner. Learners that share the environments of
    one learner see and replay the same as that one."""

    def setup(self, seed: int, make_update: MakeUpdate) -> None:
        super().setup(seed, make_update)
        policy: Any = self.policy
        self.own = own = torch.Generator().manual_seed(7)

        def draw_noise(num_steps: int, num_envs: int, _: torch.Generator) -> Tensor:
            noise: Tensor = policy.distribution.draw_noise((num_steps, 1), own)
            return noise.expand(num_steps, num_envs, *noise.shape[2:])

        policy.draw_noise = draw_noise

    def learn(self, rollout: Rollout, update: Any) -> Stats:
        replay: Any = update.tasks.replay

        def draw_noise() -> Tensor:
            return torch.rand(1, 2, dtype=torch.float64, generator=self.own).expand(replay.ring.num_envs, 2)

        replay.draw_noise = draw_noise
        return super().learn(rollout, update)


def write_id(mark: str | Path) -> None:
    """Writes this process's id atomically."""
    temporary = Path(f"{mark}.tmp")
    temporary.write_text(str(os.getpid()))
    os.replace(temporary, mark)


def halt(mark: str | Path) -> None:
    write_id(mark)
    while True:
        time.sleep(3600)


def wait_for_end(mark: Path) -> None:
    """Returns once the process whose id is in `mark` is gone."""
    while not mark.exists():
        time.sleep(0.01)
    while os.path.exists(f"/proc/{mark.read_text()}"):
        time.sleep(0.01)


class Remembering(A2C):
    """A2C with a replay of its own, a module that holds the number of rollouts."""

    def setup(self, seed: int, make_update: MakeUpdate) -> None:
        super().setup(seed, make_update)
        self.replay = torch.nn.Module()
        self.replay.register_buffer("num_rollouts", torch.zeros(()))

    def learn(self, rollout: Rollout, update: Any) -> Stats:
        self.replay.num_rollouts += 1
        return super().learn(rollout, update) | {"num_rollouts": self.replay.num_rollouts.clone()}
