"""What clients do to a prompt, by name, with what each should do instead."""

from dataclasses import dataclass
from typing import Final

ESCAPES: Final = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})
"""Escapes of line breaks in a sentence."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A client's rewrite of a prompt; `words` describe a whole part or the changed word."""

    kind: str
    words: str
    advice: str
    is_whole: bool = True

    def describe(self, where: str, at: int, before: str, after: str) -> str:
        """Description for the client's author."""
        where, before, after = (text.translate(ESCAPES) for text in (where, before, after))
        if self.is_whole:
            words = self.words.format(where=where, at=at, before=before, after=after)
            return words.removesuffix(": ")
        words = f"{where} differs at character {at}"
        if before or after:
            words += f": `{before}` / `{after}`"
        return f"{words}: {self.words}" if self.words else words


def _word(kind: str, words: str, advice: str) -> Rewrite:
    return Rewrite(kind, words, advice, is_whole=False)


REWRITES: Final = {
    rewrite.kind: rewrite
    for rewrite in (
        _word("clock", "a clock", "Put the time at the end of the conversation, or leave it out."),
        _word(
            "identifier",
            "an identifier",
            "Keep the identifier out of the prompt, or put it at its end.",
        ),
        _word("counter", "a counter", "Put what counts up at the end of the conversation."),
        _word(
            "whitespace",
            "only blanks differ",
            "Send the text unchanged; do not trim or reformat it.",
        ),
        _word(
            "keys-reordered",
            "keys in a different order",
            "Serialise JSON with its keys in one order.",
        ),
        _word(
            "reserialised",
            "the same JSON, formatted differently",
            "Send the arguments of a call back as exactly the text that came.",
        ),
        _word(
            "attachment-changed",
            "a different attachment, or the same one re-encoded",
            "Send an attachment's bytes unchanged instead of re-encoding it.",
        ),
        _word(
            "unicode",
            "the same text in another Unicode form",
            "Send the text unchanged; do not normalise it.",
        ),
        _word(
            "truncated",
            "the text is cut",
            "Keep messages whole: a cut message is reprocessed from the cut on.",
        ),
        _word(
            "cleared",
            "an old result was cleared",
            "Clear many old results at once and seldom: each time, all after it is reprocessed.",
        ),
        _word(
            "reminder-changed",
            "a different reminder",
            "Append a new reminder at the end and leave the old one as it was.",
        ),
        _word(
            "working-directory",
            "a directory",
            "Name the directory in the first message of the user: then all before it is reused.",
        ),
        _word(
            "git-status",
            "the state of git",
            "Put it into the newest message, or leave it out: the model can run `git status`.",
        ),
        _word(
            "file-list",
            "a list of files",
            "Put the list into the newest message, or let the model list the files.",
        ),
        _word("editor-state", "what the editor shows", "Put it into the newest message."),
        _word(
            "memory",
            "recalled memories",
            "Put memories into the newest message, and leave those of older messages as they are.",
        ),
        _word(
            "retrieved",
            "retrieved text",
            "Put retrieved text into the newest message, and leave it there.",
        ),
        _word(
            "mode",
            "a mode, a setting or the type of the run",
            "Keep one system prompt for all of them, and name the mode in the newest message.",
        ),
        _word(
            "skills",
            "a list of skills, agents or tools",
            "Keep the list as it is for a whole conversation, and sort it by name.",
        ),
        _word("todo", "a list of things to do", "Put the list into the newest message."),
        _word("version", "a version", "Leave the version out of the prompt."),
        _word(
            "billing-header",
            "Claude Code's billing header",
            "Start Claude Code with `CLAUDE_CODE_ATTRIBUTION_HEADER=0` in its environment.",
        ),
        _word(
            "language",
            "the language of the answers",
            "Name the language in the first request, and keep it there.",
        ),
        _word(
            "model-name",
            "the name of the model",
            "Leave the model's name out of the prompt: other models keep nothing of this one.",
        ),
        _word(
            "name",
            "a name",
            "Keep names for a whole conversation: all after the first one is prefilled again.",
        ),
        _word(
            "lore",
            "an entry of a lorebook, or an author's note",
            "Put entries into the newest message, and leave those of older messages there.",
        ),
        _word(
            "examples",
            "other examples, or the same ones in another order",
            "Keep the examples and their order, or put them into the newest message.",
        ),
        _word(
            "reading",
            "a state or a reading of the world",
            "Put states into the newest message, or let the model ask a tool for them.",
        ),
        _word(
            "file-contents",
            "a block of code or of a file",
            "Send a file's new contents in the newest message, and leave the old ones.",
        ),
        _word(
            "call-ids",
            "the ids of calls were made again",
            "Send each call's id back as it came.",
        ),
        _word(
            "reformatted",
            "the same words with other marks",
            "Send the text back as it came; do not reformat it.",
        ),
        _word(
            "piece-removed",
            "a piece of the text is gone",
            "Send the text back as it came, with all its parts.",
        ),
        _word(
            "result-changed",
            "another result of a tool",
            "Send results of tools back as they were sent before.",
        ),
        _word(
            "regenerated",
            "another reply",
            "Nothing, if the user asked for another reply: all before it is reused.",
        ),
        _word(
            "system-changed",
            "the system prompt changed",
            "Keep the system prompt, and put what changes into the newest message.",
        ),
        _word(
            "tool-described",
            "the same tool, described in another way",
            "Describe a tool with the same text in every request.",
        ),
        _word("history-changed", "", "Send everything again exactly as it was sent before."),
        _word("edited", "", "Nothing, if the user edited it; otherwise send history unchanged."),
        Rewrite(
            "reasoning-dropped",
            "{where} is gone",
            "Send the reasoning back as it came, or use a template that keeps it.",
        ),
        Rewrite(
            "reasoning-added",
            "{where} was not there before",
            "Send every message again as it was sent before.",
        ),
        Rewrite(
            "reply-left-out",
            "the reply is left out, {where}",
            "Send the reply back as it came, before what follows it.",
        ),
        Rewrite(
            "tools-reordered",
            "the tools come in a different order, from {where} on",
            "Sort the tools by name before sending them.",
        ),
        Rewrite(
            "tools-added",
            "tools were added at {where}: {after}",
            "Send all tools from the first request on: they stand before all messages.",
        ),
        Rewrite(
            "tools-removed",
            "tools were removed at {where}: {before}",
            "Keep all tools for a whole conversation: they stand before all messages.",
        ),
        Rewrite(
            "tools-changed",
            "the list of tools differs from {where} on",
            "Keep the list of tools as it is for a whole conversation.",
        ),
        Rewrite(
            "tokens-changed",
            "{where} has other tokens from token {at} on",
            "Send earlier tokens unchanged, and append new ones.",
        ),
        Rewrite("attachment-moved", "{where}", "Keep attachments in the message they came with."),
        Rewrite(
            "attachment-dropped",
            "{where} is gone",
            "Keep attachments as long as their message: all after one is reprocessed.",
        ),
        Rewrite(
            "attachment-added",
            "{where} was not there before",
            "Add an attachment to the newest message.",
        ),
        Rewrite(
            "beginning-cut",
            "{where} are cut",
            "Drop text at the beginning in large steps and seldom: all after is reprocessed.",
        ),
        Rewrite(
            "reminder-moved",
            "a note moves with the last message: it no longer stands at {where}",
            "Leave notes where they were put, and append new ones.",
        ),
        Rewrite(
            "reminder-added",
            "a reminder was put into {where}",
            "Leave old messages alone; put reminders into the newest one.",
        ),
        Rewrite(
            "message-removed",
            "a message before {where} is gone",
            "Let old messages stay until a whole summary replaces them.",
        ),
        Rewrite(
            "history-truncated",
            "several messages before {where} are gone",
            "Drop old messages in large steps and seldom: then all after is reprocessed.",
        ),
        Rewrite(
            "compacted",
            "the history was replaced by a summary, from {where} on",
            "Nothing: a summary has to be prefilled once.",
        ),
        Rewrite(
            "message-inserted",
            "{where} was inserted",
            "Append new messages instead of inserting them.",
        ),
        Rewrite(
            "messages-reordered",
            "messages come in a different order, from {where} on",
            "Send messages in the order in which they were said.",
        ),
        Rewrite(
            "messages-joined",
            "{where} joins several messages into one",
            "Keep messages as they were sent instead of joining them.",
        ),
        Rewrite(
            "messages-split",
            "{where} was part of the message before it",
            "Keep messages as they were sent instead of splitting them.",
        ),
        Rewrite("role", "{where} has a different role", "Keep the role of each message."),
        Rewrite(
            "side-task",
            "a different system prompt, as side tasks have: {where}",
            "Give side tasks a smaller server, or in llama-server a slot (`--parallel`).",
        ),
        Rewrite(
            "same-template",
            "{where} differs at character {at}, and the conversation begins "
            "there: another task from one template, or its first message edited",
            "Put what differs at the end of the template: what stands before it is reused.",
        ),
        Rewrite(
            "other-conversation",
            "a different conversation, from {where} on",
            "In llama-server, give each conversation a slot of its own (`--parallel`).",
        ),
    )
}
"""Known client behaviours by name."""

CONVERSATIONS: Final = frozenset(("side-task", "same-template", "other-conversation"))
"""Divergences without a rewrite: the requests are of different conversations."""
