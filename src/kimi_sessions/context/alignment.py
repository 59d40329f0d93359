"""
Which turn of the wire log each message of the context belongs to, and where the context is cut after a turn.

The two logs have no common key. The context holds user messages that began no turn (reminders,
notifications, steers, summaries, imports, a hook's follow-up), and the wire log holds turns that left no
message (slash commands, the outer turn of a flow). A compaction, a clear or a revert starts a new context
file and leaves the old one beside it as a rotation. So nothing can be counted; this is what is done
instead:

1. The files are put in a row, oldest first. What a file repeats of the one before it (what a compaction kept, what a
   revert went back to) is told apart from what is new in it. New parts one after the other are the conversation.
2. The user messages of that row are matched in order with the prompts and steers of the wire log by their text, so
   that the most of them fit. Where the beginning of the conversation is lost, the later of two equal fits is taken.
3. A message that fits nothing lies between two that do. If it begins a turn (a checkpoint stands before it), it is
   given to a turn there that ran and has no message, as a skill's prompt is; what a command put there goes to that
   command; everything else goes on with the turn before it. In doubt the later turn gets it: a cut may lose what
   can't be told, but keeps nothing of a later turn.
4. The state after a turn is in the file that was in use when the turn ended.

Values only: files are read here, byte places come out, nothing is written.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from kimi_sessions._lines import Damage, Span, iter_lines
from kimi_sessions._text import user_text
from kimi_sessions.wire.records import WireMessageRecord, dump_json
from kimi_sessions.wire.scan import Names, decode_turn, places_of
from kimi_sessions.wire.turns import (
    TURN_BEGIN,
    TURN_END,
    Turn,
    TurnFold,
    iter_runs,
    records_in_line,
)

from .history import (
    COMPACTION_START,
    context_records,
    first_text,
    is_checkpoint_marker,
    is_injected_user_message,
    refuse_message,
)
from .roles import CHECKPOINT_ROLE, SYSTEM_PROMPT_ROLE

__all__ = [
    "ContextOutline",
    "CutPlace",
    "WireOutline",
    "find_cut_place",
    "outline_context",
    "outline_of_turns",
    "outline_wire",
]

# --- the wire log ------------------------------------------------------------------------------------------

_BEGINNINGS = Names((b"TurnBegin", b"StepBegin"), 4)
_STEP = ord("S")
#: What else tells about turns: TurnEnd and CompactionEnd, and what a user says to a turn that runs.
_TOLD_BY = (Names((b"TurnEnd", b"tionEnd"), 4), Names((b"SteerInput",), 5))
#: Beyond every place in a log.
_LATER = 1 << 62
_TORN_BEGIN = re.compile(rb'"message"\s*:\s*\{\s*"type"\s*:\s*"TurnBegin')
_CLEARING = frozenset({"/clear", "/reset", "/new"})
#: A command that is a prompt by another name. (A flow's prompts are turns of their own.)
_SKILL = "/skill:"
#: Works in a context of its own: the turn inside it leaves no message.
_INIT = "/init"


class Mark(msgspec.Struct, gc=False):
    """
    A prompt or steer in the wire log. ``position`` is twice the turn's index, plus one for a turn whose
    TurnBegin was torn. ``ran`` says that a step of the model followed.
    """

    position: int
    text: str | None
    is_turn: bool
    ran: bool = False
    apart: bool = False

    @property
    def is_init(self) -> bool:
        """True for the command that runs a turn in a context of its own."""
        return self.is_turn and self.is_command and (self.text or "").split(maxsplit=1)[:1] == [_INIT]

    @property
    def is_command(self) -> bool:
        """True for a prompt that is a slash command by its look."""
        return self.text is not None and self.text.lstrip().startswith("/")


@dataclass(slots=True)
class WireOutline:
    """
    What a wire log tells about where its turns lie.

    Attributes:
        turns: all of them. marks: prompts, steers and torn prompts, in order. rotations: positions of the
        turns that left the context file behind (compaction, clear), in order; an odd one was left after a turn.
        ends: for each TurnEnd that closed a turn, the index of the last turn begun before it, and the first
        byte after the record.
        torn: first bytes of TurnBegin records that were torn.
        tells_steps: whether the log holds StepBegin records at all, so that a turn without one ran nothing.
    """

    turns: list[Turn] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    rotations: list[int] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    torn: list[int] = field(default_factory=list)
    tells_steps: bool = False

    def has_message(self, mark: Mark) -> bool:
        """Tell whether a turn should have left a message in the context."""
        if mark.apart or self.tells_steps:
            return mark.ran and not mark.apart
        return not mark.is_command and not self._is_around_others(mark)

    def _is_around_others(self, mark: Mark) -> bool:
        """Tell whether other turns lie within a turn: those have the messages."""
        index = mark.position // 2
        if not mark.is_turn or not 0 <= index < len(self.turns) - 1:
            return False
        end = self.turns[index].end_offset
        return end is not None and self.turns[index + 1].offset < end


def outline_wire(fd: int, end: int | None = None) -> WireOutline:
    """Read an open wire log up to ``end`` bytes. Raises OSError."""
    reader = _WireReader()
    hear, still_open = reader.hear, reader.fold.still_open
    for start, data, last in iter_runs(fd, 0, end):
        find = data.find
        begins = places_of(data, _BEGINNINGS, last)
        named = [at for at in begins if data[at] != _STEP]
        for names in _TOLD_BY:
            named += places_of(data, names, last)
        named.sort()
        named.append(_LATER)
        steps = [at for at in begins if data[at] == _STEP]
        steps.append(_LATER)
        next_named = next_step = at = 0
        while at < last:
            # A line between turns may be a torn prompt with too little left to know it by.
            if still_open:
                while named[next_named] < at:
                    next_named += 1
                told = named[next_named]
                if reader.asks_for_steps:
                    while steps[next_step] < at:
                        next_step += 1
                    if steps[next_step] < told:  # noqa: PLR1730 - min() takes three times as long
                        told = steps[next_step]
                if told == _LATER:
                    break
                at = data.rfind(b"\n", at, told) + 1 or at
            stop = find(b"\n", at, last)
            if stop < 0:
                stop = last
            if stop > at:
                line = data[at:stop]
                try:
                    plain = decode_turn(line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    reader.take(line, start + at)
                else:
                    message = plain.message
                    hear(message.type, message.payload.user_input, plain.timestamp, start + at, start + stop)
            at = stop + 1
    reader.outline.turns = reader.fold.turns
    return reader.outline


class _WireReader:
    """Lines of a wire log in, its outline out. Of StepBegins it asks for no more than the next."""

    __slots__ = ("_after_init", "asks_for_steps", "fold", "outline")

    def __init__(self) -> None:
        #: Whether the latest mark is the command whose turn works in a context of its own.
        self._after_init = False
        self.outline = WireOutline()
        self.fold = TurnFold()
        #: Whether the next StepBegin would tell anything: that the log has them, or that the latest turn ran.
        self.asks_for_steps = True

    def take(self, line: bytes, offset: int) -> None:
        """Take one line, which begins at ``offset`` and is no plain record."""
        records, damage = records_in_line(line)
        pieces: list[tuple[int, int, WireMessageRecord | bytes]] = [*records]
        pieces += [_piece(line, each) for each in damage]
        for start, stop, record in sorted(pieces, key=lambda piece: piece[0]):
            if not isinstance(record, bytes):
                said = record.message.payload.get("user_input")
                self.hear(record.type, said, record.timestamp, offset + start, offset + stop)
            elif _TORN_BEGIN.search(record) or not self.fold.is_open:
                self.outline.torn.append(offset + start)
                self._mark(Mark(2 * len(self.fold.turns) - 1, None, is_turn=True))

    def hear(self, kind: str, said: object, timestamp: float, start: int, stop: int) -> None:
        """Take one record: its type, the user's words in it if there are any, its time and its place."""
        outline, fold = self.outline, self.fold
        if kind == "StepBegin":
            outline.tells_steps = True
            if outline.marks:
                outline.marks[-1].ran = True
            self.asks_for_steps = False
        elif kind == TURN_BEGIN:
            text = said if isinstance(said, str) else user_text(said)
            position = 2 * len(fold.turns)
            fold.begin(text, timestamp, start)
            mark = Mark(position, text, is_turn=True, apart=self._after_init)
            self._mark(mark)
            if mark.is_command:
                self._after_init = mark.is_init
                if text.split(maxsplit=1)[0] in _CLEARING:
                    outline.rotations.append(position)
        elif kind == TURN_END:
            if fold.end(timestamp, stop) is not None:
                outline.ends.append((len(fold.turns) - 1, stop))
        elif kind == "SteerInput":
            self._mark(Mark(2 * max(len(fold.turns) - 1, 0), user_text(said), is_turn=False, ran=True))
        elif kind == "CompactionEnd":
            # Between turns it belongs to neither: the turn before had ended with the context from before it.
            between = bool(fold.turns) and not fold.is_open
            outline.rotations.append(2 * max(len(fold.turns) - 1, 0) + between)

    def _mark(self, mark: Mark) -> None:
        self.outline.marks.append(mark)
        self._after_init = False
        self.asks_for_steps = not mark.ran or not self.outline.tells_steps


