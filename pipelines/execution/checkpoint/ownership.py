"""The host that a checkpoint belongs to: locks of files hold within a host, so another one is kept out by name.

Every lock of a checkpoint is taken on behalf of this host. A small file beside the locks names the host that took one first; it
stays when the run ends, and when the host goes down. The same host goes on at once, whatever became of its last run. Another
one is refused, until somebody says that the former host is gone (`GONE_HOSTS`), or a lease of the registry says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pipelines import logs
from pipelines.errors import LockedError, TrideltaError
from pipelines.processes import boot_id

logger = logs.logger(__name__)

OWNER_FILE = "owner.json"

HOST = "TRIDELTA_HOST"
"""What this host is called, where its own name does not stay (containers)."""

GONE_HOSTS = "TRIDELTA_GONE_HOSTS"
"""Names of hosts that are gone for good, with commas: their checkpoints may be taken over."""

MACHINE_ID = Path("/etc/machine-id")

# A file that another host is creating is whole after so long, if it cannot be created whole.
_WHOLE_AFTER_SECONDS = 2.0

_LEASED: ContextVar[bool] = ContextVar("leased", default=False)


class OtherHostError(LockedError):
    """The checkpoint belongs to another host, or a query of its flow runs on one."""

    def __init__(self, flow: str, path: str, host: str, seen: str, *, here: str, hint: str) -> None:
        self.flow, self.path, self.host, self.here, self.seconds = flow, path, host, here, 0.0
        TrideltaError.__init__(self, f'flow "{flow}": {seen}; this is host {here}', hint=hint)


@dataclass(frozen=True)
class Host:
    """A host, and one boot of it.

    Attributes:
        name: Its name.
        machine: The id of its system; empty where there is none.
        boot: The boot of its kernel; empty where it is unknown.
    """

    name: str
    machine: str
    boot: str

    @classmethod
    def here(cls) -> Host:
        """Return this host."""
        machine = ""
        with contextlib.suppress(OSError, ValueError):
            machine = MACHINE_ID.read_text("ascii").strip()
        return cls(host_name(), machine, boot_id())

    def same_as(self, other: Host) -> bool:
        """Return whether locks of files hold between the two: one kernel, or one system that was booted again."""
        if self.boot and self.boot == other.boot:
            return True
        return (self.name, self.machine) == (other.name, other.machine)


@dataclass(frozen=True)
class Owner:
    """Whom a checkpoint belongs to.

    Attributes:
        leased: Whether it was taken under a lease of the registry.
        since: When, in seconds since 1970.
    """

    host: Host
    leased: bool
    since: float


Elsewhere = Callable[[str, str], "str | None"]
"""Tells, of a flow and this host's name, where another host runs a query of it; None: none does.

