-- The common set-up of most tests: a stock, its orders, and how an order is cancelled.
CREATE TABLE stock (sku int PRIMARY KEY, qty int NOT NULL);
INSERT INTO stock VALUES (1, 1000000);

CREATE TABLE orders (
    id           bigint PRIMARY KEY,
    sku          int NOT NULL DEFAULT 1 REFERENCES stock,
    status       text NOT NULL DEFAULT 'pending',
    pay_by       timestamptz,
    cancelled_at timestamptz
);

CREATE FUNCTION cancel_order(order_id bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = order_id);
    UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id;
END $$;