def _piece(line: bytes, damage: Damage) -> tuple[int, int, bytes]:
    stop = damage.offset + damage.length
    return damage.offset, stop, line[damage.offset : stop]


def outline_of_turns(context: ContextOutline) -> WireOutline:
    """Make up the outline of a wire log that is not there: one turn for each message that begins one."""
    texts = [item.text for item in context.items if item.kind is Kind.USER and context.begins_turn(item)]
    return WireOutline(
        turns=[Turn(index, text, None, None, 0) for index, text in enumerate(texts)],
        marks=[Mark(2 * index, text, is_turn=True) for index, text in enumerate(texts)],
    )


# --- the context log ---------------------------------------------------------------------------------------

_ROLE = re.compile(rb'"role"\s*:\s*"(\w+)')


_DMAIL = "<system>You just got a D-Mail"
_WITHIN_TURN = ("<system-reminder>", "<notification ", _DMAIL)


class Kind(Enum):
    """What a message in the context is to the turns."""

    USER = "user"
    LOST = "lost"  # a damaged line that may have been a user's message
    INJECTED = "injected"
    SUMMARY = "summary"
    MARKER = "marker"
    OTHER = "other"


@dataclass(slots=True)
class Item:
    """
    A message in a context. ``start`` is where a cut before it goes: at its checkpoint, if one stands before
    it.

    ``digest`` is equal for equal messages. ``position`` is that of the turn it belongs to (see Mark), -1
    before that is known.
    """

    kind: Kind
    start: int
    text: str
    digest: int
    after_checkpoint: bool
    position: int = -1

    @property
    def is_within_turn(self) -> bool:
        """True for a message that the client adds between steps, to the turn that is running."""
        return self.text.lstrip().startswith(_WITHIN_TURN)


