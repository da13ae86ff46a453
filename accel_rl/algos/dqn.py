"""DQN, with double, dueling, prioritized and n-step learning as options (Mnih et al. 2015; Stooke & Abbeel 2018, 5.4).

All samples go into a replay; for each rollout so many batches are drawn from it that a sample is learned from
`training_intensity` times on the average, whatever the size of the batch and the number of environments.
"""

import logging
import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.algos.base import Algo, AlgoSettings, MakeUpdate, masked_sum
from accel_rl.algos.exploration import Exploration, ExplorationSettings
from accel_rl.config.fields import setting
from accel_rl.errors import UsageError
from accel_rl.hardware.devices import find_device
from accel_rl.models.actor_critic import Network
from accel_rl.models.q_network import QNetwork
from accel_rl.replay import Replay
from accel_rl.replay.replay import check_room, importance, needed_bytes, set_generator
from accel_rl.rollout import Rollout
from accel_rl.updates import Update

logger = logging.getLogger("accel_rl")

LARGEST_KEPT = 2 * 10**9  # bytes of a replay that checkpoints hold where nothing is said
LEAST_PRIORITY = 1e-6  # or what was once right would never be drawn again
LARGEST_PRIORITY = 1.0  # of a squared error, in the authors' code: as the Huber loss cuts its gradient


@dataclass(frozen=True)
class DQNSettings(ExplorationSettings, AlgoSettings):
    batch_size: int = setting(32, "samples of an update (with a central store: of each learner's)", least=1)
    training_intensity: float = setting(8.0, "how often a sample is learned from, on the average", above=0)
    replay_size: int = setting(
        1_000_000, "steps that are kept, over all environments (with a central store: of each learner)", least=1
    )
    replay_device: str = setting("auto", "where they are kept: cpu or cuda:0; auto: where the network learns")
    warmup_steps: int = setting(50_000, "agent steps of random actions before the first update", least=1)
    target_interval_steps: int = setting(10_000, "agent steps between two copies of the target network", least=1)
    n_step: int = setting(1, "rewards of a return before it is continued by the target network's value", least=1)
    double: bool = setting(False, "the network that learns chooses the action whose value the target network gives")
    dueling: bool = setting(
        False, "values from two streams: of the state, and of each action's advantage (the papers clip at 10 with it)"
    )
    prioritized: bool = setting(False, "samples are drawn by the size of their last error")
    priority_alpha: float = setting(0.6, "exponent of the priority: 0: uniform", least=0)
    priority_beta: float = setting(0.4, "exponent of the correction for it, at first", least=0, most=1)
    priority_beta_steps: int = setting(50_000_000, "agent steps until that is 1, linearly", least=1)
    new_priority: float | None = setting(None, "priority of a new sample; null: the largest so far", above=0)
    checkpoint_replay: bool | None = setting(None, "checkpoints hold the replay; null: if it has 2 GB at most")
    secondary_batch_size: int | None = setting(
        None, "a second network learns from the same replay, but never acts, in batches of this size", least=1
    )
    secondary_learning_rate: float | None = setting(None, "of that network; null: the same", above=0)


