-- From CREATE EXTENSION to the first cancelled row, as the reader of docs/packages.md does it.
CREATE EXTENSION pg_expiry;
CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL DEFAULT 'pending', pay_by timestamptz NOT NULL);
CREATE FUNCTION cancel_order(order_id bigint) RETURNS void LANGUAGE sql
    AS $$ UPDATE orders SET status = 'cancelled' WHERE id = order_id $$;
SELECT expiry.create_policy('orders',
    deadline        => 'pay_by',
    predicate       => $$status = 'pending'$$,
    cancel_function => 'cancel_order(bigint)');
INSERT INTO orders VALUES (42, DEFAULT, now() + interval '1 second'), (43, DEFAULT, now() + interval '1 day');
CALL expiry.wait_for_events(0, '60 seconds');
SELECT orders.id, status, kind, occurred_at >= pay_by
    FROM orders LEFT JOIN expiry.event ON key = jsonb_build_object('id', orders.id::text) ORDER BY orders.id;