@dataclass(slots=True)
class ContextOutline:
    """
    The messages of one context file.

    Attributes:
        size: bytes that were read.
        items: in file order.
        system_prompts: places of the system prompt records.
        has_checkpoints: whether messages that begin turns can be told by the checkpoint before them.
        repeated: how many of the items repeat the file before.
    """

    size: int = 0
    items: list[Item] = field(default_factory=list)
    system_prompts: list[tuple[int, int]] = field(default_factory=list)
    has_checkpoints: bool = False
    repeated: int = 0

    def begins_turn(self, item: Item) -> bool:
        """Tell whether a message stands where the first message of a turn stands."""
        return item.kind in {Kind.USER, Kind.LOST} and (item.after_checkpoint or not self.has_checkpoints)

    @property
    def has_summary(self) -> bool:
        """True if the file begins with the summary of a compaction."""
        return any(item.kind is Kind.SUMMARY for item in self.items[:2])

    @property
    def is_answered_anew(self) -> bool:
        """True if what is new begins with an answer, as after the same prompt said once more."""
        return self.repeated < len(self.items) and self.items[self.repeated].kind is Kind.OTHER

    @property
    def new(self) -> list[Item]:
        """The items that do not repeat the file before."""
        return self.items[self.repeated :]


class _Role(msgspec.Struct):
    role: str


