"""The names of settings: those of every run, and other frameworks' names for them."""

import importlib.resources
import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from accel_rl.config.atari_options import AtariOptions
from accel_rl.config.learners import LearnerSettings
from accel_rl.config.run_settings import RunSettings
from accel_rl.errors import UsageError, unknown
from accel_rl.settings.sampler_kinds import SAMPLER_KINDS

RUN_GROUPS: dict[str, Any] = {
    "the run": RunSettings,
    "several learners": LearnerSettings,
    **{kind.title: kind.Settings for kind in SAMPLER_KINDS.values() if kind.Settings},
    "Atari games (defaults: env preset stooke)": AtariOptions,
}
"""The settings of a run, whatever its algorithm, by their purpose."""

ELSEWHERE = {
    "env": "env_id",
    "env_options": "env_kwargs",
    "wrappers": "wrapper_class",
    "envs": "n_envs num_envs batch_b",
    "workers": "num_workers",
    "envs_per_worker": "num_envs_per_worker",
    "cpus": "affinity set_workers_cpu_affinity",
    "sampler": "serial_mode async_rl batched_sampling",
    "horizon": "n_steps num_steps rollout batch_t",
    "decorrelation_steps": "max_decorrelation_steps",
    "steps": "total_timesteps n_timesteps train_for_env_steps",
    "device": "cuda cuda_idx",
    "deterministic": "torch_deterministic",
    "frame_shape": "screen_size",
    "frame_skip": "env_frameskip",
    "frame_stack": "env_framestack num_img_obs",
    "noop_max": "max_start_noops",
    "episodic_lives": "terminal_on_life_loss",
    "clip_reward": "reward_clip",
    "network": "policy net_arch policy_kwargs model_kwargs encoder_conv_architecture encoder_mlp_layers",
    "core": "use_rnn rnn_type",
    "core_size": "rnn_size",
    "separate_value": "share_features_extractor actor_critic_share_weights",
    "initialization": "ortho_init policy_initialization",
    "discount": "gamma",
    "learning_rate": "lr",
    "learning_rate_schedule": "anneal_lr lr_schedule linear_lr_schedule",
    "optimizer": "optimizer_class",
    "optimizer_options": "optimizer_kwargs optim_kwargs rms_prop_eps adam_eps adam_beta1 adam_beta2",
    "clip_grad_norm": "max_grad_norm",
    "log_std_init": "init_log_std initial_stddev",
    "entropy_weight": "ent_coef entropy_loss_coeff exploration_loss_coeff",
    "value_weight": "vf_coef value_loss_coeff",
    "epochs": "n_epochs num_epochs update_epochs",
    "minibatches": "num_minibatches num_batches_per_epoch",
    "envs x horizon / minibatches": "batch_size minibatch_size",
    "envs x horizon": "batch_size",
    "clip": "clip_range clip_coef ratio_clip ppo_clip_ratio",
    "value_clip": "clip_range_vf clip_vloss ppo_clip_value",
    "normalize_advantage": "norm_adv",
    "normalize_observations": "norm_obs normalize_input",
    "normalize_returns": "norm_reward",
    "rho_bar": "vtrace_rho",
    "c_bar": "vtrace_c",
    "return_lambda": "q_lambda",
    "replay_size": "buffer_size",
    "warmup_steps": "learning_starts min_steps_learn",
    "training_intensity": "train_freq train_frequency gradient_steps replay_ratio",
    "target_interval_steps": "target_update_interval target_network_frequency",
    "epsilon_final": "exploration_final_eps end_e eps_final",
    "epsilon_steps": "exploration_fraction eps_steps",
    "epsilon_eval": "eps_eval",
    "n_step": "n_step_return",
    "double": "double_dqn",
    "prioritized": "prioritized_replay",
    "priority_alpha": "pri_alpha",
    "priority_beta": "pri_beta_init",
    "priority_beta_steps": "pri_beta_steps",
    "atoms": "n_atoms",
    "log_interval_steps": "log_interval experiment_summaries_interval",
    "eval_interval_steps": "eval_freq",
    "eval_episodes": "n_eval_episodes eval_max_trajectories",
    "eval_steps": "eval_max_steps",
    "eval_greedy": "eval_deterministic",
    "checkpoint_interval_steps": "save_freq save_every_sec",
    "final_games": "capture_video",
    "tensorboard": "tensorboard_log",
    "track": "with_wandb",
    "out": "exp_name experiment train_dir log_dir",
}
"""The names of settings in Stable-Baselines3, CleanRL, Sample Factory and rlpyt, in lower case, as in
docs/coming_from.md. A key may be a formula. If several keys fit a name, the first whose settings a run has counts."""

ABSENT = {
    "tau": "target networks are copied, every target_interval_steps",
    "start_e": "epsilon starts at 1",
    "eps_init": "epsilon starts at 1",
    "exploration_initial_eps": "epsilon starts at 1",
    "recurrence": "a recurrent policy learns from whole rollouts",
    "stats_window_size": "training scores are means of 100 games",
    "verbose": "the command shows a run's progress; in Python, show=True does",
    "callback": "in Python, pass callbacks=[function] to accel_rl.train",
}
"""Settings of these frameworks that have no counterpart here, with the reason."""

NAME = re.compile(r"\w\w+")  # a name in a formula, but not its x


def run_setting_names() -> list[str]:
    """Returns the names of the settings that a run has with any algorithm."""
    return [f.name for group in RUN_GROUPS.values() for f in fields(group)]


def built_in_setting_names() -> list[str]:
    """Returns the names of the settings of all algorithms of this package.

    It reads them from lines such as `    epochs: int = setting(2, ...`, since importing the algorithms imports torch,
    which takes seconds."""
    files = (importlib.resources.files("accel_rl") / "algos").iterdir()
    text = "\n".join(file.read_text() for file in files if file.name.endswith(".py"))
    return re.findall(r"^    (\w+): .+ = \w*setting\(", text, re.MULTILINE)


def unknown_setting(
    kind: str, name: str, known: Iterable[str], way_out: str = "", of_others: Iterable[str] = ()
) -> UsageError:
    """Returns the error for an unknown setting or flag. The message translates another framework's name, says why there
    is no such setting here, or lists the nearest names. of_others: settings that other algorithms have."""
    by_name = {_plain(each): each for each in known}
    asked = _plain(name)
    formulas = [asked] if asked in by_name else [ours for ours, theirs in ELSEWHERE.items() if asked in theirs.split()]
    for formula in formulas:
        if by_name.keys() >= {*NAME.findall(formula)}:
            here = NAME.sub(lambda match: by_name[match[0]], formula)
            return UsageError(f"unknown {kind} {name}: here it is {here}")
    if asked in ABSENT and "steps" in by_name:  # only where a run's settings are known
        return UsageError(f"unknown {kind} {name}: {ABSENT[asked]}")
    if asked in of_others:
        return UsageError(f"{kind} {name}: other algorithms have it, this one does not")
    return unknown(kind, name, by_name.values(), way_out)


def _plain(flag: str) -> str:
    """Returns the name of a flag's setting."""
    return flag.removeprefix("--").replace("-", "_").lower()
