"""Finds the facts and rules of each game by the MD5 of its ROM; games.ini is the table.

Rewards, lives and the end of a game follow from the RAM after each frame; rule_code.py explains their expressions.
"""

import configparser
import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accel_rl.emulator.rule_code import compile_rules, value_names
from accel_rl.emulator.state import SCORE
from accel_rl.errors import UsageError, unknown

# ale-py's numbers of actions
ACTIONS = (
    "noop", "fire", "up", "right", "left", "down", "upright", "upleft", "downright", "downleft",
    "upfire", "rightfire", "leftfire", "downfire", "uprightfire", "upleftfire", "downrightfire", "downleftfire",
)  # fmt: skip
# These keys of a section are facts about the game; the others are its rules.
_FACTS = {
    *("md5", "actions", "legal_actions", "modes", "difficulties", "start", "saved"),
    *("select_until", "select", "set_mode", "starting_actions"),
    *("height", "first_line", "comb", "paddles", "paddle_max", "swapped_ports"),
}
_SAVED = "reward score terminal lives"


@dataclass(frozen=True, eq=False)
class GameRules:
    """The facts and rules of one game: a section of the table."""

    name: str
    md5: str
    actions: tuple[int, ...]  # actions with an effect in this game: ale-py's minimal action set
    legal_actions: tuple[int, ...]  # all other actions have no effect
    modes: tuple[int, ...]  # a game starts in the first one
    difficulties: tuple[int, ...]
    # The steps of a reset; resets.py explains them.
    set_mode: str
    starting_actions: str
    # The console and its controllers
    height: int  # number of displayed lines
    first_line: int  # the first displayed line
    comb: int  # 0 or 1: HMOVE blanks the first eight pixels of its line
    paddles: int  # 0: joysticks, 1: paddles in the left port, 2: in both
    paddle_max: int  # the largest resistance of a paddle, ohms
    swapped_ports: int  # 0 or 1: the player uses the right port
    code: np.ndarray  # int32: the input of reset_rules and update_rules
    # The words that ale-py's saved states also hold, in their order; None: a value that this state does not have
    saved: tuple[int | None, ...]


def rules_for(md5: str) -> GameRules:
    """Returns the rules of the game whose ROM has this MD5."""
    for name in known_games():
        if _table()[name]["md5"] == md5:
            return game_of(name)
    raise UsageError(f"no game with the MD5 {md5}: use one of the {len(known_games())} ROMs that come with ale-py")


@functools.cache
def game_of(name: str) -> GameRules:
    """Returns the rules of the game with this name in ale-py."""
    if name not in known_games():
        raise unknown("game", name, known_games())
    game = _table()[name]
    lines = {key: game[key] for key in game if key not in _FACTS}
    if "reward" not in lines:
        lines["reward"] = "score - was_score"
    # Last, since lives depend on terminal: in nearly all games they are 0 after the end.
    lines["lives"] = lines.pop("lives_always", "") or f"0 if terminal else {lines.pop('lives')}"
    names = value_names(lines)
    return GameRules(
        name=name,
        md5=game["md5"],
        actions=_actions(game.get("actions")),
        legal_actions=_actions(game.get("legal_actions")),
        modes=read_numbers(game.get("modes", "0")),
        difficulties=read_numbers(game.get("difficulties", "0")),
        set_mode=_set_mode(game),
        starting_actions=game.get("starting_actions", ""),
        height=int(game.get("height", "210")),
        first_line=int(game.get("first_line", "34")),
        comb=int(game.get("comb", "1")),
        paddles=int(game.get("paddles", "0")),
        paddle_max=int(game.get("paddle_max", "790196")),
        swapped_ports=int(game.get("swapped_ports", "0")),
        code=compile_rules(lines, _values(game.get("start", ""))),
        saved=tuple(None if name == "." else SCORE + names.index(name) for name in game.get("saved", _SAVED).split()),
    )


def _actions(text: str | None) -> tuple[int, ...]:
    return tuple(ACTIONS.index(action) for action in text.split()) if text else tuple(range(len(ACTIONS)))


def _set_mode(game: configparser.SectionProxy) -> str:
    if "select_until" in game:
        return f"until {game['select_until']}: select*{game.get('select', '2')} wait; reset*4"
    return game.get("set_mode", "")


def known_games() -> list[str]:
    """Returns ale-py's names of all games in the table."""
    return _table().sections()


@functools.cache
def _table() -> configparser.ConfigParser:
    table = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    table.optionxform = str  # type: ignore[assignment, method-assign]
    table.read(Path(__file__).with_name("games.ini"), encoding="utf-8")
    return table


def read_numbers(text: str) -> tuple[int, ...]:
    """Reads `0 2 4-7`."""
    numbers: list[int] = []
    for word in text.split():
        first, _, last = word.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def _values(text: str) -> dict[str, int]:
    """Reads `left:4 level:-1`."""
    pairs = (word.partition(":") for word in text.split())
    return {name: int(value) for name, _, value in pairs}