_decode_role = msgspec.json.Decoder(_Role).decode


def _plain_role(line: bytes) -> str | None:
    """Return the role of a line that is one record and nothing else, fast; None if it needs the whole policy."""
    if line[:1] != b"{" or line[-1:] != b"}":
        return None
    try:
        return _decode_role(line).role
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def outline_context(fd: int, end: int, *, alone: bool = False) -> ContextOutline:
    """
    Read an open context log up to ``end`` bytes.

    With ``alone`` the outline will not be compared with another's: messages that are no user's need no digest then,
    and of several in a row one stands for all. Raises OSError.
    """
    outline = ContextOutline(size=end)
    items = outline.items
    checkpoint: int | None = None
    for offset, line in iter_lines(fd, 0, end):
        plain = _plain_role(line) if alone else None
        if plain is not None and plain != "user":
            if plain == CHECKPOINT_ROLE:
                checkpoint = offset
                outline.has_checkpoints = True
            elif plain == SYSTEM_PROMPT_ROLE:
                outline.system_prompts.append((offset, offset + len(line)))
            else:
                # The first two are told one by one: the beginning of a file is looked at by place.
                if not plain.startswith("_") and (len(items) < 2 or items[-1].kind is not Kind.OTHER):
                    items.append(Item(Kind.OTHER, offset, "", 0, checkpoint is not None))
                checkpoint = None
            continue
        records, damage = context_records(line)
        pieces: list[Span | Damage] = sorted([*records, *damage], key=lambda piece: piece.offset)
        for piece in pieces:
            at = offset + piece.offset
            if isinstance(piece, Damage):
                role = _ROLE.search(line, piece.offset, piece.offset + piece.length)
                if (role is None and checkpoint is not None) or (role is not None and role[1] == b"user"):
                    start = at if checkpoint is None else checkpoint
                    outline.items.append(Item(Kind.LOST, start, "", hash((at, fd)), checkpoint is not None))
                checkpoint = None
                continue
            role_name = piece.value["role"]
            if role_name == CHECKPOINT_ROLE:
                checkpoint = at
                outline.has_checkpoints = True
            elif role_name == SYSTEM_PROMPT_ROLE:
                outline.system_prompts.append((at, at + len(piece.raw)))
            elif role_name.startswith("_"):
                checkpoint = None
            else:
                item = _item(piece, at, checkpoint)
                outline.items.append(item)
                if item.kind is not Kind.MARKER:
                    checkpoint = None
    return outline


def _item(span: Span, at: int, checkpoint: int | None) -> Item:
    record = span.value
    said = (record["role"], record.get("content"), record.get("tool_calls"), record.get("tool_call_id"))
    digest = hash(dump_json(said))
    after = checkpoint is not None
    start = at if checkpoint is None else checkpoint
    if record["role"] != "user" or refuse_message(record) is not None:
        return Item(Kind.OTHER, at, "", digest, after)
    text = user_text(record.get("content"))
    if is_checkpoint_marker(record):
        return Item(Kind.MARKER, at, text, digest, after)
    if not is_injected_user_message(record):
        return Item(Kind.USER, start, text, digest, after)
    kind = Kind.SUMMARY if first_text(record).lstrip().startswith(COMPACTION_START) else Kind.INJECTED
    return Item(kind, at, text, digest, after)


# --- one conversation out of several files -----------------------------------------------------------------


