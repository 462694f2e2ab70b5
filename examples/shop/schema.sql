-- A small shop. An order takes its items out of the stock at once and may use up points of the
-- customer's; it has to be paid by pay_by, or all of that must be undone.

CREATE TABLE customers (
    id     int PRIMARY KEY,
    name   text NOT NULL,
    points int NOT NULL CHECK (points >= 0)
);

CREATE TABLE stock (
    sku   text PRIMARY KEY,
    price numeric NOT NULL,
    qty   int NOT NULL CHECK (qty >= 0)
);

CREATE TABLE orders (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer int NOT NULL REFERENCES customers,
    points   int NOT NULL,
    status   text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'paid', 'cancelled')),
    pay_by   timestamptz NOT NULL
);

CREATE TABLE order_items (
    order_id bigint NOT NULL REFERENCES orders,
    sku      text NOT NULL REFERENCES stock,
    qty      int NOT NULL CHECK (qty > 0),
    PRIMARY KEY (order_id, sku)
);

CREATE TABLE payments (
    order_id bigint PRIMARY KEY REFERENCES orders,
    paid_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What other services still have to do; the one that keeps the points reads it.
CREATE TABLE outbox (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task text NOT NULL,
    body jsonb NOT NULL
);

CREATE FUNCTION place_order(customer_id int, items jsonb, points_used int, time_to_pay interval,
                            OUT order_id bigint, OUT pay_by timestamptz)
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE customers SET points = points - points_used WHERE id = customer_id;
    INSERT INTO orders (customer, points, pay_by)
        VALUES (customer_id, points_used, clock_timestamp() + time_to_pay)
        RETURNING orders.id, orders.pay_by INTO order_id, pay_by;
    INSERT INTO order_items SELECT order_id, key, value::int FROM jsonb_each_text(items);
    -- Always in the same order, so that two orders never wait for each other.
    PERFORM FROM stock WHERE sku IN (SELECT key FROM jsonb_each(items)) ORDER BY sku FOR UPDATE;
    UPDATE stock s SET qty = s.qty - i.value::int FROM jsonb_each_text(items) i WHERE s.sku = i.key;
END $$;

-- The payment's foreign key locks the order: pg_expiry leaves it alone until this has committed,
-- and a payment that comes too late finds the order cancelled and fails as a whole.
CREATE FUNCTION pay_order(paid_id bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO payments (order_id) VALUES (paid_id);
    UPDATE orders SET status = 'paid' WHERE id = paid_id AND status = 'pending';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'order % is cancelled', paid_id;
    END IF;
END $$;

-- Called by pg_expiry when the time is up. All of it commits with the event, or none.
CREATE FUNCTION cancel_order(expired_id bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM stock JOIN order_items USING (sku) WHERE order_id = expired_id ORDER BY sku FOR UPDATE OF stock;
    UPDATE stock s SET qty = s.qty + i.qty FROM order_items i WHERE i.order_id = expired_id AND s.sku = i.sku;
    UPDATE orders SET status = 'cancelled' WHERE id = expired_id;
    INSERT INTO outbox (task, body)
        SELECT 'refund points', jsonb_build_object('order', id::text, 'customer', customer, 'points', points)
        FROM orders WHERE id = expired_id AND points > 0;
END $$;

INSERT INTO customers VALUES (1, 'Ada', 1000), (2, 'Ben', 1000), (3, 'Chen', 1000);
INSERT INTO stock VALUES ('cup', 9.00, 100), ('pot', 25.00, 100), ('tea', 4.50, 100);
