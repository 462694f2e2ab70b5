-- The shop of every contest: the same tables, index and functions for each rival.
-- Of its thousand articles a hundred sell.
CREATE TABLE stock (sku int PRIMARY KEY, qty bigint NOT NULL);
INSERT INTO stock SELECT sku, 1000000 FROM generate_series(1, 1000) sku;

CREATE TABLE orders (
    id      bigint PRIMARY KEY,
    sku     int NOT NULL REFERENCES stock,
    status  text NOT NULL DEFAULT 'pending',
    pay_by  timestamptz NOT NULL
);
CREATE SEQUENCE order_id CACHE 100;
CREATE INDEX orders_deadline ON orders (pay_by) WHERE status = 'pending';

-- One order. Some of those who call it may do so twice for an order, or for one that was paid.
CREATE FUNCTION cancel_order(order_id bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ordered int;
BEGIN
    UPDATE orders SET status = 'cancelled' WHERE id = order_id AND status = 'pending' RETURNING sku INTO ordered;
    UPDATE stock SET qty = qty + 1 WHERE sku = ordered;
END $$;

-- A batch: each stock row once, in the order of its key.
CREATE FUNCTION cancel_orders(order_ids bigint[]) RETURNS void LANGUAGE sql AS $$
    WITH cancelled AS (UPDATE orders SET status = 'cancelled' WHERE id = ANY (order_ids) RETURNING sku),
         units AS (SELECT sku, count(*) AS n FROM cancelled GROUP BY sku ORDER BY sku)
    UPDATE stock SET qty = qty + units.n FROM units WHERE stock.sku = units.sku
$$;

-- What one would write by hand, in one transaction a batch, until nothing is due. No event, no notification.
CREATE PROCEDURE drain_by_batch(batch_size int) LANGUAGE plpgsql AS $$
DECLARE
    due timestamptz := clock_timestamp();
    cancelled bigint;
BEGIN
    LOOP
        WITH claimed AS MATERIALIZED (
                 SELECT id FROM orders WHERE status = 'pending' AND pay_by <= due
                 ORDER BY pay_by LIMIT batch_size FOR UPDATE SKIP LOCKED),
             cancelled AS (
                 UPDATE orders o SET status = 'cancelled' FROM claimed WHERE o.id = claimed.id RETURNING sku),
             units AS (SELECT sku, count(*) AS n FROM cancelled GROUP BY sku ORDER BY sku),
             restored AS (UPDATE stock SET qty = qty + units.n FROM units WHERE stock.sku = units.sku)
        SELECT sum(n) INTO cancelled FROM units;
        EXIT WHEN cancelled IS NULL;
        COMMIT;
    END LOOP;
END $$;

-- The same with the row function, called for each claimed row.
CREATE PROCEDURE drain_by_row(batch_size int) LANGUAGE plpgsql AS $$
DECLARE
    due timestamptz := clock_timestamp();
    cancelled bigint;
BEGIN
    LOOP
        WITH claimed AS MATERIALIZED (
                 SELECT id FROM orders WHERE status = 'pending' AND pay_by <= due
                 ORDER BY pay_by LIMIT batch_size FOR UPDATE SKIP LOCKED)
        SELECT count(cancel_order(id)::text) INTO cancelled FROM claimed;
        EXIT WHEN cancelled = 0;
        COMMIT;
    END LOOP;
END $$;

-- For several at once: without locking the stock in the order of its key they would meet in deadlocks.
CREATE FUNCTION cancel_orders_in_turn(order_ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM stock WHERE sku IN (SELECT sku FROM orders WHERE id = ANY (order_ids)) ORDER BY sku FOR UPDATE;
    PERFORM cancel_orders(order_ids);
END $$;

CREATE PROCEDURE drain_in_turn(batch_size int) LANGUAGE plpgsql AS $$
DECLARE
    due timestamptz := clock_timestamp();
    claimed bigint[];
BEGIN
    LOOP
        SELECT array_agg(id) INTO claimed FROM (
            SELECT id FROM orders WHERE status = 'pending' AND pay_by <= due
            ORDER BY pay_by LIMIT batch_size FOR UPDATE SKIP LOCKED) o;
        EXIT WHEN claimed IS NULL;
        PERFORM cancel_orders_in_turn(claimed);
        COMMIT;
    END LOOP;
END $$;