def _mark_repeated(before: ContextOutline | None, context: ContextOutline) -> list[int]:
    """
    Note how many items of ``context`` repeat the file before it, and return fewer that it could be as well.

    After a compaction, what was kept stands behind the summary: the end of the old file. After a revert, the new
    file begins as the old one does; but so does one that was cleared, or where the same was said again right after.
    """
    old = [item.digest for item in before.items] if before is not None else []
    new = [item.digest for item in context.items]
    same = 0
    while same < min(len(new), len(old)) and new[same] == old[same]:
        same += 1
    head = next((index for index, item in enumerate(context.items[:2], 1) if item.kind is Kind.SUMMARY), 0)
    if head:
        kept = min(len(old), len(new) - head)
        while kept > 0 and old[-kept:] != new[head : head + kept]:
            kept -= 1
        same = max(head + kept, same)
    context.repeated = same
    spoken = [index for index, item in enumerate(context.items[:same]) if item.kind is Kind.USER]
    if not spoken:
        context.repeated = head and same
        return []
    following = context.items[same] if same < len(new) else None
    if following is not None and following.text.lstrip().startswith(_DMAIL):
        return []  # only a revert is followed by this
    again = context.is_answered_anew and spoken[-1] > spoken[0]
    return [*([] if head else [spoken[0]]), *([spoken[-1]] if again else [])]


def _align(wire: WireOutline, contexts: Sequence[ContextOutline]) -> None:
    """Give every message its position, and every file its number of repeated items."""
    unsure: dict[int, list[int]] = {}
    before: ContextOutline | None = None
    for index, context in enumerate(contexts):
        fewer = _mark_repeated(before, context)
        if fewer:
            unsure[index] = fewer
        if context.items:
            before = context
    latest = contexts[0].has_summary or len(wire.rotations) > len(contexts) - 1
    while True:
        row: list[tuple[Item, int]] = []
        for index, context in enumerate(contexts):
            if index in unsure:
                worth = _LIKELY if context.is_answered_anew else _UNLIKELY
                row += [(item, worth) for item in context.items[unsure[index][0] : context.repeated]]
            row += [(item, _SURE) for item in context.new]
        row = [(item, worth) for item, worth in row if item.kind in {Kind.USER, Kind.INJECTED}]
        pairs = _match(row, wire, latest=latest)
        matched = {id(row[index][0]) for index in pairs}
        # What may repeat the file before is new if all of it finds prompts of its own; else fewer of it may.
        refuted = [
            index for index, fewer in unsure.items() if not _all_match(contexts[index], fewer[0], matched)
        ]
        if not refuted:
            break
        for index in refuted:
            del unsure[index][0]
            if not unsure[index]:
                del unsure[index]
    for index, fewer in unsure.items():
        contexts[index].repeated = fewer[0]
    for index, mark_index in pairs.items():
        row[index][0].position = wire.marks[mark_index].position
    _fill_gaps(wire, contexts, matched)


def _all_match(context: ContextOutline, start: int, matched: set[int]) -> bool:
    doubtful = context.items[start : context.repeated]
    return all(id(item) in matched for item in doubtful if item.kind is Kind.USER)


_RANKS = 40
_MANY_PAIRS = 100_000


#: What matching a message is worth, half as much again with a turn that ran: one that is surely new; one that may
#: repeat an older one, but was answered otherwise; one that may repeat an older one. The less sure are never worth
#: moving a sure one to a turn that did not run.
_SURE, _LIKELY, _UNLIKELY = 16, 4, 1


