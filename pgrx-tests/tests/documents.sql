-- What the SQL of README and docs/ speaks of: orders as everybody has them, and carts.
CREATE TABLE orders (
    id         bigint PRIMARY KEY,
    status     text NOT NULL DEFAULT 'pending',
    created_at timestamptz NOT NULL DEFAULT now(),
    pay_by     timestamptz NOT NULL DEFAULT now() + interval '30 minutes'
);

CREATE FUNCTION cancel_order(expired_id bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE orders SET status = 'cancelled' WHERE id = expired_id;
$$;

CREATE TABLE carts (
    id         bigint PRIMARY KEY,
    touched_at timestamptz NOT NULL DEFAULT now(),
    status     text NOT NULL DEFAULT 'open'
);

CREATE FUNCTION empty_carts(ids bigint[]) RETURNS void LANGUAGE sql AS $$
    UPDATE carts SET status = 'empty' WHERE id = ANY (ids);
$$;
