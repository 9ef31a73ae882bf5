"""How a block of Python ends what it had OPEN."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from headgate.errors import HeadgateError
from headgate.model.changes import OperationKey, Receipt
from headgate.model.nouns import TransactionState


class EndsWithItsBlock(ABC):
    """A context manager: commits at the block's end, or aborts where that cannot be."""

    _given_up = False

    @abstractmethod
    def commit(self, *, operation: OperationKey | None = None) -> Receipt: ...

    def abort(self) -> Sequence[str]:
        """Aborts all that is OPEN in it and says which transactions they were."""
        ended = self._abort()
        self._given_up = True
        return ended

    @abstractmethod
    def _abort(self) -> Sequence[str]: ...

    @abstractmethod
    def _state(self) -> TransactionState:
        """As the catalog has it now."""

    def _ends_with_another(self) -> bool:
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._given_up or self._ends_with_another():
            return
        if error is not None:
            self._let_go()
            return
        if self._state() is TransactionState.COMMITTED:
            return
        try:
            # One that was taken over says so here: what the block wrote is not there.
            self.commit()
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Nobody holds it after its block: left OPEN, it would keep its branches until its lease
        ends. What is said is why the block failed, not what followed from it."""
        with suppress(HeadgateError):
            if self._state() is TransactionState.OPEN:
                self.abort()