def _match(row: Sequence[tuple[Item, int]], wire: WireOutline, *, latest: bool) -> dict[int, int]:
    """
    Match messages with prompts and steers of the same text, both in order, so that the pairs are worth the most.

    ``row`` holds messages and what they are worth. Returns indexes in it to indexes of marks.
    """
    marks = wire.marks
    items = [item for item, _ in row]
    item_order = range(len(items) - 1, -1, -1) if latest else range(len(items))
    mark_order = range(len(marks) - 1, -1, -1) if latest else range(len(marks))
    counts: defaultdict[str, int] = defaultdict(int)
    for item in items:
        counts[item.text] += 1
    places: dict[str | None, list[int]] = {text: [] for text in counts}
    for step, mark_index in enumerate(mark_order):
        found_at = places.get(marks[mark_index].text)
        if found_at is not None:
            found_at.append(step)
    seen: defaultdict[str, int] = defaultdict(int)
    # The heaviest chains so far, as a tree of prefix maxima over the marks.
    tree: list[tuple[int, int]] = [(0, -1)] * (len(marks) + 1)
    chains: list[tuple[int, int, int]] = []  # item index, mark index, chain before

    def heaviest_before(step: int) -> tuple[int, int]:
        best = (0, -1)
        while step > 0:
            if tree[step][0] > best[0]:
                best = tree[step]
            step &= step - 1
        return best

    for item_index in item_order:
        item = items[item_index]
        rank = seen[item.text]
        seen[item.text] += 1
        found = []
        for step in _within_reach(places[item.text], rank, counts[item.text]):
            mark_index = mark_order[step]
            weight, chain = heaviest_before(step)
            worth = row[item_index][1] * (3 if wire.has_message(marks[mark_index]) else 2)
            found.append((weight + worth, step, mark_index, chain))
        for weight, step, mark_index, chain in found:
            chains.append((item_index, mark_index, chain))
            node = step + 1
            while node < len(tree):
                if weight > tree[node][0]:
                    tree[node] = (weight, len(chains) - 1)
                node += node & -node
    pairs = {}
    chain = heaviest_before(len(marks))[1]
    while chain >= 0:
        item_index, mark_index, chain = chains[chain]
        pairs[item_index] = mark_index
    return pairs


def _within_reach(places: Sequence[int], rank: int, count: int) -> Iterable[int]:
    """Leave out far pairs where one text was said so often that looking at all pairs would take long."""
    if len(places) * count <= _MANY_PAIRS:
        return places
    near: set[int] = set()
    for middle in (rank, len(places) - count + rank):
        near.update(places[max(0, middle - _RANKS) : max(0, middle + _RANKS)])
    return sorted(near)


def _fill_gaps(wire: WireOutline, contexts: Sequence[ContextOutline], matched: set[int]) -> None:
    """Give a position to each message that has none, between its neighbours' and never earlier than it may be."""
    turns = [mark for mark in wire.marks if mark.is_turn]
    positions = [mark.position for mark in turns]
    gap: list[tuple[ContextOutline, Item]] = []
    before = -1
    for context in contexts:
        for item in context.new:
            if id(item) in matched:
                free = turns[
                    bisect.bisect_right(positions, before) : bisect.bisect_left(positions, item.position)
                ]
                _fill_gap(wire, gap, free, before)
                before = item.position
                gap = []
            else:
                gap.append((context, item))
    _fill_gap(wire, gap, turns[bisect.bisect_right(positions, before) :], before)


def _fill_gap(
    wire: WireOutline, gap: Sequence[tuple[ContextOutline, Item]], free: Sequence[Mark], current: int
) -> None:
    """Give the messages of one gap to the turns that are free there; ``current`` is the turn before."""
    for index, (_, item) in enumerate(gap):
        mark = _command_of(item, free, current)
        if mark is None:
            continue
        # What a command left parts the gap in two.
        _fill_gap(wire, gap[:index], [each for each in free if each.position < mark.position], current)
        item.position = _last_within(wire, mark)
        rest = [each for each in free if each.position > item.position]
        _fill_gap(wire, gap[index + 1 :], rest, item.position)
        return
    starters = [item for context, item in gap if context.begins_turn(item)]
    takers = [mark for mark in free if wire.has_message(mark)]
    if not takers and not wire.tells_steps:
        takers = [mark for mark in free if (mark.text or "").lstrip().startswith(_SKILL)]
    if len(starters) < len(takers):
        takers = takers[len(takers) - len(starters) :]
    taken = {id(item): mark for item, mark in zip(starters, takers, strict=False)}
    for _, item in gap:
        if id(item) in taken:
            current = max(current, taken[id(item)].position)
        elif item.kind is Kind.INJECTED and not item.is_within_turn:
            # Of an unknown command, or none: the last that may have left it.
            commands = [mark.position for mark in free if mark.is_command and not mark.ran]
            current = max([current, *commands])
        item.position = current


