"""Plays as Project Gutenberg prints them: who says what, and the letters that follow each other."""

from __future__ import annotations

import re

__all__ = ["letters", "speeches"]

_NAME = r"(?:M(?:rs|RS)\. )?[A-Z][A-Za-z']*(?: [A-Za-z']+){0,3}"
_SPEAKER_ON_OWN_LINE = re.compile(rf"({_NAME}\.|[A-Z][A-Z' ]+)\n(.+)", re.DOTALL)
_SPEAKER_BEFORE_SPEECH = re.compile(r"((?:MRS\. )?[A-Z][A-Z' ]+)\. (.+)", re.DOTALL)
_STAGE_DIRECTION = re.compile(r"\[.*?\]|_", re.DOTALL)
_HEADING = re.compile(r"(?:ACT|SCENE|END|THE END|FINIS)\b")
_LETTERS = re.compile(r"[^a-z.,;:!?'-]+")


def speeches(play: str) -> list[tuple[str, str]]:
    r"""The speakers and their speeches, in the order of the play, without stage directions.

    A speech is a paragraph that begins with a name, on a line of its own or in capitals.

    >>> speeches("SCENE I. A wood.\n\nAEGEON.\nProceed, _Solinus_,\nto [aside] fall.\n\nBER. Say.")
    [('AEGEON', 'Proceed, Solinus,\nto  fall.'), ('BER', 'Say.')]
    """
    found = []
    for paragraph in re.split(r"\n\s*\n", play.replace("\r\n", "\n")):
        text = paragraph.strip()
        named = _SPEAKER_ON_OWN_LINE.match(text) or _SPEAKER_BEFORE_SPEECH.match(text)
        if named and not _HEADING.match(text):
            speech = _STAGE_DIRECTION.sub("", named[2])
            found.append((named[1].removesuffix(".").upper(), speech))
    return found


def letters(text: str) -> str:
    r"""The letters of a text in lower case and its marks; anything else becomes an underscore.

    >>> letters("To be, or not\n  to be: 2 -- \"that\"")
    'to_be,_or_not_to_be:_--_that_'
    """
    return _LETTERS.sub("_", text.lower())
