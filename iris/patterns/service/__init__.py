"""The answering side: services, queues, workers, load shedding, reply cache, deadlines.

Promises: a queue is bounded and a request beyond the bound gets ``Overloaded``; a request that expired in the queue
does not run; a repeated idempotent request is answered from the reply cache while this member lives; a handler that
fails is logged here.  A request with an idempotency key has one outcome at
whichever member, which a bridge keeps.  Not here: what a handler has done outside of Iris when its member was lost.
"""

from iris.patterns.service.dependencies import FromLifespan, Lifespan, is_of_lifespan
from iris.patterns.service.handlers import InProcess, InThread, Unserved, is_async
from iris.patterns.service.loops import noted_mend
from iris.patterns.service.outcomes import (
    KeyClaims, Outcomes,
)  # fmt: skip
from iris.patterns.service.outside import CutOff, OutsideTask, OutsideWork, RequestHandler
from iris.patterns.service.process_calls import error_name
from iris.patterns.service.provided import provided, provided_to_threads
from iris.patterns.service.server import Server
from iris.patterns.service.signatures import handler_name, python_signature
from iris.patterns.service.service import DESCRIBE, Front, Limits, Requester, Service, callers, stand_in
from iris.patterns.service.tunnels import Tunnels
from iris.patterns.service.worker_pool import PauseFlag, Role, ServiceStatistics, WorkerPools

__all__ = (
    "CutOff", "DESCRIBE", "FromLifespan", "Front", "InProcess", "InThread", "KeyClaims", "Lifespan", "Limits",
    "Outcomes", "OutsideTask", "OutsideWork", "PauseFlag", "RequestHandler", "Requester", "Role", "Server",
    "Service", "ServiceStatistics", "Tunnels", "Unserved", "WorkerPools", "callers", "error_name", "handler_name",
    "is_async", "is_of_lifespan", "noted_mend", "provided", "provided_to_threads", "python_signature", "stand_in",
)  # fmt: skip
