"""Playing a conversation: transports move bytes, the wire counts and checks them, sites answer."""

from fedshed.exchange.faults import Faulty, Stateless
from fedshed.exchange.inprocess import InProcess
from fedshed.exchange.transport import Transport, open_transport

__all__ = ["Faulty", "InProcess", "Stateless", "Transport", "open_transport"]
