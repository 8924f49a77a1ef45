"""Progress of calls that can take more than a few seconds.

Long loops of the package count their ``steps``. What they show is decided in one place: a bar in a
notebook, in an interactive session on a terminal, or where ``show_progress`` asks for it; nothing in scripts. Callbacks
that were set on an estimator, as scikit-learn 1.9 and later have them, are called in any case.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from threading import Lock, Timer
from typing import Any, Protocol

from sklearn.utils.parallel import Parallel

from compshift._errors import InputError

try:
    from sklearn import callback
except ImportError:  # scikit-learn before 1.9
    callback = None

CallbackSupportMixin: Any = object if callback is None else callback.CallbackSupportMixin
"""Base class of estimators whose fits report to callbacks."""

DELAY = 0.5
"""Seconds after which a bar appears: calls that end earlier show none."""

_wanted: bool | None = None
_is_counting: ContextVar[bool] = ContextVar("_is_counting", default=False)
_callbacks: ContextVar[tuple[Any, Any] | None] = ContextVar("_callbacks", default=None)


def show_progress(show: bool | None = True) -> None:
    """Show a bar during calls that can take more than a few seconds, such as the fit of a ``CRMClassifierCV``.

    Parameters
    ----------
    show : bool or None, default=True
        Whether to show bars on standard error; if that is not a terminal, a line for each task that has ended. None,
        the setting of a new session, shows bars in notebooks and in interactive sessions on a terminal, but not in
        scripts.

    Examples
    --------
    >>> import compshift as cs
    >>> cs.show_progress(False)
    >>> cs.show_progress(None)
    """
    global _wanted
    if show is not None and not isinstance(show, bool):
        raise InputError(f"show is {show!r}, but must be True, False or None")
    _wanted = show


def in_parallel(task: str, calls: Sequence[Any], n_jobs: int | None) -> list[Any]:
    """Run the calls, which scikit-learn's ``delayed`` makes, and return their results in order; see ``steps``."""
    results = []
    with steps(task, len(calls)) as advance:
        for result in Parallel(n_jobs=n_jobs, return_as="generator")(calls):
            results.append(result)
            advance()
    return results


@contextmanager
def steps(task: str, total: int) -> Iterator[Callable[[], None]]:
    """Show, or report to callbacks, how many of ``total`` steps of a task are done; yield the function that counts one.

    ``task`` names what is counted, such as "folds". Steps inside of other steps are not shown.
    """
    outermost = not _is_counting.get()
    found = (_callback_steps(task, total), _bar(task, total)) if outermost else ()
    reports = [report for report in found if report is not None]

    def advance() -> None:
        for report in reports:
            report.advance()

    token = _is_counting.set(True)
    try:
        yield advance
    finally:
        _is_counting.reset(token)
        for report in reports:
            report.close()


@contextmanager
def reported_to_callbacks(estimator: Any) -> Iterator[None]:
    """Report the steps of a fit to the callbacks that ``estimator.set_callbacks`` was given, if any."""
    if not getattr(estimator, "_skl_callbacks", None):
        yield
        return
    context = estimator._init_callback_context(max_subtasks=None)
    token = _callbacks.set((estimator, context))
    try:
        context.call_on_fit_task_begin(estimator=estimator)
        yield
        context.call_on_fit_task_end(estimator=estimator)
    finally:
        _callbacks.reset(token)
        callback.with_callbacks(lambda _: None)(estimator)  # tears callbacks down after what it decorates


class _Report(Protocol):
    """A display, or callbacks, that follow the steps of a loop."""

    def advance(self) -> None:
        """Count one more step."""

    def close(self) -> None:
        """End, whether or not all steps were done."""


class _CallbackSteps:
    """The steps of a loop as tasks of scikit-learn's callbacks."""

    def __init__(self, estimator: Any, context: Any, task: str, total: int) -> None:
        self.estimator, self.context = estimator, context.subcontext(task_name=task, max_subtasks=total)
        self.context.call_on_fit_task_begin(estimator=estimator)

    def advance(self) -> None:
        step = self.context.subcontext(task_name="step")
        step.call_on_fit_task_begin(estimator=self.estimator)
        step.call_on_fit_task_end(estimator=self.estimator)

    def close(self) -> None:
        self.context.call_on_fit_task_end(estimator=self.estimator)


def _callback_steps(task: str, total: int) -> _Report | None:
    found = _callbacks.get()
    return None if found is None else _CallbackSteps(*found, task, total)


def _bar(task: str, total: int) -> _Report | None:
    """Return a bar, unless none is wanted."""
    notebook = _is_notebook()
    shown = (notebook or (hasattr(sys, "ps1") and on_terminal())) if _wanted is None else _wanted
    if not shown or total < 2:
        return None
    if notebook:
        return _NotebookBar(task, total)
    return _TerminalBar(task, total) if on_terminal() else _LogLine(task, total)


class _DelayedBar:
    """A bar that appears after ``DELAY`` seconds."""

    def __init__(self, task: str, total: int) -> None:
        self.task, self.total, self.done, self.start = task, total, 0, time.monotonic()
        self._lock, self._open = Lock(), False
        self._timer = Timer(DELAY, self._appear)
        self._timer.daemon = True
        self._timer.start()

    def advance(self) -> None:
        with self._lock:
            self.done += 1
            if self._open:
                self._update()

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            if self._open:
                self._open = False
                self._end()

    def _words(self) -> str:
        return f"{self.task}: {self.done} of {self.total}, {time.monotonic() - self.start:.0f} s"

    def _appear(self) -> None:
        with self._lock:
            if not self._timer.finished.is_set():
                self._begin()
                self._open = True

    def _begin(self) -> None:
        """Show the bar."""

    def _update(self) -> None:
        """Show that a step was done."""

    def _end(self) -> None:
        """Remove the bar, or say what was done."""


class _LogLine(_DelayedBar):
    """A line on standard error when the work ends, if that is not a terminal."""

    def _end(self) -> None:
        print(self._words(), file=sys.stderr, flush=True)


class _TerminalBar(_DelayedBar):
    """A bar by rich, which disappears at the end."""

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self.row = self.progress.add_task(self.task, total=self.total, completed=self.done)
        self.progress.start()

    def _update(self) -> None:
        self.progress.update(self.row, completed=self.done)

    def _end(self) -> None:
        self.progress.stop()


class _NotebookBar(_DelayedBar):
    """A bar in the output of a notebook's cell; at the end, a line says what was done."""

    def _begin(self) -> None:
        from IPython.display import display

        self.handle = display(self._content(), display_id=True)

    def _update(self) -> None:
        self.handle.update(self._content())

    def _end(self) -> None:
        self.handle.update(self._content(ended=True))

    def _content(self, *, ended: bool = False) -> Any:
        from IPython.display import HTML

        bar = f'<progress max="{self.total}" value="{self.done}" style="vertical-align: middle"></progress> '
        return HTML(f"<small>{'' if ended else bar}{escape(self._words())}</small>")


def _is_notebook() -> bool:
    """Return whether this runs in a kernel of Jupyter."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def on_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()
