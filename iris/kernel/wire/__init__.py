"""Wire format: bytes to messages and back.  Frame header, messages, batches, user payloads.

It promises that a frame header is parsed by hand, that msgpack sees nothing before a frame is authenticated, that what
is handed on fits the type of its message, and that functions named ``*_untrusted``, which read what a peer sent, raise
only RemoteProtocolError.  This room alone imports msgpack.  It does not encrypt (iris.security.channel) and does not
know what a message means (cluster, patterns).
"""

from iris.kernel.wire.codec import (
    CHECK, ELEMENT, MAX_CARRIED, MAX_CHECKS, MAX_ELEMENTS, MAX_MESSAGES, RELAYED_CHECK, BatchDecoder,
    Elements, array_length, carried_by, encode_batch, pack, unpack_untrusted,
)  # fmt: skip
from iris.kernel.wire.header import (
    COPY, DATA, HANDSHAKE_FINISH, HANDSHAKE_INIT, HANDSHAKE_RESPONSE, HEADER, HEADER_SIZE, MAX_FRAME, VERSION,
    largest_frame, parse_header_untrusted, receiver_untrusted,
)  # fmt: skip
from iris.kernel.wire.kinds import MAX_ARRAY, MAX_NUMBER, Headers, Message, Payload, node_of, saturated
from iris.kernel.wire.payload import (
    MAX_CONTAINERS, MAX_DEPTH, decode_headers_untrusted, decode_payload_untrusted,
    encode_headers, encode_payload, headers_bytes, headers_size, join_payload, payload_size,
    split_payload,
)  # fmt: skip

__all__ = (
    "CHECK", "COPY", "DATA", "ELEMENT", "HANDSHAKE_FINISH", "HANDSHAKE_INIT", "HANDSHAKE_RESPONSE", "HEADER",
    "HEADER_SIZE", "MAX_ARRAY", "MAX_CARRIED", "MAX_CHECKS", "MAX_CONTAINERS", "MAX_DEPTH", "MAX_ELEMENTS",
    "MAX_FRAME", "MAX_MESSAGES", "MAX_NUMBER", "RELAYED_CHECK", "VERSION", "BatchDecoder", "Elements", "Headers",
    "Message", "Payload", "array_length", "carried_by", "decode_headers_untrusted", "decode_payload_untrusted",
    "encode_batch", "encode_headers", "encode_payload", "headers_bytes", "headers_size", "join_payload",
    "largest_frame", "node_of", "pack", "parse_header_untrusted", "payload_size", "receiver_untrusted", "saturated",
    "split_payload", "unpack_untrusted",
)  # fmt: skip