Raises TrideltaError if that cannot be found out.
"""


@dataclass
class _Registry:
    """The registry of leases, where there is one."""

    elsewhere: Elsewhere | None = None
    always: bool = False


_registry = _Registry()


def ask_of_leases(elsewhere: Elsewhere | None, *, always: bool = False) -> None:
    """Say who knows where the queries of deployed flows run.

    Args:
        elsewhere: That.
        always: Ask before each run; False: only where a checkpoint belongs to another host.
    """
    _registry.elsewhere, _registry.always = elsewhere, always


@contextlib.contextmanager
def leased() -> Iterator[None]:
    """Mark this thread as working under a lease of the registry: a checkpoint that it takes belongs to its host from then on."""
    token = _LEASED.set(True)
    try:
        yield
    finally:
        _LEASED.reset(token)


def host_name() -> str:
    """Return the name of this host."""
    return os.environ.get(HOST) or platform.node() or "localhost"


def owner_of(folder: Path) -> Owner | None:
    """Return the host that a checkpoint belongs to; None: no host yet, or the file is not whole."""
    try:
        fields = json.loads((folder / OWNER_FILE).read_text("utf-8"))
        return Owner(Host(**fields["host"]), bool(fields["leased"]), float(fields["since"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def claim(flow: str, folder: Path, *, begins: bool) -> None:
    """Make sure that a checkpoint is this host's; to be called with one of its locks held.

    Args:
        begins: Whether a run begins (a batch of one does not): then the registry is asked too.
    """
    here, under_lease = Host.here(), _LEASED.get()
    if begins and not under_lease and _registry.always:
        _refuse_elsewhere(flow, folder, here)
    owner = owner_of(folder) or _created(folder, here, under_lease)
    if not owner.host.same_as(here):
        # A batch under a lease that another host has by now takes nothing back: only a run that begins has just got its lease.
        if not (under_lease and begins):
            _refuse_unless_gone(flow, folder, owner, here)
        logger.warning("checkpoint taken over", flow=flow, path=str(folder), former=owner.host.name, host=here.name)
    elif not begins or owner == replace(owner, host=here, leased=under_lease):
        return
    _write(folder, Owner(here, under_lease, time.time()))
    seen = owner_of(folder)
    if seen is None or not seen.host.same_as(here):
        raise _other_host(flow, folder, seen or owner, here)


def _refuse_elsewhere(flow: str, folder: Path, here: Host) -> bool:
    """Refuse where another host runs a query of the flow. Return whether it is known that none does."""
    if _registry.elsewhere is None:
        return False
    try:
        where = _registry.elsewhere(flow, here.name)
    except TrideltaError as error:
        logger.warning("the registry does not tell where the flow runs", flow=flow, reason=str(error))
        return False
    if where is not None:
        raise OtherHostError(
            flow,
            str(folder),
            where,
            where,
            here=here.name,
            hint=f"run it on that host, where a worker takes it over; or end the flow first: tridelta kill {flow}",
        )
    return True


def gone_hosts() -> set[str]:
    """Return the names of the hosts that are declared lost."""
    return {name.strip() for name in os.environ.get(GONE_HOSTS, "").split(",")} - {""}


def _refuse_unless_gone(flow: str, folder: Path, owner: Owner, here: Host) -> None:
    """Refuse what is another host's, unless that is known to be gone, or its lease is."""
    nobody = _refuse_elsewhere(flow, folder, here)
    if owner.host.name not in gone_hosts() and not (nobody and owner.leased):
        raise _other_host(flow, folder, owner, here)


def _other_host(flow: str, folder: Path, owner: Owner, here: Host) -> OtherHostError:
    name = owner.host.name
    return OtherHostError(
        flow,
        str(folder),
        name,
        f"its checkpoint {folder} belongs to host {name}, which ran it last",
        here=here.name,
        hint=f"run it there; if {name} is gone for good, or runs nothing on this lake any more: {GONE_HOSTS}={name}",
    )


def _created(folder: Path, here: Host, under_lease: bool) -> Owner:
    """Name this host as the first; the one that was faster, if there is one."""
    own = Owner(here, under_lease, time.time())
    whole = folder / f".{OWNER_FILE}.{os.getpid()}.{time.monotonic_ns()}.new"
    _put(whole, own, os.O_CREAT | os.O_EXCL)
    try:
        # Appears whole, and for one host only. On NFS the answer to a link may be lost: what is there counts.
        os.link(whole, folder / OWNER_FILE)
    except FileExistsError:
        pass
    except OSError:
        # No links here (FAT, some FUSE).
        with contextlib.suppress(FileExistsError):
            _put(folder / OWNER_FILE, own, os.O_CREAT | os.O_EXCL)
    finally:
        whole.unlink(missing_ok=True)
    return _whole(folder) or _put_again(folder, own)


def _whole(folder: Path) -> Owner | None:
    until = time.monotonic() + _WHOLE_AFTER_SECONDS
    while (owner := owner_of(folder)) is None and time.monotonic() < until:
        time.sleep(0.05)
    return owner


def _put_again(folder: Path, own: Owner) -> Owner:
    """Replace a file that a crash has left in pieces."""
    _write(folder, own)
    return owner_of(folder) or own


def _write(folder: Path, owner: Owner) -> None:
    temporary = folder / f".{OWNER_FILE}.{os.getpid()}.{time.monotonic_ns()}.tmp"
    _put(temporary, owner, os.O_CREAT | os.O_EXCL)
    temporary.replace(folder / OWNER_FILE)


def _put(file: Path, owner: Owner, flags: int) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | flags, 0o666), "w", encoding="utf-8") as out:
        json.dump(asdict(owner), out)
        out.flush()
        os.fsync(out.fileno())
