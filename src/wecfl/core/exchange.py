"""An exchange with clients: they are sent something, run a program, and reply."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wecfl.core.ask import Ask
from wecfl.core.program import Job, Sent
from wecfl.core.setting import Setting
from wecfl.core.state import Reply, State
from wecfl.core.types import without
from wecfl.errors import EngineError

__all__ = ["exchange"]


def exchange(state: State, setting: Setting, ask: Ask = Ask()) -> State:  # noqa: B008  (frozen)
    """L: clients run a program on their own data D_i, usually Q gradient steps from ω_i.

    Before a local update, new clients may be asked which cluster they join (`Setting.joining`). If
    the server can't use a reply, the client's row stays as it was sent. The memory belongs to
    the client, and is updated even if the reply is lost.
    """
    if setting.joining and ask.program is None:
        state = setting.joining(state, setting)
    method, engine, channel, m = setting.method, setting.engine, setting.channel, len(state.labels)
    steps = channel.steps(setting.plan, engine.sizes, state.round)
    plan = replace(
        setting.plan, lr=setting.rates(state), done=steps, leave_validation=state.validates
    )
    who = np.flatnonzero(channel.present(m, state.round, ask.who))
    extra = ask.send(state, setting) if ask.send else {}
    sent = Sent(
        {"model": state.fresh(who), **{name: rows[who] for name, rows in extra.items()}},
        ask.common(state, setting) if ask.common else {},
    )
    met = np.full(m, state.round > 0) if state.met is None else state.met
    job = Job(
        ask.program or method.local, plan.of(who), setting.seed, state.round, state.tick,
        method.shared, keep=True, met=met[who],
        in_place_above=setting.in_place_above,
    )  # fmt: skip
    shape = (len(who), state.centers.shape[1])
    answers = engine.ask(job, sent, who, state.memory)
    for name, field in job.program.replies.items():
        if field.update and np.shape(answers.rows[name]) != shape:
            raise EngineError(
                f"the engine {engine.name} must return models of shape {shape}, got "
                f"{np.shape(answers.rows[name])}"
            )
    outcome = np.full(m, Reply.ABSENT, np.int8)
    outcome[who] = answers.outcome
    replies, came = channel.received(
        state, answers.rows, who, outcome, job=job, layout=engine.layout
    )
    after = replace(
        state,
        round=state.round + (ask.program is None),
        tick=state.tick + 1,
        replies=replies,
        memory=answers.memory,
        known=without(["outcome"], state.known) | ({} if came is None else {"outcome": came}),
    )
    if not ask.learn:
        return after
    counted = replace(plan, done=plan.steps_of(engine.sizes) if steps is None else steps)
    return ask.learn(state, after, extra, replace(setting, plan=counted))
