"""The options of Spark's readers that a folder of files takes: how records are written, and which files they are in.

All others are the engine's. With some of Spark's files or records would be left out without a word (`mode`, `modifiedAfter`,
`ignoreCorruptFiles`), or deleted once they are read (`cleanSource`).
"""

from __future__ import annotations

from collections.abc import Iterable

from pipelines.errors import DefinitionError

_OF_FILES = "pathGlobFilter recursiveFileLookup"
_OF_TEXT = """
encoding charset lineSep multiLine dateFormat timestampFormat timestampNTZFormat timeFormat locale timeZone
enableDateTimeParsingFallback
"""
_READERS = {
    "json": f"""{_OF_TEXT}
    allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers allowNumericLeadingZeros allowSingleQuotes
    allowUnquotedControlChars allowUnquotedFieldNames maxNestingDepth maxNumLen maxStringLen
    """,
    "csv": f"""{_OF_TEXT}
    sep delimiter quote escape charToEscapeQuoteEscaping comment nullValue emptyValue nanValue positiveInf negativeInf
    ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace maxCharsPerColumn maxColumns unescapedQuoteHandling
    """,
    "parquet": "datetimeRebaseMode int96RebaseMode mergeSchema",
    "text": "encoding lineSep",
}


def check_options(source: str, reader: str, options: Iterable[str]) -> None:
    """Refuse options that a reader's source does not take. Spark knows them in any case of letters."""
    taken = f"{_OF_FILES} {_READERS[reader]}".split()
    known = {name.lower() for name in taken}
    for name in options:
        if name.lower() not in known:
            raise DefinitionError(f"{source}: no option {name}", hint=f"it takes {', '.join(sorted(taken))}")
