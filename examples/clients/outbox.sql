-- What the clients of this folder write: the outbox of refunds, and how far its reader has come. Both are
-- written by one transaction, so each event is dealt with exactly once, whatever happens to the client.
CREATE TABLE refund (
    n         bigint GENERATED ALWAYS AS IDENTITY,
    event_id  bigint PRIMARY KEY,   -- the idempotency key: whoever pays the refund passes it on
    order_key jsonb NOT NULL
);

CREATE TABLE refund_place (last_id bigint NOT NULL);
INSERT INTO refund_place VALUES (0);
