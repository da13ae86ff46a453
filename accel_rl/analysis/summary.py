"""Summarizes a run at its end: learning curve, scores, final games, a video."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path

from accel_rl.analysis.plot import make_figure, save
from accel_rl.analysis.trained_policy import load
from accel_rl.config.sources import read_settings
from accel_rl.errors import UsageError
from accel_rl.run_folder.atomic import write_file
from accel_rl.run_folder.trust import foreign_code
from accel_rl.training.log import command

FINAL_SEED = 1_000_003  # added to the run's seed, so final games are new


def print_summary(folder: Path) -> None:
    """Draws a run's learning curve; prints its score, speed and files.

    After the last step it plays `final_games` and records one; otherwise it prints how to make a video."""
    settings, summary = read_settings(folder), json.loads((folder / "summary.json").read_text())
    picture = folder / "learning_curve.png"
    try:
        save(make_figure([folder]), picture)
    except UsageError as error:
        picture = Path(f"none: {error}")
    score, evaluated = summary["ep_rew_mean"], summary["eval_mean_reward"]
    print(f"training score  {'no game finished' if score is None else f'{score:.1f}'}")
    if evaluated is not None:
        print(f"evaluation      score {evaluated:.1f}")
    print(f"steps           {summary['total_timesteps']:,} at {summary['fps']:,.0f} steps/s")
    print(f"run folder      {folder}")
    print(f"learning curve  {picture}")
    if settings["final_games"] and summary["total_timesteps"] >= settings["steps"]:
        play_final_games(folder, settings["final_games"], settings["seed"] + FINAL_SEED)
        return
    run, video = shlex.quote(str(folder)), shlex.quote(str(folder / "video.mp4"))
    trust = " --trust" if foreign_code(settings) else ""
    print(f"make a video    {command()} record {run} --out {video}{trust}")


def play_final_games(folder: Path, count: int, seed: int) -> None:
    """Plays games with a run's final policy and records one more; prints their scores and the video's name.

    Writes final.json and video.mp4 to the run's folder. Trusts the code that the settings name, since it has just
    trained. If it cannot play or record, it prints why but raises nothing, since the run is complete."""
    try:
        policy = load(folder, trust=True)
    except Exception as error:
        print(f"final policy    none: {error}")
        return
    print(f"final policy    plays {count} games, and one that is recorded ...", flush=True)
    try:
        evaluation = policy.evaluate(count, seed)
        content = json.dumps(asdict(evaluation), indent=2).encode() + b"\n"
        write_file(folder / "final.json", content, "scores")
        score = f"{evaluation.mean_reward:.1f} (std {evaluation.std_reward:.1f}) in {evaluation.episodes} games"
        print(f"final policy    {score}")
    except Exception as error:
        print(f"final policy    none: {error}")
    video = folder / "video.mp4"
    try:
        game = policy.record_video(video, seed)
        print(f"video           {video}: score {game.score:g}")
    except Exception as error:  # a renderer may raise anything
        print(f"video           none: {error}")
