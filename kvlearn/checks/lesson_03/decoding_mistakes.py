"""What goes wrong in greedy_decode: the right loop with one part exchanged."""

import torch


def _loop(model, tokens, max_new_tokens, eos_ids, choose=None, feed=None, ends=None):
    """The right loop with one part exchanged."""
    tokens, new = list(tokens), []
    for _ in range(max_new_tokens):
        logits = model(torch.tensor([tokens + new if feed is None else feed(tokens, new)]))
        token = int(logits[0, -1].argmax()) if choose is None else int(choose(logits))
        new.append(token)
        if token in eos_ids if ends is None else ends(tokens, new):
            break
    return new


def prompt_too(model, tokens, max_new_tokens, eos_ids):
    return [*tokens, *_loop(model, tokens, max_new_tokens, eos_ids)]


def without_eos(model, tokens, max_new_tokens, eos_ids):
    new = _loop(model, tokens, max_new_tokens, eos_ids)
    return new[:-1] if new and new[-1] in eos_ids else new


def never_ends(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, ())


def filled_up(model, tokens, max_new_tokens, eos_ids):
    new = _loop(model, tokens, max_new_tokens, eos_ids)
    return new + new[-1:] * (max_new_tokens - len(new))


def ends_by_the_prompt(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids, ends=lambda old, new: {*old, *new} & {*eos_ids})


def ends_at_the_prompts_end(model, tokens, max_new_tokens, eos_ids):
    return [] if tokens[-1] in eos_ids else _loop(model, tokens, max_new_tokens, eos_ids)


def zero_is_nothing(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids, ends=lambda old, new: new[-1] and new[-1] in eos_ids)


def prompt_cut(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids, feed=lambda old, new: (old + new)[-64:])


def first_eos_always(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids, ends=lambda old, new: new[-1] == eos_ids[0])


def first_eos_only(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids[:1])


def last_eos_only(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids[-1:])


def one_too_many(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens + 1, eos_ids)


def one_too_few(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens - 1, eos_ids)


def prompt_counted(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens - len(tokens), eos_ids)


def first_token_lost(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids)[1:]


def first_position(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids, choose=lambda logits: logits[0, 0].argmax())


def position_before(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids, choose=lambda logits: logits[0, -2:][0].argmax())


def over_positions(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids, choose=lambda logits: logits[0].argmax(dim=0)[-1])


def over_everything(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids, choose=lambda logits: logits.argmax())


def last_token_alone(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids, feed=lambda old, new: (old + new)[-1:])


def prompt_then_last_token(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids, feed=lambda old, new: new[-1:] or old)


def never_fed_back(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids, feed=lambda old, new: old)


def new_tokens_alone(model, tokens, max_new_tokens, eos_ids):
    return _loop(model, tokens, max_new_tokens, eos_ids, feed=lambda old, new: new or old)


def in_place(model, tokens, max_new_tokens, eos_ids):
    new = _loop(model, tokens, max_new_tokens, eos_ids)
    tokens.extend(new)
    return new
