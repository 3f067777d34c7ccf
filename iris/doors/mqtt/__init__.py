"""The door for MQTT 3.1.1 and 5: its topics are those of Iris."""
