"""Run one test of Eclipse Paho's suite: ``FOLDER MODULE TEST PORT``, and the token in ``TOKEN``.

Two things are other than there: the client says its token, and sends nothing above the door's Maximum QoS.  The door
is a new one, of which nothing has to be cleaned.
"""

from __future__ import annotations

import importlib
import os
import sys
import unittest
from typing import Any

folder, module, name, port = sys.argv[1:]
sys.path.insert(0, folder)
suite: Any = importlib.import_module(module)
client = suite.mqtt_client.Client
connect, publish = client.connect, client.publish


def connect_with_token(self: Any, **options: Any) -> Any:
    return connect(self, username="any", password=os.environ["TOKEN"].encode(), willQoS=1, **options)


def publish_within(self: Any, topic: str, payload: bytes, qos: int = 0, **options: Any) -> Any:
    return publish(self, topic, payload, min(qos, 1), **options)


client.connect, client.publish = connect_with_token, publish_within
suite.cleanup = lambda: None
suite.host, suite.port, suite.topic_prefix = "127.0.0.1", int(port), "client_test5/"
suite.topics = "TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA"
suite.wildtopics = "TopicA/+", "+/C", "#", "/#", "/+", "+/+", "TopicA/#"
suite.nosubscribe_topics = ("test/nosubscribe",)
suite.setData = lambda: None
result = unittest.TextTestRunner().run(unittest.TestSuite([suite.Test(name)]))
sys.stderr.flush()
os._exit(not result.wasSuccessful())  # the clients' threads go on
