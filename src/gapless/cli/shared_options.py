"""Options that several commands share: the settings of a training run, a trained model and how to search."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from gapless.cli.parser import count_or_auto, file_or_folder, flag, one_of
from gapless.nmt.settings.config import GROUPS, TrainConfig
from gapless.plans import PLANS


if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from dataclasses import Field

    from gapless.cli.parser import Group, Parser
    from gapless.nmt.model.decode_settings import DecodeSettings, Sampling
    from gapless.nmt.run.translator import Translator


# --- settings of a training run ---


# The type of a setting: how its text is read, and what the help calls it.
_BY_TYPE: dict[type, dict[str, Any]] = {
    int: {"type": int, "metavar": "N"},
    float: {"type": float, "metavar": "NUMBER"},
    str: {"type": str, "metavar": "TEXT"},
}
_COUNT_OR_AUTO: dict[str, Any] = {"type": count_or_auto, "metavar": "N"}


def add_setting_options(
    parser: Parser,
    groups: Mapping[str, Iterable[Field[Any]]] = GROUPS,
    *,
    prefix: str = "",
    chosen: Container[str] = (),
) -> None:
    """Add one option for each setting; one that is not given is None.

    Args:
        parser: of the command.
        groups: settings that are options of it, by the title of their group.
        prefix: of the groups' titles.
        chosen: names of those that the command chooses where they are not given.
    """
    hints = get_type_hints(TrainConfig)
    for title, settings in groups.items():
        group = parser.add_group(prefix + title)
        for item in settings:
            text = f"{item.metadata['help']}{_default(item, is_chosen=item.name in chosen)}"
            # argparse formats help texts with %.
            _add_option(group, item, hints[item.name], text=text.replace("%", "%%"))


def given_settings(
    options: argparse.Namespace, groups: Mapping[str, Iterable[Field[Any]]] = GROUPS
) -> dict[str, Any]:
    """Return those of these settings that were given."""
    names = {item.name for settings in groups.values() for item in settings}
    return {
        name: value for name, value in vars(options).items() if name in names and value is not None
    }


def _add_option(group: Group, item: Field[Any], hint: Any, *, text: str) -> None:
    value_type = next((one for one in get_args(hint) if one is not type(None)), hint)
    value = _COUNT_OR_AUTO if hint == (int | str) else _BY_TYPE.get(value_type)
    if value_type is bool:
        switch = argparse.BooleanOptionalAction
        group.add_argument(flag(item.name), action=switch, default=None, help=text)
        return
    names = [flag(item.name)]
    if item.name == "loss_interval":
        names.append("--loss-extract-interval")
    choices = PLANS if item.name == "plan" else item.metadata["choices"]
    value = value if choices is None else one_of(choices)
    if item.name == "data":
        value = {**_BY_TYPE[str], "action": _Several}
    group.add_argument(*names, dest=item.name, help=text, **(value or {}))


class _Several(argparse.Action):
    """Stores a value, and others that are given too, one a line."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if before is None else f"{before}\n{values}")


def _default(item: Field[Any], *, is_chosen: bool) -> str:
    if is_chosen:
        return " [default: chosen]"
    return "" if item.default is None else f" [default: {_shown(item.default)}]"


def _shown(default: Any) -> str:
    return {True: "yes", False: "no"}[default] if isinstance(default, bool) else str(default)


# --- a trained model, the search and the device ---


def add_model_options(parser: Parser) -> Group:
    """Add the run and which of its weights; return their group."""
    model = parser.add_group("model")
    model.add_argument(
        "run", type=file_or_folder, metavar="RUN", help="run folder of a trained model"
    )
    model.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="name in the run's checkpoints, such as epoch-0003; none: final, or else best",
    )
    model.add_argument(
        "--average",
        type=int,
        metavar="N",
        help="number of newest epoch checkpoints to average",
    )
    return model


def add_decode_options(parser: Parser) -> Group:
    """Add the model, the search and the device; return the group of the search."""
    add_model_options(parser).add_argument(
        "--ensemble",
        type=file_or_folder,
        action="append",
        default=[],
        metavar="RUN",
        help="another run, whose probabilities are averaged with this one's; may be given again",
    )
    search = parser.add_group("decoding")
    search.add_argument("--beam", type=int, metavar="N", help="hypotheses; none: as trained")
    search.add_argument(
        "--length-penalty",
        type=float,
        metavar="NUMBER",
        help="exponent a in score / length ** a; none: as trained",
    )
    search.add_argument(
        "--early-stopping",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="end a search when as many as the beam have ended; none: as trained",
    )
    search.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="most tokens of a translation; none: as trained",
    )
    search.add_argument(
        "--batch",
        type=int,
        metavar="N",
        help="most sentences on the device at once; none: as suits their lengths",
    )
    search.add_argument(
        "--batch-tokens",
        type=int,
        metavar="N",
        help="most tokens at once: sentences x beam x source length; none: as suits the device",
    )
    add_device_option(parser)
    return search


def make_translator(options: argparse.Namespace) -> Translator:
    """Return the translator of the run that the options name.

    Sync: Blocks the host while weights are copied.
    """
    from gapless.nmt.run.translator import Translator

    return Translator(
        options.run,
        device=options.device,
        checkpoint=options.checkpoint,
        average=options.average,
        ensemble=options.ensemble,
    )


def decode_settings(
    translator: Translator,
    options: argparse.Namespace,
    *,
    n_best: int = 1,
    sampling: Sampling | None = None,
) -> DecodeSettings:
    """Return how to search: as the options say, or else as the run was trained."""
    names = ("beam", "length_penalty", "early_stopping", "max_length", "batch", "batch_tokens")
    asked = {name: getattr(options, name) for name in names}
    return translator.settings(**asked, n_best=n_best, sampling=sampling)


def add_device_option(parser: Parser) -> Group:
    """Add `--device` in a group of its own, and return that."""
    group = parser.add_group("device")
    group.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="auto, cpu, cuda or cuda:N [default: auto]",
    )
    return group
