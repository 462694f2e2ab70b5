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

-- One statement, one transaction.
CREATE PROCEDURE drain_at_once() LANGUAGE sql AS $$
    WITH claimed AS MATERIALIZED (
             SELECT id FROM orders WHERE status = 'pending' AND pay_by <= now()
             ORDER BY pay_by FOR UPDATE SKIP LOCKED),
         cancelled AS (UPDATE orders o SET status = 'cancelled' FROM claimed WHERE o.id = claimed.id RETURNING sku),
         units AS (SELECT sku, count(*) AS n FROM cancelled GROUP BY sku ORDER BY sku)
    UPDATE stock SET qty = qty + units.n FROM units WHERE stock.sku = units.sku
$$;

-- What pg_expiry does besides, written by hand: for each order a record, whose ids come in the order of the commits,
-- and a notification.
CREATE TABLE told (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key         jsonb NOT NULL,
    kind        text NOT NULL,
    deadline    timestamptz,
    occurred_at timestamptz NOT NULL
);

CREATE FUNCTION tell(order_ids bigint[]) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(1);
    WITH new AS (
        INSERT INTO told (key, kind, deadline, occurred_at)
        SELECT jsonb_build_object('id', id::text), 'cancelled', pay_by, clock_timestamp()
        FROM orders WHERE id = ANY (order_ids) RETURNING *)
    SELECT count(pg_notify('told', to_json(new)::text)) FROM new
$$;

-- What one would write by hand, in one transaction a batch, until nothing is due. The keys go over as an array: a join
-- with the claimed rows, in the statement that claims them, reads the whole table for each batch when the planner
-- expects more of them than there are.
CREATE PROCEDURE drain_by_batch(batch_size int, tells boolean) LANGUAGE plpgsql AS $$
DECLARE
    due timestamptz := clock_timestamp();
    claimed bigint[];
BEGIN
    LOOP
        SELECT array_agg(id) INTO claimed FROM (
            SELECT id FROM orders WHERE status = 'pending' AND pay_by <= due
            ORDER BY pay_by LIMIT batch_size FOR UPDATE SKIP LOCKED) o;
        EXIT WHEN claimed IS NULL;
        PERFORM cancel_orders(claimed);
        IF tells THEN
            PERFORM tell(claimed);
        END IF;
        COMMIT;
    END LOOP;
END $$;

-- The same with the row function, called for each claimed row.
CREATE PROCEDURE drain_by_row(batch_size int, tells boolean) LANGUAGE plpgsql AS $$
DECLARE
    due timestamptz := clock_timestamp();
    claimed bigint[];
    cancelled bigint;
BEGIN
    LOOP
        WITH claimed AS MATERIALIZED (
                 SELECT id FROM orders WHERE status = 'pending' AND pay_by <= due
                 ORDER BY pay_by LIMIT batch_size FOR UPDATE SKIP LOCKED)
        SELECT array_agg(id), count(cancel_order(id)::text) INTO claimed, cancelled FROM claimed;
        EXIT WHEN cancelled = 0;
        IF tells THEN
            PERFORM tell(claimed);
        END IF;
        COMMIT;
    END LOOP;
END $$;

-- For several at once: without locking the stock in the order of its key they would meet in deadlocks.
CREATE FUNCTION cancel_orders_in_turn(order_ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM stock WHERE sku IN (SELECT sku FROM orders WHERE id = ANY (order_ids)) ORDER BY sku FOR UPDATE;
    PERFORM cancel_orders(order_ids);
END $$;

CREATE PROCEDURE drain_in_turn(batch_size int, tells boolean) LANGUAGE plpgsql AS $$
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
        IF tells THEN
            PERFORM tell(claimed);
        END IF;
        COMMIT;
    END LOOP;
END $$;
