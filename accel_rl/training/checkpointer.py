"""Saves the complete state of a run, and restores it."""

from dataclasses import replace
from typing import Any

import torch

from accel_rl.errors import UsageError
from accel_rl.run_folder import checkpoint, policy_file
from accel_rl.run_folder.checkpoint import CHECKPOINT
from accel_rl.run_folder.directory import keep_simulator
from accel_rl.run_folder.initial_policy import shared_buffers, statistics_beside_policy
from accel_rl.training.learner import Learner
from accel_rl.training.log import logger

State = dict[str, Any]


class Checkpointer:
    """A learner's part in checkpoints: each learner submits its state, and rank 0 writes the file when it has all."""

    def __init__(self, learner: Learner):
        self.learner, self.device = learner, torch.device(learner.config.device)

    # ---- saving ----

    def save(self, is_last: bool = False) -> None:
        """Submits this learner's state for the next checkpoint, or for the last one.

        Raises RunError if the state is not finite or cannot be written; the previous checkpoint then stays."""
        learner = self.learner
        if is_last:
            self._pull()  # and hand over updates that other learners do not have yet
        learner.guard.check(learner.steps)
        learner.coordinator.check_parameters_agree(learner.update.parameters.values)
        state = {
            "algo": learner.algo.state_dict(),
            "sampler": learner.sampler.get_state(),
            "replay": self._save_replay(),
            "metrics": learner.metrics.get_state(),
            "update": learner.update.local_state_dict(),
            "torch_generator": torch.get_rng_state(),
            # Networks with dropout draw from it.
            "cuda_generator": None if self.device.type == "cpu" else torch.cuda.get_rng_state(self.device),
        }
        learner.coordinator.submit_state(state, is_last)

    def write_submitted(self) -> None:
        """Writes the checkpoint, on rank 0, once all learners have submitted their states."""
        learner, progress = self.learner, self.learner.progress
        if not progress or (states := learner.coordinator.collect_states()) is None:
            return
        steps = learner.coordinator.add_steps(0)
        self._pull()
        if len(states) > 1:  # other learners may have changed the parameters since this one's check
            learner.guard.check(steps)
        progress.merge(learner.coordinator.poll_reports())
        state = {
            "steps": steps,
            "evaluation_due": learner.evaluation_is_due,
            "policy": learner.algo.policy.state_dict(),
            "spec": replace(learner.config.spec, step_s=None),  # a measured time would differ from run to run
            "best_score": learner.best_score,
            "update": learner.update.state_dict(),
            "shared_buffers": shared_buffers(learner.algo),
            "progress": progress.get_state(),
            "learners": states,
        }
        checkpoint.save(learner.folder / CHECKPOINT, state, keep_previous=True)
        self._save_policy(policy_file.LAST, steps, progress.scores()["rollout/ep_rew_mean"])
        learner.guard.saved()
        replays = [state["replay"] for state in states]
        checkpoint.remove_older_replays(learner.folder, replays, learner.config.trust)

    def save_best(self) -> None:
        """Saves the policy that has just been evaluated as the best one, on rank 0."""
        self._save_policy(policy_file.BEST, self.learner.steps, self.learner.best_score)

    def _save_policy(self, name: str, steps: int, score: float | None) -> None:
        algo = self.learner.algo
        path, statistics = self.learner.folder / name, statistics_beside_policy(algo)
        policy_file.save(path, algo.policy.state_dict(), steps, score, statistics)

    def _pull(self) -> None:
        """Fetches the newest state that learners share."""
        self.learner.update.pull()
        with self.learner.update.exchange.locked_buffers(shared_buffers(self.learner.algo)):
            pass

    def _save_replay(self) -> str | None:
        """Saves the replay; returns the file's name, or None if this run does not save it.

        The previous file stays until a checkpoint names this one."""
        learner = self.learner
        if learner.replay is None or not getattr(learner.replay, "in_checkpoints", True):
            return None
        name = checkpoint.replay_name(learner.steps, learner.coordinator.rank)
        checkpoint.save(learner.folder / name, learner.replay.state_dict())
        return name

    # ---- restoring ----

    def restore(self, state: State) -> None:
        """Continues from a checkpoint. Raises UsageError if its replay is missing."""
        learner = self.learner
        learner.steps, learner.best_score = state["steps"], state["best_score"]
        learner.evaluation_is_due = state["evaluation_due"]
        if not learner.config.is_central:  # else the store was made from the checkpoint
            learner.update.load_state_dict(state["update"])
        learner.algo.policy.load_state_dict(state["policy"])
        for name, value in shared_buffers(learner.algo).items():
            value.copy_(state["shared_buffers"][name])
        learner.update.pull()
        states = state["learners"]
        if len(states) == learner.coordinator.size:
            self._restore_learner(states[learner.coordinator.rank])
        else:
            self._restore_from_another_number(states)
        if learner.progress:
            learner.progress.set_state(state["progress"])
            keep_simulator(learner.config, learner.folder)
            rate, clip = learner.config.algo.learning_rate, learner.config.algo.clip_grad_norm
            logger.info("resumed at step %d (learning_rate %g, clip_grad_norm %s)", learner.steps, rate, clip or "none")

    def _restore_learner(self, state: State) -> None:
        """Restores what belongs to this learner alone."""
        learner = self.learner
        learner.update.load_local_state_dict(state["update"])
        learner.algo.load_state_dict(state["algo"])
        self._restore_replay(state["replay"])
        learner.metrics.set_state(state["metrics"])
        if restarted := learner.sampler.set_state(state["sampler"]):
            which = "all" if learner.config.spec.on_device else restarted
            logger.warning("these environments have no state to save and start a new episode: %s", which)
        torch.set_rng_state(state["torch_generator"])
        # A checkpoint written on the CPU has no state of CUDA's generator.
        if self.device.type != "cpu" and (cuda_generator := state.get("cuda_generator")) is not None:
            torch.cuda.set_rng_state(cuda_generator, self.device)

    def _restore_from_another_number(self, states: list[State]) -> None:
        """Restores everything but the state of individual environments, from a checkpoint of more or fewer learners."""
        learner = self.learner
        shared = {name: value for name, value in states[0]["algo"].items() if name != "local"}
        learner.algo.load_state_dict(shared)
        learner.update.load_local_state_dict(states[0]["update"])
        logger.warning(
            "resumed with %d learners instead of %d: environments start new episodes, a replay is filled anew",
            learner.coordinator.size,
            len(states),
        )

    def _restore_replay(self, name: str | None) -> None:
        learner = self.learner
        if learner.replay is None:
            return
        if name is None:
            logger.warning(
                "the checkpoint has no replay (checkpoint_replay): it is filled anew, so this run will not be exactly "
                "the one that was interrupted"
            )
            return
        if not (learner.folder / name).exists():
            raise UsageError(f"{learner.folder / CHECKPOINT} needs its replay {name}, which is missing: put it back")
        state = checkpoint.load(learner.folder / name, mapped=True, trust=learner.config.trust)
        learner.replay.load_state_dict({key: value for key, value in state.items() if key != "format"})