class DQN(Algo):
    """Raises UsageError for settings that do not fit together, or a replay that does not fit into memory."""

    Settings = DQNSettings
    learns_meanwhile = True
    settings: DQNSettings
    policy: QNetwork

    def __init__(self, *arguments: Any, **more: Any):
        super().__init__(*arguments, **more)
        settings, num_samples = self.settings, self.num_envs * self.horizon
        self.updates_per_rollout = updates_per_rollout(settings.training_intensity, num_samples, settings.batch_size)
        stored = settings.warmup_steps - self.num_envs * settings.n_step
        sizes = {name: getattr(settings, name) or 0 for name in ("batch_size", "secondary_batch_size")}
        largest = max(sizes, key=lambda name: sizes[name])
        if sizes[largest] > min(stored, settings.replay_size):
            raise UsageError(
                f"{largest}={sizes[largest]} is more than what is in the replay after warmup_steps="
                f"{settings.warmup_steps} (n_step={settings.n_step}, replay_size={settings.replay_size}): lower it, or "
                "make the warm-up or the replay larger"
            )
        if settings.n_step >= settings.replay_size // self.num_envs:
            raise UsageError(
                f"n_step={settings.n_step} does not fit into the {settings.replay_size // self.num_envs} steps that "
                f"replay_size={settings.replay_size} keeps of each of {self.num_envs} environments"
            )
        if self.horizon > settings.replay_size // self.num_envs:
            raise UsageError(
                f"a rollout of horizon={self.horizon} does not fit into the {settings.replay_size // self.num_envs} "
                f"steps that replay_size={settings.replay_size} keeps of each of {self.num_envs} environments"
            )
        num_learners = self.num_envs // self.local_envs
        for name in ("batch_size", "replay_size", "secondary_batch_size"):
            if (getattr(settings, name) or 0) % num_learners:
                raise UsageError(
                    f"{name}={getattr(settings, name)} does not split over {num_learners} learners that update "
                    f"together; make it a multiple of {num_learners}"
                )
        self.local_batch_size = settings.batch_size // num_learners
        self.local_replay_size = settings.replay_size // num_learners
        self.exploration = Exploration(settings, self.local_envs)
        self._step = self._stored_since = 0  # agent steps of the run: now; when the replay was empty
        self.target = frozen(self.policy)
        self.secondary = Secondary(self) if settings.secondary_batch_size else None

    def build_policy(self, network: Network | None) -> QNetwork:
        settings = self.settings
        return QNetwork(self.spec, network, None, settings.dueling, settings.epsilon_eval)

    def to(self, device: torch.device) -> None:
        for network in (self.policy, self.target, *(self.secondary.networks if self.secondary else ())):
            network.to(device)
        self.exploration.to(device)
        self.device = device

    def check(self, steps: int, devices: tuple[str, ...]) -> None:
        warmup = self.settings.warmup_steps
        if warmup >= steps:
            raise UsageError(
                f"warmup_steps={warmup} are not over before the run is ({steps} steps): nothing would be learned; make "
                "the run longer or the warm-up shorter"
            )
        if devices:
            own = self.settings.replay_device == "auto"
            self._room(devices.count(str(self.device)) if own else len(devices))

    def _room(self, num_alike: int = 1) -> tuple[torch.device, int, int]:
        """Where the replay is to lie, the bytes that it needs, and those that are free there for num_alike of them."""
        settings, device, size = self.settings, self.device, self.local_replay_size
        if settings.replay_device != "auto":
            device = torch.device(find_device(settings.replay_device, "replay_device"))
        needed = needed_bytes(self.spec, self.local_envs, size, settings.n_step, settings.prioritized)
        return device, needed, check_room(needed * num_alike, settings.replay_size, device)

    def start(self, seed: int, make_update: MakeUpdate) -> None:
        settings, size = self.settings, self.local_replay_size
        self.exploration.draw(seed)
        device, needed, free = self._room()
        logger.info(
            "replay: %s steps need %.2f GB on %s, where %.2f GB are free", f"{size:,}", needed / 1e9, device, free / 1e9
        )
        self.replay = Replay(
            self.spec,
            self.local_envs,
            size,
            settings.n_step,
            settings.discount,
            settings.priority_alpha if settings.prioritized else None,
            settings.new_priority,
            torch.Generator(device).manual_seed(seed),
            device,
        )
        is_small = needed <= LARGEST_KEPT
        self.keeps_replay = is_small if settings.checkpoint_replay is None else settings.checkpoint_replay
        self.target.bf16 = self.policy.bf16
        if self.secondary:
            self.secondary.start(seed, device, make_update)

    def prepare(self, step: int) -> None:
        is_warm = step >= self.settings.warmup_steps
        self.policy.exploration = self.exploration.at(step) if is_warm else 1.0
        self._step = step

    def learn(self, rollout: Rollout, update: Update) -> dict[str, Tensor]:
        """Takes the rollout into the replay, and renews the target network when it is due."""
        assert self.replay is not None
        if not self.replay.num_appended:
            self._stored_since = rollout.first_step
        self.replay.append(rollout)
        count = (rollout.first_step + self.num_envs * self.horizon) // self.settings.target_interval_steps
        update.renew(self.target, count)
        if self.secondary:
            self.secondary.update.renew(self.secondary.target, count)
        return {}

    def learn_meanwhile(self, t: int, update: Update) -> dict[str, Tensor]:
        """This step's part of the updates that are due for each rollout."""
        replay = self.replay
        if not replay or not replay.num_samples or self._step - self._stored_since < self.settings.warmup_steps:
            return {}
        before, after = (self.updates_per_rollout * step // self.horizon for step in (t, t + 1))
        stats = [self.learn_batch(replay, update) for _ in range(before, after)]
        names = {name: None for each in stats for name in each}  # the second network does not learn each time
        return {name: torch.stack([each[name] for each in stats if name in each]) for name in names}

    def learn_batch(self, replay: Replay, update: Update) -> dict[str, Tensor]:
        """One update with one batch."""
        settings, step = self.settings, self._step
        index, probability = replay.draw(self.local_batch_size)
        batch = replay.batch(index, self.device)
        if probability is not None:
            progress = min(1.0, step / settings.priority_beta_steps)
            beta = settings.priority_beta + progress * (1 - settings.priority_beta)
            weight = importance(probability, replay.num_samples, beta).to(self.device)
            batch["importance"] = weight / update.max(weight.max())
        stats = update.minimize(self.loss, batch, batch["valid"].sum(), self.learning_rate(step))
        replay.update_priorities(index, stats.pop("priority"))
        if self.secondary:
            stats |= self.secondary.learn(replay, step)
        return stats

    def loss(self, **batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.loss_of(self.policy, self.target, **batch)

    def loss_of(self, network: QNetwork, target: QNetwork, **batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """`huber_loss` of a network against another's targets. batch: the fields of `ring.Samples`, [N, ...], and
        "importance" [N] where samples are drawn by priority."""
        next_observation = batch["next_observation"]
        with torch.no_grad():
            values = target(next_observation)  # [N, A]
            chooser = network(next_observation) if self.settings.double else values
            best = values.gather(-1, chooser.argmax(-1, keepdim=True)).squeeze(-1)
            goal = batch["return_"] + batch["bootstrap"] * best
        value = network(batch["observation"]).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        return huber_loss(value, goal, batch["valid"], batch.get("importance"))

    def others(self) -> dict[str, Any]:
        return {"secondary": self.secondary.network} if self.secondary else {}

    def state_dict(self) -> dict[str, Any]:
        secondary = self.secondary and self.secondary.state_dict()
        return {
            "target": self.target.state_dict(),
            "exploration": self.exploration.state_dict(),
            "secondary": secondary,
            "stored_since": self._stored_since,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.target.load_state_dict(state["target"])
        self.exploration.load_state_dict(state["exploration"])
        self._stored_since = state["stored_since"]
        if self.secondary:
            self.secondary.load_state_dict(state["secondary"])

    def adopt(self, state: dict[str, Any]) -> None:
        self.target.load_state_dict(state["target"])
        if self.secondary:
            self.secondary.load_state_dict(state["secondary"])


class Secondary:
    """A network that learns from another one's replay without acting: it shows what the size of the batch does to
    learning, whatever it does to exploration (Stooke & Abbeel 2018, section 5.4.2).

    It begins with the same parameters and learns from as many samples, in its own batches, drawn uniformly."""

    def __init__(self, algo: DQN):
        settings = algo.settings
        size = settings.secondary_batch_size or settings.batch_size
        self.algo, self.batch_size = algo, size * algo.local_envs // algo.num_envs
        self.learning_rate = settings.secondary_learning_rate or settings.learning_rate
        if settings.prioritized:
            raise UsageError("secondary_batch_size: both networks would set the priorities; leave prioritized away")
        self.network, self.target = deepcopy(algo.policy), frozen(algo.policy)
        self.networks = (self.network, self.target)
        self.owed = 0.0  # samples that it is behind

    def start(self, seed: int, device: torch.device, make_update: MakeUpdate) -> None:
        """device: the replay's, from which it draws by a generator of its own: so the other network learns the same
        with it as without."""
        sequence = np.random.SeedSequence(seed, spawn_key=(1,))
        self.generator = torch.Generator(device).manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))
        self.update = make_update(self.network)
        for network in self.networks:
            network.bf16 = self.algo.policy.bf16

    def learn(self, replay: Replay, step: int) -> dict[str, Tensor]:
        """After one update of the other network: as many of its own as make up for the samples of that."""
        self.owed += self.algo.local_batch_size
        updates: list[dict[str, Tensor]] = []
        rate = self.algo.scheduled(self.algo.settings.learning_rate_schedule, self.learning_rate, step)
        while self.owed >= self.batch_size:
            self.owed -= self.batch_size
            batch = replay.batch(replay.draw(self.batch_size, self.generator)[0], self.algo.device)
            updates.append(self.update.minimize(self.loss, batch, batch["valid"].sum(), rate))
            updates[-1].pop("priority")
        names = updates[0] if updates else ()
        return {f"secondary_{name}": torch.stack([each[name] for each in updates]).mean() for name in names}

    def loss(self, **batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.algo.loss_of(self.network, self.target, **batch)

    def state_dict(self) -> dict[str, Any]:
        return {
            "update": self.update.state_dict(),
            "target": self.target.state_dict(),
            "owed": self.owed,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.update.load_state_dict(state["update"])
        self.target.load_state_dict(state["target"])
        self.owed = state["owed"]
        set_generator(self.generator, state["generator"])


def huber_loss(
    value: Tensor, goal: Tensor, valid: Tensor, importance: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """sum over valid samples of  w h(goal - value),  h(d) = d^2 / 2 if |d| <= 1, else |d| - 1/2.

    value, goal, valid, importance (w, 1 if None) [N]; gradients flow through value only. Returns the sum; its terms as
    sums, too; and each sample's priority min(|d|, 1), at least 1e-6 [N]. Source: Mnih et al. 2015; the priority as in
    Stooke & Abbeel's code.
    """
    error = (goal.detach() - value).masked_fill(~valid, 0.0)  # here: of a nan, the gradient by a sum is nan, too
    losses = torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
    loss_sum = masked_sum(losses if importance is None else losses * importance, valid)
    terms = {
        "loss": loss_sum,
        "value": masked_sum(value, valid),
        "td_error": masked_sum(error.abs(), valid),
        "priority": error.abs().clamp(LEAST_PRIORITY, LARGEST_PRIORITY),
    }
    return loss_sum, {name: term.detach() for name, term in terms.items()}


def updates_per_rollout(intensity: float, num_samples: int, batch_size: int) -> int:
    """Batches that are learned from for each rollout of num_samples steps. Raises UsageError if that is no whole
    number, with the nearest sizes of batches and intensities for which it is."""
    exact = intensity * num_samples / batch_size
    count = round(exact)
    if count >= 1 and math.isclose(exact, count):
        return count
    uses = intensity * num_samples
    sizes = [uses / k for k in range(1, int(uses) + 1) if (uses / k).is_integer()]
    below = [size for size in sizes if size < batch_size][:1]
    above = [size for size in sizes if size > batch_size][-1:]
    counts = sorted({max(1, math.floor(exact)), max(1, math.ceil(exact))})
    # Of intensities so many digits that what is named here does divide.
    named = {"batch_size": below + above, "training_intensity": [k * batch_size / num_samples for k in counts]}
    uses_of = [f"{name}={' or '.join(f'{x:.12g}' for x in values)}" for name, values in named.items() if values]
    raise UsageError(
        f"training_intensity={intensity:g} x {num_samples} samples of a rollout / batch_size={batch_size} = {exact:g} "
        f"updates must be a whole number: use {', or '.join(uses_of)}"
    )


def frozen(network: QNetwork) -> QNetwork:
    """A copy that is not learned."""
    copy = deepcopy(network)
    for parameter in copy.parameters():
        parameter.requires_grad_(False)
    return copy
