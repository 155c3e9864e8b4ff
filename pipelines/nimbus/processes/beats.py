"""The beats of a worker: by them others know that it lives, and it knows that its slot and its tasks are still its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from pipelines import logs
from pipelines.nimbus.errors import NotAliveError, RegistryError, RegistryLeaseLostError
from pipelines.nimbus.processes.former import FormerVersion
from pipelines.nimbus.processes.life import LEASE_LOST, STUCK, Life
from pipelines.nimbus.processes.task import Key, Task
from pipelines.nimbus.registry.leases import Leases
from pipelines.nimbus.registry.placements import Beat, Places
from pipelines.nimbus.settings import NimbusSettings

logger = logs.logger(__name__)

# A beat takes about a millisecond.
_BEATS_TOGETHER = 20

# So long, and so many times the time of a launch, the worker may be at one thing: it may load a flow that takes long.
_PATIENT_SECONDS, _PATIENT_LAUNCHES = 600.0, 10


class Beats:
    """Beats in a thread of its own: Spark takes seconds to start, and neither that nor a look may hold up a beat.

    Args:
        slot: That of the worker, whose lease the beats renew.
        end_now: Ends the process at once, with an exit code and a reason.
    """

    def __init__(
        self,
        leases: Leases,
        places: Places,
        settings: NimbusSettings,
        slot: tuple[str, int],
        end_now: Callable[[int, str], None],
    ) -> None:
        self._leases, self._places, self._settings, self._slot = leases, places, settings, slot
        self._end_now, self.ended = end_now, threading.Event()
        self._renewed_at, self._memory = 0.0, (0.0, 0)
        self._patience = max(_PATIENT_SECONDS, _PATIENT_LAUNCHES * settings.task_launch_seconds)
        self._at: tuple[float, str] | None = None
        """Since when the worker is at what; None: it is not watched yet, for its Spark starts."""

    def take_slot(self, holder: str) -> None:
        """Take the lease of the slot.

        Raises:
            LeaseHeldError: Another process has it.
        """
        self._lease = self._leases.take(f"slot:{self._slot[0]}:{self._slot[1]}", holder, self._settings.lease_seconds)

    def start(self, tasks: Mapping[Key, Task], former: Mapping[int, FormerVersion]) -> None:
        """Begin to beat.

        Args:
            tasks, former: Those of the worker, which come and go in them.
        """
        self._tasks, self._former = tasks, former
        self._thread = threading.Thread(target=self._run, name="beats", daemon=True)
        self._thread.start()

    def goes_on(self, at: str) -> None:
        """Note that the worker goes on, with what. One that does not has beats, and follows nothing that its flows are told."""
        self._at = time.monotonic(), at

    def end(self) -> None:
        """Beat no more, and give the slot back."""
        self.ended.set()
        try:
            self._leases.release(self._lease)
        except RegistryError as error:
            logger.warning("slot not given back: its lease runs out", reason=str(error))

    def _run(self) -> None:
        self._renewed_at = time.monotonic()
        life = Life(self._settings, *self._slot)
        while not self.ended.wait(self._settings.beat_seconds):
            life.touch()
            self._beat()
            self._end_if_it_hangs()

    def _end_if_it_hangs(self) -> None:
        """End a process whose rounds have stopped, in which no thread can go on with them: another one may."""
        if self._at is None or self.ended.is_set():
            return
        since, at = self._at
        seconds = time.monotonic() - since
        if seconds > self._patience:
            more = f"what takes longer needs more than {self._patience / _PATIENT_LAUNCHES:g} s as TASK_LAUNCH_SECONDS"
            self._end_now(STUCK, f"it has been at {at} for {seconds:.0f} s ({more})")

    def _beat(self) -> None:
        try:
            memory = self._memory_bytes()
            self._lease = self._leases.renew(self._lease, self._settings.lease_seconds)
            self._renewed_at = time.monotonic()
            self._beat_for([task for task in list(self._tasks.values()) if task.lease is not None], memory)
            for former in list(self._former.values()):
                former.renew()
        except RegistryLeaseLostError as error:
            if not self.ended.is_set():
                self._end_now(LEASE_LOST, str(error))
        except RegistryError as error:
            logger.warning("no beat", reason=str(error))
        except Exception:
            # What is wrong with one figure is not to end all flows; where no beat comes through, the line below does.
            logger.exception("no beat")
        if time.monotonic() - self._renewed_at > self._settings.lease_seconds:
            self._end_now(LEASE_LOST, f"the registry has not answered for {self._settings.lease_seconds:g} s")

    def _beat_for(self, tasks: Sequence[Task], memory: int) -> None:
        """Beat for tasks: in few transactions, none of them so long that a batch's own would wait."""
        for start in range(0, len(tasks), _BEATS_TOGETHER):
            chosen, beaten = [], []
            for task in tasks[start : start + _BEATS_TOGETHER]:
                # It may be given back in this moment, by the task's own thread.
                if (lease := task.lease) is not None:
                    figures = task.figures.to_json()
                    figures |= {"memory_bytes": memory, "version": task.flow.version.number}
                    chosen.append(task)
                    beaten.append(Beat(task.flow, task.query.task, lease, figures))
            refused = self._places.beat_together(beaten, self._slot, lease_seconds=self._settings.lease_seconds)
            for task, error in zip(chosen, refused, strict=True):
                if isinstance(error, NotAliveError):
                    task.leave()
                    task.force()
                elif error is not None and task.is_alive() and task.lease is not None:
                    # Not given back meanwhile: another has it.
                    raise error

    def _memory_bytes(self) -> int:
        """Return the resident memory of the process and all that it has started; measured every ten seconds."""
        import psutil

        if time.monotonic() - self._memory[0] > 10 or not self._memory[1]:
            own = psutil.Process()
            total = 0
            for process in [own, *own.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue
            self._memory = (time.monotonic(), total)
        return self._memory[1]
