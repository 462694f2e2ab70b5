"""Cancels the orders whose messages have expired and come in as dead letters."""

import os

import pika
import psycopg

PREFETCH = 100

db = psycopg.connect(autocommit=True)


def cancel(channel, method, _properties, body):
    db.execute("SELECT cancel_order(%s)", [int(body)])
    channel.basic_ack(method.delivery_tag)


parameters = pika.ConnectionParameters("127.0.0.1", int(os.environ["RABBITMQ_PORT"]))
channel = pika.BlockingConnection(parameters).channel()
channel.basic_qos(prefetch_count=PREFETCH)
channel.basic_consume("cancel", cancel)
print("ready", flush=True)
channel.start_consuming()
