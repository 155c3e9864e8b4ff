"""The secret of the server in this process that the JVM calls back: pyspark starts one without.

Who connects to that server can play the JVM: run a batch, or have Python connect to a port of his and unpickle what it reads
there. pyspark starts it with the first `foreachBatch` or listener, and each user of the host may connect.
"""

from __future__ import annotations

import logging
import secrets
import threading
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started

_one = threading.Lock()


def ask_where_none_runs(gateway: Any) -> None:
    """Start the server with a secret where none runs yet: the session may be another's than `spark_session`'s, as in a notebook.

    Args:
        gateway: None: there is none, and nothing to call back.
    """
    with _one:
        if gateway is not None and vars(gateway).get("_callback_server") is None:
            ask_for_secret(gateway)


def ask_for_secret(gateway: Any) -> None:
    """Start the server that the JVM calls back, with a secret that only this process and its JVM know.

    pyspark leaves a server alone that runs. The JVM's side forgets its secret where pyspark names the server's port
    (`PythonClient.copyWith`); it gets one there behind that. It is another one than the gateway's own: where this process has
    ended, the JVM may tell it to whoever has the port next.
    """
    logging.getLogger("py4j.clientserver").addFilter(_without_what_was_sent)
    parameters, secret = gateway.callback_server_parameters, secrets.token_hex(32)
    former, parameters.auth_token = parameters.auth_token, secret
    try:
        ensure_callback_server_started(gateway)
        kept = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("authToken")
        kept.setAccessible(True)
        kept.set(gateway.java_gateway_server.getCallbackClient(), secret)
    except BaseException:
        # It would refuse its own JVM for good; whoever asks next starts another one.
        parameters.auth_token = former
        _end_server(gateway)
        raise


def _end_server(gateway: Any) -> None:
    if vars(gateway).get("_callback_server") is not None:
        gateway.shutdown_callback_server()
        gateway._callback_server = None


def _without_what_was_sent(record: logging.LogRecord) -> bool:
    """Say of a stranger's call that it was refused, without what it says: that would be on a terminal as it is."""
    if str(record.msg).startswith("Could not authenticate"):
        record.exc_info = None
    return True
