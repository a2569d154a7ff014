"""Finds subjects that no stream stores, before the first row of each subject is sent.

A message to a subject that no stream stores is answered with "no responders". So is one to a stream that is
electing a leader, which is why the publisher retries for the whole ``ackTimeout``. Here the subjects of the
known streams are compared first, and the server is asked about the others. Its answer is not final: an
account may map the subject to one that a stream stores. So the first row of such a subject is
published alone, with few tries; :mod:`jetspark.spark.sink.task` does that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetspark.errors import JetsparkError
from jetspark.wire.subjects import subject_matches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetspark.blocking import JetStream

# Questions to the server per task; after that subjects are not checked.
_QUESTIONS = 20
# Subjects compared per task: a wrong one is usually among the first, and millions would cost time.
_COMPARED = 10_000


class SubjectCheck:
    """The check of one task. ``patterns``: subjects of the stream that is known to store the rows."""

    def __init__(self, js: JetStream, patterns: Iterable[str] = ()) -> None:
        self._js = js
        self._patterns = list(patterns)
        self._seen: set[str] = set()
        self._questions = _QUESTIONS

    def not_stored(self, subjects: Iterable[str]) -> list[str]:
        """The subjects that no stream stores, as far as the server knows. Each is returned once per task."""
        if len(self._seen) >= _COMPARED:
            return []
        new = set(subjects) - self._seen
        self._seen |= new
        return [subject for subject in new if not self._stored(subject)]

    def _stored(self, subject: str) -> bool:
        if any(subject_matches(pattern, subject) for pattern in self._patterns):
            return True
        if self._questions <= 0:
            return True
        self._questions -= 1
        try:
            names = list(self._js.stream_names(subject))
            for name in names:
                self._patterns += self._js.get_stream(name).cached_info.config.subjects or ()
        except JetsparkError:
            # Not permitted, or no answer: publishing the rows will show.
            self._questions = 0
            return True
        return bool(names)