#: How the messages that commands leave begin, and how the prompts of these commands do.
_COMMANDS = (
    ("<system>The user has imported context", ("/import", "[Imported context")),
    ("<system>The user just ran `/init`", (_INIT,)),
    ("<system>The user has added", ("/add-dir",)),
)


def _command_of(item: Item, free: Sequence[Mark], current: int) -> Mark | None:
    """Return the command that left a message, if it is known and free."""
    if item.kind is Kind.INJECTED:
        for start, prompts in _COMMANDS:
            if item.text.lstrip().startswith(start):
                for mark in free:
                    if mark.position > current and (mark.text or "").lstrip().startswith(prompts):
                        return mark
    return None


def _last_within(wire: WireOutline, mark: Mark) -> int:
    """Return the last turn that began before this one ended: what a command leaves, it leaves at its end."""
    turn = wire.turns[mark.position // 2]
    if turn.end_offset is None:
        following = next((each for each in wire.marks if each.position > mark.position), mark)
        return following.position if following.apart else mark.position
    return 2 * (bisect.bisect_left([each.offset for each in wire.turns], turn.end_offset) - 1)


# --- where to cut ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CutPlace:
    """
    Where the context after a turn lies: which of the files, which bytes of it, and "" or what is missing.

    ``file_index`` is -1 where there is no file at all.
    """

    file_index: int
    spans: tuple[tuple[int, int], ...]
    problem: str = ""


def find_cut_place(wire: WireOutline, contexts: Sequence[ContextOutline], turn_index: int) -> CutPlace:
    """
    Find the context as it was when a turn ended. ``contexts`` are oldest first, the one in use last.

    The outlines are worked on: use them for one search.
    """
    if not contexts:
        return CutPlace(-1, (), "there is no context")
    _align(wire, contexts)
    wanted = 2 * turn_index
    chosen = max(index for index, since in enumerate(_in_use_since(wire, contexts)) if since <= wanted)
    context = contexts[chosen]
    later = next((item for item in context.new if item.position > wanted), None)
    spans = ((0, context.size if later is None else later.start),)
    if chosen > 0:
        return CutPlace(chosen, spans)
    if any(item.position <= wanted for item in context.new if item.position >= 0):
        return CutPlace(chosen, spans)
    needed = [mark for mark in wire.marks if mark.is_turn and wire.has_message(mark)]
    if not any(mark.position <= wanted for mark in needed):
        return CutPlace(chosen, spans)
    known_from = later.position if later is not None else 2 * len(wire.turns)
    if context.has_summary and not any(wanted < mark.position < known_from for mark in needed):
        return CutPlace(chosen, spans, f"of the context up to turn {turn_index} only a summary is left")
    return CutPlace(chosen, tuple(context.system_prompts), f"the context up to turn {turn_index} is lost")


def _in_use_since(wire: WireOutline, contexts: Sequence[ContextOutline]) -> Iterator[int]:
    """For each file, yield the position of the first turn that ended in it."""
    since = -1
    latest = -1
    rotations = iter(wire.rotations)
    rotation = next(rotations, None)
    yield since
    for index, context in enumerate(contexts[1:], start=1):
        latest = max([latest, *(item.position for item in contexts[index - 1].new)])
        while rotation is not None and rotation < latest:
            rotation = next(rotations, None)
        following = (
            item.position for each in contexts[index:] for item in each.new if item.position > latest
        )
        begins = next(following, 2 * len(wire.turns))
        if _goes_on(context, latest):
            since = max(since, latest)
            if rotation == latest and context.has_summary:
                rotation = next(rotations, None)
        elif rotation is not None and rotation < begins:
            since = max(since, rotation)
            rotation = next(rotations, None)
        else:
            since = max(since, begins)
        yield since


def _goes_on(context: ContextOutline, latest: int) -> bool:
    """Tell whether a file's new part begins in the middle of a turn."""
    for item in context.new:
        if item.kind is Kind.MARKER or (item.kind is Kind.INJECTED and not item.is_within_turn):
            continue
        return item.kind is Kind.OTHER or item.position <= latest
    return False
