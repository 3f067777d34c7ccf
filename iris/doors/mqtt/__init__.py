"""The door for MQTT 3.1.1 and 5: its clients publish events, subscribe to topics, ask clusters and serve them.

::

    mosquitto_sub -p 1883 -u any -P $TOKEN -t 'orders/#'

The password is the token; the user name says nothing.  ``/`` in MQTT is ``.`` in Iris, ``+`` is ``*``, ``#`` is ``>``;
``$share/GROUP/FILTER`` of MQTT 5 is a group.  With the content type ``application/json`` a payload is a value,
else bytes; user properties are headers; what is retained, this node keeps.

Promises: QoS 1 is acknowledged once every durable subscriber has the event on disk.  Where there is none, it is not
published; then, or if it takes too long, MQTT 5 is told the reason 0x83, and a connection of 3.1.1, which knows no
reasons, ends.  Events reach clients by QoS 0, at most once, in the order of each publisher and topic: what is lost is
counted, and MQTT 5 is told by the user property ``iris-missed``.  Messages are published in the order in which a
connection brings them.  A client that comes back with its identifier, to this door or another one, ends its connection
of before, whose will is published first.  All is bounded, and what a client sends or does not read costs that client
alone.

A request of MQTT 5 goes to ``$call/CLUSTER``, and its reply to the response topic; who subscribes to ``$serve/CLUSTER``
gets requests and publishes replies to theirs.

Not here: QoS 2, sessions that outlive connections, topic aliases and "no local", which are refused; the expiry of
messages and the format of payloads, which are not passed on; "retain as published": only what was published before the
subscription says that it is retained. Filters that overlap have an event each.
"""

from iris.doors.mqtt.counters import MqttStatistics
from iris.doors.mqtt.door import MqttDoor, open_mqtt_door

__all__ = ("MqttDoor", "MqttStatistics", "open_mqtt_door")
