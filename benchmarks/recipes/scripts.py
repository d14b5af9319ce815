"""Scripts of other people at a named commit, and the few lines that are put into them.

Each edit is a piece of the script, found once, and what stands in its place. `CLOCK` says where an update begins and
ends, in both runs alike; `LINES` are what gapless needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Script:
    """A script of a public repository.

    Attributes:
        repository: owner and name.
        commit: of the repository.
        path: in it.
        words: of its command line.
        clock: edits that measure.
        lines: edits for gapless.
    """

    repository: str
    commit: str
    path: str
    words: str
    clock: tuple[tuple[str, str], ...]
    lines: tuple[tuple[str, str], ...]


def after(line, *more):
    """Return an edit that puts lines behind one, as far to the right."""
    indent = line[: len(line) - len(line.lstrip())]
    return line + "\n", line + "\n" + "".join(f"{indent}{each}\n" for each in more)


def before(line, *more):
    """Return an edit that puts lines before one, as far to the right."""
    indent = line[: len(line) - len(line.lstrip())]
    return line + "\n", "".join(f"{indent}{each}\n" for each in more) + line + "\n"


@dataclass(frozen=True)
class Hoisted:
    """An edit that makes lines of a loop the body of a function in front of it.

    Attributes:
        parts: first and last line of each piece that becomes the body.
        place: the line before which the function stands.
        head: the lines above the body.
        tail: those behind it, within the function.
        call: what stands in the loop instead.
        without: lines of the body that are left out, by how they begin.
    """

    parts: tuple[tuple[str, str], ...]
    place: str
    head: tuple[str, ...]
    tail: tuple[str, ...]
    call: tuple[str, ...]
    without: str = "#"

    def made(self, text):
        """Return a text with the edit made."""
        lines, body = text.split("\n"), []
        for number, (first, last) in enumerate(self.parts):
            begin = lines.index(first)
            end = lines.index(last, begin) + 1
            body += lines[begin:end]
            space = first[: len(first) - len(first.lstrip())]
            lines[begin:end] = [] if number else [space + line for line in self.call]
        body = [line[len(space) :] for line in body if not line.lstrip().startswith(self.without)]
        place = lines.index(self.place)
        inner = [*self.head, *("    " + line for line in (*body, *self.tail))]
        lines[place:place] = ["    " + line for line in inner]
        return "\n".join(lines)


def edited(text, edits):
    """Return a text with edits made, each at the one place that it names."""
    for edit in edits:
        if isinstance(edit, Hoisted):
            text = edit.made(text)
            continue
        old, new = edit
        if text.count(old) != 1:
            raise ValueError(f"found {text.count(old)} times: {old!r}")
        text = text.replace(old, new)
    return text


_CLEANRL = ("vwxyzjn/cleanrl", "fe8d8a03")
_DEVICE = (
    '    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")',
    "from benchmarks.recipes.clock import clock",
    "device = clock.device",
)
_IN_PLACE = "import gapless; gapless.capture({}, device=device)"
_UPDATE = "import gapless", "@gapless.capture(device=device)"

SCRIPTS = {
    "cleanrl_ppo": Script(
        *_CLEANRL,
        "cleanrl/ppo.py",
        "--total-timesteps 100000000 --num-steps 128 --update-epochs 4",
        (
            after(*_DEVICE, "clock.length = 16 if clock.tiny else 80"),
            before("        # Optimizing the policy and value network", "clock.start()"),
            before(
                "        y_pred, y_true = b_values.cpu().numpy(), b_returns.cpu().numpy()",
                "clock.stop(16)",
            ),
        ),
        (
            after(
                "    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)",
                "torch.distributions.Distribution.set_default_validate_args(False)",
                _IN_PLACE.format("agent, optimizer"),
            ),
        ),
    ),
    "cleanrl_dqn": Script(
        *_CLEANRL,
        "cleanrl/dqn.py",
        "--total-timesteps 100000000 --learning-starts 200 --train-frequency 1",
        (
            after(*_DEVICE, "clock.length = 20 if clock.tiny else 100"),
            after("                data = rb.sample(args.batch_size)", "clock.start()"),
            after("                optimizer.step()", "clock.stop(1)"),
        ),
        (
            before(
                "    rb = ReplayBuffer(",
                _IN_PLACE.format("q_network, target_network, optimizer"),
            ),
        ),
    ),
    "cleanrl_sac": Script(
        *_CLEANRL,
        "cleanrl/sac_continuous_action.py",
        "--env-id Endless-v0 --total-timesteps 100000000 --learning-starts 300 --buffer-size 20000",
        (
            after(
                *_DEVICE,
                "clock.length = 10 if clock.tiny else 60",
                # Of episodes that are cut, newer versions of gymnasium tell under other names.
                'gym.register("Endless-v0", "gymnasium.envs.classic_control.pendulum:PendulumEnv")',
            ),
            after("            data = rb.sample(args.batch_size)", "clock.start()"),
            before("            if global_step % 100 == 0:", "clock.stop(1)"),
        ),
        (
            before(
                "    envs.single_observation_space.dtype = np.float32",
                "torch.distributions.Distribution.set_default_validate_args(False)",
                _IN_PLACE.format(
                    "actor, qf1, qf2, qf1_target, qf2_target, q_optimizer, actor_optimizer"
                ),
            ),
        ),
    ),
}


# The same scripts with the whole update as one captured function.
_OF_BATCH = "b_obs, b_logprobs, b_actions, b_advantages, b_returns, b_values"
_LOSSES = "old_approx_kl, approx_kl, clipfrac, pg_loss, v_loss, entropy_loss"

SCRIPTS["cleanrl_ppo_update"] = replace(
    SCRIPTS["cleanrl_ppo"],
    lines=(
        Hoisted(
            parts=(
                (
                    "                _, newlogprob, entropy, newvalue = agent.get_action_and_value("
                    "b_obs[mb_inds], b_actions.long()[mb_inds])",
                    "                optimizer.step()",
                ),
            ),
            place="    # ALGO Logic: Storage setup",
            head=(
                "torch.distributions.Distribution.set_default_validate_args(False)",
                *_UPDATE,
                f"def update(mb_inds, {_OF_BATCH}):",
            ),
            tail=(
                "clipfrac = ((ratio - 1.0).abs() > args.clip_coef).float().mean()",
                f"return {_LOSSES}",
            ),
            call=(
                f"{_LOSSES} = update(torch.as_tensor(mb_inds, device=device), {_OF_BATCH})",
                "clipfracs += [clipfrac.item()]",
            ),
            without="clipfracs",
        ),
    ),
)
SCRIPTS["cleanrl_dqn_update"] = replace(
    SCRIPTS["cleanrl_dqn"],
    lines=(
        Hoisted(
            parts=(
                (
                    "                with torch.no_grad():",
                    "                loss = F.mse_loss(td_target, old_val)",
                ),
                ("                optimizer.zero_grad()", "                optimizer.step()"),
            ),
            place="    start_time = time.time()",
            head=(*_UPDATE, "def update(data):"),
            tail=("return loss, old_val",),
            call=("loss, old_val = update(data)",),
        ),
    ),
)
SCRIPTS["cleanrl_sac_update"] = replace(
    SCRIPTS["cleanrl_sac"],
    lines=(
        Hoisted(
            parts=(("            with torch.no_grad():", "            q_optimizer.step()"),),
            place="    start_time = time.time()",
            head=(
                "torch.distributions.Distribution.set_default_validate_args(False)",
                *_UPDATE,
                "def update_critics(data, alpha):",
            ),
            tail=("return qf1_a_values, qf2_a_values, qf1_loss, qf2_loss, qf_loss",),
            call=(
                "qf1_a_values, qf2_a_values, qf1_loss, qf2_loss, qf_loss = update_critics(data, alpha)",
            ),
        ),
        Hoisted(
            parts=(
                (
                    "                    pi, log_pi, _ = actor.get_action(data.observations)",
                    "                        alpha = log_alpha.exp().item()",
                ),
            ),
            place="    start_time = time.time()",
            head=("@gapless.capture(device=device)", "def update_actor(data, alpha):"),
            tail=("return actor_loss, alpha_loss",),
            call=(
                "actor_loss, alpha_loss = update_actor(data, alpha)",
                "alpha = log_alpha.exp().detach()",
            ),
            without="alpha = log_alpha",
        ),
        ("        alpha = log_alpha.exp().item()\n", "        alpha = log_alpha.exp().detach()\n"),
    ),
)
