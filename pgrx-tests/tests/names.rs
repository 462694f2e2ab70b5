//! Names of all kinds, each of which PostgreSQL takes.

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Db, db_error, wait_for_value};

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A table with such names, two rows that are due and one that is not, and a policy on it. Returns its name.
struct Names<'a> {
    schema: &'a str,
    table: &'a str,
    key: &'a str,
    status: &'a str,
    pay_by: &'a str,
    function: &'a str,
}

impl Names<'_> {
    fn table(&self) -> String {
        format!("{}.{}", quoted(self.schema), quoted(self.table))
    }

    fn create_policy(&self, client: &mut Client, more: &str) -> String {
        let Self { schema, table, key, status, pay_by, function } = *self;
        let [key, status, pay_by, function] = [key, status, pay_by, function].map(quoted);
        let (whole, function) = (self.table(), format!("{}.{function}", quoted(schema)));
        client
            .batch_execute(&format!(
                "CREATE SCHEMA IF NOT EXISTS {schema};
                 CREATE TABLE {whole} ({key} uuid PRIMARY KEY, {status} text DEFAULT 'pending', {pay_by} timestamptz);
                 CREATE FUNCTION {function}(k uuid) RETURNS void LANGUAGE sql AS
                     $body$ UPDATE {whole} SET {status} = 'cancelled' WHERE {key} = k $body$;
                 INSERT INTO {whole} SELECT gen_random_uuid(), 'pending', t
                     FROM unnest(ARRAY[now(), '-infinity', now() + interval '1 h']) t",
                schema = quoted(schema)
            ))
            .unwrap_or_else(|error| panic!("{table}: {error:?}"));
        let sql = format!(
            "SELECT expiry.create_policy({}, {}, {}, {}{more})",
            literal(&whole),
            literal(&pay_by),
            literal(&format!("{status} = 'pending'")),
            literal(&format!("{function}(uuid)"))
        );
        client.query_one(&sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Its two rows are cancelled, each with an event that names the policy, and thereby the relation.
    #[track_caller]
    fn assert_cancelled(&self, client: &mut Client, policy: &str) {
        let (key, status, whole) = (quoted(self.key), quoted(self.status), self.table());
        let cancelled = format!("SELECT count(*) FROM {whole} WHERE {status} = 'cancelled'");
        wait_for_value(client, &cancelled, 2_i64);
        let events = format!(
            "SELECT count(*) FROM expiry.event e JOIN expiry.policy p ON p.name = e.policy
             JOIN {whole} t ON t.{key}::text = e.key->>{} WHERE e.policy = $1 AND p.relation = {}::regclass AND e.kind = 'cancelled'",
            literal(self.key),
            literal(&whole)
        );
        assert_eq!(client.query_one(&events, &[&policy]).unwrap().get::<_, i64>(0), 2, "{whole}");
        let all = "SELECT count(*) FROM expiry.event WHERE policy = $1";
        assert_eq!(client.query_one(all, &[&policy]).unwrap().get::<_, i64>(0), 2, "{whole}");
    }
}

/// What can be done with a policy, by its name.
fn use_by_name(client: &mut Client, policy: &str) {
    for call in [
        "SELECT expiry.pause($1)",
        "SELECT expiry.resume($1)",
        "SELECT expiry.alter_policy($1, batch_size => 7)",
        "SELECT count(*) FROM expiry.preview($1)",
        "SELECT expiry.retry($1)",
        "SELECT count(*) FROM expiry.events_after(0, name => $1)",
        "SELECT expiry.subscribe($1, $1, 0)",
        "SELECT count(*) FROM expiry.fetch_events($1)",
        "SELECT expiry.unsubscribe($1)",
    ] {
        client.query_one(call, &[&policy]).unwrap_or_else(|error| panic!("{call}: {error:?}"));
    }
    client.batch_execute(&format!("CALL expiry.run({})", literal(policy))).unwrap();
    let state = "SELECT state FROM expiry.status WHERE name = $1";
    assert_eq!(client.query_one(state, &[&policy]).unwrap().get::<_, String>(0), "active");
}

/// R54: the names of the case, words of SQL, the longest there are, and those that hold what quotes and formats.
#[test]
fn names_that_must_be_quoted() {
    let db = Db::with_extension();
    let mut client = db.connect();
    let long: [String; 6] = ["s", "t", "k", "ü", "p", "f"].map(|letter| {
        let last = "x".repeat(letter.len() - 1);
        letter.repeat(63 / letter.len()) + &last[..63 % letter.len()]
    });
    let tables = [
        Names {
            schema: "My Shop",
            table: "Order;Items",
            key: "ID",
            status: "Status",
            pay_by: "Pay By",
            function: "Cancel It",
        },
        Names {
            schema: "select",
            table: "table",
            key: "user",
            status: "select",
            pay_by: "order",
            function: "from",
        },
        Names {
            schema: &long[0],
            table: &long[1],
            key: &long[2],
            status: &long[3],
            pay_by: &long[4],
            function: &long[5],
        },
        Names { schema: "a.b", table: "c.d", key: "e.f", status: "g.h", pay_by: "i.j", function: "k.l" },
        Names { schema: "it's", table: "say \"so\"", key: "\"", status: "'", pay_by: "\\", function: "$$" },
        Names { schema: "%I", table: "%s%n", key: "{}", status: "$1", pay_by: "$2", function: "?" },
        Names {
            schema: "магазин", table: "订单", key: "clé", status: "ß", pay_by: "期限", function: "取消"
        },
        Names { schema: " ", table: "  ", key: "   ", status: "\t", pay_by: "\n", function: "-- x" },
        Names {
            schema: "Expiry",
            table: "orders",
            key: "id",
            status: "now",
            pay_by: "key",
            function: "cancel",
        },
        Names {
            schema: "pgexpiry",
            table: "pg_expiry_row",
            key: "pg_expiry_n",
            status: "k0",
            pay_by: "deadline",
            function: "is_waiting",
        },
    ];
    for names in &tables {
        let policy = names.create_policy(&mut client, "");
        assert_eq!(policy, names.table);
        names.assert_cancelled(&mut client, &policy);
        use_by_name(&mut client, &policy);
    }
    // Each has one index of ours, with a name that it may have; and it goes with its policy.
    let indexes = "SELECT count(DISTINCT b.index) FROM expiry.binding b JOIN pg_index i ON i.indexrelid = b.index AND i.indisvalid";
    wait_for_value(&mut client, indexes, i64::try_from(tables.len()).unwrap());
    client.batch_execute("SELECT expiry.drop_policy(name) FROM expiry.policy").unwrap();
    wait_for_value(
        &mut client,
        "SELECT count(*) FROM pg_class WHERE relname LIKE '%\\_expiry\\_idx%'",
        0_i64,
    );
}

/// R54: one table name in several schemas, with functions of one name, under policies of which each has a name of
/// its own; a search path that has them all makes no difference.
#[test]
fn names_that_there_are_twice() {
    let db = Db::with_extension();
    let mut client = db.connect();
    client
        .batch_execute("CREATE SCHEMA test; CREATE SCHEMA test2; SET search_path = test2, test, public")
        .unwrap();
    let in_schema = |schema| Names {
        schema,
        table: "orders",
        key: "id",
        status: "status",
        pay_by: "pay_by",
        function: "cancel_order",
    };
    let tables = [in_schema("test"), in_schema("test2"), in_schema("public"), in_schema("Test")];
    let policies: Vec<String> = tables.iter().map(|names| names.create_policy(&mut client, "")).collect();
    assert_eq!(policies, ["orders", "test2.orders", "public.orders", "Test.orders"]);
    for (names, policy) in tables.iter().zip(&policies) {
        names.assert_cancelled(&mut client, policy);
    }
    let relations = "SELECT string_agg(relation::text, ' ' ORDER BY relation::text) FROM expiry.policy";
    client.batch_execute("SET search_path = pg_catalog").unwrap();
    let relations: String = client.query_one(relations, &[]).unwrap().get(0);
    assert_eq!(relations, "\"Test\".orders public.orders test.orders test2.orders");
    // One paused is one paused.
    client.batch_execute("SELECT expiry.pause('test2.orders')").unwrap();
    for schema in ["test", "test2", "public"] {
        client
            .batch_execute(&format!("UPDATE {schema}.orders SET pay_by = now() WHERE status = 'pending'"))
            .unwrap();
    }
    for (schema, cancelled) in [("test", 3_i64), ("public", 3), ("test2", 2)] {
        let sql = format!("SELECT count(*) FROM {schema}.orders WHERE status = 'cancelled'");
        wait_for_value(&mut client, &sql, cancelled);
    }
    // Two policies on one table, by two names; the second function finds nothing left to do.
    client
        .batch_execute("SELECT expiry.create_policy('test.orders', 'pay_by', $$status = 'late'$$, 'test.cancel_order(uuid)', name => 'late')")
        .unwrap();
    client.batch_execute("INSERT INTO test.orders VALUES (gen_random_uuid(), 'late', now())").unwrap();
    wait_for_value(&mut client, "SELECT count(*) FROM expiry.event WHERE policy = 'late'", 1_i64);
    assert_eq!(
        client
            .query_one("SELECT count(*) FROM expiry.event WHERE policy = 'orders'", &[])
            .unwrap()
            .get::<_, i64>(0),
        3
    );
}

/// R54: database and role.
#[test]
fn names_of_database_and_role() {
    let place = Db::new();
    let name = format!("My \"Shop's\"; {}", &place.name);
    let (database, role) = (quoted(&name), quoted(&format!("{name} role")));
    let mut client = place.connect();
    client.batch_execute(&format!("CREATE DATABASE {database}")).unwrap();
    client.batch_execute(&format!("CREATE ROLE {role} LOGIN")).unwrap();
    let mut superuser = place.endpoint.connect(&name);
    superuser
        .batch_execute(&format!("CREATE EXTENSION pg_expiry; GRANT CREATE ON DATABASE {database} TO {role}"))
        .unwrap();
    let mut owner = place.endpoint.connect_as(&name, &format!("{name} role"));
    let names =
        Names { schema: "s", table: "orders", key: "id", status: "status", pay_by: "pay_by", function: "f" };
    let policy = names.create_policy(&mut owner, "");
    names.assert_cancelled(&mut owner, &policy);
    use_by_name(&mut owner, &policy);
    let worker = "SELECT count(*) FROM expiry.workers WHERE database = current_database() AND owner = current_user AND pid IS NOT NULL";
    wait_for_value(&mut owner, worker, 1_i64);
    drop((superuser, owner));
    client.batch_execute(&format!("DROP DATABASE {database}")).unwrap();
    client.batch_execute(&format!("DROP ROLE {role}")).unwrap();
}

/// Parentheses in quotes are part of a name, not where the arguments begin.
#[test]
fn function_with_parentheses_is_found_by_its_name_alone() {
    let db = Db::with_extension();
    let mut client = db.connect();
    client
        .batch_execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, pay_by timestamptz, status text DEFAULT 'pending');
             INSERT INTO orders VALUES (1, now());
             CREATE FUNCTION \"cancel (late)\"(order_id bigint) RETURNS void LANGUAGE sql AS
                 $$ UPDATE orders SET status = 'cancelled' WHERE id = order_id $$;
             CREATE FUNCTION \"two (arguments)\"(a bigint, b bigint) RETURNS void LANGUAGE sql AS ''",
        )
        .unwrap();
    let create = "SELECT expiry.create_policy('orders', 'pay_by', $$status = 'pending'$$, $1)";
    for unfit in ["\"two (arguments)\"", "\"not (there)\""] {
        let error = db_error(client.query(create, &[&unfit]));
        let form = format!("{unfit}(bigint) for each row");
        assert!(error.hint().is_some_and(|hint| hint.contains(&form)), "{error:?}");
    }
    client.execute(create, &[&"public.\"cancel (late)\""]).unwrap();
    wait_for_value(&mut client, "SELECT count(*) FROM orders WHERE status = 'cancelled'", 1_i64);
}
